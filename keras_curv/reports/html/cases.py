"""The least robust examples, each with the closest adversarial point that a search found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_curv.attacks.closest import closest_points
from keras_curv.network.network import FeedForward
from keras_curv.rows.row import Row


class Case(NamedTuple):
    """One example with the closest adversarial point found."""

    row: Row  # of the run
    x: np.ndarray  # as the data set has it, of its shape and in its units
    point: np.ndarray | None = None  # of the same; None where none was found or searched for
    distance: float = np.inf  # of the point, in the model's input units
    becomes: int = -1  # the class predicted there
    names: tuple[str, ...] = ()  # of the entries of x, flattened; none where they have none


def entry_names(inputs: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Returns the names of the entries of an example that is joined of several inputs.

    Args:
        inputs: name → shape, in order.

    Example:
        >>> entry_names({"age": (1,), "place": (2,)})
        ('age', 'place[0]', 'place[1]')
    """
    sizes = {name: math.prod(shape) for name, shape in inputs.items()}
    return tuple(
        name if size == 1 else f"{name}[{i}]" for name, size in sizes.items() for i in range(size)
    )


def find_cases(
    rows: Sequence[Row],
    x: np.ndarray,
    inputs: np.ndarray,
    *,
    network: FeedForward,
    scale: float = 1.0,
) -> list[Case]:
    """Searches adversarial points near the examples of a few rows.

    Args:
        rows: at least one; only if their rivals are "all" does a radius rule out nearer points.
        x: the examples, as the data set has them.
        inputs: the same in the model's shape and units.
        network: to search against.
        scale: what `x` was multiplied by to get `inputs`.
    """
    flat = np.asarray(inputs, np.float64).reshape(len(x), network.dim)
    label = np.array([row.prediction for row in rows])
    at_least = np.array([row.radius if row.rivals == "all" else 0.0 for row in rows])
    found = closest_points(network, flat, label, at_least)
    points = (found.point / scale).reshape(x.shape)
    return [
        Case(row, x[i], points[i], float(found.distance[i]), int(found.prediction[i]))
        if np.isfinite(found.distance[i])
        else Case(row, x[i])
        for i, row in enumerate(rows)
    ]
