"""The exception that means "this logged request cannot be certified, and here is why"."""

from __future__ import annotations

from keras_curv.errors import visible
from keras_curv.rows.reason import Reason

_LONGEST = 160


class Refusal(Exception):
    """A request that cannot be certified.

    Attributes:
        reason: which.
        detail: what was found, in plain ASCII, whatever the request holds.
        version: that would have served it, as far as it is known.
        alone: whether it is one example without a batch.
    """

    def __init__(self, reason: Reason, detail: str = "", version: str = "", *, alone: bool = False):
        super().__init__(reason.name)
        self.reason = reason
        self.detail = plain(detail)
        self.version = version
        self.alone = alone


def plain(text: str) -> str:
    """Puts text of unknown origin on one line, in ASCII, and not long.

    Example:
        >>> plain("a\\x1b[1m\\nb")
        'a\\\\x1b[1m b'
    """
    short = " ".join(text[: 4 * _LONGEST].split()).encode("ascii", "backslashreplace").decode()
    shown = visible(short)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "~"
