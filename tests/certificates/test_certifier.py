"""`keras_curv.certify` on arrays: the same answers however the model and the batch come."""

import dataclasses
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_curv
from keras_curv import Certifier, InputError, Status, data
from keras_curv.data.examples import Examples

DIGITS = "saved_models/digits"
QUICK = {"method": "lipschitz"}  # where the method does not matter: nothing is searched or traced


@pytest.fixture(scope="module")
def digits(request):
    x, y = data.load_all("digits")
    return str(request.config.rootpath / DIGITS), x, y


def test_it_says_what_it_is(digits):
    certifier = Certifier(digits[0], method="crc", guarantee="float32")
    assert repr(certifier) == f"Certifier({digits[0]!r}, method='crc', guarantee='float32')"


def test_arrays_of_one_entry_for_each_example(digits):
    model, x, y = digits
    result = keras_curv.certify(model, x[:30], y[:30])
    assert all(len(column) == 30 for column in vars(result).values())
    certified = result.status == Status.CERTIFIED
    assert np.array_equal(certified, result.radius > 0)
    assert np.array_equal(certified, result.prediction == y[:30])
    assert np.all(result.adversarial_distance[certified] >= result.radius[certified])
    assert np.all(result.nearest_rival[certified] != y[:30][certified])


@pytest.mark.parametrize(("method", "tolerance"), [("crc", 1e-4), ("auto", 2e-3)])
def test_batch_size_has_no_effect_on_what_is_proved(digits, method, tolerance):
    """Matrix products of another height round otherwise in the last digits, of float32 on the way.

    A search may then end elsewhere within the gap that it leaves, 1e-4 of a radius by `crc`.
    """
    model, x, y = digits
    whole = keras_curv.certify(model, x[:20], y[:20], method=method)
    for size in (1, 7):
        parts = keras_curv.certify(model, x[:20], y[:20], batch_size=size, method=method)
        np.testing.assert_allclose(parts.radius, whole.radius, rtol=tolerance)
        assert np.array_equal(parts.prediction, whole.prediction)


def test_accuracy_at_a_radius_is_that_of_the_rows(digits):
    model, x, y = digits
    result = keras_curv.certify(model, x[:40], y[:40], method="crc")
    summary = keras_curv.certify_examples(model, (x[:40], y[:40]), method="crc", radii=[0.3, 0.6])
    for radius, fraction in summary["certified_accuracy"].items():
        assert result.certified_accuracy(float(radius)) == fraction


def test_decisions_are_those_of_the_radii(digits):
    model, x, y = digits
    whole, decided = (keras_curv.certify(model, x[:40], y[:40], decide=d) for d in (None, [0.6]))
    assert np.array_equal(decided.radius > 0.6, whole.radius > 0.6)
    assert decided.gradient_evaluations.mean() < 0.7 * whole.gradient_evaluations.mean()


def test_random_rivals_depend_on_seed_and_index_alone(digits):
    model, x, _ = digits
    first = keras_curv.certify(model, x[:20], rivals="random", seed=1, **QUICK)
    again = keras_curv.certify(model, x[:20], rivals="random", seed=1, batch_size=3, **QUICK)
    other = keras_curv.certify(model, x[:20], rivals="random", seed=2, **QUICK)
    assert np.array_equal(first.nearest_rival, again.nearest_rival)
    assert not np.array_equal(first.nearest_rival, other.nearest_rival)


def test_live_model_and_its_export_agree(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(11, "tanh"), keras.layers.Dense(4)]
    )
    x = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    model.export(tmp_path / "model", verbose=False)
    live, served = (
        keras_curv.certify(source, x, method="crc") for source in (model, tmp_path / "model")
    )
    np.testing.assert_allclose(live.radius, served.radius, rtol=1e-12)
    assert np.all(live.radius > 0)


def test_input_scale_multiplies_radii(digits):
    """A model of raw pixels is the same classifier in other units."""
    model, x, y = digits
    served = keras_curv.read(model)
    first, last = served.network.affines
    raw = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 256),
            keras.layers.Flatten(),
            keras.layers.Dense(first.fan_out, "softplus"),
            keras.layers.Dense(10),
        ]
    )
    raw.set_weights([first.kernel, first.bias, last.kernel, last.bias])
    examples = data.load("digits").limited(25)
    scaled, plain = (
        keras_curv.certify_examples(one, examples, method="crc", **options)
        for one, options in (
            (raw, {"input_scale": 256.0, "radii": [128.0]}),
            (model, {"radii": [0.5]}),
        )
    )
    assert scaled["mean_radius"] == pytest.approx(256 * plain["mean_radius"], rel=1e-4)
    assert scaled["certified_accuracy"]["128.0"] == plain["certified_accuracy"]["0.5"]


