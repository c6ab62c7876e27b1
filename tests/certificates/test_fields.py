"""Units of convolutions are passed back through what they see: as sharp as through the whole."""

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from ball_oracle import ball_points, labelled, lowest_margins
from linear_intervals import assert_inside, pre_activation_bounds

from keras_curv.certificates.linear import crown
from keras_curv.certificates.linear.bounds import plan, receptive_fields
from keras_curv.certificates.linear.bounds.linear_bounds import Balls
from keras_curv.certificates.linear.bounds.plan import Plan
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.question import Question
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.rules.convolution import matrix
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.network.sparse_affine import SparseAffine
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv.threats.norms import NORMS

IMAGE = (7, 6, 2)


def _convolution(rng, image, filters, **how):
    taps = rng.standard_normal((3, 2, image[2], filters)) / np.sqrt(6.0 * image[2])
    lowered, shape = matrix(Ball.exact(taps), image, **how)
    return lowered.value, shape


def _pooled(image):
    """`(b − a, a)` of neighbours in a row, and the map back: their maximum is relu(b − a) + a."""
    height, width, channels = image
    half = width // 2
    at = np.arange(height * width * channels).reshape(image)
    left, right = (at[:, k : 2 * half : 2].reshape(-1) for k in (0, 1))
    units = np.arange(len(left))
    places = [(right, units, 1.0), (left, units, -1.0), (left, len(left) + units, 1.0)]
    rows, columns, values = (
        np.concatenate([np.broadcast_to(p[i], len(units)) for p in places]) for i in range(3)
    )
    both = scipy.sparse.csr_array((values, (rows, columns)), shape=(at.size, 2 * len(left)))
    one = scipy.sparse.eye_array(len(left))
    return both, scipy.sparse.csr_array(scipy.sparse.vstack([one, one])), (height, half, channels)


