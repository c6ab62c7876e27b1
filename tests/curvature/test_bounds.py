"""No sampled Hessian ever leaves [m, M]; where the theory says a bound is attained, it is."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.curvature import bounds as bounds_of_pairs
from keras_curv.curvature.bounds import CurvatureBounds, curvature_bounds
from keras_curv.curvature.gap import curvature_gap
from keras_curv.curvature.liplt import lipschitz_bounds
from keras_curv.curvature.signed import signed_bound
from keras_curv.curvature.theorem_4 import theorem4
from keras_curv.errors import InputError
from keras_curv.network.activations import SMOOTH
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network

SIZES = {2: (4, 9, 3), 3: (4, 9, 5, 3), 4: (3, 4, 8, 5, 3)}
MIXED = {2: ("tanh",), 3: ("softplus", "tanh"), 4: ("sigmoid", "softplus", "tanh")}


def _cases():
    """Each activation behind one layer, and few behind several: its ranges are the same there."""
    cases = []
    for depth, sizes in SIZES.items():
        for name in SMOOTH if depth == 2 else ("softplus", "gelu"):
            cases.append(pytest.param(sizes, (name,) * (depth - 1), id=f"{name}{depth}"))
        cases.append(pytest.param(sizes, MIXED[depth], id=f"mixed{depth}"))
    return cases


def _pairs(classes):
    return [(y, t) for y in range(classes) for t in range(classes) if y != t]


def _sampled_extremes(network, rng, count=150):
    """Smallest and largest eigenvalue met, `(classes, classes)`, at three scales of input."""
    x = np.concatenate([s * rng.standard_normal((count, network.dim)) for s in (0.1, 1.0, 8.0)])
    low, high = np.zeros((2, network.classes, network.classes))
    for y, t in itertools.combinations(range(network.classes), 2):
        rows = np.full(len(x), y), np.full(len(x), t)
        values = np.linalg.eigvalsh(network.hessian(tf.constant(x), *rows).numpy())
        low[y, t], high[y, t] = values.min(), values.max()
        low[t, y], high[t, y] = -high[y, t], -low[y, t]  # of the same margin, negated
    return low, high


@pytest.mark.parametrize(("sizes", "names"), _cases())
def test_no_hessian_leaves_the_bounds(sizes, names, rng, random_network):
    for scale in (0.3, 1.5, 4.0):
        network = random_network(rng, sizes, names, scale)
        low, high = _sampled_extremes(network, rng)
        slack = 1e-12 * np.abs([low, high]).max()  # rounding of the sampled eigenvalues
        candidates = [signed_bound(network), curvature_bounds(network)]
        magnitude = theorem4(network)
        candidates.append(CurvatureBounds(-magnitude, magnitude))
        for bounds in candidates:
            assert np.all(low >= bounds.lower - slack)
            assert np.all(high <= bounds.upper + slack)


@pytest.mark.parametrize(("sizes", "names"), _cases())
def test_swapping_label_and_rival_negates_the_bounds(sizes, names, rng, random_network):
    network = random_network(rng, sizes, names)
    for bounds in (signed_bound(network), curvature_bounds(network)):
        np.testing.assert_array_equal(bounds.upper, -bounds.lower.T)
        assert np.all(bounds.lower <= 0.0)
        assert not np.any(np.diag(bounds.lower))
        off = ~np.eye(network.classes, dtype=bool)
        assert np.sum(bounds.lower[off] < 0.0) >= 5  # softplus with w ≥ 0 throughout has m = 0
    magnitude = theorem4(network)
    np.testing.assert_allclose(magnitude, magnitude.T, rtol=1e-14)  # order of summation


SECOND = {
    "softplus": (0.0, 0.25),
    "sigmoid": (-1 / (6 * math.sqrt(3)), 1 / (6 * math.sqrt(3))),
    "tanh": (-4 / (3 * math.sqrt(3)), 4 / (3 * math.sqrt(3))),
}


@pytest.mark.parametrize("name", list(SECOND))
def test_theorem3_by_hand(name, rng, random_network):
    network = random_network(rng, (4, 9, 3), name)
    bounds = signed_bound(network)
    low, high = SECOND[name]
    for y, t in _pairs(3):
        w = network.affines[1].kernel[:, y] - network.affines[1].kernel[:, t]
        kernel = network.affines[0].kernel
        n = np.minimum(low * w, high * w)
        p = np.maximum(low * w, high * w)
        smallest = np.linalg.eigvalsh(kernel @ np.diag(n) @ kernel.T)[0]
        largest = np.linalg.eigvalsh(kernel @ np.diag(p) @ kernel.T)[-1]
        # 1e-9: what a proved eigenvalue costs at most.
        assert bounds.lower[y, t] == pytest.approx(smallest, rel=1e-9)
        assert bounds.upper[y, t] == pytest.approx(largest, rel=1e-9)
    magnitude = theorem4(network)
    assert np.all(-bounds.lower <= magnitude * (1.0 + 1e-9))
    assert np.all(bounds.upper <= magnitude * (1.0 + 1e-9))


def test_theorem4_by_hand(rng, random_network):
    network = random_network(rng, (4, 9, 5, 3), ("softplus", "tanh"))
    first, second, last = (affine.kernel for affine in network.affines)
    w = np.abs(last[:, 0] - last[:, 2])
    r1 = np.linalg.norm(first, 2)
    r2 = 1.0 * np.linalg.norm(second, 2) * r1
    expected = 0.25 * r1**2 * (1.0 * np.abs(second) @ w).max() + SECOND["tanh"][1] * r2**2 * w.max()
    # 1e-9: what proved norms cost at most.
    assert theorem4(network)[0, 2] == pytest.approx(expected, rel=1e-9)


def _scalar_chain(weights, biases, names):
    """One unit a layer: f = z_L[0] − z_L[1] is the chain itself, as class 1 is constant zero."""
    kernels = [np.array([[w]]) for w in weights[:-1]] + [np.array([[weights[-1], 0.0]])]
    return Network.from_weights(kernels, [np.array([b]) for b in biases] + [np.zeros(2)], names)


@pytest.mark.parametrize(
    ("weights", "biases", "names"),
    [
        # The second unit bends where the first is linear: w σ″(z₂) v² u².
        ((3.0, 50.0, 2.0), (0.0, -1000.0), ("softplus", "softplus")),
        ((3.0, 50.0, -2.0), (0.0, -1000.0), ("softplus", "softplus")),
        ((3.0, 50.0, 2.0), (0.0, -1000.0), ("softplus", "tanh")),
        ((3.0, 50.0, 2.0), (0.0, -1000.0), ("softplus", "sigmoid")),
        # The first unit bends where the second is linear: σ′(z₂) w v u² σ″(z₁).
        ((3.0, 0.02, 2.0), (0.0, 30.0), ("softplus", "softplus")),
        ((3.0, -0.02, 2.0), (0.0, 30.0), ("softplus", "softplus")),
        ((3.0, 0.001, 2.0), (0.0, 0.0), ("tanh", "sigmoid")),
        ((3.0, 0.02, 0.01, 5.0), (0.0, 30.0, 30.0), ("tanh", "softplus", "softplus")),
        # The third unit bends where the first two are linear.
        ((3.0, 2.0, 40.0, 2.0), (0.0, 30.0, -4000.0), ("softplus", "softplus", "tanh")),
    ],
)
def test_chains_that_all_but_attain_the_bound(weights, biases, names):
    network = _scalar_chain(weights, biases, names)
    bounds = signed_bound(network)
    x = np.linspace(-40.0, 40.0, 400_001)[:, None]
    labels = np.zeros(len(x), int), np.ones(len(x), int)
    values = network.hessian(tf.constant(x), *labels).numpy()
    low, high = values.min(), values.max()
    assert bounds.lower[0, 1] <= low and high <= bounds.upper[0, 1]
    # Within 10 %: the other layers' terms are small in these chains, but not zero.
    size = max(-low, high)
    tightest = bounds.upper[0, 1] if high > -low else -bounds.lower[0, 1]
    assert tightest <= 1.1 * size
    assert theorem4(network)[0, 1] >= size


def test_lipschitz_by_hand_for_two_layers(rng, random_network):
    network = random_network(rng, (4, 9, 3), "sigmoid")
    norm = np.linalg.norm(network.affines[0].kernel, 2)
    assert lipschitz_bounds(network) == pytest.approx([0.25 * norm], rel=1e-9)


@pytest.mark.parametrize(("sizes", "names"), _cases())
def test_lipschitz_constants_hold(sizes, names, rng, random_network):
    for scale in (0.3, 2.0):
        network = random_network(rng, sizes, names, scale)
        bounds = lipschitz_bounds(network)
        guard = 1.0
        x = np.concatenate([s * rng.standard_normal((300, sizes[0])) for s in (0.05, 0.5, 5.0)])
        a = x
        jacobian = np.tile(np.eye(sizes[0]), (len(x), 1, 1))
        for affine, activation, bound in zip(
            network.affines, network.activations, bounds, strict=False
        ):
            z = a @ affine.kernel + affine.bias
            jacobian = (jacobian @ affine.kernel) * activation.first(tf.constant(z)).numpy()[
                :, None
            ]
            a = activation.value(tf.constant(z)).numpy()
            met = np.linalg.norm(jacobian, 2, axis=(1, 2)).max()
            assert met <= bound * (1.0 + 1e-12)  # rounding of the sampled norms
            guard *= activation.slope * np.linalg.norm(affine.kernel, 2)
            assert bound <= guard * (1.0 + 1e-9)  # never above the product of norms


def test_lipschitz_of_a_chain_is_attained():
    network = _scalar_chain((3.0, 2.0, 1.0, 1.0), (30.0, 30.0, 60.0), ("softplus",) * 3)
    # At x = 10 every unit is linear, to e⁻³⁰.
    assert lipschitz_bounds(network) == pytest.approx([3.0, 6.0, 6.0], rel=1e-9)


def test_lipschitz_constants_hold_where_only_the_last_layers_are_telescoped(rng):
    """Softplus far above its bend is the identity: forty rotations then keep all lengths. Its
    constants are at least 1, and no more than those of the product of norms."""
    depth = 40
    kernels = [np.linalg.qr(rng.standard_normal((4, 4)))[0] for _ in range(depth)]
    biases = [np.full(4, 1e3)] * depth
    network = Network.from_weights(kernels, biases, "softplus")
    found = np.array(lipschitz_bounds(network))
    assert np.all(found >= 1.0) and np.all(found <= 1.0 + 1e-9)
    deep = Network.from_weights(
        [0.9 * rng.standard_normal((5, 5)) for _ in range(depth)], [np.zeros(5)] * depth, "tanh"
    )
    x = tf.constant(0.1 * rng.standard_normal((200, 5)))
    apart = tf.constant(1e-6 * rng.standard_normal((200, 5)))
    bounds, hidden = lipschitz_bounds(deep), deep.hidden(x)
    for bound, one, other in zip(bounds, hidden[1:], deep.hidden(x + apart)[1:], strict=True):
        moved = np.linalg.norm(one - other, axis=1) / np.linalg.norm(apart, axis=1)
        assert moved.max() <= bound * (1.0 + 1e-6)


def test_lipschitz_beats_the_product_of_norms(rng, random_network):
    network = random_network(rng, (6, 20, 15, 10, 3), "softplus")
    product = np.prod([np.linalg.norm(a.kernel, 2) for a in network.affines[:3]])
    assert lipschitz_bounds(network)[-1] < 0.9 * product


def test_an_affine_network_has_no_curvature(rng, random_network):
    network = random_network(rng, (3, 4), ())
    for bounds in (curvature_bounds(network), signed_bound(network)):
        assert not np.any(bounds.lower) and not np.any(bounds.upper)
    assert not np.any(theorem4(network))


@pytest.mark.parametrize("depth", [2, 3])
def test_folding_errors_are_covered(depth, rng, random_network):
    """Bounds of a net known to within kernel_error hold for every net within it."""
    network = random_network(rng, SIZES[depth], MIXED[depth], 1.0)
    error = 0.05
    vague = Network(
        [Affine(a.kernel, a.bias, kernel_error=error) for a in network.affines],
        network.activations,
    )
    bounds, magnitude = curvature_bounds(vague), theorem4(vague)
    lipschitz = lipschitz_bounds(vague)
    for _ in range(10):
        moved = []
        for affine in network.affines:
            u, s, vt = np.linalg.svd(affine.kernel, full_matrices=False)
            noise = rng.standard_normal(affine.kernel.shape)
            change = rng.choice([0.0, 1.0]) * noise / np.linalg.norm(noise, 2) + np.outer(
                u[:, 0], vt[0]
            )
            change *= error / np.linalg.norm(change, 2)
            moved.append(Affine(affine.kernel + change, affine.bias))
        other = Network(moved, network.activations)
        theirs = curvature_bounds(other)
        # The top singular value moved by the whole error: 1e-9 is the cost of a proved norm.
        more = 1.0 + 1e-9
        assert np.all(bounds.lower * more <= theirs.lower)
        assert np.all(magnitude * more >= theorem4(other))
        assert np.all(np.array(lipschitz) * more >= lipschitz_bounds(other))
        low, high = _sampled_extremes(other, rng, 40)
        assert np.all(low >= bounds.lower) and np.all(high <= bounds.upper)


def test_curvature_gap(rng, random_network):
    network = random_network(rng, (4, 9, 3), "tanh")
    x = rng.standard_normal((60, 4))
    label = network.logits(x).numpy().argmax(axis=1)
    gap = curvature_gap(network, x, label, minimum_examples=5)
    assert 0.0 < gap.lower <= gap.proved <= gap.upper
    rival = network.runner_up(network.logits(x), tf.constant(label)).numpy()
    pairs, counts = np.unique(np.stack([label, rival], 1), axis=0, return_counts=True)
    enough = pairs[counts >= 5]
    assert gap.pairs == len(enough) > 0
    bound = theorem4(network)
    assert gap.upper == pytest.approx(np.mean([bound[y, t] for y, t in enough]), rel=1e-12)
    ours = signed_bound(network)
    assert gap.proved == pytest.approx(
        np.mean([max(-ours.lower[y, t], ours.upper[y, t]) for y, t in enough]), rel=1e-9
    )
    met = []
    for y, t in enough:
        rows = (label == y) & (rival == t)
        hessians = network.hessian(tf.constant(x[rows]), label[rows], rival[rows]).numpy()
        met.append(np.abs(np.linalg.eigvalsh(hessians)).max())
    assert gap.lower == pytest.approx(np.mean(met), rel=1e-10)  # rounding
    with pytest.raises(ValueError, match="Received: 60 examples"):
        curvature_gap(network, x, label, minimum_examples=61)


def test_the_authors_code_agrees(authors_case):
    network, label, rival = (authors_case[key] for key in ("network", "label", "rival"))
    magnitude = theorem4(network)[label, rival]
    # Theirs is power iteration in float32, from below, and stops early.
    np.testing.assert_allclose(magnitude, authors_case["K"], rtol=3e-3)
    assert np.all(magnitude >= authors_case["K"] * (1.0 - 2e-4))  # float32, squared norms
    bounds = curvature_bounds(network)
    ours_m, ours_M = -bounds.lower[label, rival], bounds.upper[label, rival]
    if network.depth == 2:
        for ours, theirs in ((ours_m, authors_case["m"]), (ours_M, authors_case["M"])):
            np.testing.assert_allclose(ours, theirs, rtol=2e-2)
            assert np.all(ours >= theirs * (1.0 - 2e-4))
    else:
        # 0.7 %: the same power iteration, up to its shortfall.
        assert np.all(ours_m <= 1.007 * authors_case["m"])


def test_lipschitz_bounds_are_not_squared_alone():
    """f is −½ − tanh(1e-50 x) but for the saturation of the inner layers, which is far away."""
    kernels = [[[1e-100]], [[1e-100]], [[1e150]], [[-1.0, 0.0]]]
    biases = [[0.0], [0.0], [0.0], [-0.5, 0.0]]
    network = Network.from_weights(kernels, biases, "tanh")
    met = 1e-100 * 4.0 / (3.0 * math.sqrt(3.0))  # sup |tanh″|, by the chain rule
    assert -curvature_bounds(network).lower[1, 0] >= met * (1.0 - 1e-9)


@pytest.mark.parametrize("limit", ["DENSE_ENTRIES", "MULTIPLICATIONS"])
def test_more_pairs_than_can_be_bounded_are_refused(random_network, rng, monkeypatch, limit):
    network = random_network(rng, (4, 9, 3), "softplus")
    monkeypatch.setattr(bounds_of_pairs, limit, 80)
    with pytest.raises(InputError, match="too large for curvature bounds: .*3 classes squared"):
        curvature_bounds(network)
