"""Every part of the checker's bound of curvature on a ball, where it is all but attained.

In networks of one unit a layer, whose slopes all grow in one direction, a small ball leaves hardly
any room between what a part bounds and its supremum: whatever is left out is noticed.
"""

import numpy as np
import pytest
from flint import arb

from keras_curv_check import anchored
from keras_curv_check.anchored import Anchored, Term
from keras_curv_check.balls import ZERO, vector
from keras_curv_check.files import Map, NetworkFile
from keras_curv_check.network import Network
from keras_curv_check.norms import Matrix

X, POINTS = 0.3, 401


def softplus(z):
    """σ, σ′ and σ″."""
    share = 1.0 / (1.0 + np.exp(-z))
    return np.log1p(np.exp(z)), share, share * (1.0 - share)


def tanh(z):
    """σ, σ′ and σ″."""
    value = np.tanh(z)
    return value, 1.0 - value**2, -2.0 * value * (1.0 - value**2)


def silu(z):
    """σ, σ′ and σ″."""
    share = 1.0 / (1.0 + np.exp(-z))
    bend = share * (1.0 - share)
    return z * share, share + z * bend, bend * (2.0 + z * (1.0 - 2.0 * share))


class Chain:
    """A network of one unit a layer, and what is true of it near X."""

    def __init__(self, weights, last, radius, error=0.0, function=softplus):
        self.weights, self.last, self.radius = weights, last, radius
        self.function = function
        maps = [Map(np.array([[w]]), np.array([0.1]), error, 0.0) for w in weights]
        maps.append(Map(np.array([[last, 0.0]]), np.zeros(2), 0.0, 0.0))
        names = [[(function.__name__, 1)]] * len(weights)
        network = Network(NetworkFile(maps, names, 1, ""))
        pre, *_ = network.forward([vector(np.array([X]))])
        self.bound = Anchored(network, [layer[0] for layer in pre], radius)

    def at(self, x, off=0.0):
        """z, σ′, σ″, B, J of each layer and F, where each weight is off by so much."""
        a, jacobian, found = x, np.ones_like(x), []
        for w in self.weights:
            z, before = a * (w + off) + 0.1, jacobian * (w + off)
            a, first, second = self.function(z)
            jacobian = first * before
            found.append([z, first, second, before, jacobian, None])
        carried = np.full_like(x, self.last)
        for layer, w in zip(reversed(found), reversed(self.weights), strict=True):
            layer[5] = carried
            carried = carried * layer[1] * (w + off)
        return found


CHAINS = {
    **{f"{depth} tight": ([1.2, 0.9, 1.5, 1.1][:depth], -2.0, 1e-3) for depth in (2, 3, 4)},
    "wide": ([1.2, 0.9, 1.5], -2.0, 0.3),
    "turning": ([-1.2, 2.9, -1.5], 2.0, 0.2, 0.0, tanh),
    "turned": ([1.2, -2.9, 1.5], 2.0, 0.2, 0.0, tanh),
    "falling": ([-6.0, 2.5, -1.5], 2.0, 0.05, 0.0, silu),
    "far": ([-6.0, -2.5, 1.5], -2.0, 2.0, 0.0, silu),
}


@pytest.fixture(params=CHAINS)
def chain(request):
    return Chain(*CHAINS[request.param])


@pytest.fixture
def near(chain):
    """The ball's points, and all that `at` says of them and of the centre."""
    x = X + chain.radius * np.linspace(-1.0, 1.0, POINTS)
    return chain.at(x), chain.at(np.array([X]))


def close(bound, true, radius, room=1.02):
    """It holds; and in a small ball it is all but attained."""
    assert bound >= true - 1e-12 * abs(true)
    assert radius > 1e-2 or bound <= room * true + 1e-11


def test_what_is_known_of_a_layer(chain, near):
    before = None
    for layer, here, centre in zip(chain.bound._layers, *near, strict=True):
        z, first, second, own, jacobian, _ = here
        for (low, high), values in ((layer.slopes[:, 0], first), (layer.bends[:, 0], second)):
            assert low <= values.min() and values.max() <= high
            close(high - low, np.ptp(values), chain.radius)
        close(layer.move, np.abs(z - centre[0]).max(), chain.radius)
        close(layer.change[0], np.abs(first - centre[1]).max(), chain.radius)
        close(layer.quartic, np.abs(second * own**2).max(), chain.radius)
        if before is not None:
            close(layer.lipschitz, np.abs(before[0]).max(), chain.radius)
            close(layer.drift, np.abs(before[0] - before[1]).max(), chain.radius)
        before = jacobian, centre[4]


