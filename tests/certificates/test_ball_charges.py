"""Bounds on balls are charged for what rounding and folding change, whichever kind they are of."""

import mpmath
import numpy as np
import pytest
import tensorflow as tf
from ball_oracle import build, labelled
from linear_intervals import pre_activation_bounds

from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.linear.interval import IntervalCertificate
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network

KINDS = IntervalCertificate, LinearBoundCertificate


def _exact_margin(network, x, label, rival):
    a = [mpmath.mpf(float(v)) for v in x]
    for index, affine in enumerate(network.affines):
        columns = affine.kernel.T.tolist()
        z = [
            mpmath.fsum(mpmath.mpf(w) * v for w, v in zip(column, a, strict=True)) + mpmath.mpf(b)
            for column, b in zip(columns, affine.bias.tolist(), strict=True)
        ]
        if index < network.depth - 1:
            name = network.activations[index].name
            a = [max(v, mpmath.mpf(0)) if name == "relu" else mpmath.tanh(v) for v in z]
    return z[label] - z[rival]


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_cancellation_is_charged(name, rng):
    """At radius 0, sums that cancel to nothing: the bound stays below the margin's 50 digits."""
    rounded_up = 0
    for _ in range(20):
        kernels = [rng.standard_normal((6, 8)), rng.standard_normal((8, 7))]
        kernels.append(rng.standard_normal((7, 3)))
        for kernel in kernels:  # pairs of inputs that nearly cancel
            half = len(kernel) // 2
            kernel[:half] *= 1e7
            kernel[half : 2 * half] = -kernel[:half] * (1.0 + 1e-9)
        biases = [rng.standard_normal(kernel.shape[1]) for kernel in kernels]
        network = build(kernels, biases, name)
        x = np.tile(rng.standard_normal(3), 2)[None]
        label, rivals = labelled(network, x)
        computed = network.evaluate(tf.constant(x), label, rivals).margin.numpy()
        with mpmath.workdps(50):
            exact = [_exact_margin(network, x[0], label[0], t) for t in rivals[0]]
        for kind in KINDS:
            bound = kind(network).margin_bounds(x, label, rivals, np.zeros(1))
            assert all(mpmath.mpf(float(b)) <= e for b, e in zip(bound[0], exact, strict=True))
        rounded_up += sum(mpmath.mpf(float(c)) > e for c, e in zip(computed[0], exact, strict=True))
    assert rounded_up >= 5  # so there was something to charge


@pytest.mark.parametrize("part", ["hidden kernel", "hidden bias", "last kernel", "last bias"])
def test_folding_errors_are_charged(part, rng):
    """Stable relus, radius 0: all is linear, and the worst change of one part is known."""
    error = 1e-3
    kernels = [rng.standard_normal((4, 6)), rng.standard_normal((6, 3))]
    biases = [np.full(6, 20.0), rng.standard_normal(3)]
    exact = build(kernels, biases, "relu")
    x, radius = rng.standard_normal((1, 4)), np.zeros(1)
    label, rivals = labelled(exact, x)
    label, rival = label[0], rivals[0, 0]
    w = kernels[1][:, label] - kernels[1][:, rival]
    hidden = x[0] @ kernels[0] + biases[0]
    against = np.zeros(3)
    against[[label, rival]] = -1.0, 1.0
    shifts = {  # each of norm `error`; w moves by √2 of what the last kernel does
        "hidden kernel": (np.outer(x[0], -w) / np.linalg.norm(x) / np.linalg.norm(w), 0, 0, 0),
        "hidden bias": (0, -w / np.linalg.norm(w), 0, 0),
        "last kernel": (0, 0, np.outer(hidden, against) / np.linalg.norm(hidden) / 2**0.5, 0),
        "last bias": (0, 0, 0, against / 2**0.5),
    }[part]
    changes = [error * shift for shift in shifts]
    moved = build(
        [kernels[0] + changes[0], kernels[1] + changes[2]],
        [biases[0] + changes[1], biases[1] + changes[3]],
        "relu",
    )
    errors = [error * np.any(shift) for shift in shifts]
    folded = Network(
        [Affine(kernels[0], biases[0], *errors[:2]), Affine(kernels[1], biases[1], *errors[2:])],
        exact.activations,
    )
    one = np.array([label]), np.array([[rival]])
    worst = moved.margin(tf.constant(x), one[0], one[1][:, 0]).numpy()[0]
    for kind in KINDS:
        bound, plain = (kind(n).margin_bounds(x, *one, radius)[0, 0] for n in (folded, exact))
        assert bound <= worst < plain
        # √2 < 2 in the last map; norms of bounds of |a| in the place of norms, and boxes of balls
        assert plain - bound <= 4.0 * (plain - worst)
    low, high = pre_activation_bounds(folded, x, radius)[0]
    z = x @ (kernels[0] + changes[0]) + biases[0] + changes[1]
    assert np.all((low <= z) & (z <= high))
