"""Drawings as inline SVG, which takes its colours and its size of type from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from keras_curv.reports.html.markup import Markup, element
from keras_curv.reports.plot import last_radius
from keras_curv.reports.wording import percent

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 16, 32, 62
_SMALL_WIDTH, _SMALL_HEIGHT, _SMALL_BASE, _SMALL_LEFT = 200, 110, 88, 22
_COLUMNS = 540  # of the curve: it is evaluated once each
_BARS = 24
_LABEL_WIDTH = 0.12  # of the curve


def curve(
    radii: np.ndarray, marked: Mapping[str, float], clean: float | None, units: str
) -> Markup:
    """The fraction of all examples certified at more than each radius.

    Between the columns of the drawing it shows the lower of the two values beside it.

    Args:
        radii: `(n,)`, 0 where nothing is certified.
        marked: radius → fraction, as the summary has it.
        clean: accuracy, or None.
        units: of the radii.
    """
    end = last_radius(radii)

    def across(radius):
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * radius / end

    def down(fraction):
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1.0 - fraction)

    grid = end * np.arange(_COLUMNS + 1) / _COLUMNS
    above = len(radii) - np.searchsorted(np.sort(radii), grid, side="right")
    path = f"M{_figure(_LEFT)} {_figure(down(above[0] / len(radii)))}"
    for i in range(1, _COLUMNS + 1):
        if above[i] != above[i - 1]:
            path += f"H{_figure(across(grid[i - 1]))}V{_figure(down(above[i] / len(radii)))}"
    path += f"H{_figure(across(end))}"
    axes = [
        *(_level(down(share), f"{100 * share:.0f} %") for share in (0.0, 0.25, 0.5, 0.75, 1.0)),
        *(_tick(across(value), label) for value, label in ticks(end)),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, f"l2 radius, {units}", "middle"),
    ]
    if clean is not None:
        y = down(clean)
        axes += [
            _line(_LEFT, y, _WIDTH - _RIGHT, y, "clean"),
            _text(_WIDTH - _RIGHT, y - 7, f"clean {percent(clean)}", "end", "halo"),
        ]
    points, labelled_to = [], 0.0
    for radius, fraction in marked.items():
        x, y = across(float(radius)), down(fraction)
        if float(radius) > end:
            continue
        points.append(element("circle", cx=_figure(x), cy=_figure(y), r=4, class_="mark"))
        if float(radius) - labelled_to >= _LABEL_WIDTH * end:
            labelled_to = float(radius)
            # Below on the left a falling curve leaves room, but not at the bottom.
            place = (x - 7, y + 20, "end") if y + 24 < down(0.0) else (x + 7, y - 7, "start")
            points.append(_text(*place[:2], percent(fraction, 1), place[2], "halo"))
    values = "; ".join(f"{percent(share)} at radius {radius}" for radius, share in marked.items())
    return _drawing(
        (_WIDTH, _HEIGHT),
        f"Certified accuracy falling with the radius: {values}",
        *axes,
        element("path", d=path, class_="curve"),
        *points,
    )


def histogram_counts(radii: np.ndarray, end: float) -> np.ndarray:
    """How many positive radii fall into each bar; what is beyond the end is in the last one."""
    bars = np.minimum(radii[radii > 0.0] / end * _BARS, _BARS - 1).astype(int)
    return np.bincount(bars, minlength=_BARS)


def histogram(
    counts: np.ndarray, uncertified: int, highest: int, end: float, described: str
) -> Markup:
    """One of several small histograms on the same axes; what has no radius stands to the left.

    Args:
        counts: of `histogram_counts`.
        uncertified: examples of radius 0.
        highest: count at full height.
        end: of the axis.
        described: for those who do not see it.
    """
    width = (_SMALL_WIDTH - _SMALL_LEFT) / _BARS

    def bar(x, count, kind):
        height = (_SMALL_BASE - 4) * count / max(highest, 1)
        return element(
            "rect",
            x=_figure(x),
            y=_figure(_SMALL_BASE - height),
            width=_figure(width - 1),
            height=_figure(height),
            class_=kind,
        )

    bars = [bar(_SMALL_LEFT + i * width, n, "certified") for i, n in enumerate(counts) if n]
    if uncertified:
        bars.append(bar(4, uncertified, "uncertified"))
    return _drawing(
        (_SMALL_WIDTH, _SMALL_HEIGHT),
        described,
        *bars,
        _line(_SMALL_LEFT, _SMALL_BASE, _SMALL_WIDTH, _SMALL_BASE, "axis"),
        _line(2, _SMALL_BASE, 4 + width + 1, _SMALL_BASE, "axis"),
        *(
            _text(_SMALL_LEFT + (_SMALL_WIDTH - _SMALL_LEFT) * value / end, 106, label, anchor)
            for value, label, anchor in _small_ticks(end)
        ),
    )


def ticks(end: float) -> Iterator[tuple[float, str]]:
    """Round numbers from 0 to `end`, at most seven, with their text.

    Example:
        >>> [text for _, text in ticks(2.7)]
        ['0', '0.5', '1', '1.5', '2', '2.5']
    """
    power = 10.0 ** math.floor(math.log10(end / 6))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * 6.0 >= end * (1 - 1e-9))
    for i in range(int(end / step * (1 + 1e-9)) + 1):
        yield i * step, f"{i * step:.6g}"


def _small_ticks(end: float):
    value, text = list(ticks(end))[-1]
    return [(0.0, "0", "middle"), (value, text, "middle" if value < 0.9 * end else "end")]


def _drawing(size: tuple[int, int], described: str, *children) -> Markup:
    return element(
        "svg", *children, viewBox=f"0 0 {size[0]} {size[1]}", role="img", aria_label=described
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str | None = None) -> Markup:
    place = {"x": _figure(x), "y": _figure(y), "text-anchor": anchor}
    return element("text", text, class_=kind, **place)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return element("line", class_=kind, **{name: _figure(v) for name, v in ends.items()})


def _level(y: float, label: str) -> Markup:
    line = _line(_LEFT, y, _WIDTH - _RIGHT, y, "grid")
    return Markup(line + _text(_LEFT - 8, y + 5, label, "end"))


def _tick(x: float, label: str) -> Markup:
    base = _HEIGHT - _BOTTOM
    return Markup(_line(x, base, x, base + 5, "axis") + _text(x, base + 24, label, "middle"))


def _figure(value: float) -> str:
    """A coordinate to a tenth of a unit."""
    return f"{round(float(value), 1):g}"
