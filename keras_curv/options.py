"""Options that are described once: a field of a dataclass carries its help.

From these fields come the flags of a command, the keyword arguments of a function, and the
docstrings of both.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

_Taker = TypeVar("_Taker")
_PLACE = "        {options}"  # of the descriptions, in a docstring


def option(text: str, default: Any = dataclasses.MISSING, **facts: Any) -> Any:
    """Returns a field of a dataclass with a help text.

    Args:
        text: for the user, sentences.
        default: of the field.
        **facts: further metadata of the field, as its flag's name.
    """
    return dataclasses.field(default=default, metadata={"help": text, **facts})


def described(options: type[_Taker]) -> type[_Taker]:
    """Describes the fields of a dataclass where its docstring has a line `{options}`.

    Example:
        >>> @described
        ... @dataclasses.dataclass
        ... class Bath:
        ...     '''A bath.
        ...
        ...     Attributes:
        ...         {options}
        ...     '''
        ...
        ...     depth: float = option("Depth of the water, in metres.", 0.5)
        >>> print(inspect.getdoc(Bath))
        A bath.
        <BLANKLINE>
        Attributes:
            depth: Depth of the water, in metres.
    """
    _describe(options, options)
    return options


def accepts(options: type) -> Callable[[_Taker], _Taker]:
    """Shows and describes the fields of a dataclass as arguments of what takes `**options`."""

    def named(taker: _Taker) -> _Taker:
        shown: Any = taker
        signature = inspect.signature(shown)
        own = [one for one in signature.parameters.values() if one.kind != one.VAR_KEYWORD]
        taken = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                annotation=field.type,
            )
            for field in dataclasses.fields(options)
        ]  # fmt: skip
        shown.__signature__ = signature.replace(parameters=[*own, *taken])
        _describe(shown, options)
        return taker

    return named


def _describe(documented: Any, options: type) -> None:
    """Replaces the line `{options}` in a docstring."""
    lines = [
        textwrap.fill(
            f"{field.name}: {field.metadata['help']}",
            width=100,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
        )
        for field in dataclasses.fields(options)
    ]
    documented.__doc__ = (documented.__doc__ or "").replace(_PLACE, "\n".join(lines))
