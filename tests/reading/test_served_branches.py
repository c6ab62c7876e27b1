"""The charge for branches that meet covers a server that adds up in any order.

The oracle is that of `test_served_extremes.py`, with a sum of branches in the middle.
"""

from __future__ import annotations

import functools
import itertools
from fractions import Fraction

import numpy as np
import pytest
from test_served_extremes import LARGEST, Server, fractions, in_real_arithmetic, through

from keras_curv.certificates.float32 import Float32Error
from keras_curv.certificates.lipschitz import margin_lipschitz_bounds
from keras_curv.errors import InputError
from keras_curv.lowering import branches as joining
from keras_curv.lowering import chain
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.flow import Flow
from keras_curv.lowering.rules.pool import largest_of
from keras_curv.network import sparse_affine
from keras_curv.network.network import Network

WIDTH = 4


def _branch(rng, kinds):
    """Steps from WIDTH entries to as many, of any size."""
    steps = []
    for kind in kinds:
        power = rng.uniform(-40.0, 30.0) if rng.random() < 0.3 else rng.uniform(-3.0, 3.0)
        shape = (WIDTH, WIDTH) if kind == "product" else (WIDTH,)
        constant = np.float32(rng.standard_normal(shape) * 10.0**power)
        constant *= rng.random(shape) > 0.15
        steps.append((kind, None if kind == "relu" else np.clip(constant, -LARGEST, LARGEST)))
    return steps


def _terms(server, steps, x):
    """Numbers whose sum a branch is: those of its last product and offsets, each `(WIDTH,)`."""
    after = len(steps)
    while after and steps[after - 1][0] == "shift":
        after -= 1
    offsets = [constant for _, constant in steps[after:]]
    if not after or steps[after - 1][0] != "product":
        return [server(steps[:after], x).astype(np.float32), *offsets]
    value = server(steps[: after - 1], x).astype(np.float32)
    kernel = steps[after - 1][1]
    return [*(server.product(value[i], kernel[i]) for i in range(len(value))), *offsets]


def _served(server, branches, last, x, fused):
    rng = server.rng
    if fused:
        parts = [term for steps in branches for term in _terms(server, steps, x)]
    else:
        parts = [np.float32(server(steps, x)) for steps in branches]
    order = rng.permutation(len(parts))
    total = functools.reduce(server.sum, [parts[i] for i in order])
    return server(last, total)


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_in_any_order_are_charged(sparse, monkeypatch):
    rng, finite = np.random.default_rng(6), 0
    if sparse:
        monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 0)
    kinds = [(), ("product",), ("product", "shift"), ("product", "relu", "product", "shift")]
    kinds += [("scale", "shift"), ("relu",), ("product", "shift", "relu"), ("shift", "shift")]
    for _ in range(60):
        branches = [_branch(rng, kinds[rng.integers(len(kinds))]) for _ in range(2)]
        last = [("scale", _branch(rng, ["scale"])[0][1]), ("product", _last(rng))]
        if rng.random() < 0.5:
            last = [("relu", None), *last]
        x = np.float32(rng.standard_normal(WIDTH) * 10.0 ** rng.uniform(-10.0, 2.0))
        charge = _charge(branches, last, x, sparse)
        real = sum(in_real_arithmetic(steps, x) for steps in branches)
        real = _real(last, real)
        finite += np.isfinite(charge).sum()
        for flushes in (True, False):
            for fused in (True, False):
                with np.errstate(all="ignore"):
                    server = Server(rng, flushes, folds=False)
                    logits = _served(server, branches, last, x, fused)
                if not np.isfinite(logits).all():
                    assert not np.isfinite(charge).any(), (branches, last, x)
                    continue
                logits = fractions(logits)
                for t, bound in zip((1, 2), charge, strict=True):
                    off = abs((logits[0] - logits[t]) - (real[0] - real[t]))
                    assert bound == np.inf or off <= Fraction(bound), (branches, last, x, fused)
    assert finite > 20


