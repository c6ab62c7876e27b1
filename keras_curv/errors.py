"""The exception that means "the input is at fault, not the program", and checks that raise it."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any


def visible(text: object) -> str:
    """Returns a text with what cannot be seen, steers a terminal or is no UTF-8 as escapes.

    Example:
        >>> visible("a\\x1b[1m\\udcff")
        'a\\\\x1b[1m\\\\udcff'
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class InputError(ValueError):
    """A model, an example or an option that cannot be used as given.

    The message is one line that names the thing, says what was received and what
    would work; the command line prints it as it is and exits with status 2.
    Text from the input itself cannot break the line, steer a terminal, or fill the screen.
    """

    def __init__(self, message: object):
        text = visible(" ".join(str(message).splitlines()))
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        super().__init__(text)


class UnwrittenError(InputError):
    """A file of what a finished run came to could not be written.

    Attributes:
        summary: what the run would have returned.
    """

    def __init__(self, message: object, summary: dict):
        super().__init__(message)
        self.summary = summary


_LONGEST = 12_000  # characters; a path can have 4,096, and be named twice


@contextlib.contextmanager
def about(what: str, kinds: tuple[type[Exception], ...] = (InputError,)) -> Iterator[None]:
    """Makes exceptions of some kinds an InputError that begins with what they are about.

    Example:
        >>> with about("the model", (LookupError,)):
        ...     {}["x"]
        Traceback (most recent call last):
        keras_curv.errors.InputError: the model: 'x'
    """
    try:
        yield
    except kinds as error:
        raise InputError(f"{what}: {error}") from error


def require_positive(value: float, name: str) -> float:
    """The number; InputError unless it is positive and finite."""
    return _required(value, lambda v: 0.0 < v < math.inf, name, "a positive number")


def require_finite(value: float, name: str) -> float:
    """The number; InputError unless it is finite."""
    return _required(value, lambda v: -math.inf < v < math.inf, name, "a number")


def require_non_negative(value: float, name: str) -> float:
    """The number; InputError unless it is finite and at least 0."""
    return _required(value, lambda v: 0.0 <= v < math.inf, name, "a number, at least 0")


def require_probability(value: float, name: str) -> float:
    """The number; InputError unless it is strictly between 0 and 1."""
    return _required(value, lambda v: 0.0 < v < 1.0, name, "between 0 and 1")


def require_fraction(value: float, name: str) -> float:
    """The number; InputError unless it is from 0 to 1."""
    return _required(value, lambda v: 0.0 <= v <= 1.0, name, "from 0 to 1")


def optional_fraction(value: float | None, name: str) -> float | None:
    """As `require_fraction`; None where there is none."""
    return None if value is None else require_fraction(value, name)


def optional_at_least(value: float | None, least: int, name: str) -> int | None:
    """As `require_at_least`; None where there is none."""
    return None if value is None else require_at_least(value, least, name)


def require_at_least(value: float, least: int, name: str) -> int:
    """The number as an integer; InputError unless it is one, and at least `least`."""
    _required(value, lambda v: v >= least and v.is_integer(), name, f"an integer, at least {least}")
    return int(value)


def _required(value: Any, holds: Callable[[float], bool], name: str, what: str) -> float:
    """The value as a float; InputError unless it is a number for which something holds."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not holds(number):
        received = repr(value) if isinstance(value, str) else value
        raise InputError(f"{name} must be {what}. Received: {received}")
    return number


def require_one_of(value: str, known: Collection[str], name: str) -> str:
    """The value; InputError unless it is one of those known."""
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}. Received: {value!r}")
    return value


def labels_from(kind: str) -> str:
    """Returns how arrays of this kind of dtype become labels, to end a sentence with, if known."""
    if kind == "b":
        return "; of truth values pass y.astype(int)"
    if kind in "USO":
        return "; of names pass numpy.unique(y, return_inverse=True)[1], their alphabetical places"
    if kind == "f":
        return "; of class numbers pass y.astype(int); of numbers to be predicted, pass no y"
    return ""


def wrong_labels(y: Any, count: int, name: str = "") -> InputError:
    """Returns what to raise where an array is no labels of so many examples, with advice.

    Args:
        y: has a shape and a dtype.
        count: of examples.
        name: of what y belongs to, before the message.
    """
    advice = ""
    if y.shape[:1] == (count,) and len(y.shape) == 2:
        one_hot = "of one-hot labels pass numpy.argmax(y, axis=1)"
        advice = f"; {'pass y[:, 0]' if y.shape[1] == 1 else one_hot}"
    else:
        advice = labels_from(y.dtype.kind)
    whole = f"{name}: " if name else ""
    return InputError(
        f"{whole}y must be integers of shape ({count},){advice}. Received: {y.dtype} {y.shape}"
    )
