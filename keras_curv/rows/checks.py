"""The check that rows found in a file can be of the run that goes on with them."""

from __future__ import annotations

from keras_curv.certificates.certificate import CORRECT, Status
from keras_curv.errors import InputError
from keras_curv.rows.row import Row


def require_row_of(row: Row, known: dict[str, object], classes: int | None) -> None:
    """Refuses a row that the run could not have written.

    Args:
        row: as it was read.
        known: attributes that it has in this run.
        classes: of the model that certified it, 0 if there was none; None: the numbers in the
            place of classes are others, or the property is about more than one rival.

    Raises:
        InputError: the row has another value, or one that is none of theirs.

    Example:
        >>> row = Row(0, 1, 1, 2, 0.5, "CERTIFIED", 7, True, "all", "crc")
        >>> require_row_of(row, {"label": 1, "rivals": "all"}, classes=3)
        >>> require_row_of(row, {"label": 2, "rivals": "all"}, classes=3)
        Traceback (most recent call last):
            ...
        keras_curv.errors.InputError: row 0 cannot be of this run: its label is 1, not 2; name \
another output
    """
    others = [
        (name, getattr(row, name), f"not {value!r}")
        for name, value in known.items()
        if getattr(row, name) != value
    ]
    for name in () if classes is None else ("prediction", "nearest_rival"):
        if not -1 <= getattr(row, name) < classes:
            others.append((name, getattr(row, name), f"of {classes} classes"))
    if classes and row.status in CORRECT and row.prediction < 0:
        others.append(("prediction", row.prediction, f"{row.status} of no class"))
    if classes is not None and row.nearest_rival == row.prediction != -1:
        others.append(("nearest_rival", row.nearest_rival, "as is its prediction"))
    wrong = row.status == Status.MISCLASSIFIED.name
    if classes is not None and row.label is not None and (wrong or row.radius > 0.0):
        if wrong == (row.prediction == row.label):
            others.append(("prediction", row.prediction, f"{row.status} of label {row.label}"))
    if row.gradient_evaluations < 0:
        others.append(("gradient_evaluations", row.gradient_evaluations, "below 0"))
    if others:
        name, found, why = others[0]
        raise InputError(
            f"row {row.index} cannot be of this run: its {name} is {found!r}, {why}; name another "
            "output"
        )