def test_sensitivities(chain, near):
    """e_I is below F σ″, by the interval; by the point, but for what that costs."""
    parts = zip(chain.bound._layers, chain.bound._least(0, 1), *near, strict=True)
    for layer, (least, centred, cost), (_, _, second, own, _, behind), _ in parts:
        product = behind * second
        assert least[0] <= product.min()
        # The cost is twice what it is here, as F and σ″ do not move against each other.
        assert np.all(product * own**2 >= centred[0] * own**2 - cost)
        away = np.ptp(behind) / 2.0
        assert cost >= away * layer.quartic * (1.0 - 1e-3)
        close(-least[0], -product.min(), chain.radius)


def test_kappa(chain, near):
    bend = sum(behind * second * own**2 for _, _, second, own, _, behind in near[0])
    kappas = [float(kappa) for kappa in chain.bound.bounds(0, [1])]
    assert kappas and kappas == sorted(kappas, reverse=True)
    for kappa in kappas:
        close(kappa, max(-bend.min(), 0.0), chain.radius, 1.03)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_folding_errors_move_everything(depth):
    error, radius = 1e-4, 1e-6
    chain = Chain([1.2, 0.9, 1.5][:depth], -2.0, radius, error)
    x = np.array([X])
    moved = chain.at(x + radius, error)
    kappa = float(min(chain.bound.bounds(0, [1]), key=float))
    bend = sum(behind * second * own**2 for _, _, second, own, _, behind in moved)
    assert kappa >= -bend[0]
    before, anchored_at = None, 1.0
    for layer, w, there in zip(chain.bound._layers, chain.weights, moved, strict=True):
        assert layer.bends[0, 0] <= there[2] <= layer.bends[1, 0]
        assert layer.slopes[0, 0] <= there[1] <= layer.slopes[1, 0]
        anchored_at *= w + error
        assert layer.jacobian.middle[0, 0] + float(layer.jacobian.error) >= anchored_at
        anchored_at *= layer.slope[0]
        assert layer.rows[0] >= np.abs(layer.kernel.middle[0, 0]) + error
        if before is not None:
            assert layer.lipschitz >= before
        before = there[4]
    behind = [there[5] * there[2] for there in moved]
    for (least, _, _), product in zip(chain.bound._least(0, 1), behind, strict=True):
        assert least[0] <= product


@pytest.mark.parametrize("e", [-2.0, 0.0, 3.0])
@pytest.mark.parametrize("a", [0.5, 4.0])
def test_a_term_covers_what_the_jacobian_does(e, a):
    """−e (a + b)² is at most its weight times a² and the rest, for every b of that size."""
    loss = 0.7
    weights, rest = Term(np.array([e]), 0.25, loss).at(np.array([a * a]))
    b = np.linspace(-1.0, 1.0, POINTS) * loss / np.sqrt(max(abs(e), 1e-9))
    room = weights[0] * a * a + float(rest) - (-e * (a + b) ** 2 + 0.25)
    assert room.min() >= -1e-12
    assert e >= 0.0 or room.min() <= 1e-9  # equal at b = ta


def test_terms_by_hand():
    kernel = Matrix(np.array([[2.0]]), ZERO)
    layer = Chain([1.2, 0.9], 1.0, 0.1).bound._layers[1]
    layer = layer._replace(
        kernel=kernel, jacobian=Matrix(np.eye(1), arb(0.125)), drift=0.5, lipschitz=3.0
    )
    parts = [(np.array([-9.0]), np.array([-4.0]), 0.25), (np.array([-1.0]), np.array([-5.0]), 0.5)]
    inside, centred, *beside = anchored._terms(layer, parts)
    assert (inside.e[0], inside.cost) == (-9.0, 0.0) and (centred.e[0], centred.cost) == (-5.0, 0.5)
    assert inside.loss == pytest.approx(2.0 * 3.0 * 0.5 + 3.0 * 0.125, rel=1e-9)
    assert inside.loss >= 3.375 and centred.loss >= 5**0.5 * 1.125 * (1.0 - 1e-12)
    assert [term.e[0] for term in beside] == [0.0, 0.0]
    assert beside[0].cost >= 18.0**2 and beside[1].cost >= 180.0 + 0.5
    assert anchored._terms(layer._replace(drift=4.0), parts)[0].e[0] == 0.0


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_products_of_rows_at_the_anchor(error):
    rng = np.random.default_rng(0)
    for height, width in ((3, 4), (1, 1), (5, 2)):
        middle, bend = rng.normal(size=(height, width)), rng.uniform(0.5, 2.0, width)
        off = rng.normal(size=(height, width))
        off *= error / np.linalg.norm(off, 2)
        rows = np.linalg.norm(middle, axis=0) + error
        bound = anchored._at_anchor(Matrix(middle, arb(error)), rows, bend)
        u, v = rng.normal(size=(2, 4000, height))
        u, v = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (u, v))
        for real in (middle, middle + off):
            true = np.linalg.norm(bend * (u @ real) * (v @ real), axis=1).max()
            assert bound >= true
        if width == 1:
            assert bound >= bend[0] * (np.linalg.norm(middle) + error) ** 2 * (1.0 - 1e-12)
