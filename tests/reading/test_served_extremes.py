"""Folded maps of weights of any size say how far float32 may be off: underflow and overflow.

The oracle: a server that takes the steps one by one, in any order of the terms, flushing subnormal
numbers or keeping them, multiplying neighbouring constants first or not; and exact rationals.
"""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from keras_curv.certificates.float32 import Float32Error
from keras_curv.errors import InputError
from keras_curv.lowering import chain as layers
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.stencil import Bounded
from keras_curv.network import sparse_affine
from keras_curv.network.network import Network

TINY = np.float32(2.0**-126)
LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass
class Server:
    """Computes in float32.

    Attributes:
        rng: chooses the order of sums.
        flushes: what is subnormal, as it is read and as it is written.
        folds: neighbouring constants into one, before it sees an input.
    """

    rng: np.random.Generator
    flushes: bool
    folds: bool

    def number(self, value):
        value = np.float32(value)
        return np.where(np.abs(value) < TINY, np.float32(0.0), value) if self.flushes else value

    def product(self, a, b):
        return self.number(self.number(a) * self.number(b))

    def sum(self, a, b):
        return self.number(self.number(a) + self.number(b))

    def step(self, kind, a, constant):
        if kind == "relu":
            return np.maximum(self.number(a), np.float32(0.0))
        if kind == "scale":
            return self.product(a, constant)
        if kind == "shift":
            return self.sum(a, constant)
        total = np.zeros(constant.shape[1], np.float32)
        for i in self.rng.permutation(len(constant)):
            total = self.sum(total, self.product(a[i], constant[i]))
        return total

    def __call__(self, steps, x):
        value, waiting = np.float32(x), list(steps)
        with np.errstate(all="ignore"):
            while waiting:
                kind, constant = waiting.pop(0)
                while self.folds and waiting and waiting[0][0] == kind in ("scale", "shift"):
                    combine = self.product if kind == "scale" else self.sum
                    constant = combine(constant, waiting.pop(0)[1])
                value = self.step(kind, value, constant)
        return value.astype(np.float64)


def fractions(array):
    flat = [Fraction(float(v)) for v in np.ravel(array)]
    return np.array(flat, object).reshape(np.shape(array))


def in_real_arithmetic(steps, x):
    value = fractions(x)
    for kind, constant in steps:
        if kind == "relu":
            value = np.array([max(v, Fraction(0)) for v in value], object)
        elif kind == "scale":
            value = value * fractions(constant)
        elif kind == "shift":
            value = value + fractions(constant)
        else:
            value = value @ fractions(constant)
    return value


def read(steps, size):
    """The network of these steps, as reading a graph makes it."""
    with np.errstate(all="ignore"):
        return Network(*layers.chain(through(Flow.input((size,)), steps).made()))


def through(flow, steps):
    """The flow after these steps."""
    for kind, constant in steps:
        if kind == "relu":
            flow = flow.activated("relu")
        elif kind == "scale":
            flow = flow.scaled(Ball.exact(constant))
        elif kind == "shift":
            flow = flow.shifted(Ball.exact(constant))
        else:
            flow = flow.times(Ball.exact(constant))
    return flow


def chain(rng, size=4, kinds=("product", "product", "scale", "scale", "shift")):
    """Steps whose sizes go up and down by many orders of magnitude, and come back."""
    steps, level, wide = [], 0.0, size
    for place in range(rng.integers(2, 6)):
        kind = rng.choice(kinds)
        if place == 0 and kind == "relu":
            kind = "product"
        if kind == "relu":
            steps.append((kind, None))
            continue
        # Up or down at random, or back to about 1.
        power = rng.uniform(-44.0, 38.0) if rng.random() < 0.6 else -level + rng.uniform(-3.0, 3.0)
        power = np.clip(power, -44.0, 37.5)
        shape = (wide, rng.integers(2, 6)) if kind == "product" else (wide,)
        spread = 10.0 ** rng.uniform(-4.0, 0.0, shape) if rng.random() < 0.3 else 1.0
        constant = np.float32(rng.standard_normal(shape) * 10.0**power * spread)
        constant *= rng.random(shape) > 0.15
        constant = np.clip(constant, -LARGEST, LARGEST)
        wide = shape[-1]
        level = max(level, power) if kind == "shift" else level + power
        steps.append((kind, constant))
    kernel = np.float32(10.0 ** np.clip(-level, -44.0, 37.0) * rng.standard_normal((wide, 3)))
    return [*steps, ("product", kernel)]


