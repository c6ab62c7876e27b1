"""A row: what one example came to."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_curv.certificates.certificate import Certificates, Status

_DOWN = decimal.Context(prec=9, rounding=decimal.ROUND_FLOOR)


class Row(NamedTuple):
    """One example.

    Attributes:
        index: in the data set, from 0.
        label: or None.
        prediction: the class with the largest logit.
        nearest_rival: the rival with the smallest radius; −1 where none was examined.
        radius: l2, in the model's input units, rounded down to nine digits.
        status: name of a `Status`.
        gradient_evaluations: summed over the rivals.
        primal_equals_dual: the radius is the exact distance to the decision boundary.
        rivals: which ones the radius holds against; a certificate of the classifier is "all".
        method: that proved the radius; "" where there is none.
    """

    index: int
    label: int | None
    prediction: int
    nearest_rival: int
    radius: float
    status: str
    gradient_evaluations: int
    primal_equals_dual: bool
    rivals: str
    method: str

    @classmethod
    def from_certificates(
        cls, result: Certificates, label: np.ndarray | None, first_index: int, rivals: str
    ) -> list[Row]:
        """The rows of one batch."""
        return [
            cls(
                first_index + i,
                None if label is None else int(label[i]),
                int(result.prediction[i]),
                int(result.nearest_rival[i]),
                float(round_down(result.radius[i])),
                Status(int(result.status[i])).name,
                int(result.gradient_evaluations[i]),
                bool(result.primal_equals_dual[i]),
                rivals,
                str(result.method[i]),
            )
            for i in range(len(result.radius))
        ]

    def cells(self) -> list[str]:
        """As text, column by column."""
        label = "" if self.label is None else str(self.label)
        return [
            str(self.index),
            label,
            str(self.prediction),
            str(self.nearest_rival),
            repr(self.radius),
            self.status,
            str(self.gradient_evaluations),
            str(int(self.primal_equals_dual)),
            self.rivals,
            self.method,
        ]

    @classmethod
    def parse(cls, cells: Sequence[str]) -> Row:
        """The inverse of `cells`; ValueError where it is not one."""
        index, label, prediction, rival, radius, status, gradients, exact, rivals, method = cells
        positive = float(radius) > 0.0
        if positive != (Status[status] is Status.CERTIFIED) or not float(radius) >= 0.0:
            raise ValueError(f"radius {radius} with status {status}")
        return cls(
            int(index),
            int(label) if label else None,
            int(prediction),
            int(rival),
            float(radius),
            Status[status].name,
            int(gradients),
            {"0": False, "1": True}[exact],
            rivals,
            method,
        )


def round_down(radius: float) -> str:
    """Nine significant digits, never above the number; `inf` stays.

    Example:
        >>> round_down(1.9999999999)
        '1.99999999'
    """
    return repr(float(_DOWN.create_decimal(float(radius))))
