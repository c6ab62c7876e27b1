"""Drawings of radii: what stands where. `macros.html.j2` makes them inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from keras_curv.certificates.certificate import last_radius
from keras_curv.reports.html.templates import coordinate
from keras_curv.reports.wording import percent

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 16, 32, 62
_SMALL_WIDTH, _SMALL_HEIGHT, _SMALL_BASE, _SMALL_LEFT = 200, 110, 88, 22
_SMALL_RIGHT = 180  # where the bar of infinite radii stands apart
_SMALL_LENGTH = _SMALL_RIGHT - _SMALL_LEFT
_COLUMNS = 540  # of the curve: it is evaluated once each
_BARS = 24
_LABEL, _LINE = 76.0, 21.0  # size of a label of a dot, on a narrow screen
_LINES = 8  # above one another at most
_FARTHEST = 10.0  # times the largest radius found, up to which a radius asked for is drawn


class Drawing:
    """Shapes and texts of a drawing; their kinds are classes of the page's CSS.

    Args:
        width, height: size, in units of the coordinates.
        described: for those who do not see it.
    """

    def __init__(self, width: int, height: int, described: str) -> None:
        self.width, self.height, self.described = width, height, described
        self.bars: list[tuple[float, float, float, float, str]] = []  # x, y, width, height, kind
        self.lines: list[tuple[float, float, float, float, str]] = []  # from x, y to x, y; kind
        self.path = ""  # the curve, as SVG has it
        self.attack = ""  # the curve of adversarial points, and what is open between both
        self.open = ""
        self.marks: list[tuple[float, float]] = []  # middles of dots on the curve
        self.texts: list[tuple[str, float, float, str, str]] = []  # text, x, y, anchor, kind


def curve(
    radii: np.ndarray,
    marked: Mapping[str, float],
    clean: float | None,
    axis: str,
    distances: np.ndarray | None = None,
) -> Drawing:
    """Draws the fraction of all examples certified at more than each radius.

    Between the columns of the drawing it shows the lower of the two values beside it.

    Args:
        radii: `(n,)`, 0 where nothing is certified.
        marked: radius → fraction, as the summary has it.
        clean: accuracy, or None.
        axis: what the radii are, and their units.
        distances: of adversarial points, `(n,)`, `inf` where none was found: the fraction not yet
            broken is drawn beside, and what is neither proved nor broken is shaded.
    """
    end, right, base = axis_end(radii, marked), _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    if distances is not None:
        far = distances[np.isfinite(distances)]
        end = max(end, float(np.quantile(far, 0.99)) if len(far) else end)

    def across(radius: float) -> float:
        return _LEFT + (right - _LEFT) * radius / end

    def down(fraction: float) -> float:
        return _TOP + (base - _TOP) * (1.0 - fraction)

    values = "; ".join(f"{percent(share)} at radius {radius}" for radius, share in marked.items())
    drawing = Drawing(_WIDTH, _HEIGHT, f"Certified accuracy falling with the radius: {values}")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = down(share)
        drawing.lines.append((_LEFT, y, right, y, "grid"))
        drawing.texts.append((f"{100 * share:.0f} %", _LEFT - 8, y + 5, "end", "label"))
    for value, label in ticks(end):
        x = across(value)
        drawing.lines.append((x, base, x, base + 5, "axis"))
        drawing.texts.append((label, x, base + 24, "middle", "label"))
    middle = (_LEFT + right) / 2
    drawing.texts.append((axis, middle, _HEIGHT - 8, "middle", "label"))
    taken = []
    if clean is not None:
        y = down(clean)
        drawing.lines.append((_LEFT, y, right, y, "clean"))
        drawing.texts.append((f"clean {percent(clean)}", right, y - 7, "end", "halo"))
        taken.append((right - 120.0, y - 7.0))
    dots = [(across(float(at)), down(share), share) for at, share in marked.items()]
    for x, y, fraction in sorted(dot for dot in dots if dot[0] <= right):
        drawing.marks.append((x, y))
        left, line = free_place(x, y, taken, right)
        taken.append((left, line))
        if line < y - _LINE:
            drawing.lines.append((x, y, left, line + 3, "leader"))
        drawing.texts.append((percent(fraction, 1), left, line, "start", "halo"))
    grid = end * np.arange(_COLUMNS + 1) / _COLUMNS

    def falling(values: np.ndarray) -> list[tuple[str, str]]:
        """Returns the corners of the fraction above each radius, a step after the other."""
        above = len(values) - np.searchsorted(np.sort(values), grid, side="right")
        heights = [coordinate(down(count / len(values))) for count in above]
        corners = [(coordinate(_LEFT), heights[0])]
        for i in range(1, _COLUMNS + 1):
            if above[i] != above[i - 1]:
                at = coordinate(across(grid[i - 1]))
                corners += [(at, heights[i - 1]), (at, heights[i])]
        return [*corners, (coordinate(right), heights[-1])]

    proved = falling(radii)
    drawing.path = _joined(proved)
    if distances is not None:
        unbroken = falling(distances)
        drawing.attack = _joined(unbroken)
        drawing.open = _joined([*unbroken, *reversed(proved)]) + "Z"
    return drawing


def axis_end(radii: np.ndarray, marked: Iterable[str]) -> float:
    """Returns where the axis ends: beyond the largest radius found, and the largest asked for.

    One that is asked for far beyond all that were found is left out: it would hide the curve.

    Example:
        >>> axis_end(np.array([1.0]), ["2", "1000"])
        2.1
    """
    found = last_radius(radii)
    return max([found, *(1.05 * float(at) for at in marked if float(at) <= _FARTHEST * found)])


def free_place(
    x: float, y: float, taken: Sequence[tuple[float, float]], right: float
) -> tuple[float, float]:
    """Returns where the label of a dot begins: above on its right, where no other one stands.

    A falling curve leaves room there. Where all places are taken, labels overlap.

    Args:
        x, y: the dot.
        taken: places of the labels that are there.
        right: end of the drawing.
    """
    left = min(x + 7.0, right - _LABEL)
    above = [(left, y - 7.0 - k * _LINE) for k in range(_LINES)]
    below = [(left, y + 7.0 + k * _LINE) for k in range(1, _LINES)]
    for place in above + below:
        clear = all(abs(place[0] - a) >= _LABEL or abs(place[1] - b) >= _LINE for a, b in taken)
        if clear and _LINE < place[1] < _HEIGHT - _BOTTOM:
            return place
    return above[0]


def _joined(corners: Sequence[tuple[str, str]]) -> str:
    """Returns the path of SVG through corners of horizontal and vertical lines."""
    (x, y), *others = corners
    path = f"M{x} {y}"
    for next_x, next_y in others:
        path += (f"H{next_x}" if next_x != x else "") + (f"V{next_y}" if next_y != y else "")
        x, y = next_x, next_y
    return path


def histogram_counts(radii: np.ndarray, end: float) -> np.ndarray:
    """Counts the positive finite radii in each bar; those beyond the end are in the last one."""
    finite = radii[(radii > 0.0) & np.isfinite(radii)]
    bars = np.minimum(finite / end * _BARS, _BARS - 1).astype(int)
    return np.bincount(bars, minlength=_BARS)


def histogram(radii: np.ndarray, end: float, described: str) -> Drawing:
    """Draws the radii of a class: its highest bar has full height, and says its count.

    Examples of radius 0 stand apart on the left, those of infinite radius on the right.

    Args:
        radii: of the class.
        end: of the axis.
        described: for those who do not see it.
    """
    drawing, width = Drawing(_SMALL_WIDTH, _SMALL_HEIGHT, described), _SMALL_LENGTH / _BARS
    counts = histogram_counts(radii, end)
    infinite = int(np.sum(np.isinf(radii)))
    places = [(_SMALL_LEFT + i * width, int(n), "certified") for i, n in enumerate(counts)]
    places.append((4.0, int(np.sum(radii == 0.0)), "uncertified"))
    places.append((_SMALL_RIGHT + 6.0, infinite, "infinite"))
    highest = max(count for _, count, _ in places)
    for x, count, kind in places:
        if count:
            height = (_SMALL_BASE - 20) * count / highest
            drawing.bars.append((x, _SMALL_BASE - height, width - 1, height, kind))
            if count == highest and not drawing.texts:
                middle = min(max(x + width / 2, 12.0), _SMALL_WIDTH - 12.0)
                drawing.texts.append(
                    (f"{count:,}", middle, _SMALL_BASE - height - 5, "middle", "label")
                )
    apart = [(_SMALL_LEFT, _SMALL_RIGHT), (2.0, 4.0 + width + 1.0)]
    if infinite:
        apart.append((_SMALL_RIGHT + 4.0, _SMALL_RIGHT + 7.0 + width))
        drawing.texts.append(("∞", _SMALL_RIGHT + 6.0 + width / 2, 106, "middle", "label"))
    for start, stop in apart:
        drawing.lines.append((start, _SMALL_BASE, stop, _SMALL_BASE, "axis"))
    value, label = list(ticks(end))[-1]
    last = _SMALL_LEFT + _SMALL_LENGTH * value / end
    anchor = "middle" if value < 0.9 * end else "end"
    drawing.texts += [
        ("0", _SMALL_LEFT, 106, "middle", "label"),
        (label, last, 106, anchor, "label"),
    ]
    return drawing


def ticks(end: float) -> Iterator[tuple[float, str]]:
    """Yields round numbers from 0 to `end`, at most seven, with their text.

    Example:
        >>> [text for _, text in ticks(2.7)]
        ['0', '0.5', '1', '1.5', '2', '2.5']
    """
    power = 10.0 ** math.floor(math.log10(end / 6))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * 6.0 >= end * (1 - 1e-9))
    for i in range(int(end / step * (1 + 1e-9)) + 1):
        yield i * step, f"{i * step:.6g}"