def test_no_retracing_after_the_first_batch(digits):
    model, x, y = digits
    certifier = keras_curv.Certifier(model, method="crc")
    certifier.certify(x[:5], y[:5])
    graph = certifier.method.search_graph(False).func  # without radii to decide
    traces = graph.experimental_get_tracing_count()
    for size in (1, 9, 16):
        certifier.certify(x[:size], y[:size])
    assert graph.experimental_get_tracing_count() == traces == 1


def test_success_rates_are_those_of_the_parts(digits):
    model, x, y = digits
    served = keras_curv.read(model)
    certificate = keras_curv.CurvatureCertificate(served.network)
    flat = x[:50].reshape(50, -1)
    found, worst = keras_curv.success_rates(certificate, flat, y[:50], radius=0.1)
    rows = certificate.certify(flat, y[:50], rivals="runner_up")
    assert found == rows.primal_equals_dual.mean()
    assert 0.9 <= worst <= 1.0  # in a small ball the curvature bound loses nothing


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(x=np.ones((2, 8, 8))), "reshape x"),
        (dict(x=np.full((2, 8, 8, 1), np.nan)), "NaN"),
        (dict(x=np.full((2, 8, 8, 1), 1e39)), "overflow"),
        (dict(y=np.array([1])), "shape"),
        (dict(y=np.array([0.0, 1.0])), "integers"),
        (dict(y=np.array([0, -1])), "label -1"),
        (dict(x=np.ones((8, 8, 1)), y=None), r"one example is x\[None\]"),
        (dict(rivals="worst"), "rivals must be"),
        (dict(batch_size=0), "at least 1"),
        (dict(batch_size="1"), "batch_size must be an integer, at least 1. Received: '1'"),
        (dict(seed=0.5), "seed must be an integer, at least 0. Received: 0.5"),
        (dict(tolerance=None), "tolerance must be from 0 to 1. Received: None"),
        (dict(decide=[0.5, "1"]), "a radius to decide must be a positive number. Received: '1'"),
    ],
)
def test_bad_arguments_are_named(digits, change, message):
    arguments = dict(x=np.ones((2, 8, 8, 1), np.float32), y=np.array([0, 1])) | change
    with pytest.raises(InputError, match=message):
        keras_curv.certify(digits[0], **arguments)


def test_weights_changed_afterwards_change_nothing():
    rng = np.random.default_rng(0)
    kernels = [rng.normal(size=(5, 7)), rng.normal(size=(7, 3))]
    network = keras_curv.Network.from_weights(kernels, [np.zeros(7), np.zeros(3)], "softplus")
    x = rng.normal(size=(9, 5))
    before = keras_curv.CurvatureCertificate(network).certify(x)
    certificate = keras_curv.CurvatureCertificate(network)
    kernels[0] *= 30.0
    np.testing.assert_array_equal(certificate.certify(x).radius, before.radius)
    with pytest.raises(ValueError, match="read-only"):
        network.affines[0].kernel[0, 0] = 1.0


def small_model(dtype="float32", units=4):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((6,), dtype=dtype), keras.layers.Dense(units, "tanh")]
    return keras.Sequential([*layers, keras.layers.Dense(3)])


def test_what_the_conversion_to_the_models_dtype_moves_is_charged():
    """The radius is around the x that was given, not around the float32 next to it."""
    model = small_model()
    x = np.random.default_rng(0).normal(size=(50, 6)) * 1e3
    converted = x.astype(np.float32)
    moved = np.linalg.norm(x - converted, axis=1)
    assert np.all(moved > 0)
    given, served = (keras_curv.certify(model, points, **QUICK) for points in (x, converted))
    certified = served.status == Status.CERTIFIED
    assert np.all(given.radius[certified] <= np.maximum(served.radius - moved, 0)[certified])
    assert np.all((given.radius > 0) == (given.status == Status.CERTIFIED))


