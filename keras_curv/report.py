"""What a person sees of a certification run: the summary, the table, the curve, the bar."""

from __future__ import annotations

import array
import collections
import contextlib
import decimal
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from keras_curv.certificate import Status
from keras_curv.errors import InputError
from keras_curv.rows import Row


class Tally:
    """Sums rows up as they come; of each example it keeps one number, the radius."""

    def __init__(self):
        self.radii = array.array("d")  # of every example; 0 where nothing is certified
        self.statuses = collections.Counter()
        self.methods = collections.Counter()
        self.labelled = True
        self._gradients = 0
        self._exact = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Counts rows in."""
        for row in rows:
            self.radii.append(row.radius)
            self.statuses[row.status] += 1
            self.methods[row.method] += bool(row.method)
            self.labelled &= row.label is not None
            self._gradients += row.gradient_evaluations
            self._exact += row.primal_equals_dual

    def certified_accuracy(self, radius: float) -> float:
        """The fraction of all examples that are correct and certified at more than `radius`."""
        radii = np.frombuffer(self.radii) if self.radii else np.zeros(0)
        return float(np.mean(radii > radius)) if len(radii) else 0.0

    def summary(self, radii: Sequence[float]) -> dict:
        """What the run came to, as JSON can hold it.

        Returns:
            `examples`; `clean_accuracy` (None without labels); `certified_accuracy`, radius as
            string → fraction of all examples; `mean_radius` and `median_radius` over the
            correct ones (None where there are none, "inf" where infinite); `statuses`, name →
            count; `gradient_evaluations`, mean per example, summed over its rivals;
            `primal_equals_dual`, the fraction of all examples whose radius is exact; `methods`,
            name → how many radii it proved.
        """
        count = len(self.radii)
        correct_names = (Status.CERTIFIED.name, Status.UNPROVED.name)
        correct = sum(self.statuses[name] for name in correct_names)
        # Only certified examples have a positive radius, so zeros pad the correct ones.
        values = np.sort(np.frombuffer(self.radii) if count else np.zeros(0))[count - correct :]
        return {
            "examples": count,
            "clean_accuracy": correct / count if count and self.labelled else None,
            "certified_accuracy": {str(float(r)): self.certified_accuracy(r) for r in radii},
            "mean_radius": json_number(values.mean()) if correct else None,
            "median_radius": json_number(np.median(values)) if correct else None,
            "statuses": {status.name: self.statuses[status.name] for status in Status},
            "gradient_evaluations": self._gradients / count if count else 0.0,
            "primal_equals_dual": self._exact / count if count else 0.0,
            "methods": {name: number for name, number in self.methods.most_common() if number},
        }


def json_number(value: float) -> float | str:
    """A number that JSON can hold; infinity has to be text."""
    return "inf" if math.isinf(value) else float(value)


_RIVALS_TEXT = {
    "all": "all (a certificate of the classifier)",
    "runner_up": "runner-up only (NOT a certificate of the classifier)",
    "random": "one at random (NOT a certificate of the classifier)",
    "least": "least likely only (NOT a certificate of the classifier)",
}


_GUARANTEE_TEXT = {
    "real": "real arithmetic on the stored weights",
    "float32": "as served in IEEE single, in any order of sums; no TF32, bfloat16, Winograd",
    "probabilistic": "of the classifier smoothed by noise, each with probability 1 − α",
}


def print_table(summary: dict, console: Console | None = None) -> None:
    """The summary, readable: what was certified, how far, and on what terms."""
    console = console or Console()
    title = f"{summary['saved_model']} on {summary['dataset']}"
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    clean = summary["clean_accuracy"]
    table = Table()
    table.add_column("l2 radius", justify="right", no_wrap=True)
    heading = "certified accuracy" if clean is not None else "certified (no labels)"
    table.add_column(heading, justify="right", no_wrap=True)
    if clean is not None:
        table.add_row("0 (clean)", percent(clean))
    for radius, fraction in summary["certified_accuracy"].items():
        table.add_row(radius, percent(fraction))
    console.print(table)
    cost = (
        f"{summary['seconds']:.1f} s, {summary['gradient_evaluations']:.1f} gradients per example"
    )
    for name, text in [*facts(summary), ("cost", cost)]:
        console.print(f"[bold]{name:>10}[/bold]  {text}", highlight=False, soft_wrap=True)


def facts(summary: dict) -> list[tuple[str, str]]:
    """On what terms the radii hold and what proved them, as name and text."""
    mean, median = summary["mean_radius"], summary["median_radius"]
    return [
        ("examples", f"{summary['examples']:,} ({_statuses(summary['statuses'])})"),
        ("radius", f"mean {number(mean)}, median {number(median)} over the correct ones"),
        ("units", units(summary["input_scale"])),
        ("rivals", _RIVALS_TEXT[summary["rivals"]]),
        ("guarantee", f"{summary['guarantee']}: {_GUARANTEE_TEXT[summary['guarantee']]}"),
        *_smoothing(summary),
        ("proved by", _shares(summary["methods"])),
        ("exact", f"{percent(summary['primal_equals_dual'])} of radii are the true distance"),
    ]


def print_names(rows: Iterable[Sequence[str]], console: Console | None = None) -> None:
    """Names and what they stand for, in columns."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    (console or Console()).print(table)


