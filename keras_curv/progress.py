"""Progress of long work: a bar in a terminal or a notebook, or now and then a line on stderr."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    import keras

_LINE_AFTER = 30.0  # seconds, where stderr is no terminal
_FIRST_AFTER = 60.0  # seconds of a first batch
_MOST_LINES = 100


def in_notebook() -> bool:
    """Returns whether this is a notebook, which shows a bar unasked."""
    return Console(stderr=True).is_jupyter


@contextlib.contextmanager
def working(text: str, *, visible: bool, after: float = _LINE_AFTER) -> Iterator[None]:
    """Shows a spinner on stderr during work of unknown length; where stderr is no terminal, prints
    a line once the work has taken `after` seconds."""
    console = Console(stderr=True)
    if not visible:
        yield
        return
    if not console.is_terminal or console.is_jupyter:
        timer = threading.Timer(after, print, [text], {"file": sys.stderr, "flush": True})
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        return
    with console.status(text):
        yield


@contextlib.contextmanager
def progress_bar(total: int, done: int, *, visible: bool) -> Iterator[Callable[[int], None]]:
    """Shows a bar on stderr, or now and then a line if stderr is no terminal.

    A notebook has the bar of `keras.Model.fit`: rich's wants ipywidgets there, and warns.

    Yields what to call with the number of examples just finished.
    """
    console = Console(stderr=True)
    if not visible or not total:
        yield lambda count: None
        return
    if console.is_jupyter:
        bar = _keras_bar(total)
        bar.update(done)
        yield bar.add
        return
    if not console.is_terminal:
        text = f"certifying {total - done:,} examples"
        with working(text, visible=True, after=_FIRST_AFTER):
            yield _Lines(total, done).advance
        return
    # The bar moves by the batch, which a slow model may take minutes for; the spinner and the clock
    # say that it is at work.
    columns = (
        SpinnerColumn(),
        TextColumn("certifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("certifying", total=total, completed=done)
        yield lambda count: progress.advance(task, count)


class _Lines:
    """Prints lines about the progress of long work, a limited number in all."""

    def __init__(self, total: int, done: int):
        self._total, self._resumed, self._done, self._told = total, done, done, done
        self._started = self._last = time.monotonic()

    def advance(self, count: int) -> None:
        """Adds this many examples, and tells of them where it is time to."""
        self._done += count
        now, left = time.monotonic(), self._total - self._done
        few = (self._done - self._told) * _MOST_LINES < self._total
        if few or now - self._last < _LINE_AFTER or not left:
            return
        self._last, self._told = now, self._done
        spent = now - self._started
        still = spent * left / (self._done - self._resumed)
        print(
            f"certifying: {self._done:,} of {self._total:,} examples in {_clock(spent)}, "
            f"about {_clock(still)} left",
            file=sys.stderr,
            flush=True,
        )


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def _keras_bar(total: int) -> keras.utils.Progbar:
    import keras  # which a command imports later

    return keras.utils.Progbar(total, unit_name="example")
