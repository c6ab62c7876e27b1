"""Options that are described once: in the docstring of their dataclass.

From there come the help of flags, and the arguments and docstrings of functions that take options
by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from keras_curv.errors import InputError

_Taker = TypeVar("_Taker")
_Options = TypeVar("_Options")
_DESCRIBED = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_PLACE = "        {options}"  # of the descriptions, in a docstring


def descriptions(options: type) -> dict[str, str]:
    """Returns what the docstrings of a dataclass and its bases say of each of its fields.

    Example:
        >>> @dataclasses.dataclass
        ... class Bath:
        ...     '''A bath.
        ...
        ...     Attributes:
        ...         depth: depth of the water,
        ...             in metres.
        ...     '''
        ...
        ...     depth: float = 0.5
        >>> descriptions(Bath)
        {'depth': 'depth of the water, in metres.'}
    """
    found: dict[str, str] = {}
    for kind in options.__mro__:
        section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
        for name, text in _DESCRIBED.findall(section.partition("\n\n")[0]):
            found.setdefault(name, " ".join(text.split()))
    return {field.name: found.get(field.name, "") for field in dataclasses.fields(options)}


def accepts(options: type) -> Callable[[_Taker], _Taker]:
    """Describes the fields of a dataclass in a docstring, in place of its line `{options}`.

    A function or class that takes `**options` has them in its signature, too.
    """

    def named(taker: _Taker) -> _Taker:
        shown: Any = taker
        signature = inspect.signature(shown)
        *own, last = signature.parameters.values()
        if last.kind == last.VAR_KEYWORD:
            taken = [
                inspect.Parameter(f.name, last.KEYWORD_ONLY, default=f.default, annotation=f.type)
                for f in dataclasses.fields(options)
            ]
            shown.__signature__ = signature.replace(parameters=[*own, *taken])
        wrapped = textwrap.TextWrapper(100, initial_indent=" " * 8, subsequent_indent=" " * 12)
        lines = [wrapped.fill(f"{name}: {text}") for name, text in descriptions(options).items()]
        shown.__doc__ = (shown.__doc__ or "").replace(_PLACE, "\n".join(lines))
        return taker

    return named


def with_options(options: _Options, given: dict[str, Any]) -> _Options:
    """Returns options with some values in place of others.

    Raises:
        InputError: there is no such option, or see the options.
    """
    known = [field.name for field in dataclasses.fields(options)]  # type: ignore[arg-type]
    for name in sorted(given.keys() - {*known}):
        near = difflib.get_close_matches(name, known)
        advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        raise InputError(f"there is no option {name!r} here; {advice}")
    return dataclasses.replace(options, **given)  # type: ignore[type-var]