def _last(rng):
    return np.float32(rng.standard_normal((WIDTH, 3)))


def _real(steps, value):
    for kind, constant in steps:
        if kind == "relu":
            value = np.array([max(v, Fraction(0)) for v in value], object)
        elif kind == "scale":
            value = value * fractions(constant)
        else:
            value = value @ fractions(constant)
    return value


def _charge(branches, last, x, sparse):
    with np.errstate(all="ignore"):
        given = Flow.input((WIDTH,))
        flow = functools.reduce(joining.plus, [through(given, steps) for steps in branches])
        try:
            network = Network(*chain.chain(through(flow, last).made()))
        except InputError:
            assert sparse  # the last map must be dense
            return np.full(2, np.inf)
        label, rivals = np.array([0]), np.array([[1, 2]])
        try:
            return Float32Error(network)(np.float64(x)[None], label, rivals, np.zeros((1, 2)))[0]
        except InputError:
            return np.full(2, np.inf)


def test_the_larger_of_two_is_what_it_is(rng):
    given = Flow.input((WIDTH,))
    kernels = [np.float32(rng.standard_normal((WIDTH, WIDTH))) for _ in range(2)]
    one, other = (given.times(Ball.exact(kernel)) for kernel in kernels)
    last = Ball.exact(rng.standard_normal((WIDTH, 3)))
    for a, b in ((one, other), (one.activated("relu"), other), (given, one.activated("tanh"))):
        network = Network(*chain.chain(joining.larger(a, b).times(last).made()))
        x = rng.standard_normal((5, WIDTH))
        values = [_value(flow, x) for flow in (a, b)]
        np.testing.assert_allclose(
            network.logits(x), np.maximum(*values) @ last.value, rtol=1e-12, atol=1e-12
        )


def test_norms_know_that_a_tournament_moves_no_farther_than_its_players(rng):
    kernel, last = rng.standard_normal((5, 8)), rng.standard_normal((2, 3))
    flow = Flow.input((5,)).times(Ball.exact(kernel))
    windows = np.array([[0, 5, 2, 3], [4, 1, 6, 7]])
    network = Network(*chain.chain(largest_of(flow, windows).times(Ball.exact(last)).made()))
    x = rng.standard_normal((9, 5))
    want = (x @ kernel)[:, windows].max(axis=2) @ last
    np.testing.assert_allclose(network.logits(x), want, rtol=1e-12, atol=1e-12)
    bound = margin_lipschitz_bounds(network)
    product = np.linalg.norm(kernel, 2) * np.linalg.norm(last[:, :1] - last[:, 1:], axis=0)
    assert np.all(bound[0, 1:] <= product * (1.0 + 1e-9))
    pairs = itertools.combinations(range(len(x)), 2)
    moved = [np.ptp((want[i] - want[j]) / np.linalg.norm(x[i] - x[j])) for i, j in pairs]
    assert max(moved) <= bound.max()


def _value(flow, x):
    affines, sigmas = chain.chain(flow.made())
    for affine, sigma in zip(affines, [*sigmas, None], strict=True):
        x = x @ affine.kernel + affine.bias
        x = x if sigma is None else sigma.value(x).numpy()
    return x


def test_joined_flows_stand_where_they_should(rng):
    given = Flow.input((2, 3))
    kernel = Ball.exact(rng.standard_normal((6, 4)))
    other = given.rearranged(np.arange(6)).times(kernel).rearranged(np.arange(4).reshape(2, 2))
    for flows in ([given, other], [other, given, given], [other.activated("relu"), given]):
        together = joining.joined(flows, 1)
        x = rng.standard_normal((5, 6))
        parts = [_value(flow, x).reshape(5, *flow.shape) for flow in flows]
        expected = np.concatenate(parts, axis=2)
        assert together.shape == expected.shape[1:]
        np.testing.assert_allclose(_value(together, x), expected.reshape(5, -1), rtol=1e-12)
    with pytest.raises(InputError, match="along axis 1"):
        joining.joined([given, other], 0)
