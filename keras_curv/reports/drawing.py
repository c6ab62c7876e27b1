"""Pictures by matplotlib, which is an extra: the same ones wherever they are drawn.

Matplotlib reads a file `matplotlibrc` of the working directory before any other, as it is imported.
Such a file may come with a stranger's folder: it can have text set by LaTeX, a program, never end,
or make the import fail. So the import does not see it, and everything is drawn by the defaults.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from keras_curv.errors import InputError
from keras_curv.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_PROGRAMS = {"pgf"}  # written by LaTeX


def require_drawable(path: str | pathlib.Path) -> None:
    """Raises InputError where no picture can be drawn to `path`; to call before the work."""
    try:
        with _defaults():
            from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a plot needs matplotlib, which is not installed: pip install 'keras_curv[plots]'"
        ) from error
    known = {*Figure().canvas.get_supported_filetypes()} - _BY_PROGRAMS
    if _ending(path) not in known:
        raise InputError(f"{path}: the ending of a plot must be one of {', '.join(sorted(known))}")


def write_figure(
    path: str | pathlib.Path, draw: Callable[[Figure], object], *, dpi: int, **options: Any
) -> None:
    """Writes a picture, in the format that `path` ends in.

    Args:
        path: of the file.
        draw: puts everything on an empty figure.
        dpi: dots an inch.
        **options: of `matplotlib.figure.Figure`.

    Raises:
        InputError: the file cannot be written; what was there is kept.
    """
    with _defaults():
        from matplotlib.figure import Figure

        figure = Figure(**options)
        draw(figure)
        write_file(path, lambda file: figure.savefig(file, format=_ending(path), dpi=dpi))


def _ending(path: str | pathlib.Path) -> str:
    return pathlib.Path(path).suffix[1:].lower()


@contextlib.contextmanager
def _defaults() -> Iterator[None]:
    """Sets all that matplotlib has settings of as it is delivered, for a while."""
    with _away_from_a_settings_file():
        import matplotlib.style
    with matplotlib.style.context("default"):
        yield


@contextlib.contextmanager
def _away_from_a_settings_file() -> Iterator[None]:
    """Leaves a working directory that has settings of matplotlib, until it is imported."""
    if "matplotlib" in sys.modules or not os.path.lexists("matplotlibrc"):
        yield
        return
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(os.sep)
        yield
    finally:
        os.fchdir(here)
        os.close(here)