@pytest.mark.parametrize(
    "entry",
    [np.int64(2**53 + 1), np.int64(2**63 - 1), np.longdouble("1e-400"), np.longdouble(1) / 3],
)
def test_what_float64_cannot_hold_is_refused(entry):
    x = np.full((1, 6), entry)
    certifier = Certifier(small_model(), **QUICK)
    with pytest.raises(InputError, match="example 0 has .* entries that float64 cannot hold"):
        certifier.certify(x)
    certifier.certify(np.full((1, 6), 2**53))


class IntegerModel(tf.Module):
    def __init__(self, dtype):
        super().__init__()
        self.kernel = tf.constant(np.random.default_rng(0).normal(size=(6, 3)), tf.float32)
        spec = tf.TensorSpec((None, 6), dtype, name="x")
        self.serve = tf.function(
            lambda x: tf.cast(x, tf.float32) @ self.kernel, input_signature=[spec]
        )


def exported(tmp_path, dtype):
    module = IntegerModel(dtype)
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.serve)
    return tmp_path / "m"


def test_integers_are_taken_as_they_are_or_refused(tmp_path):
    certifier = Certifier(exported(tmp_path, tf.int8), **QUICK)
    whole = np.random.default_rng(1).integers(-128, 127, (20, 6))
    assert np.all(certifier.certify(whole).radius > 0)
    for bad in (whole + 1e-3, whole + 300, whole / 7):
        with pytest.raises(InputError, match="int8"):
            certifier.certify(bad)


@pytest.mark.parametrize("dtype", [tf.bool, tf.complex64, tf.int64])
def test_other_input_types_are_refused_by_name(tmp_path, dtype):
    with pytest.raises(InputError, match=dtype.name):
        keras_curv.certify(exported(tmp_path, dtype), np.ones((2, 6)))


def test_no_examples_give_no_certificates():
    result = keras_curv.certify(small_model(), np.zeros((0, 6), np.float32))
    assert all(len(column) == 0 for column in vars(result).values())


def save(path, x):
    np.savez(path, x=x)
    return str(path)


def test_resume_takes_only_the_examples_it_began_with(digits, tmp_path):
    model, x, _ = digits
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    first = data.load_npz(save(tmp_path / "a" / "r.npz", x[:20]))
    other = data.load_npz(save(tmp_path / "b" / "r.npz", x[20:60]))
    options = QUICK | {"output": str(tmp_path / "rows.csv"), "batch_size": 20}
    keras_curv.certify_examples(model, first, **options)
    written = (tmp_path / "rows.csv").read_bytes()
    with pytest.raises(InputError, match="made with other examples"):
        keras_curv.certify_examples(model, other, **options, resume=True)
    with pytest.raises(InputError, match="20 rows, but there are only 5"):
        keras_curv.certify_examples(model, first.limited(5), **options, resume=True)
    again = keras_curv.certify_examples(model, first, **options, resume=True)
    assert again["examples"] == 20 and (tmp_path / "rows.csv").read_bytes() == written


def test_arrays_are_known_by_what_they_hold(digits, tmp_path):
    model, x, y = digits
    options = QUICK | {"output": str(tmp_path / "rows.csv"), "batch_size": 8}
    first = keras_curv.certify_examples(model, (x[:16], y[:16]), **options)
    assert first["examples"] == 16
    for other in ((x[15::-1], y[:16]), (x[:16], y[15::-1]), (x[:16], None)):
        with pytest.raises(InputError, match="made with other examples"):
            keras_curv.certify_examples(model, other, **options, resume=True)
    again = keras_curv.certify_examples(model, (x[:16], y[:16]), **options, resume=True)
    assert again["certified_accuracy"] == first["certified_accuracy"]


def test_a_stream_that_ends_early_is_no_whole_run(digits, tmp_path):
    path, x, y = digits
    whole = Examples.from_arrays("some", x[:20], y[:20])

    def half(size, start=0):
        return whole.limited(10).batches(size, start)

    short = dataclasses.replace(whole, batches=half)
    options = QUICK | {"radii": [0.1], "output": str(tmp_path / "rows.csv")}
    with pytest.raises(InputError, match="ended after 10 of 20"):
        keras_curv.certify_examples(path, short, **options)
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 11


def test_a_requirement_is_of_all_rivals(digits):
    path, x, y = digits
    with pytest.raises(InputError, match="no certificate. Received: 'runner_up'"):
        keras_curv.certify_examples(path, (x, y), rivals="runner_up", radii=[0.1], required=0.1)


