"""The certificate that is left when categories change as well: the weakest of all that can come.

What each change leads to is an input with a certificate of its own, held against what was predicted
before the change: exact in the categories, whatever method proves the rest.
"""

from __future__ import annotations

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
    """Certificates that hold whatever categories the attacker chooses.

    An example that a change alone brings down is UNPROVED, at an adversarial distance of 0.

    Args:
        certified: rows, inputs of as many, their labels → certificates.
        categories: what may change.
        x: `(n, dim)`.
        label: what is held, `(n,)`; None where a property has no labels.
        unchanged: of x as they are.
        argmax: whether the prediction is what holds: that of an example that fell is its rival.
    """
    result = Certificates(*(part.copy() for part in unchanged))
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
    return result._replace(primal_equals_dual=exact)
