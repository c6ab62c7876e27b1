"""Plots of certified accuracy against radius."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from keras_curv.certificates.certificate import certified_curve
from keras_curv.errors import visible
from keras_curv.reports.drawing import write_figure
from keras_curv.reports.html.charts import axis_end
from keras_curv.reports.wording import (
    heading,
    of_the_prediction,
    percent,
    radius_name,
    radius_units,
)
from keras_curv.rows.tally import Tally

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LABEL_WIDTH, _LABEL_HEIGHT = 0.1, 5.0  # of the axis, and in per cent
_TITLE_WIDTH = 72  # characters


def plot_curve(tally: Tally, summary: dict, path: str) -> None:
    """Writes certified accuracy against radius as a picture, in the format that `path` ends in."""
    write_figure(
        path,
        lambda figure: _draw(figure, tally, summary),
        dpi=150,
        figsize=(6.4, 4.0),
        layout="constrained",
    )


def _draw(figure: Figure, tally: Tally, summary: dict) -> None:
    radii = np.frombuffer(tally.radii)
    end = axis_end(radii, summary["certified_accuracy"])
    axes = figure.add_subplot()
    if not summary.get("decide"):  # of which only what was decided is known
        axes.step(*certified_curve(radii, end), where="post", color="#1f5fa8", linewidth=1.8)
    accuracy = summary["clean_accuracy"] is not None and of_the_prediction(summary)
    labels: list[tuple[float, float]] = []
    for radius, fraction in sorted(
        summary["certified_accuracy"].items(), key=lambda e: float(e[0])
    ):
        at, height = float(radius), 100.0 * fraction
        if at <= end:
            axes.plot(at, height, "o", color="#1f5fa8", markersize=4)
            while any(
                abs(at - x) < _LABEL_WIDTH * end and abs(height - y) < _LABEL_HEIGHT
                for x, y in labels
            ):
                height += _LABEL_HEIGHT
            labels.append((at, height))
            axes.annotate(
                percent(fraction, 1),
                (at, height),
                textcoords="offset points",
                xytext=(5, 4),
                fontsize=8,
            )
    if summary["clean_accuracy"] is not None:
        axes.axhline(100.0 * summary["clean_accuracy"], color="0.6", linewidth=0.8, linestyle="--")
        axes.annotate(
            f"clean {percent(summary['clean_accuracy'])}",
            (end, 100.0 * summary["clean_accuracy"]),
            textcoords="offset points",
            xytext=(-4, 3),
            ha="right",
            fontsize=8,
            color="0.35",
        )
    axes.set(
        xlim=(0.0, end),
        ylim=(0.0, 104.0),
        xlabel=f"{radius_name(summary)} (units: {radius_units(summary)})",
        ylabel=f"certified{' accuracy' if accuracy else ''}, % of all examples",
    )
    title = "\n".join(textwrap.wrap(visible(heading(summary)), _TITLE_WIDTH))
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
