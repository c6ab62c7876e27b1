"""Names the Keras layers that refused ops stand for, and what would be read instead."""

from __future__ import annotations

_RECURRENT = (
    "recurrent layers are read where they are unrolled, as by keras.layers.LSTM(units, unroll=True)"
)
_COMPARED = (
    "comparisons, as of Embedding, Masking, ReLU(threshold), ELU(alpha=2), soft_shrink or "
    "hard_shrink, cannot be certified"
)
_QUANTISED = (
    "weights and values that are rounded, as by quantisation to int8, cannot be certified; export "
    "the model from before it was quantised"
)
_PARSED = (
    "only numbers can be certified: export a signature that takes what is parsed or decoded here, "
    "and give its name with --signature, or its examples behind a cut"
)
_ADVICE = {
    **dict.fromkeys(("ParseExample", "ParseExampleV2", "DecodeRaw", "DecodePng"), _PARSED),
    **dict.fromkeys(("DecodeJpeg", "DecodeImage"), _PARSED),
    **dict.fromkeys(("While", "StatelessWhile"), _RECURRENT),
    **dict.fromkeys(("TensorListReserve", "TensorListFromTensor"), _RECURRENT),
    **dict.fromkeys(("Less", "Greater", "GreaterEqual", "NotEqual", "Equal"), _COMPARED),
    **dict.fromkeys(("Round", "Rint", "FakeQuantWithMinMaxVars"), _QUANTISED),
    "Expm1": "celu is not read, nor is elu with alpha other than 1; elu, softplus and silu are",
    "Erfc": "gelu is read where it is computed in float32",
    "Conv3D": "convolutions are read in 1D and 2D",
    "Range": "adaptive pooling is not read; use pooling of a fixed size",
}


def advice(op: str) -> str:
    """Returns a clause about an op that is refused, to end a message with; or nothing.

    Example:
        >>> advice("Conv3D")
        '; convolutions are read in 1D and 2D'
    """
    return f"; {_ADVICE[op]}" if op in _ADVICE else ""
