"""Adversarial points of a run: served, inside the threat, and no nearer than any radius proved."""

import keras
import numpy as np
import pytest
import scripts

from keras_curv import certify
from keras_curv.attacks.nearest import nearest_points
from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError
from keras_curv.rows.row import Row
from keras_curv.runs.adversarial import AdversarialPoints
from keras_curv.runs.certify_examples import certify_examples

DIM = 6
LENGTH = {"l2": lambda d: np.linalg.norm(d, axis=1), "linf": lambda d: np.abs(d).max(axis=1),
          "l1": lambda d: np.abs(d).sum(axis=1)}  # fmt: skip
SCALE = np.linspace(0.5, 2.0, DIM)
THREATS = {
    "l2": {},
    "l1": {"norm": "l1"},
    "linf in a box": {"norm": "linf", "low": 0.0, "high": 1.0},
    "weights": {"scale": SCALE.tolist()},
    "frozen": {"frozen": [0, 3], "norm": "linf"},
}


def built(outputs, activation="softplus", last=None):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(12, activation), keras.layers.Dense(outputs, last)]
    return keras.Sequential([keras.Input((DIM,)), *layers])


X = np.random.default_rng(0).uniform(0.0, 1.0, (30, DIM)).astype(np.float32)


def found(path, model, x=X, **options):
    """The file that a run writes, and the radii of the same."""
    options = {"method": "lipschitz", "radii": [0.1], **options}
    certify_examples(model, (x, None), adversarial=str(path), **options)
    del options["radii"]
    with np.load(path) as file:
        return dict(file), certify(model, x, **options).radius


@pytest.mark.parametrize(
    ("name", "activation"), [*((name, "softplus") for name in THREATS), ("linf in a box", "relu")]
)
def test_points_are_served_and_inside_the_threat(name, activation, tmp_path):
    threat, model = THREATS[name], built(4, activation)
    points, radius = found(tmp_path / "a.npz", model, threat=threat)
    met = np.isfinite(points["distance"])
    assert met.mean() > 0.5 and (points["distance"] >= radius * (1.0 - 1e-6)).all()
    served = model.predict(points["x"], verbose=0).argmax(axis=1)
    np.testing.assert_array_equal(served[met], points["becomes"][met])
    assert (served[met] != points["prediction"][met]).all()
    change = points["x"].astype(float) - X
    assert not change[~met].any() and (points["becomes"][~met] == -1).all()
    assert not change[:, threat.get("frozen", [])].any()
    assert (points["x"] >= threat.get("low", -np.inf)).all()
    assert (points["x"] <= threat.get("high", np.inf)).all()
    length = LENGTH[threat.get("norm", "l2")](change / threat.get("scale", np.ones(DIM)))
    np.testing.assert_allclose(points["distance"][met], length[met], rtol=1e-6)


def test_points_of_a_linear_model_are_nearest(tmp_path):
    """Where the distance to the boundary is known in each norm."""
    kernel = np.random.default_rng(1).normal(size=(DIM, 2))
    model = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(2)])
    model.layers[-1].set_weights([kernel, np.zeros(2)])
    w = model.layers[-1].get_weights()[0].astype(float) @ [1.0, -1.0]
    for norm, dual in (("l2", 2), ("linf", 1), ("l1", np.inf)):
        points, _ = found(tmp_path / f"{norm}.npz", model, threat={"norm": norm})
        exact = np.abs(X @ w) / np.linalg.norm(w, dual)
        assert (points["distance"] >= exact * (1.0 - 1e-5)).all()
        assert np.median(points["distance"] / exact) < (1.3 if norm == "l1" else 1.001)


@pytest.mark.parametrize(
    ("spelling", "outputs", "last"),
    [("top_2", 4, None), ("harmful:1,2", 4, None), ("threshold:0.5", 1, "sigmoid"),
     ("interval:0.2", 2, None), ("linear:y0 > y1 - 5", 2, None)],
)  # fmt: skip
def test_every_property_is_searched(spelling, outputs, last, tmp_path):
    model = built(outputs, last=last)
    points, radius = found(tmp_path / "a.npz", model, property=spelling)
    met = np.isfinite(points["distance"]) & (points["distance"] > 0.0)
    assert met.any() and (points["distance"] >= radius * (1.0 - 1e-6)).all()
    before, after = (np.array(model(x)) for x in (X, points["x"]))
    if spelling.startswith("top"):
        label = before.argmax(axis=1)
        above = (after + 1e-5 > after[np.arange(len(X)), label][:, None]).sum(axis=1)
        assert (above[met] - 1 >= 2).all()  # without itself
    elif spelling.startswith("interval"):
        assert (np.abs(after - before).max(axis=1)[met] > 0.2 - 1e-5).all()
    elif spelling.startswith("threshold"):
        assert (np.sign(after[met] - 0.5) != np.sign(before[met] - 0.5)).all()
    elif spelling.startswith("linear"):
        assert (after[met, 0] <= after[met, 1] - 5.0 + 1e-4).all()


