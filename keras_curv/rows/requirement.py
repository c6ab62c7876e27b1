"""One requirement of a release gate, and how it is spelled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from keras_curv.errors import InputError, require_fraction, require_positive
from keras_curv.numerics.spelled import parse_number

_FORM = re.compile(
    r"(?:(?P<slice>[^=]+?):)??(?:(?P<radius>[^=:]+)=)?(?P<lower>lower:)?(?P<fraction>[^=:]+)"
)
_SPELLED = "[SLICE:][RADIUS=][lower:]FRACTION, as 0.9, 0.25=0.95, 0.5=lower:0.9 or class:0.5=0.8"


class Requirement(NamedTuple):
    """The smallest certified accuracy that passes, and of what."""

    fraction: float  # of the examples, from 0 to 1
    radius: float | None = None  # at which it is required; None: at every radius that is reported
    # whether the lower end of the confidence interval must reach it, and not only the accuracy
    # found
    lower: bool = False
    # a partition of the examples, each part of which must reach it; "": all of them together
    slice: str = ""

    @classmethod
    def parse(cls, given: float | str) -> Requirement:
        """Reads a requirement: a number, which holds at every radius, or its spelling.

        Raises:
            InputError: it is spelled otherwise, or a number is out of range.

        Example:
            >>> Requirement.parse("class:0.25=lower:0.9")
            Requirement(fraction=0.9, radius=0.25, lower=True, slice='class')
            >>> Requirement.parse(0.9).spelling
            '0.9'
        """
        what = f"the requirement {str(given)!r}"
        found = _FORM.fullmatch(str(given))
        try:
            if found is None or found["slice"] == "lower" or _is_number_alone(found):
                raise ValueError("neither")
            share = parse_number(found["fraction"])
            at = parse_number(found["radius"]) if found["radius"] else None
        except ValueError as error:
            raise InputError(f"{what} is not spelled {_SPELLED}") from error
        require_fraction(share, f"the fraction of {what}")
        if at is not None:
            require_positive(at, f"the radius of {what}")
        return cls(share, at, bool(found["lower"]), found["slice"] or "")

    @property
    def spelling(self) -> str:
        """The requirement as `parse` reads it."""
        part = f"{self.slice}:" if self.slice else ""
        radius = "" if self.radius is None else f"{self.radius}="
        return f"{part}{radius}{'lower:' if self.lower else ''}{self.fraction}"


def parse_requirements(
    given: float | str | Sequence[float | str] | None,
) -> tuple[Requirement, ...]:
    """Returns one or several requirements that are given by number or spelling; None is none.

    Raises:
        InputError: see `Requirement.parse`.
    """
    if given is None:
        return ()
    listed = [given] if isinstance(given, (str, int, float)) else given
    return tuple(Requirement.parse(one) for one in listed)


def _is_number_alone(found: re.Match[str]) -> bool:
    """Returns whether a slice without a radius is called like one, as in 0.5:0.9 for 0.5=0.9."""
    if found["radius"] or not found["slice"]:
        return False
    try:
        parse_number(found["slice"])
    except ValueError:
        return False
    return True