def convolutional(rng, name, *, off=0.0, blind=0):
    """Two convolutions with pooling between, a dense layer and three classes; sparse and dense.

    The last units of the first layer, `blind` of them, see nothing.
    """
    sigma = activations.get(name)
    first, image = _convolution(rng, IMAGE, 3, padding="SAME")
    sees = np.arange(first.shape[1]) < first.shape[1] - blind
    first = scipy.sparse.csr_array(first @ scipy.sparse.diags_array(1.0 * sees))
    first.eliminate_zeros()
    both, back, pooled = _pooled(image)
    second, last = _convolution(rng, pooled, 4, strides=(2, 1))
    size = int(np.prod(last))
    kernels = [first, both, back @ second]
    kernels += [rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in ((size, 5), (5, 3))]
    relu = activations.get("relu")
    carried = unit_wise([(relu, both.shape[1] // 2), (IDENTITY, both.shape[1] // 2)])
    sigmas = [sigma, carried, sigma, sigma]
    biases = [0.3 * rng.standard_normal(kernel.shape[1]) for kernel in kernels]
    sparse = [
        SparseAffine(scipy.sparse.csr_array(kernel), bias, off, off)
        for kernel, bias in zip(kernels[:3], biases, strict=False)
    ]
    dense, rest = (
        [Affine(kernel, bias, off, off) for kernel, bias in zip(some, of_each, strict=True)]
        for some, of_each in (
            ([kernel.toarray() for kernel in kernels[:3]], biases[:3]),
            (kernels[3:], biases[3:]),
        )
    )
    return Network([*sparse, *rest], sigmas), Network([*dense, *rest], sigmas)


def bounds_that_count(network, *args):
    """Pre-activation bounds; of units that are linear on them, only by which piece."""
    intervals = pre_activation_bounds(network, *args)
    for (low, high), activation in zip(intervals, network.activations, strict=True):
        for sigma, units in activation.groups:
            if sigma.hinge:
                for piece, linear in ((0.0, high[:, units] <= 0.0), (1.0, low[:, units] >= 0.0)):
                    low[:, units][linear] = high[:, units][linear] = piece
            elif sigma is IDENTITY:
                low[:, units] = high[:, units] = 0.0
    return intervals


def test_places_of_a_convolution_share_their_matrices(rng):
    network, _ = convolutional(rng, "relu")
    found = Plan.of(network).fields
    assert len(found) == 4
    for index, layer in enumerate(found):
        weights = abs(network.affines[index].kernel) > 0.0
        several = np.flatnonzero(np.asarray(weights.sum(axis=0)).reshape(-1) > (index > 0))
        units = np.concatenate([field.units.reshape(-1) for field in layer])
        assert sorted(units) == several.tolist()
        for field in layer:
            for place in range(len(field.units)):
                seen = [*(part[place] for part in field.seen), field.units[place]]
                for k, kernel in enumerate(field.kernels):
                    whole = scipy.sparse.csr_array(network.affines[k].kernel)
                    dense = kernel.toarray() if scipy.sparse.issparse(kernel) else kernel
                    part = whole[:, seen[k + 1]].toarray()
                    np.testing.assert_array_equal(part[seen[k]], dense)
                    assert np.count_nonzero(part) == np.count_nonzero(dense)  # nothing is left out
    # Behind the first convolution, whose borders differ, places inside are alike.
    assert max(len(field.units) for field in found[1]) >= 4
    assert sum(len(field.units) for field in found[3]) == 1  # which sees the whole image


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["relu", "softplus", "tanh"])
@pytest.mark.parametrize("blind", [0, 54])  # half of what the last units of the second layer see
def test_bounds_are_those_of_passes_back_through_the_whole(blind, name, norm, rng, monkeypatch):
    monkeypatch.setattr(crown.FirstLayer, "of", lambda network: None)  # for dense maps alone
    network, dense = convolutional(rng, name, blind=blind)
    x = rng.uniform(size=(4, network.dim))
    radius = np.array([1e-3, 0.05, 0.4, 3.0])
    for at_once in (1, 2**18):
        monkeypatch.setattr(receptive_fields, "AT_ONCE", at_once)
        found = bounds_that_count(network, x, radius, norm)
        for (low, high), (lower, higher) in zip(
            found, bounds_that_count(dense, x, radius, norm), strict=True
        ):
            # On large balls boxes count, too, which are wider for units that are linear.
            slack = 0.03 * (higher - lower) + 1e-9
            assert np.all(low >= lower - slack) and np.all(high <= higher + slack)
            some = radius <= 0.05
            np.testing.assert_allclose(low[some], lower[some], rtol=0.0, atol=1e-9)
            np.testing.assert_allclose(high[some], higher[some], rtol=0.0, atol=1e-9)
    without = Plan.of(network)._replace(fields=(), passed=0)
    low, high = bounds_that_count(network, x, radius, norm, without)[2]
    assert np.all(high - low >= found[2][1] - found[2][0])
    assert (high - low)[2].mean() > 1.2 * (found[2][1] - found[2][0])[2].mean()


def test_in_a_box_they_are_the_same_too(rng, monkeypatch):
    monkeypatch.setattr(crown.FirstLayer, "of", lambda network: None)
    network, dense = convolutional(rng, "relu")
    limits = np.zeros(network.dim), np.ones(network.dim)
    network, dense = (
        PinnedNetwork(each.affines, each.activations, None, limits=limits)
        for each in (network, dense)
    )
    x, radius = rng.uniform(size=(3, network.dim)), np.array([0.05, 0.5, 2.0])
    both = bounds_that_count(network, x, radius), bounds_that_count(dense, x, radius)
    for ours, theirs in zip(*both, strict=True):
        slack = 0.03 * (theirs[1] - theirs[0]) + 1e-9
        assert np.all(ours[0] >= theirs[0] - slack) and np.all(ours[1] <= theirs[1] + slack)
        np.testing.assert_allclose(ours[0][0], theirs[0][0], rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-40, 1.0, 1e40])
@pytest.mark.parametrize("name", ["relu", "softplus", "sigmoid"])
def test_no_pre_activation_leaves_its_interval(name, scale, rng):
    network, _ = convolutional(rng, name)
    first = network.affines[0]
    first = SparseAffine(first.kernel / scale, first.bias)
    network = Network([first, *network.affines[1:]], network.activations)
    x = scale * rng.standard_normal((3, network.dim))
    for size in (0.03, 0.4, 3.0):
        radius = scale * size * rng.uniform(0.3, 1.0, len(x))
        points = ball_points(rng, x, radius, 300)
        assert_inside(network, points, pre_activation_bounds(network, x, radius))


def test_what_folding_rounded_away_is_charged(rng):
    """Weights known to within an error, which may be anywhere: where a unit sees nothing, too."""
    off = 1e-3
    network, _ = convolutional(rng, "relu", off=off)
    x, radius = rng.standard_normal((4, network.dim)), np.full(4, 0.2)
    found = pre_activation_bounds(network, x, radius)
    points = ball_points(rng, x, radius, 60).reshape(-1, network.dim)
    for _ in range(8):
        a = points
        for (low, high), affine, sigma in zip(
            found, network.affines, network.activations, strict=False
        ):
            u, v = rng.standard_normal(affine.fan_in), rng.standard_normal(affine.fan_out)
            along = a.mean(axis=0) if rng.integers(2) else u
            moved = np.outer(along / np.linalg.norm(along), v / np.linalg.norm(v))
            shift = 0.999 * off * v / np.linalg.norm(v)
            z = a @ affine.kernel + 0.999 * off * (a @ moved) + affine.bias + shift
            each = z.reshape(60, *low.shape)
            assert np.all(each >= low) and np.all(each <= high)
            a = sigma.value(tf.constant(z)).numpy()


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_radii_survive_attack_and_are_far_larger_than_without(name, rng):
    network, _ = convolutional(rng, name)
    x = rng.standard_normal((8, network.dim))
    label, rivals = labelled(network, x)
    method = LinearBoundCertificate(network)
    args = x, label, rivals, np.zeros(rivals.shape)
    radius = method.prove(Question.of(*args)).radius[:, 0]
    method.plan = method.plan._replace(fields=(), passed=0)
    without = method.prove(Question.of(*args)).radius[:, 0]
    assert np.all(radius >= 0.999 * without) and radius.mean() > 1.3 * without.mean()
    inside = radius * (1.0 - 1e-9)
    assert np.all(lowest_margins(network, x, label, rivals, inside, rng) > 0.0)


def test_layers_beyond_the_work_that_is_allowed_are_bounded_forward(rng, monkeypatch):
    network, _ = convolutional(rng, "relu")
    work = [sum(field.work for field in layer) for layer in Plan.of(network).fields]
    assert work[0] == 0.0 < work[1] < work[2]
    monkeypatch.setattr(plan, "WORK", sum(work[:3]))
    found = Plan.of(network)
    assert len(found.fields) == 3 and found.back == ()
    x, radius = rng.standard_normal((2, network.dim)), np.full(2, 0.1)
    assert len(pre_activation_bounds(network, x, radius)) == 4


def test_only_units_that_may_bend_are_passed_back(rng, monkeypatch):
    network, _ = convolutional(rng, "relu")
    centres = Centres(network, np.zeros((1, network.dim)))
    asked, bounds = [], receptive_fields.Field.bounds

    def counted(self, *args):
        asked.append(args[-1][:, self.units])
        return bounds(self, *args)

    monkeypatch.setattr(receptive_fields.Field, "bounds", counted)
    balls = Balls(network, Plan.of(network), centres, np.ones(1))
    balls.bound_layers()
    wanted = sum(int(each.sum()) for each in asked)
    assert 0 < wanted < sum(each.size for each in asked)
    assert all(np.all(layer.low <= layer.high) for layer in balls.layers)


@pytest.mark.parametrize("name", ["relu", "softplus"])
def test_radii_do_not_depend_on_the_other_examples(name, rng):
    network, _ = convolutional(rng, name)
    x = rng.standard_normal((8, network.dim))
    label, rivals = labelled(network, x)
    args = x, label, rivals, np.zeros(rivals.shape)
    radius = LinearBoundCertificate(network).prove(Question.of(*args)).radius[:, 0]
    each = [
        LinearBoundCertificate(network).prove(Question.of(*(a[k : k + 1] for a in args)))
        for k in range(8)
    ]
    np.testing.assert_allclose(radius, [found.radius[0, 0] for found in each], rtol=1e-9)
