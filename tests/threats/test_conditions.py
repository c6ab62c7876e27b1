"""Linear conditions on outputs: read as they are written, and kept at every point of a ball."""

from fractions import Fraction

import keras
import numpy as np
import pytest
from attacked import ball, float32_network, model_of
from scripts import call

from keras_curv import InputError, Property, certify
from keras_curv.network.affine import Affine

CONDITIONS = "y0 - y1 > -0.5; 2*y1 + y2 <= 6"


def satisfied(z, slack=0.0):
    return (z[:, 0] - z[:, 1] > -0.5 - slack) & (2.0 * z[:, 1] + z[:, 2] < 6.0 + slack)


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("method", ["crc", "crown", "lipschitz", "auto"])
def test_conditions_hold_within_the_radius(method, norm, rng, random_network):
    network = float32_network(rng, random_network, (2, 9, 3), "tanh")
    x = rng.standard_normal((40, 2)).astype(np.float32)
    held = Property.linear(CONDITIONS)
    found = certify(model_of(network), x, property=held, method=method, threat={"norm": norm})
    at_x = satisfied(network.logits(x.astype(float)).numpy())
    assert np.array_equal(found.prediction == 1, at_x) and 0 < at_x.sum() < 40
    assert np.all((found.radius > 0.0) == at_x)
    for row, radius, rival in zip(
        x[at_x], found.radius[at_x], found.nearest_rival[at_x], strict=True
    ):
        points = ball(2, 1.0, rng)
        points = row + radius * (1.0 - 1e-6) * (np.sign(points) if norm == "linf" else points)
        assert satisfied(network.logits(points).numpy()).all() and rival in (0, 1)
    if method == "crown":
        near = found.radius / found.adversarial_distance
        assert norm == "l2" or np.median(near[np.isfinite(near) & at_x]) > 0.3


def test_a_linear_model_has_its_exact_radius(rng):
    kernel = rng.standard_normal((4, 3)).astype(np.float32)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.layers[0].set_weights([kernel, np.zeros(3, np.float32)])
    x = rng.standard_normal((20, 4)).astype(np.float32)
    found = certify(model, x, property="linear:y0 > 2*y2 - 1", method="crc")
    weights = kernel[:, 0] - 2.0 * kernel[:, 2].astype(float)
    margin = x.astype(float) @ weights + 1.0
    expected = np.maximum(margin, 0.0) / np.linalg.norm(weights)
    np.testing.assert_allclose(found.radius, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("y0>y1", "y0-y1>0.0"),
        ("y_0 >= 0.5*y_1 + 0.5", "y0-0.5*y1>0.5"),
        ("1 < 2y2 - y0 + 3", "-y0+2.0*y2>-2.0"),
        ("Y1 + Y1 - 3 > 1e-3", "2.0*y1>3.001"),
        ("y0>y1\ny2<4  # a comment\n\n", "y0-y1>0.0;-y2>-4.0"),
    ],
)
def test_conditions_are_read_as_they_are_written(text, spelling, tmp_path):
    held = Property.linear(text)
    assert held.spelling == f"linear:{spelling}" and Property.parse(held.spelling) == held
    path = tmp_path / "held.txt"
    path.write_text(text)
    assert Property.parse(f"linear:{path}") == held


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "takes from 1 to"),
        ("y0", "must compare two sums"),
        ("0 < y0 < 1", "must compare two sums"),
        ("1 > 0", "about no output"),
        ("y0 > y0", "about no output"),
        ("y0 > x1", "is no sum"),
        ("y0 > 2*", "is no sum"),
        ("y0 * y1 > 0", "is no sum"),
        ("y0 > 1e999", "a number"),
        ("1e200*y0 > 1", "at most"),
        ("y0 > nan", "is no sum"),
        (";".join(["y0>1"] * 2000), "takes from 1 to"),
        ("no/such/file.txt", "cannot be read"),
    ],
)
def test_what_is_no_condition_is_refused(text, message, script, capfd):
    with pytest.raises(InputError, match=message):
        Property.parse(f"linear:{text}")
    code, _, err = call(script, capfd, "--limit=2", f"--property=linear:{text}")
    assert code == 2 and err.count("\n") == 1


def test_models_that_they_do_not_fit_are_refused(rng, random_network):
    network = float32_network(rng, random_network, (2, 9, 3), "tanh")
    x = np.zeros((1, 2), np.float32)
    with pytest.raises(InputError, match="names output 3, but the model has 3"):
        certify(model_of(network), x, property="linear:y3>0")
    with pytest.raises(InputError, match="softmax"):
        certify(model_of(network, "softmax"), x, property="linear:y0>0.5")
    with pytest.raises(InputError, match="no guarantee float32"):
        certify(model_of(network), x, property="linear:y0>y1", guarantee="float32")


def test_what_is_added_up_and_folded_is_charged(rng, random_network):
    """In exact arithmetic, for kernels as far off as folding may have left them."""
    network = random_network(rng, (2, 9, 3), "tanh")
    last = network.affines[-1]
    error = 1e-3
    folded = Affine(last.kernel, last.bias, kernel_error=error, bias_error=error)
    network = type(network)([network.affines[0], folded], network.activations)
    joined = Property.linear("3*y0 - 7*y1 > 0.1; y2 + 0.3*y0 > 0.7").network(network).affines[-1]
    factors = [[Fraction(3), Fraction(-7), Fraction(0)], [Fraction(0.3), Fraction(0), Fraction(1)]]
    exact = np.array([[-f for f in row] for row in factors], object).T
    kernel = np.vectorize(Fraction, otypes=[object])(last.kernel) @ exact
    off = np.vectorize(float)(
        kernel - np.vectorize(Fraction, otypes=[object])(joined.kernel[:, 1:])
    )
    assert (
        0.0
        < np.linalg.norm(off)
        <= joined.kernel_error - error * np.linalg.norm(exact.astype(float), 2)
    )
    assert joined.bias_error >= error * np.linalg.norm(exact.astype(float), 2)
    assert not joined.kernel[:, 0].any()


def test_the_labels_of_a_named_data_set_are_left_out(script, capfd, tmp_path):
    output = tmp_path / "rows.csv"
    arguments = "--limit=8", "--method=crc", f"--output={output}", "--property=linear:y0 > y1 - 6"
    code, out, err = call(script, capfd, *arguments)
    assert code == 0 and "certified (no labels)" in out, err
    code, _, err = call(script, capfd, *arguments, "--resume")
    assert code == 0, err
