"""The certified loss is never below a loss that is met in the ball."""

import numpy as np
import pytest
from loss_oracle import (
    CONVERGED,
    cross_entropy,
    dense_base,
    logits_of,
    margin_slope,
    random_data,
    weights_of,
)

from keras_curv.training.models.crt_model import CRTModel


def _sampled_cross_entropies(weights, x, y, radius, rng, count=100):
    """At x, at random points of the ball, and where descent on the loss ends."""
    offset = rng.standard_normal((count, 4))
    offset *= (
        radius * rng.uniform(size=(count, 1)) ** 0.25 / np.linalg.norm(offset, axis=1)[:, None]
    )
    points, labels = x + offset, np.full(count, y)
    sampled = cross_entropy(logits_of(weights, points), labels)
    for _ in range(50):
        p = np.exp(
            logits_of(weights, points) - logits_of(weights, points).max(axis=1, keepdims=True)
        )
        p /= p.sum(axis=1, keepdims=True)
        ascent = -sum(
            p[:, [t]] * margin_slope(weights, points, labels, np.full(count, t), "tanh")
            for t in range(3)
        )
        offset = points + 0.1 * radius * ascent / np.linalg.norm(ascent, axis=1)[:, None] - x
        offset *= np.minimum(1.0, radius / np.linalg.norm(offset, axis=1))[:, None]
        points = x + offset
    return np.concatenate([sampled, cross_entropy(logits_of(weights, points), labels)])


@pytest.mark.parametrize(("scale", "radius"), [(0.7, 0.05), (2.0, 0.5), (2.0, 2.0)])
def test_the_certified_loss_is_never_below_a_loss_in_the_ball(scale, radius, rng):
    base, (x, y) = dense_base(scale=scale), random_data(4)
    weights = weights_of(base)
    model = CRTModel(base, radius, attack_steps=100)
    model.compile("sgd")
    model.curvature.start_iterations = CONVERGED
    for image, label in zip(x, y, strict=True):
        certified = model.evaluate(image[None], np.array([label]), verbose=0)[0]
        met = _sampled_cross_entropies(weights, image, label, radius, rng)
        assert certified >= met.max() * (1.0 - 1e-5)  # float32
        if scale < 1.0 and radius < 0.1:  # nearly linear: and not far above either
            assert certified <= met.max() * 1.05


@pytest.mark.parametrize("steps", [1, 5])
def test_the_certified_loss_is_never_below_the_clean_one(steps):
    base, (x, y) = dense_base(scale=4.0), random_data(40)
    model = CRTModel(base, 1.0, attack_steps=steps)
    model.compile("sgd")
    clean = cross_entropy(logits_of(weights_of(base), x), y)
    for rows in range(0, 40, 8):
        loss = model.evaluate(x[rows : rows + 8], y[rows : rows + 8], verbose=0)[0]
        assert loss >= clean[rows : rows + 8].mean() * (1.0 - 1e-5)  # float32