def percent(fraction: float, digits: int = 2) -> str:
    """A fraction as per cent, rounded down, as every radius is."""
    scale = 10**digits
    return f"{math.floor(fraction * 100 * scale + 1e-9) / scale:.{digits}f} %"


def percent_up(fraction: float, digits: int = 2) -> str:
    """A fraction of what is lost as per cent, rounded up."""
    scale = 10**digits
    return f"{math.ceil(fraction * 100 * scale - 1e-9) / scale:.{digits}f} %"


_FOUR_DIGITS = decimal.Context(prec=4, rounding=decimal.ROUND_FLOOR)


def number(value: float | str | None) -> str:
    """A figure to four digits, rounded down; "none" where there is none."""
    if value is None or isinstance(value, str):
        return value or "none"
    return str(float(_FOUR_DIGITS.create_decimal(value)))


def _statuses(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name.lower()}" for name, n in counts.items() if n)


def _shares(methods: dict[str, int]) -> str:
    """Which methods proved which part of the radii."""
    total = sum(methods.values())
    return ", ".join(f"{name} {percent(n / total, 1)}" for name, n in methods.items()) or "none"


def _smoothing(summary: dict) -> list[tuple[str, str]]:
    """The terms of a vote under noise, if it was one."""
    if "deviation" not in summary:
        return []
    text = "{noise}, deviation {deviation:g}; {samples:,} samples, α = {failure_probability:g}"
    return [("noise", text.format(**summary))]


def units(scale: float) -> str:
    """What a radius is measured in."""
    return "the model's own input" + ("" if scale == 1.0 else f" (examples × {scale:g})")


@contextlib.contextmanager
def working(text: str, *, visible: bool) -> Iterator[None]:
    """A spinner on stderr while something of unknown length goes on."""
    if not visible:
        yield
        return
    with Console(stderr=True).status(text):
        yield


@contextlib.contextmanager
def progress_bar(total: int, done: int, *, visible: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; yields what to call with the number of examples just finished."""
    columns = (
        TextColumn("certifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True), disable=not visible, transient=True
    ) as progress:
        task = progress.add_task("certifying", total=total, completed=done)
        yield lambda count: progress.advance(task, count)


def require_plottable(path: str) -> None:
    """Raises InputError where a plot cannot be drawn to `path`, before the work is done."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a plot needs matplotlib, which is not installed: pip install 'keras_curv[plots]'"
        ) from error
    known = Figure().canvas.get_supported_filetypes()
    suffix = pathlib.Path(path).suffix[1:].lower()
    if suffix not in known:
        raise InputError(f"{path}: the ending of a plot must be one of {', '.join(sorted(known))}")


_LABEL_WIDTH = 0.1  # of the plot


def plot_curve(tally: Tally, summary: dict, path: str) -> None:
    """Certified accuracy against radius, as an image of the format that `path` ends in."""
    from matplotlib.figure import Figure

    radii = np.sort(np.frombuffer(tally.radii))
    finite = radii[np.isfinite(radii) & (radii > 0.0)]
    end = 1.05 * finite.max() if len(finite) else 1.0
    grid = np.concatenate([[0.0], finite, [end]])
    # The number of radii above each grid point: a step down at every radius.
    certified = 100.0 * (len(radii) - np.searchsorted(radii, grid, side="right")) / len(radii)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.step(grid, certified, where="post", color="#1f5fa8", linewidth=1.8)
    labelled_to = 0.0
    for radius, fraction in summary["certified_accuracy"].items():
        if float(radius) <= end:
            axes.plot(float(radius), 100.0 * fraction, "o", color="#1f5fa8", markersize=4)
            if abs(float(radius) - labelled_to) < _LABEL_WIDTH * end:
                continue  # it would stand on top of the last one
            labelled_to = float(radius)
            axes.annotate(
                percent(fraction, 1),
                (float(radius), 100.0 * fraction),
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
        xlabel="l2 radius, " + units(summary["input_scale"]),
        ylabel="certified accuracy, % of all examples",
        title=f"{summary['saved_model']} on {summary['dataset']}, rivals: {summary['rivals']}",
    )
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
