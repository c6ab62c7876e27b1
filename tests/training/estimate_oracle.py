"""The bound that the curvature in training estimates, in plain numpy."""

import numpy as np


def by_eigenvalues(kernels, activations, inside=True):
    """The signed bound in float64, by dense eigenvalues and singular values.

    Without `inside`, every Jacobian is replaced by its norm, as for theorem 4.
    """
    kernels = [np.asarray(kernel, np.float64) for kernel in kernels]
    hidden = len(activations)
    ends = [
        [np.broadcast_to(end, kernel.shape[1]) for end in activation.first_range]
        for kernel, activation in zip(kernels, activations, strict=False)
    ]
    c = [(low + high) / 2 for low, high in ends]
    s = [(high - low) / 2 for low, high in ends]
    g = [np.max(np.abs(pair)) for pair in ends]

    def largest(matrices):
        return np.linalg.norm(matrices, 2, axis=(-2, -1))

    def norms(last, weights):
        """Norms of products that end with this map, its columns weighted, the longest first."""
        product, found = kernels[last] * weights[..., None, :], []
        for i in reversed(range(last)):
            found.append(largest(s[i][:, None] * product))
            product = kernels[i] @ (c[i][:, None] * product)
        return [largest(product), *found[::-1]]

    def telescoped(terms):
        return sum((norm * bound for norm, bound in zip(terms[1:], ell, strict=False)), terms[0])

    ell = []
    for last in range(hidden):
        ell.append(telescoped(norms(last, np.ones(kernels[last].shape[1]))))
    outer = [1.0, *(slope * bound for slope, bound in zip(g, ell, strict=True))]

    rows = kernels[-1].T
    classes = len(rows)
    low = high = (rows[:, None] - rows).reshape(classes**2, -1)  # a row for each pair
    kappa, reach = np.zeros(classes**2), np.linalg.norm(low, axis=1)
    for i in reversed(range(hidden)):
        d = np.min([h * e for h in activations[i].second_range for e in (low, high)], axis=0)
        root = np.sqrt(np.maximum(-d, 0.0))
        if inside:
            kappa += telescoped(norms(i, root)) ** 2
        else:
            kappa += (largest(kernels[i] * root[:, None]) * outer[i]) ** 2
        slopes = [slope * e for slope in ends[i] for e in (low, high)]
        p, q = np.min(slopes, axis=0), np.max(slopes, axis=0)
        plus, minus = np.maximum(kernels[i], 0.0).T, np.minimum(kernels[i], 0.0).T
        entries = reach[:, None] * np.linalg.norm(kernels[i], axis=1) * g[i]
        low, high = (
            np.maximum(p @ plus + q @ minus, -entries),
            np.minimum(q @ plus + p @ minus, entries),
        )
        reach = reach * g[i] * np.linalg.norm(kernels[i], 2)
    return kappa.reshape(classes, classes)