def charges(steps, x):
    """Bounds of the errors of `z_0 − z_1` and `z_0 − z_2`, infinite where there is no guarantee."""
    network = read(steps, len(x))
    if network.depth == 1:  # no need of a graph
        return np.sum(logit_charges(network.affines[0], x)[[[0, 0], [1, 2]]], axis=0)
    label, rivals = np.array([0]), np.array([[1, 2]])
    try:
        error = Float32Error(network)
    except InputError:
        return np.full(2, np.inf)
    return error(np.float64(x)[None], label, rivals, np.zeros((1, 2)))[0]


def logit_charges(affine, x):
    size = np.abs(np.float64(x))
    if not 2.0 * affine.served_gain * (1.0 + size.max()) < 2.0**120:
        return np.full(affine.fan_out, np.inf)
    return size @ abs(affine.served_kernel_error) + affine.served_bias_error


def off(steps, x, server):
    """|served − real| of these margins; infinite where a served logit is."""
    served, real = server(steps, x), in_real_arithmetic(steps, x)
    if not np.isfinite(served).all():
        return [np.inf, np.inf]
    served = fractions(served)
    return [abs((served[0] - served[t]) - (real[0] - real[t])) for t in (1, 2)]


def assert_charged(rng, steps, x, runs=2):
    """Returns how many margins had a finite charge."""
    charge = charges(steps, x)
    for flushes in (True, False):
        for folds in (True, False):
            for _ in range(runs):
                worst = off(steps, x, Server(rng, flushes, folds))
                for found, bound in zip(worst, charge, strict=True):
                    assert bound == np.inf or found <= Fraction(bound), (steps, x, flushes, folds)
    return np.isfinite(charge).sum()


@pytest.mark.parametrize("seed", range(3))
def test_random_chains(seed):
    rng, finite = np.random.default_rng(seed), 0
    for _ in range(40):
        x = np.float32(rng.standard_normal(4) * 10.0 ** rng.uniform(-12.0, 2.0))
        finite += assert_charged(rng, chain(rng), x, runs=1)
    assert finite > 12  # most may overflow; these are bounds of something


def test_random_chains_with_layers(rng):
    finite = 0
    for _ in range(6):
        x = np.float32(rng.standard_normal(4) * 10.0 ** rng.uniform(-12.0, 2.0))
        steps = chain(rng, kinds=("product", "relu", "shift"))
        finite += assert_charged(rng, steps, x, runs=1)
    assert finite > 2


def test_large_sparse_maps(rng, monkeypatch):
    monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 0)
    finite = 0
    for _ in range(30):
        kernels = [
            np.float32(10.0**power * rng.standard_normal((4, 4)) * (rng.random((4, 4)) < 0.6))
            for power in (rng.uniform(-44.0, 0.0), rng.uniform(0.0, 37.0))
        ]
        flow = Flow.input((4,))
        with np.errstate(all="ignore"):
            for kernel in kernels:
                flow = flow.times(Ball.exact(kernel), Bounded(1e60))
            affine = flow.affine()
        x = np.float32(rng.standard_normal(4) * 10.0 ** rng.uniform(-12.0, 2.0))
        steps = [("product", kernel) for kernel in kernels]
        served, real = Server(rng, True, False)(steps, x), in_real_arithmetic(steps, x)
        away = logit_charges(affine, x)
        for got, exact, bound in zip(served, real, away, strict=True):
            assert bound == np.inf or abs(Fraction(got) - exact) <= Fraction(bound)
        finite += np.isfinite(away).sum()
    assert finite > 30


