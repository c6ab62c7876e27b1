"""Lines around smooth activations, ranges on intervals, and minorants of a smooth first layer."""

import numpy as np
import pytest
import tensorflow as tf
from flint import arb
from proved_again import points_between, random_network
from test_local_curvature import KNOWN

from keras_curv.certificates.linear.bounds.relaxation import relaxation
from keras_curv.network import activations
from keras_curv_check.activations import sigma_of
from keras_curv_check.balls import vector
from keras_curv_check.files import Map, NetworkFile
from keras_curv_check.first_layer import FirstLayer
from keras_curv_check.inputs import Inputs
from keras_curv_check.lines import Units
from keras_curv_check.network import Network

COUNT = 40
CURVED = KNOWN | {name: activations.get(name) for name in ("selu", "hard_silu")}


@pytest.fixture(scope="module")
def intervals():
    """Wide ones, narrow ones, one point, and points in them."""
    rng = np.random.default_rng(0)
    low, high = np.sort(4.0 * rng.normal(size=(2, COUNT)), axis=0)
    high[:8], high[8] = low[:8] + 1e-3, low[8]
    low[9:12], high[9:12] = -30.0, (40.0, 0.0, 1e-9)
    return low, high, low + (high - low) * rng.uniform(0.1, 0.9, size=COUNT)


@pytest.mark.parametrize("name", CURVED)
def test_lines_enclose_the_activation_and_are_close(name, intervals):
    """Rounding of TensorFlow's values aside; the package's lines are those of 32 points."""
    low, high, at = intervals
    units, package = Units([sigma_of(name)] * COUNT), CURVED[name]
    below, least, above, most = units.lines(low, high, at)
    z = np.clip(low + (high - low) * np.linspace(0.0, 1.0, 501)[:, None], low, high)
    value, first = (f(tf.constant(z)).numpy() for f in (package.value, package.first))
    rounding = 1e-13 * (1.0 + np.abs(z))
    assert np.all(below * z + least <= value + rounding)
    assert np.all(above * z + most >= value - rounding)
    for found, ranges in ((value, units.range(low, high)), (first, units.slopes(low, high))):
        assert np.all(ranges[0] <= found + rounding) and np.all(ranges[1] >= found - rounding)
        step = 2.0 * (high - low) / 500 + 1e-11  # neither changes faster than by 2
        assert np.all(found.min(axis=0) - ranges[0] < step)
        assert np.all(ranges[1] - found.max(axis=0) < step)
    theirs = relaxation(package, low, high, at)
    gap = (above - below) * at + most - least
    rough = (theirs.upper_slope - theirs.lower_slope) * at
    rough += theirs.upper_intercept - theirs.lower_intercept
    assert np.all(gap <= 1.01 * rough + 1e-3 * (high - low))
    assert np.all(np.abs(units.estimate(at) - package.value(tf.constant(at)).numpy()) < 1e-12)


def test_known_lines():
    """The tangents of softplus at 0 and its chord, from −1 to 1; tanh from −1 to 1 by chords."""
    ends = -np.ones(1), np.ones(1), np.zeros(1)
    softplus = [float(line[0]) for line in Units([sigma_of("softplus")]).lines(*ends)]
    chord = np.log1p(np.e) - 0.5
    assert np.allclose(softplus, [0.5, np.log(2.0), 0.5, chord], rtol=0.0, atol=1e-4)
    assert softplus[1] <= np.log(2.0) and softplus[3] >= chord


@pytest.mark.parametrize("box", [False, True])
def test_minorants_of_the_first_layer(box):
    """No point of the ball, nor of a box in it, is below them; the best is near."""
    network = random_network((5, 7, 4, 3), ("tanh", "gelu"), kernel_error=1e-12)
    maps = [Map(one.kernel, one.bias, one.kernel_error, one.bias_error) for one in network.affines]
    known = Network(NetworkFile(maps, [[("tanh", 7)], [("gelu", 4)]], 5, ""))
    first, x = FirstLayer.of(known), points_between(network, 1)[0]
    room = None
    if box:
        from keras_curv_check.confined import Box

        limits = {"low": (x - 0.1).tolist(), "high": (x + 0.3).tolist()}
        room = Box.of(limits, 5).room(vector(x))
    inputs, kernel = Inputs(x, arb(0.5), room), maps[1].kernel.T
    functions = np.concatenate([kernel, -kernel])
    bias = np.concatenate([maps[1].bias, -maps[1].bias])
    pre, *_ = known.forward([vector(x)])
    near = first.near(pre[0][0], 0.5)
    roughly = first.least(functions, bias, near.roughly(functions), inputs)
    found = np.maximum(first.least_units(inputs), [float(one) for one in roughly])
    moves = np.random.default_rng(1).normal(size=(4000, 5))
    moves *= 0.5 / np.linalg.norm(moves, axis=1, keepdims=True)
    points = x + (np.clip(moves, -0.1, 0.3) if box else moves)
    values = np.tanh(points @ maps[0].kernel + maps[0].bias) @ functions.T + bias
    assert np.all(found <= values.min(axis=0)) and np.all(found > values.min(axis=0) - 0.25)
    rows = np.random.default_rng(2).normal(size=(6, 5))
    least = ((points - x) @ rows.T).min(axis=0)
    falls = inputs.falls(rows)
    assert np.all(falls >= -least) and np.all(falls < -1.2 * least)


def test_functions_that_bend_up_alone_have_next_to_no_curvature():
    """Of softplus with weights above 0, κ is 0 but for roundings; of their negatives it is not."""
    maps = [Map(np.eye(2), np.zeros(2), 0.0, 0.0), Map(np.ones((2, 2)), np.zeros(2), 0.0, 0.0)]
    first = FirstLayer.of(Network(NetworkFile(maps * 2, [[("softplus", 2)]] * 3, 2, "")))
    found = first.least_units(Inputs(np.zeros(2), arb(1.0)))
    tangent, least = 2.0 * np.log(2.0) - np.sqrt(0.5), 2.0 * np.logaddexp(0.0, -np.sqrt(0.5))
    assert np.all(found[:2] > tangent + 0.05) and np.all(found[:2] <= least)
    assert np.all(found[2:] < -2.0 * np.log(2.0) - np.sqrt(0.5))
