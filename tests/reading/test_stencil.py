"""No bound of a convolution's norm is below the norm of its matrix, and few are much above it.

The oracle is the singular value decomposition of the dense matrix.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_curv.lowering import stencil as module
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.rules.convolution import matrix, stencil
from keras_curv.lowering.stencil import Stencil, norm_of_product
from keras_curv.network.sparse_affine import schur_bound
from keras_curv.saved_model import limits

SVD = 1.0 - 1e-12  # what LAPACK may be off by, relative


def svd_norm(array):
    return np.linalg.norm(array, 2)


@st.composite
def cases(draw):
    """Kernels of any window, strides up to 3, both paddings, dilated or not, any image."""
    window = draw(st.tuples(*[st.integers(1, 4)] * 2))
    strides = draw(st.tuples(*[st.integers(1, 3)] * 2))
    dilations = (1, 1) if max(strides) > 1 else draw(st.tuples(*[st.integers(1, 2)] * 2))
    spans = [(n - 1) * d + 1 for n, d in zip(window, dilations, strict=True)]
    image = [draw(st.integers(span, span + 5)) for span in spans]
    channels, filters = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Of one sign, of both, of several magnitudes.
    kernel = rng.standard_normal((*window, channels, filters)) + draw(st.sampled_from([0, 0, 3]))
    kernel = kernel * 10.0 ** (draw(st.sampled_from([0, 3])) * rng.standard_normal(filters))
    how = {
        "strides": strides,
        "dilations": dilations,
        "padding": draw(st.sampled_from(["SAME", "VALID"])),
    }
    return kernel, (*image, channels), how


@settings(max_examples=settings().max_examples // 2)
@given(case=cases())
def test_no_bound_is_below_the_norm_of_the_matrix(case):
    kernel, image, how = case
    dense = matrix(Ball.exact(kernel), image, **how)[0].dense().value
    found = stencil(Ball.exact(kernel), image, **how)
    assert SVD * svd_norm(dense) <= found.norm
    assert SVD * svd_norm(np.abs(dense)) <= found.magnitude
    assert found.norm <= found.magnitude * 1.000001


@settings(max_examples=settings().max_examples // 4)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_scaling_either_side_and_unknown_digits_are_paid_for(case, seed):
    kernel, image, how = case
    rng = np.random.default_rng(seed)
    ball = Ball(kernel, np.abs(kernel) * rng.uniform(0.0, 0.3, kernel.shape))
    lowered, shape = matrix(ball, image, **how)
    lowered = lowered.dense()
    before, after = rng.standard_normal(np.prod(image)), rng.standard_normal(np.prod(shape))
    if rng.integers(2):  # one factor for each channel
        after = np.broadcast_to(after[: shape[2]], shape).reshape(-1)
    found = stencil(ball, image, **how)
    found = found.with_inputs_scaled(Ball.exact(before)).with_outputs_scaled(Ball.exact(after))
    for _ in range(3):
        real = lowered.value + rng.choice([-1, 1], lowered.shape) * lowered.error
        real = before[:, None] * real * after
        assert SVD * svd_norm(real) <= found.norm
        assert SVD * svd_norm(np.abs(real)) <= found.magnitude


@settings(max_examples=settings().max_examples // 3)
@given(first=cases(), second=cases(), seed=st.integers(0, 2**32))
def test_a_product_is_bounded_whether_or_not_it_is_one_convolution(first, second, seed):
    kernel, image, how = first
    one, shape = matrix(Ball.exact(kernel), image, **how)
    rng = np.random.default_rng(seed)
    other = rng.standard_normal((*second[0].shape[:2], shape[2], 2))
    how_then = {"strides": second[2]["strides"], "padding": "SAME"}
    two, _ = matrix(Ball.exact(other), shape, **how_then)
    found = stencil(Ball.exact(kernel), image, **how)
    both = found.then(stencil(Ball.exact(other), shape, **how_then))
    assert len(both) == 2 - found.complete
    product = one.dense().value @ two.dense().value
    assert SVD * svd_norm(product) <= norm_of_product(both)


def test_pooling_and_a_convolution_are_one():
    """Image 8 × 8, means of 2 × 2, then a difference of neighbours: lower than the product."""
    pool = stencil(Ball.exact(np.full((2, 2, 1, 1), 0.25)), (8, 8, 1), strides=(2, 2))
    difference = stencil(Ball.exact(np.array([1.0, -1.0]).reshape(1, 2, 1, 1)), (4, 4, 1))
    (both,) = pool.then(difference)
    taps = [[0.25, 0.25, -0.25, -0.25]] * 2
    np.testing.assert_array_equal(both.taps.value[:, :, 0, 0], taps)
    assert both.strides == (2, 2)
    assert not difference.complete
    # Padded with zeros, what lies outside is cut off before the second: not one convolution.
    padded = stencil(Ball.exact(np.ones((3, 3, 1, 1))), (8, 8, 1), padding="SAME")
    assert len(padded.then(difference)) == 2


@pytest.mark.parametrize("alone", [True, False])
def test_what_sees_another_image_is_not_one_with_what_was_before(alone, rng):
    """One filter; but what comes next takes two of its pixels for channels."""
    sums = stencil(Ball.exact(rng.standard_normal((1, 1, 2, 1))), (1, 18, 2))
    taps = Ball.exact(rng.standard_normal((1, 1, 1, 2) if alone else (1, 1, 2, 3)))
    other = dataclasses.replace(stencil(taps, (3, 3, taps.shape[2])), alone=alone)
    assert sums.complete and sums.then(other) == (sums, other)


@pytest.mark.parametrize("order", ["before", "behind", "both"])
def test_what_goes_over_each_channel_alone_is_that_of_all_channels(order, rng):
    window, spread = np.full((2, 3, 1, 1), 1.0 / 6.0), np.eye(2)
    how = {"strides": (2, 3)}
    each = Ball.exact(np.repeat(window, 2, axis=3))
    alone = dataclasses.replace(stencil(each, (8, 9, 1), **how), alone=True)
    whole = stencil(Ball.exact(window * spread), (8, 9, 2), **how)
    mixing = stencil(Ball.exact(rng.standard_normal((1, 2, 2, 2))), (8, 9, 2), strides=(1, 2))
    mixing = dataclasses.replace(mixing, complete=True)
    pairs = {"before": (alone, mixing), "behind": (mixing, alone), "both": (alone, alone)}
    (found,) = pairs[order][0].then(pairs[order][1])
    (known,) = (whole if one is alone else one for one in pairs[order][:1])
    (known,) = known.then(whole if pairs[order][1] is alone else mixing)
    taps = found.taps.value * spread if order == "both" else found.taps.value
    np.testing.assert_allclose(taps, known.taps.value, rtol=1e-14)
    assert (found.strides, found.complete) == (known.strides, known.complete)
    assert found.alone == (order == "both")
    for one, other in ((alone, whole), (found, known)):
        np.testing.assert_allclose(one.norm, other.norm, rtol=1e-9)
        np.testing.assert_allclose(one.magnitude, other.magnitude, rtol=1e-9)
    factor = Ball.exact(rng.standard_normal(12))
    by_channel = Ball.exact(np.tile([3.0, -0.5], 6))
    for some in (factor, by_channel):
        before = [one.with_inputs_scaled(some) for one in (alone, whole)]
        behind = [one.with_outputs_scaled(some) for one in (alone, whole)]
        for one, other in (before, behind):
            np.testing.assert_allclose(one.norm, other.norm, rtol=1e-9)
            (one,), (other,) = (first.then(mixing) for first in before)
            np.testing.assert_allclose(one.norm, other.norm, rtol=1e-9)
    assert alone.with_outputs_scaled(by_channel).complete


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 2)])
def test_filters_of_a_channel_each_have_the_norm_of_the_widest(strides, rng):
    value = rng.standard_normal((3, 2, 1, 4)) * [1.0, 3.0, 2.5, 0.5]
    error = 0.3 * np.abs(value)
    alone = Stencil(Ball(value, error), strides, alone=True)
    each = [Stencil(Ball(value[..., [k]], error[..., [k]]), strides) for k in range(4)]
    exact = [Stencil(Ball.exact(value[..., [k]]), strides).norm for k in range(4)]
    np.testing.assert_allclose(alone.magnitude, max(one.magnitude for one in each), rtol=1e-9)
    known = dataclasses.replace(alone, taps=Ball.exact(value))
    np.testing.assert_allclose(known.norm, max(exact), rtol=1e-9)
    most = (1.0 + 1e-9) * (known.norm + 0.3 * known.magnitude)
    assert max(one.norm for one in each) <= alone.norm * (1.0 + 1e-9) and alone.norm <= most
    if strides == (1, 1):  # where there are others, no frequency has all these signs
        assert known.norm < 0.95 * known.magnitude


@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 2), (5, 1), (4, 3)])
def test_it_is_within_one_percent_of_the_supremum(window, stride, rng):
    kernel = Ball.exact(rng.standard_normal((window, window, 1, 1)))
    image, how = (34, 30, 1), {"strides": (stride, stride), "padding": "SAME"}
    found = stencil(kernel, image, **how).norm
    # By aliasing: what strides fold onto one frequency are s² of the unstrided symbol's.
    size = 60 * stride
    symbol = np.abs(np.fft.fft2(kernel.value[:, :, 0, 0], (size, size))) ** 2
    folded = symbol.reshape(stride, 60, stride, 60).sum(axis=(0, 2))
    assert found <= 1.01 * np.sqrt(folded.max()) / stride
    # A finite image lacks a little more.
    dense = matrix(kernel, image, **how)[0].dense().value
    assert SVD * svd_norm(dense) <= found <= 1.03 * svd_norm(dense)


@pytest.mark.parametrize("degree", [1, 2, 5])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.5])
def test_a_peak_between_the_points_of_the_grid_is_not_missed(degree, place):
    """`I + e^{iDω} R(φ)`, R a rotation, has the norm 2 where Dω = φ, and is extremal there.

    Half a step from its neighbours on the grid it is `2 cos(π D / 2N)`: the bound is then exact.
    """
    spacing = 2.0 * np.pi / module.OVERSAMPLING[0]  # of the grid, in Dω
    cos, sin = np.cos(place * spacing), np.sin(place * spacing)
    kernel = np.zeros((1, degree + 1, 2, 2))
    kernel[0, 0] += np.eye(2)
    kernel[0, -1] += [[cos, -sin], [sin, cos]]
    bound = Stencil(Ball.exact(kernel)).norm
    assert 2.0 * (1.0 - 1e-12) <= bound
    if place == 0.5:
        assert bound <= 2.0 * (1.0 + 1e-8)  # so a smaller allowance would be wrong
    # On both axes at once, as a tensor product.
    both = np.einsum("acij,bdkl->bcikjl", kernel, kernel.swapaxes(0, 1))
    both = both.reshape(degree + 1, degree + 1, 4, 4)
    assert 4.0 * (1.0 - 1e-12) <= Stencil(Ball.exact(both)).norm <= 4.0 * 1.01


def test_hostile_kernels_found_by_ascent_stay_below(rng):
    """Kernels pushed, gradient by gradient, to peak where the grid has no point."""
    points = 32  # of the grid, for three taps
    fine = np.exp(1j * np.outer(np.linspace(0.0, 2.0 * np.pi, 512), np.arange(3)))
    grid = np.exp(2j * np.pi * np.outer(np.arange(points), np.arange(3)) / points)

    def largest(waves, taps):
        return np.linalg.norm(np.einsum("nq,qij->nij", waves, taps), 2, axis=(1, 2)).max()

    worst = 0.0
    for _ in range(3):
        taps = rng.standard_normal((3, 2, 2))
        ratio = largest(fine, taps) / largest(grid, taps)
        for _ in range(100):
            trial = taps + 0.1 * rng.standard_normal(taps.shape)
            trial_ratio = largest(fine, trial) / largest(grid, trial)
            if trial_ratio > ratio:
                taps, ratio = trial, trial_ratio
        worst = max(worst, ratio)
        found = Stencil(Ball.exact(taps[None].transpose(0, 1, 3, 2))).norm
        assert SVD * largest(fine, taps) <= found
    assert worst > 1.003  # the search did find such kernels: the allowance is 1.0048


def test_fewer_points_where_there_are_many_filters(monkeypatch, rng):
    kernel = rng.standard_normal((3, 3, 2, 3))
    fine = Stencil(Ball.exact(kernel))
    norms, magnitude = [fine.norm], fine.magnitude
    for multiplications in (6_260, 1_260, 0):
        monkeypatch.setattr(limits, "OPTIONAL", multiplications)
        norms.append(Stencil(Ball.exact(kernel)).norm)
    assert norms[0] < norms[1] < norms[2] < norms[3] == pytest.approx(magnitude, rel=1e-12)
    assert norms[2] < 1.2 * norms[0]


@pytest.mark.parametrize("power", [-1060, -500, 0, 500, 1000])
def test_weights_of_any_size(power, rng):
    kernel = rng.standard_normal((3, 2, 1, 2))
    scaled = np.ldexp(kernel, power)
    norm = Stencil(Ball.exact(np.ldexp(scaled, -power))).norm
    assert np.ldexp(norm, power) <= Stencil(Ball.exact(scaled)).norm * (1.0 + 1e-13)
    assert Stencil(Ball.exact(scaled)).norm <= np.ldexp(norm, power) * (1.0 + 1e-13) + 5e-324


def test_nothing_and_what_is_not_a_number():
    assert Stencil(Ball.exact(np.zeros((3, 3, 1, 1)))).norm == 0.0
    for bad in (np.nan, np.inf):
        kernel = np.ones((3, 3, 1, 1))
        kernel[1, 1] = bad
        assert Stencil(Ball.exact(kernel)).norm == np.inf
        assert Stencil(Ball.exact(np.ones((3, 3, 1, 1)))).norm < np.inf
    assert Stencil(Ball.exact(np.full((3, 3, 1, 1), 1e308))).norm == np.inf


def test_the_root_of_the_largest_sums(rng):
    array = rng.standard_normal((7, 5)) * (rng.random((7, 5)) < 0.5)
    bound = schur_bound(matrix(Ball.exact(array[None, None]), (1, 1, 7))[0].value)
    assert SVD * svd_norm(np.abs(array)) <= bound
    sums = np.abs(array).sum(axis=1).max() * np.abs(array).sum(axis=0).max()
    assert bound == pytest.approx(np.sqrt(sums), rel=1e-12)