@pytest.mark.parametrize(("spelling", "margin"), [("harmful:2", 1.0), ("top_2", 1.0)])
def test_a_property_of_the_label_is_attacked_there_and_not_at_the_prediction(
    spelling, margin, tmp_path
):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.layers[-1].set_weights([np.eye(3), np.zeros(3)])
    x, y = np.array([[2.0, 1.0, 0.0]] * 2, np.float32), np.array([1, 0])
    path = str(tmp_path / "a.npz")
    options = {"property": spelling, "method": "lipschitz", "adversarial": path, "radii": [0.1]}
    certify_examples(model, (x, y), **options)
    with np.load(path) as file:
        assert file["prediction"].tolist() == [0, 0]
        assert file["distance"][0] == pytest.approx(margin / 2**0.5, rel=1e-3)
        assert file["distance"][1] > 1.1


def test_directions_of_a_basis(tmp_path):
    basis = np.ones((DIM, 1))
    points, radius = found(tmp_path / "a.npz", built(4), threat={"basis": basis.tolist()})
    met = np.isfinite(points["distance"])
    assert met.any() and (points["distance"] >= radius * (1.0 - 1e-6)).all()
    change = (points["x"].astype(float) - X)[met]
    assert np.ptp(change, axis=1).max() < 1e-5
    np.testing.assert_allclose(np.abs(change[:, 0]), points["distance"][met], atol=1e-5)


@pytest.mark.parametrize("spelling", ["argmax", "interval:0.2"])
def test_brightness_and_contrast_of_each_example(spelling, tmp_path):
    model, names = built(4), ["brightness", "contrast"]
    points, radius = found(
        tmp_path / "a.npz", model, X[:12], threat={"basis": names}, property=spelling
    )
    met = np.isfinite(points["distance"])
    assert met.sum() > 3 and (points["distance"] >= radius * (1.0 - 1e-6)).all()
    assert np.median((radius / points["distance"])[met]) > 0.3
    for x, point, distance in zip(
        X[:12][met], points["x"][met], points["distance"][met], strict=True
    ):
        directions = np.stack([np.ones(DIM), x - x.astype(float).mean()], axis=1)
        xi, off, *_ = np.linalg.lstsq(directions, point.astype(float) - x, rcond=None)
        assert np.all(off < 1e-9) and np.linalg.norm(xi) == pytest.approx(distance, rel=1e-4)
    if spelling == "argmax":
        served = model.predict(points["x"][met], verbose=0).argmax(axis=1)
        assert (served != points["prediction"][met]).all()


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on(tmp_path, monkeypatch):
    from keras_curv.runs import adversarial

    searches = []

    def counted(*arguments):
        searches.append(len(arguments[-1]))
        return nearest_points(*arguments)

    monkeypatch.setattr(adversarial, "nearest_points", counted)
    certifier = Certifier(built(4), method="lipschitz")
    rows = Row.from_certificates(certifier.certify(X), None, 0, "all")

    def searched(path, batches, **options):
        points = AdversarialPoints(certifier, "{}", **options)
        points.add(rows)
        points.search(batches, str(path))
        return path.read_bytes()

    def killed():
        yield X[:10]
        yield X[10:20]
        raise KeyboardInterrupt

    whole = searched(tmp_path / "whole.npz", [X[:10], X[10:20], X[20:]])
    path = tmp_path / "a.npz"
    with pytest.raises(KeyboardInterrupt):
        searched(path, killed())
    (tmp_path / "a.npz.10.part").write_bytes(b"broken")
    del searches[:]
    assert searched(path, [X[:10], X[10:20], X[20:]], resume=True) == whole
    assert searches == [10, 10]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npz", "whole.npz"]
    with pytest.raises(KeyboardInterrupt):
        searched(path, killed())
    del searches[:]
    searched(path, [X[:10] + 1e-3, X[10:20], X[20:]], resume=True)  # other examples
    assert searches == [10, 10]


def test_the_report_draws_what_is_open(tmp_path):
    report = tmp_path / "r.html"
    options = {"method": "lipschitz", "radii": [0.1]}
    certify_examples(built(4), (X, None), report=str(report), **options)
    assert 'class="attack"' not in report.read_text()
    options["adversarial"] = str(tmp_path / "a.npz")
    certify_examples(built(4), (X, None), report=str(report), **options)
    text = report.read_text()
    assert 'class="attack"' in text and 'class="open"' in text and "Dashed: not yet broken" in text


def test_what_has_no_adversarial_points_is_refused(capfd):
    certify_command = scripts.load("certify")
    with pytest.raises(InputError, match="adversarial points are of the model itself"):
        from keras_curv import ExampleOptions, Smoothing

        ExampleOptions(smoothing=Smoothing(deviation=0.5), adversarial="a.npz")
    status, _, err = scripts.call(certify_command, capfd, "--requests=x", "--adversarial=a.npz")
    assert status == 2 and "--adversarial is not for --requests" in err
