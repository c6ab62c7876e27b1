"""Networks that curvature on balls is tested with, and points of balls."""

import numpy as np

# Narrow first layers (fewer rows than inputs) and wide ones, no two sizes alike.
NETWORKS = [
    ((9, 4, 3), ("sigmoid",)),
    ((5, 7, 3), ("tanh",)),
    ((9, 5, 7, 3), ("sigmoid", "sigmoid")),
    ((3, 4, 8, 5, 3), ("softplus", "softplus", "softplus")),
    ((6, 5, 8, 4, 3), ("tanh", "softplus", "sigmoid")),
    ((12, 6, 5, 7, 8, 3), ("tanh", "softplus", "sigmoid", "tanh")),
]


def in_balls(rng, x, radius, count):
    """`(count, n, dim)` points, half of them on the sphere."""
    d = rng.standard_normal((count, *x.shape))
    length = np.where(rng.random((count, len(x), 1)) < 0.5, 1.0, rng.random((count, len(x), 1)))
    return x + radius[:, None] * (1.0 - 1e-12) * length * d / np.linalg.norm(d, axis=-1)[..., None]