def tiny_then_huge(size, last):
    return [("product", np.float32(1e-30) * np.eye(size)), ("product", np.float32(5e37) * last)]


def test_underflow_between_two_maps(rng):
    """1e-8 · 1e-30 is flushed, and 5e37 times that was a half."""
    last = np.eye(3)
    x = np.float32([1e-8, 0.0, 0.0])
    steps = tiny_then_huge(3, last)
    assert float(in_real_arithmetic(steps, x)[0]) == pytest.approx(0.5)
    assert Server(rng, True, False)(steps, x)[0] == 0.0
    assert_charged(rng, steps, x)


def test_every_term_of_a_long_sum_may_be_flushed(rng):
    """Each of 512 products is just below 2⁻¹²⁶, and there is no bias."""
    terms = 512
    kernel = np.zeros((terms, 3))
    kernel[:, 0] = np.float32(0.99 * 2.0**-60)
    steps = [("product", kernel), ("scale", np.full(3, 2.0**120))]
    x = np.full(terms, np.float32(2.0**-66))
    server = Server(rng, True, False)
    assert server(steps, x)[0] == 0.0
    assert float(in_real_arithmetic(steps, x)[0]) > 500.0 * 2.0**-6
    assert_charged(rng, steps, x, runs=1)


def test_a_subnormal_weight_behind_a_large_map(rng):
    """A server may read it as 0."""
    steps = [("product", 1e30 * np.eye(3)), ("product", np.float32(1e-39) * np.eye(3))]
    assert_charged(rng, steps, np.float32([1e8, 1.0, 0.0]))
    factor = Ball.exact(np.float32([1e-40])) * Ball.exact([1e30])
    assert factor.served >= 0.999e-10


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_constants_in_a_row_are_multiplied_first(rng, size):
    """Their product is 0, or infinite, while nothing else is out of range."""
    factor = np.full(3, np.float32(size**1.5))
    steps = [
        ("product", np.float32(1.0 / size**1.5) * np.eye(3)),
        ("scale", factor),
        ("scale", factor),
        ("product", np.float32(1.0 / size**1.5) * np.eye(3)),
    ]
    x = np.float32([3.0, 1.0, 2.0])
    plain = Server(rng, True, False)(steps, x)
    np.testing.assert_allclose(plain, x, rtol=1e-5)
    assert not np.allclose(Server(rng, True, True)(steps, x), x)
    assert_charged(rng, steps, x)


def test_overflow_that_cancels_in_the_folded_map(rng):
    """2¹²⁶ − 2¹²⁶ is 0 in real arithmetic; at 10 the server has ∞ − ∞."""
    last = np.float32([[3e34, 2.0**126, 0.0], [0.0, -(2.0**126), 0.0]])
    steps = [("product", np.float32([[1.0, 1.0]])), ("product", last)]
    assert np.isnan(Server(rng, True, False)(steps, np.float32([10.0]))).any()
    assert np.all(charges(steps, np.float32([10.0])) == np.inf)


def test_overflow_of_offsets_that_cancel(rng):
    """The shift of the folded map is 0."""
    shift = np.float32([2.0**62, 2.0**62])
    last = np.float32([[2.0**66, 1.0, 0.0], [-(2.0**66), 0.0, 0.0]])
    steps = [("product", np.float32([[1.0, 1.0]])), ("shift", shift), ("product", last)]
    assert np.isnan(Server(rng, True, False)(steps, np.float32([1.0]))).any()
    assert np.all(charges(steps, np.float32([1.0])) == np.inf)


def test_ordinary_scales_pay_nothing(rng):
    """The charge is a few float32 roundings."""
    kernels = [np.float32(rng.standard_normal((4, 4)) / 2.0) for _ in range(3)]
    steps = [("product", kernel) for kernel in kernels]
    x = np.float32(rng.standard_normal(4))
    sizes = np.abs(x) @ np.abs(kernels[0]) @ np.abs(kernels[1]) @ np.abs(kernels[2])
    assert np.all(charges(steps, x) < 20.0 * 2.0**-24 * 2.0 * sizes.max())
