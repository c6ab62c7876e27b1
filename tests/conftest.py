import functools
import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a core for each worker, and for what it starts
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import pathlib

import keras
import numpy as np
import pytest
import scripts
import tensorflow as tf
from hypothesis import settings

from keras_curv.network import shared_graph
from keras_curv.network.network import Network
from keras_curv.numerics import batches

tf.get_logger().setLevel("ERROR")  # each small network traces its own graph, on purpose
# Tests come back to the same activations and settings, after more others than any user has.
shared_graph.shared = functools.lru_cache(maxsize=128)(shared_graph.shared.__wrapped__)

# A worker has one core; on two, threads of small numbers wait for each other. Some tests have more.
batches.processors = functools.wraps(batches.processors)(lambda: 1)

# Of these, `--hypothesis-profile=` names another one than `default`. A first call traces graphs.
for profile, examples in {"quick": 25, "default": 100, "thorough": 1000}.items():
    settings.register_profile(profile, max_examples=examples, deadline=None)
settings.load_profile("default")

TESTS = pathlib.Path(__file__).parent
PACKAGE = TESTS.parent / "keras_curv"
# Mathematics without an export or a training, of which all together takes less than a minute: by
# room or file, of tests and of the package, whose examples are tests too.
QUICK = (
    *("dual.py", "numerics", "network", "curvature", "rows", "test_dual.py", "test_house.py"),
    *(f"certificates/test_{name}.py" for name in ("relaxation", "lipschitz", "interval")),
)
# Of these, whatever takes two seconds or more.
NOT_QUICK = (*("curvature/gap.py", "curvature/test_authors.py", "network/test_shared_graph.py"),)
NOT_QUICK_TESTS = (
    "test_ranges_on_intervals_hold_and_are_tight",
    "test_there_are_no_other_extrema",
    "test_attack_bound_is_below_what_descent_finds",
    "test_no_hessian_leaves_the_bounds",
    "test_a_single_hidden_unit_is_certified_up_to_its_distance",
    "test_no_gradient_is_steeper",
    "test_radii_hold_for_every_network_within_the_folding_error",
    "test_no_attack_succeeds_within_the_radius",
    "test_what_auto_proves_stands",
    "test_evaluation_error_is_the_one_that_is_charged",
    "test_a_way_back_in_float32_is_within_its_charge",
    "test_float64_is_within_the_charge",
    "test_margins_within_rounding_are_not_certified",
    "test_a_folding_error_steepens_the_slope",
    "test_linear_bounds_hold",
    "test_curvature_gap",
    "test_what_is_charged_is_needed",
    "test_long_sums_are_of_parts",
)


def _may_be_quick(path):
    def is_within(names):
        return any(path.is_relative_to(root / name) for root in (TESTS, PACKAGE) for name in names)

    return is_within(QUICK) and not is_within(NOT_QUICK)


def pytest_ignore_collect(collection_path, config):
    """With `-m quick`, files without a quick test are not even imported."""
    if config.option.markexpr == "quick" and collection_path.suffix == ".py":
        return not _may_be_quick(collection_path) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if _may_be_quick(item.path) and getattr(item, "originalname", "") not in NOT_QUICK_TESTS:
            item.add_marker(pytest.mark.quick)


def pytest_collection_finish():
    """What was imported stays: it need not be looked through each time that garbage is looked for.

    Nor is it looked for as often: what tests leave, graphs for the most part, are cycles of many
    thousand objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def quick_tests_export_and_train_nothing(request, monkeypatch):
    if request.node.get_closest_marker("quick"):
        for owner, name in (
            (tf.saved_model, "save"),
            (keras.Model, "export"),
            (keras.Model, "fit"),
            (keras.Model, "train_on_batch"),
        ):
            monkeypatch.setattr(owner, name, lambda *_, **__: pytest.fail("not in a quick test"))


@pytest.fixture
def script():
    return scripts.load()


@pytest.fixture
def untraced():
    """Runs graphs op by op: a search that is asked once or twice takes a fourth of its tracing."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture(scope="session")
def random_network():
    """A factory: sizes are `(dim, widths…, classes)`; give them unequal, transposes show then."""

    def build(rng, sizes, activation, scale=1.5):
        shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
        kernels = [scale * rng.standard_normal(s) / np.sqrt(s[0]) for s in shapes]
        biases = [0.5 * scale * rng.standard_normal(s[1]) for s in shapes]
        return Network.from_weights(kernels, biases, activation)

    return build


_PLAIN = {
    "softplus": lambda z: np.logaddexp(0.0, z),
    "sigmoid": lambda z: 0.5 + 0.5 * np.tanh(z / 2.0),
    "tanh": np.tanh,
}


@pytest.fixture(scope="session")
def plain_logits():
    """The network's logits in plain numpy."""

    def logits(network, x):
        a = np.asarray(x, np.float64)
        for affine, activation in zip(network.affines[:-1], network.activations, strict=True):
            a = _PLAIN[activation.name](a @ affine.kernel + affine.bias)
        return a @ network.affines[-1].kernel + network.affines[-1].bias

    return logits


AUTHORS = [f"{name}{depth}" for name in ("softplus", "sigmoid", "tanh") for depth in (2, 3, 4)]


@pytest.fixture(params=AUTHORS, scope="session")  # its tests stand together, and trace once
def authors_case(request):
    """One reference network of the paper's authors' code, with the figures they got for it."""
    path = pathlib.Path(__file__).parent / "data" / "crc_authors.npz"
    with np.load(path) as data:
        prefix = f"{request.param}/"
        case = {key.removeprefix(prefix): data[key] for key in data if key.startswith(prefix)}
    depth = int(request.param[-1])
    case["name"] = request.param
    case["network"] = Network.from_weights(
        [case[f"kernel{i}"] for i in range(depth)],
        [case[f"bias{i}"] for i in range(depth)],
        request.param[:-1],
    )
    return case