LABELS = {
    "one-hot": (np.eye(10, dtype=int)[:2], r"of one-hot labels pass numpy.argmax"),
    "numbers": (np.zeros(2), r"of class numbers pass y\.astype\(int\)"),
    "too few": (np.zeros(1, int), r"y must be of shape \(2,\)"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_of_another_kind_are_refused(digits, case):
    labels, message = LABELS[case]
    with pytest.raises(InputError, match=message):
        keras_curv.certify(digits[0], digits[1][:2], labels)


def test_a_column_of_labels_is_taken(digits):
    """As Keras' own CIFAR-10 comes."""
    path, x, y = digits
    column, row = (
        keras_curv.certify(path, x[:20], labels[:20], **QUICK) for labels in (y[:, None], y)
    )
    np.testing.assert_array_equal(column.status, row.status)


@pytest.mark.parametrize("examples", [np.zeros((2, 8, 8, 1)), [1], (np.zeros((2, 64)),)])
def test_examples_of_another_kind_are_refused(digits, examples):
    with pytest.raises(InputError, match=r"examples must be arrays \(x, y\)"):
        keras_curv.certify_examples(digits[0], examples)


def test_smoothing_takes_no_other_method_or_guarantee(digits):
    model, x, _ = digits
    for options in ({"method": "crc"}, {"guarantee": "float32"}):
        with pytest.raises(InputError, match="smoothing is a method of its own"):
            keras_curv.certify_examples(
                model, (x[:2], None), smoothing=keras_curv.Smoothing(0.1), **options
            )


def test_there_must_be_a_radius_to_report_at(digits):
    model, x, _ = digits
    with pytest.raises(InputError, match="radii must be one at least"):
        keras_curv.certify_examples(model, (x[:5], None), radii=[], required=0.5)


def test_a_file_on_its_way_is_no_other_file(digits, tmp_path):
    """What lies beside a file while it is written has a name that nobody gives a file."""
    model, x, _ = digits
    (tmp_path / "a.part.json").write_text("kept")
    files = {"output": str(tmp_path / "b.part.json"), "summary": str(tmp_path / "b.json")}
    keras_curv.certify_examples(model, (x[:5], None), **QUICK, **files)
    keras_curv.certify_examples(model, (x[:5], None), **QUICK, summary=str(tmp_path / "a.json"))
    assert (tmp_path / "a.part.json").read_text() == "kept"
    assert (tmp_path / "b.part.json").read_text().count("\n") == 6
    assert (tmp_path / "b.json").is_file() and (tmp_path / "a.json").is_file()
    with pytest.raises(InputError, match="different files"):
        part = str(tmp_path / ".b.part.json")
        keras_curv.certify_examples(model, (x[:5], None), **files | {"output": part})


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index", "variables/a.csv"])
@pytest.mark.parametrize("kind", ["output", "summary"])
def test_nothing_is_written_into_a_model(digits, tmp_path, name, kind):
    model, x, _ = digits
    copy = shutil.copytree(model, tmp_path / "model")
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match="would be a file of a SavedModel"):
        keras_curv.certify_examples(str(copy), (x[:5], None), **{kind: str(copy / name)})
    assert {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("clash", ["output", "inputs", "settings"])
def test_files_must_not_overwrite_one_another(digits, tmp_path, clash):
    model, x, _ = digits
    examples = data.load_npz(save(tmp_path / "x.npz", x[:5]))
    output = tmp_path / "rows.csv"
    names = {"output": "rows.csv", "inputs": "x.npz", "settings": "rows.csv.settings.json"}
    summary = tmp_path / names[clash]
    before = (tmp_path / "x.npz").read_bytes()
    with pytest.raises(InputError, match=rf"different files. Received twice: {summary}$"):
        keras_curv.certify_examples(model, examples, output=str(output), summary=str(summary))
    assert (tmp_path / "x.npz").read_bytes() == before and not output.exists()


def test_an_absurd_example_does_not_speak_against_the_model():
    """Where the served graph overflows on its way, the network as read need not."""
    layers = keras.layers
    small = keras.initializers.RandomUniform(0.0, 1e-4, seed=0)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Normalization(mean=[0.0] * 3, variance=[1e-6] * 3),
            layers.Dense(4, "tanh", kernel_initializer=small),
            layers.Dense(2),
        ]
    )
    x = np.float32([[1e36, -1e36, 1.0], [0.2, 0.1, 0.3]])
    assert np.isnan(model(x)).any()
    result = keras_curv.certify(model, x, **QUICK)
    assert result.status[1] == Status.CERTIFIED
