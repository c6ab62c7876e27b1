"""The least robust examples of a report, in words and pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_curv.certificates.certificate import Status
from keras_curv.reports.html import pictures
from keras_curv.reports.html.cases import Case
from keras_curv.reports.wording import number, number_up

_NUMBERS = 16  # entries of an input that is written out
_CHANGES = 5  # entries of an adversarial point that are shown


class Card(NamedTuple):
    """The card of one example."""

    title: str  # title, text: what came of it
    text: str
    # of the example and of the point found: a `data:` address, a text for those who do not see it,
    # and the text below; none where it is no image
    pictures: list[tuple[str, str, str]]
    entries: str  # its numbers, written out; "" where they are too many, drawn or in the table
    # the entries that the point found changes most: name, before, after and change
    changes: list[tuple[str, str, str, str]]


def gallery(
    cases: list[Case], rival: Callable[[int], str], searched: bool
) -> tuple[str, list[Card]]:
    """Shows examples as pictures where they are images, as numbers where they are few.

    Args:
        cases: at least one, all of one shape.
        rival: says in words what a nearest rival is.
        searched: whether adversarial points were looked for.

    Returns:
        A legend, and one card for each example.
    """
    shape = cases[0].x.shape
    limits = pictures.value_range(np.stack([case.x for case in cases]))
    drawn = pictures.is_image(shape)
    cards = [
        Card(
            _title(case),
            _text(case, rival, searched),
            _pictures(case, limits) if drawn else [],
            "" if drawn or case.point is not None else _entries(case),
            [] if drawn else _changes(case),
        )
        for case in cases
    ]
    return _legend(shape, limits, drawn), cards


def _title(case: Case) -> str:
    """Returns the example and its prediction, if there is one, and the label if that is another."""
    predicted, label = case.row.prediction, case.row.label
    title = f"Example {case.row.index}" + (f": predicted {predicted}" if predicted >= 0 else "")
    wrong = case.row.status == Status.MISCLASSIFIED.name and label is not None
    return f"{title}, labelled {label}" if wrong else title


def _legend(shape: tuple[int, ...], limits: tuple[float, float], drawn: bool) -> str:
    if not drawn:
        return (
            f"Inputs of shape {shape} are no images. Of each, the {_CHANGES} entries that the "
            f"adversarial point changes most are shown; without a point, all where they are "
            f"{_NUMBERS} at most."
        )
    text = f"Black is {limits[0]:g} and white {limits[1]:g}. "
    text += "The third picture, of those with one, is the change, so many times amplified"
    if pictures.is_coloured(shape):
        text += ", in each colour's channel; mid-grey is no change."
    else:
        text += ": orange is more, blue is less, and white is no change."
    if max(shape[:2]) > pictures.LARGEST:
        text += " Of large images only every so many pixels are drawn."
    return text


def _pictures(case: Case, limits: tuple[float, float]) -> list[tuple[str, str, str]]:
    index = case.row.index
    shown = [(pictures.image(case.x, limits), f"Example {index}", "example")]
    if case.point is not None:
        near = pictures.image(case.point, limits)
        delta = case.point - case.x.astype(np.float64)
        full = (limits[1] - limits[0]) / (2.0 if pictures.is_coloured(delta.shape) else 1.0)
        factor = _times(full / np.abs(delta).max())
        what = f"The adversarial point found near example {index}, predicted {case.becomes}"
        shown.append((near, what, "found"))
        what = f"The change from example {index} to it, {factor} times amplified"
        shown.append((pictures.difference(delta), what, f"× {factor}"))
    return shown


def _text(case: Case, rival: Callable[[int], str], searched: bool) -> str:
    """Tells the radius and the distance of the point found, in sentences."""
    row = case.row
    if row.status == Status.MISCLASSIFIED.name:
        return ""
    nearest = f", {rival(row.nearest_rival)}" if row.nearest_rival >= 0 else ""
    if row.status == Status.CERTIFIED.name:
        text = f"Radius {number(row.radius)} by {row.method}{nearest}."
    else:
        text = f"No radius: {Status[row.status].text}{nearest}."
    if case.point is not None:
        return f"{text} Predicted {case.becomes} at distance {number_up(case.distance)}."
    return f"{text} No adversarial point was found." if searched else text


def _entries(case: Case) -> str:
    return f"Entries: ({_joined(case.x)})" if case.x.size <= _NUMBERS else ""


def _changes(case: Case) -> list[tuple[str, str, str, str]]:
    """Returns the entries that change most on the way to the point found, the largest first."""
    if case.point is None:
        return []
    before, after = (np.ravel(a).astype(np.float64) for a in (case.x, case.point))
    delta = after - before
    most = np.argsort(-np.abs(delta), kind="stable")[:_CHANGES]
    return [
        (
            case.names[i] if case.names else f"{i}",
            f"{before[i]:.4g}",
            f"{after[i]:.4g}",
            f"{delta[i]:+.2g}",
        )
        for i in most
        if delta[i] != 0.0
    ]


def _joined(x: np.ndarray) -> str:
    return ", ".join(f"{value:.5g}" for value in np.ravel(x))


def _times(factor: float) -> str:
    """Returns a factor to three digits, written out."""
    rounded = float(f"{factor:.3g}")
    return f"{rounded:,.0f}" if rounded >= 1000.0 else f"{rounded:g}"
