"""The page's templates, in which text cannot become markup.

Names of files, models and data sets come from anyone. Jinja escapes whatever an expression yields,
unless it is markup of a macro; nothing else in this room may make `Markup`.
"""

from __future__ import annotations

import pathlib

import jinja2
from markupsafe import Markup

from keras_curv import errors


def visible(value: object) -> str:
    """Returns the text as it is to be seen; characters that show nothing appear by their code.

    Those would end a line in a command, or turn the direction of what follows.

    Example:
        >>> visible("a\\u202e\\n")
        'a\\\\u202e\\\\n'
    """
    return value if isinstance(value, Markup) else errors.visible(value)


def coordinate(value: float) -> str:
    """Returns a coordinate of a drawing, to a tenth of a unit.

    Example:
        >>> coordinate(2.04), coordinate(0.25)
        ('2', '0.2')
    """
    return f"{round(float(value), 1):g}"


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    finalize=visible,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.filters["coordinate"] = coordinate
