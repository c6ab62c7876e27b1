"""Why a logged request has no certificate, other than by what a certificate says of it."""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """A status of a row, beside those of `Status`; the value is what the user reads.

    A request that is skipped was not asked of this tool, and no fraction counts it. One that is
    refused counts as not certified.
    """

    NOT_A_LOG = "the record is not a PredictionLog"
    TOO_LONG = "the record is longer than the limit"
    CLASSIFY = "a classify request: tf.Examples, which no certified signature takes"
    REGRESS = "a regress request, which is not classification"
    MULTI_INFERENCE = "a multi-inference request: tf.Examples, which no certified signature takes"
    SESSION_RUN = "a session-run request, which names no signature"
    PREDICT_STREAMED = "a streamed request, which is not one batch of examples"
    OTHER_MODEL = "a request to another model"
    NO_VERSION = "no such version of the model"
    VERSION_LABEL = "the version is named by a label, which only the server can resolve"
    NO_SIGNATURE = "no such signature of the model"
    MODEL_REFUSED = "the model, or this signature of it, cannot be certified"
    WRONG_INPUTS = "the names of the inputs are not those of the signature"
    WRONG_DTYPE = "the dtype is not that of the signature"
    WRONG_SHAPE = "the shape is not that of the signature"
    BROKEN_TENSOR = "the tensor's content does not fit its shape"
    EMPTY_BATCH = "a batch of no examples"
    NOT_FINITE_INPUT = "the input has NaN or infinite entries"

    @property
    def skipped(self) -> bool:
        """Whether the request is left out of all fractions."""
        return self in _SKIPPED

    @property
    def text(self) -> str:
        """What the status means, in a line."""
        return self.value


_SKIPPED = {
    Reason.CLASSIFY,
    Reason.REGRESS,
    Reason.MULTI_INFERENCE,
    Reason.SESSION_RUN,
    Reason.PREDICT_STREAMED,
    Reason.OTHER_MODEL,
}
_LONGEST = 160


class Refusal(Exception):
    """A request that cannot be certified.

    Attributes:
        reason: which.
        detail: what was found, in plain ASCII, whatever the request holds.
        version: that would have served it, as far as it is known.
    """

    def __init__(self, reason: Reason, detail: str = "", version: str = ""):
        super().__init__(reason.name)
        self.reason = reason
        self.detail = plain(detail)
        self.version = version


def plain(text: str) -> str:
    """Text of unknown origin, on one line, in ASCII, and not long.

    Example:
        >>> plain("a\\x1b[1m\\nb")
        'a\\\\x1b[1m b'
    """
    short = " ".join(text[: 4 * _LONGEST].split()).encode("ascii", "backslashreplace").decode()
    visible = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in short)
    return visible if len(visible) <= _LONGEST else visible[: _LONGEST - 1] + "~"
