"""Certificates for an attacker who also changes categories: the weakest over all changes.

Each change leads to an input with its own certificate for the prediction before the change. This is
exact in the categories, with any method for the other features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_curv.certificates.certificate import PRIMAL_EQUALS_DUAL, Certificates, Status
from keras_curv.threats.categories import Categories

Certify = Callable[[np.ndarray, np.ndarray, np.ndarray | None], Certificates]


def after_changes(
    certified: Certify,
    categories: Categories,
    x: np.ndarray,
    label: np.ndarray | None,
    unchanged: Certificates,
    argmax: bool,
) -> Certificates:
    """Returns certificates that hold for all categories that the attacker may choose.

    An example whose prediction a change of category alone flips is UNPROVED, with an adversarial
    distance of 0.

    Args:
        certified: rows, their changed inputs, their labels → certificates.
        categories: the groups that may change.
        x: `(n, dim)`.
        label: the classes to keep, `(n,)`; None where a property has no labels.
        unchanged: the certificates of x without a change.
        argmax: whether the property is argmax; then a flipped example's new prediction is its
            nearest rival.
    """
    result = Certificates(*(part.copy() for part in vars(unchanged).values()))
    for changed in categories.changed(x):
        rows = np.flatnonzero(result.status == Status.CERTIFIED)
        if not len(rows):
            break
        found = certified(rows, changed[rows], None if label is None else label[rows])
        result.gradient_evaluations[rows] += found.gradient_evaluations
        fell = found.status == Status.MISCLASSIFIED
        distance = np.where(fell, 0.0, found.adversarial_distance)
        result.adversarial_distance[rows] = np.minimum(result.adversarial_distance[rows], distance)
        weaker = ~(found.radius >= result.radius[rows])
        place = rows[weaker]
        lost = found.radius[weaker] == 0.0
        result.radius[place] = found.radius[weaker]
        result.status[place] = np.where(lost, Status.UNPROVED, result.status[place])
        result.method[place] = found.method[weaker]
        rival = np.where(fell & argmax, found.prediction, found.nearest_rival)[weaker]
        result.nearest_rival[place] = np.where(rival < 0, result.nearest_rival[place], rival)
    distance = result.adversarial_distance
    exact = np.isfinite(distance) & (distance <= result.radius * (1.0 + PRIMAL_EQUALS_DUAL))
    return dataclasses.replace(result, primal_equals_dual=exact)
