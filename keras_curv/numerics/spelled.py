"""Numbers as users write them."""

from __future__ import annotations


def parse_number(text: str) -> float:
    """Returns the number that a text spells, perhaps as a fraction.

    Raises:
        ValueError: it spells none.

    Example:
        >>> parse_number("0.5"), parse_number("2/255")
        (0.5, 0.00784313725490196)
    """
    above, line, below = text.partition("/")
    if not line:
        return float(text)
    try:
        return float(above) / float(below)
    except ZeroDivisionError as error:
        raise ValueError(f"{text!r} divides by 0") from error
