"""Reasons why a logged request has no certificate, beside those that a certificate gives."""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """A status of a row, beside those of `Status`; the value is what the user reads.

    A request that is skipped was not asked of this tool, and no fraction counts it. One that is
    refused counts as not certified.

    Example:
        >>> Reason.REGRESS.skipped, Reason.WRONG_SHAPE.skipped
        (True, False)
    """

    NOT_A_LOG = "the record is neither a PredictionLog nor the body of a REST request"
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
        """The meaning of the reason, in a line."""
        return self.value


_SKIPPED = {
    Reason.CLASSIFY,
    Reason.REGRESS,
    Reason.MULTI_INFERENCE,
    Reason.SESSION_RUN,
    Reason.PREDICT_STREAMED,
    Reason.OTHER_MODEL,
}
