"""The least robust examples of a report: what they are, and the closest adversarial points."""

from __future__ import annotations

import decimal

import numpy as np

from keras_curv.certificates.certificate import Status
from keras_curv.reports.html import pictures
from keras_curv.reports.html.cases import Case
from keras_curv.reports.html.markup import Markup, element, join
from keras_curv.reports.wording import number

_NUMBERS = 16  # entries of an input that is written out
_FOUR_DIGITS_UP = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)


def gallery(cases: list[Case], searched: bool) -> Markup:
    """All cases, as pictures where they are images, as numbers where they are few.

    Args:
        cases: at least one, all of one shape.
        searched: whether adversarial points were looked for.
    """
    shape = cases[0].x.shape
    limits = pictures.value_range(np.stack([case.x for case in cases]))
    drawn = pictures.is_image(shape)
    cards = [
        element(
            "li",
            element(
                "figure",
                _pictures(case, limits) if drawn else None,
                element("figcaption", *_caption(case, searched), None if drawn else _entries(case)),
            ),
        )
        for case in cases
    ]
    return join(_legend(shape, limits, drawn), element("ol", *cards, class_="examples"))


def _legend(shape: tuple[int, ...], limits: tuple[float, float], drawn: bool) -> Markup:
    if drawn:
        text = f"Black is {limits[0]:g} and white {limits[1]:g}. "
        if pictures.is_coloured(shape):
            text += "The third picture is the change, so many times amplified, in each colour's "
            text += "channel; mid-grey is no change."
        else:
            text += "The third picture is the change, so many times amplified: orange is more, "
            text += "blue is less, and white is no change."
        if max(shape[:2]) > pictures.LARGEST:
            text += " Of large images only every so many pixels are drawn."
    elif np.prod(shape) <= _NUMBERS:
        text = f"Inputs of shape {shape} are no images; their entries are written out."
    else:
        text = f"Inputs of shape {shape} are neither images nor few numbers, and are not shown."
    return element("p", text, class_="note")


def _pictures(case: Case, limits: tuple[float, float]) -> Markup:
    index = case.row.index
    shown = [_picture(pictures.image(case.x, limits), f"Example {index}", "example")]
    if case.point is not None:
        near = pictures.image(case.point, limits)
        delta = case.point - case.x.astype(np.float64)
        full = (limits[1] - limits[0]) / (2.0 if pictures.is_coloured(delta.shape) else 1.0)
        factor = _times(full / np.abs(delta).max())
        what = f"The adversarial point found near example {index}, predicted {case.becomes}"
        shown.append(_picture(near, what, "found"))
        what = f"The change from example {index} to it, {factor} times amplified"
        shown.append(_picture(pictures.difference(delta), what, f"× {factor}"))
    return element("div", *shown, class_="pictures")


def _picture(address: str, alt: str, below: str) -> Markup:
    return element("div", element("img", src=address, alt=alt), element("span", below))


def _caption(case: Case, searched: bool):
    row = case.row
    yield element("strong", f"Example {row.index}: predicted {row.prediction}")
    rival = f", nearest rival {row.nearest_rival}" if row.nearest_rival >= 0 else ""
    if row.status == Status.CERTIFIED.name:
        yield f"Radius {number(row.radius)} by {row.method}{rival}. "
    else:
        yield f"No radius: {Status[row.status].text}{rival}. "
    if case.point is not None:
        yield f"Predicted {case.becomes} at distance {_up(case.distance)}."
    elif searched:
        yield "No adversarial point was found."


def _entries(case: Case) -> Markup | None:
    if case.x.size > _NUMBERS:
        return None
    found = "" if case.point is None else f"; found: ({_joined(case.point)})"
    return element("div", f"Entries: ({_joined(case.x)}){found}")


def _joined(x: np.ndarray) -> str:
    return ", ".join(f"{value:.5g}" for value in np.ravel(x))


def _times(factor: float) -> str:
    """Three digits, written out."""
    rounded = float(f"{factor:.3g}")
    return f"{rounded:,.0f}" if rounded >= 1000.0 else f"{rounded:g}"


def _up(distance: float) -> str:
    """Four digits, rounded up, as suits an upper bound."""
    return str(float(_FOUR_DIGITS_UP.create_decimal(distance)))
