"""The layers of Keras that a file may have, each with its arguments and the weights it takes.

A layer that is not in the table is refused by name, and so is an argument. A layer is in it if what
it computes at inference can be read from its graph, for some of its arguments at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras

from keras_curv.keras_file import arguments as a

Shape = tuple[int | None, ...]
Entries = Callable[[Mapping[str, Any], Any], int]


class Stock(NamedTuple):
    """A layer of Keras."""

    takes: Mapping[str, Any]  # its arguments and what they may be, beside name, dtype and trainable
    # arguments, shape of its input → how many numbers its weights have
    entries: Entries | None = None
    fixed: Mapping[str, Any] = {}  # arguments that no file decides
    cls: Any = None  # what makes it; None where that is the class of its name in `keras.layers`


def _prod(sizes: Any) -> int:
    return math.prod(int(size or 0) for size in sizes)


def _channels(given: Mapping[str, Any], shape: Shape) -> int:
    return int(shape[1 if given.get("data_format") == "channels_first" else -1] or 0)


def _window(given: Mapping[str, Any], shape: Shape) -> int:
    size = given["kernel_size"]
    return _prod(size) if isinstance(size, tuple) else size ** (len(shape) - 2)


def _bias(given: Mapping[str, Any]) -> int:
    return int(given.get("use_bias", True))


def _dense(given: Mapping[str, Any], shape: Shape) -> int:
    return given["units"] * (int(shape[-1] or 0) + _bias(given))


def _einsum(given: Mapping[str, Any], shape: Shape) -> int:
    """Counts by the size that the input gives each letter of the kernel, or else the output."""
    sides, result = given["equation"].replace(" ", "").split("->")
    operand, kernel = sides.split(",")
    out = given["output_shape"]
    out = (None, *(out if isinstance(out, tuple) else (out,)))
    sizes = _sizes(result, out) | _sizes(operand, shape)
    biased = given.get("bias_axes") or ""
    if not all(sizes.get(letter) for letter in kernel + biased):
        raise ValueError("must give each axis of the kernel a size")
    return sum(_prod(sizes[x] for x in term) for term in (kernel, biased) if term)


def _sizes(term: str, shape: Shape) -> dict[str, int | None]:
    before, _, after = term.partition("...")
    pairs = [*zip(before, shape, strict=False)]
    return dict(pairs + [*zip(after[::-1], shape[::-1], strict=False)])


def _convolution(given: Mapping[str, Any], shape: Shape) -> int:
    inside = _channels(given, shape) // given.get("groups", 1)
    return given["filters"] * (_window(given, shape) * inside + _bias(given))


def _depthwise(given: Mapping[str, Any], shape: Shape) -> int:
    outside = _channels(given, shape) * given.get("depth_multiplier", 1)
    return outside * (_window(given, shape) + _bias(given))


def _separable(given: Mapping[str, Any], shape: Shape) -> int:
    middle = _channels(given, shape) * given.get("depth_multiplier", 1)
    return middle * _window(given, shape) + given["filters"] * (middle + _bias(given))


def _batch(given: Mapping[str, Any], shape: Shape) -> int:
    return (2 + given.get("center", True) + given.get("scale", True)) * _axes(given, shape)


def _scales(given: Mapping[str, Any], shape: Shape) -> int:
    """Counts an offset and a scale for each place on the axes that are normalised."""
    return (given.get("center", True) + given.get("scale", True)) * _axes(given, shape)


def _recurrent(gates: int) -> Entries:
    """Counts the weights of a cell with so many gates."""

    def entries(given: Mapping[str, Any], shape: Shape) -> int:
        units = given["units"]
        biases = 2 if gates == 3 and given.get("reset_after", True) else 1
        return gates * units * (int(shape[-1] or 0) + units + biases * _bias(given))

    return entries


def _attention(given: Mapping[str, Any], shape: Shape) -> int:
    """Counts the weights of queries, keys, values and of what is made of them."""
    size, made = int(shape[-1] or 0), given.get("output_shape")
    out = size if made is None else _prod(made) if isinstance(made, tuple) else made
    heads, dim = given["num_heads"], given["key_dim"]
    value = given.get("value_dim") or dim
    weights = heads * (2 * size * dim + size * value + value * out)
    return weights + _bias(given) * (heads * (2 * dim + value) + out)


def _grouped(given: Mapping[str, Any], shape: Shape) -> int:
    size, dim = int(shape[-1] or 0), given["head_dim"]
    heads, shared = given["num_query_heads"], 2 * given["num_key_value_heads"]
    return dim * (heads * 2 * size + shared * size) + _bias(given) * (dim * (heads + shared) + size)


def _moments(given: Mapping[str, Any], shape: Shape) -> int:
    """Counts mean, variance and a number of examples, unless they are arguments."""
    return 2 * _axes(given, shape) + 1 if given.get("mean") is None else 0


def _axes(given: Mapping[str, Any], shape: Shape) -> int:
    axis = given.get("axis", -1)
    axes = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if any(not -len(shape) <= each < len(shape) for each in axes):
        raise ValueError(f"its axes are not those of the input, {shape}")
    return _prod(shape[each] for each in axes)


def _slopes(given: Mapping[str, Any], shape: Shape) -> int:
    shared = given.get("shared_axes") or ()
    shared = shared if isinstance(shared, tuple) else (shared,)
    return _prod(1 if i in shared else size for i, size in enumerate(shape) if i)


_FORMAT = a.optional(a.word("channels_last", "channels_first"))
_SIZES = a.several(a.whole())
_PADS = a.several(a.whole(0))
_PADDING = a.word("valid", "same", "causal")
_AXIS = a.whole(-16, 16)
_CATEGORIES = 2**20  # at most
_ACTIVATION = "activation"  # stands for the check that knows which Keras wrote the file

_OF_KERNEL = {"use_bias": a.flag, "activation": _ACTIVATION, "activity_regularizer": a.ignored}
_FROM_ZERO = {"kernel_initializer": "zeros"}  # nothing is drawn that is replaced at once
_OF_CONVOLUTION = {
    **_OF_KERNEL,
    "kernel_size": _SIZES,
    "strides": _SIZES,
    "padding": _PADDING,
    "data_format": _FORMAT,
    "dilation_rate": _SIZES,
    "groups": a.whole(),
}
_UNGROUPED = {**_OF_CONVOLUTION, "groups": a.omitted(1)}
_OF_POOL = {
    "pool_size": _SIZES,
    "strides": a.optional(_SIZES),
    "padding": _PADDING,
    "data_format": _FORMAT,
}
_OF_DROPOUT = {"rate": a.number, "seed": a.ignored, "noise_shape": a.ignored}
_OF_BATCH = {
    "axis": a.one(_AXIS),
    "momentum": a.ignored,
    "epsilon": a.number,
    "center": a.flag,
    "scale": a.flag,
    "synchronized": a.ignored,
    "renorm": a.only(False),
    "renorm_clipping": a.ignored,
    "renorm_momentum": a.ignored,
}
_OF_SCALE = {"axis": a.several(_AXIS), "epsilon": a.number, "center": a.flag, "scale": a.flag}
_OF_RECURRENT = {
    **_OF_KERNEL,
    "units": a.whole(),
    "recurrent_activation": _ACTIVATION,
    **dict.fromkeys(("dropout", "recurrent_dropout", "seed"), a.ignored),
    **dict.fromkeys(("return_sequences", "go_backwards", "reset_after"), a.flag),
    "zero_output_for_mask": a.flag,
    **dict.fromkeys(("return_state", "stateful"), a.only(False)),
    **dict.fromkeys(("unit_forget_bias", "implementation", "time_major"), a.ignored),
    "unroll": a.only(True),
}
_OF_ATTENTION = {"dropout": a.ignored, "seed": a.ignored, "use_scale": a.flag}
_OF_HEADS = {
    **dict.fromkeys(("dropout", "seed", "activity_regularizer"), a.ignored),
    **dict.fromkeys(("use_gate", "flash_attention"), a.only(False)),
    "sliding_window": a.nothing,
    "use_bias": a.flag,
}
_RECURRENT_FROM_ZERO = {**_FROM_ZERO, "recurrent_initializer": "zeros", "unroll": True}
_UNQUANTIZED = {
    **dict.fromkeys(("lora_rank", "lora_alpha"), a.nothing),
    "quantization_config": a.unquantized,
}

RECURRENT = {"SimpleRNN": 1, "GRU": 3, "LSTM": 4}  # and how many gates their cells have

STOCK: dict[str, Stock] = {
    "Dense": Stock({**_OF_KERNEL, **_UNQUANTIZED, "units": a.whole()}, _dense, _FROM_ZERO),
    "EinsumDense": Stock(
        {
            "activation": _ACTIVATION,
            "activity_regularizer": a.ignored,
            **_UNQUANTIZED,
            "equation": a.equation,
            "output_shape": a.several(a.optional(a.whole())),
            "bias_axes": a.optional(a.letters),
        },
        _einsum,
        _FROM_ZERO,
    ),
    "BatchNormalization": Stock(_OF_BATCH, _batch),
    "LayerNormalization": Stock({**_OF_SCALE, "rms_scaling": a.only(False)}, _scales),
    "GroupNormalization": Stock({**_OF_SCALE, "groups": a.whole(-1)}, _scales),
    "RMSNormalization": Stock({"axis": a.several(_AXIS), "epsilon": a.number}, _axes),
    "UnitNormalization": Stock({"axis": a.several(_AXIS)}),
    "Normalization": Stock(
        {
            "axis": a.optional(a.several(_AXIS)),
            "mean": a.optional(a.numbers),
            "variance": a.optional(a.numbers),
            "invert": a.flag,
        },
        _moments,
    ),
    "Embedding": Stock(
        {
            **{name: a.whole(1, _CATEGORIES) for name in ("input_dim", "output_dim")},
            "mask_zero": a.flag,
            **dict.fromkeys(("weights", "input_length"), a.ignored),
            **_UNQUANTIZED,
        },
        lambda given, _: given["input_dim"] * given["output_dim"],
        {"embeddings_initializer": "zeros"},
    ),
    "CategoryEncoding": Stock(
        {
            "num_tokens": a.whole(1, _CATEGORIES),
            "output_mode": a.word("one_hot", "multi_hot", "count"),
            "sparse": a.only(False),
        }
    ),
    "Rescaling": Stock({"scale": a.numbers, "offset": a.numbers}),
    "Activation": Stock({"activation": _ACTIVATION}),
    "ReLU": Stock(
        {"max_value": a.optional(a.number), "negative_slope": a.number, "threshold": a.number}
    ),
    "LeakyReLU": Stock({"negative_slope": a.number, "alpha": a.number}),
    "ELU": Stock({"alpha": a.number}),
    "Softmax": Stock({"axis": a.several(_AXIS)}),
    "PReLU": Stock({"shared_axes": a.optional(a.several(a.whole(1, 16)))}, _slopes),
    "Flatten": Stock({"data_format": _FORMAT}),
    "Reshape": Stock({"target_shape": a.several(a.whole(-1), alone=False)}),
    "Permute": Stock({"dims": a.several(a.whole(1, 16), alone=False)}),
    "RepeatVector": Stock({"n": a.whole()}),
    "Identity": Stock({}),
    "ActivityRegularization": Stock({"l1": a.ignored, "l2": a.ignored}),
    "Dropout": Stock(_OF_DROPOUT),
    "AlphaDropout": Stock(_OF_DROPOUT),
    "GaussianDropout": Stock(_OF_DROPOUT),
    "GaussianNoise": Stock({"stddev": a.number, "seed": a.ignored}),
    "Add": Stock({}),
    "Subtract": Stock({}),
    "Multiply": Stock({}),
    "Average": Stock({}),
    "Maximum": Stock({}),
    "Minimum": Stock({}),
    "Concatenate": Stock({"axis": _AXIS}),
    "Attention": Stock(
        {**_OF_ATTENTION, "score_mode": a.word("dot")},
        lambda given, _: int(given.get("use_scale", False)),
    ),
    "AdditiveAttention": Stock(
        _OF_ATTENTION, lambda given, shape: int(shape[-1] or 0) * given.get("use_scale", True)
    ),
    "MultiHeadAttention": Stock(
        {
            **_OF_HEADS,
            **dict.fromkeys(("num_heads", "key_dim"), a.whole()),
            "value_dim": a.optional(a.whole()),
            "output_shape": a.optional(a.several(a.whole())),
            "attention_axes": a.optional(a.several(a.whole(1, 16))),
        },
        _attention,
        _FROM_ZERO,
    ),
    "GroupQueryAttention": Stock(
        {
            **_OF_HEADS,
            **dict.fromkeys(("head_dim", "num_query_heads", "num_key_value_heads"), a.whole()),
        },
        _grouped,
        _FROM_ZERO,
    ),
    "Dot": Stock({"axes": a.several(_AXIS), "normalize": a.flag}),
    **{
        name: Stock(_OF_RECURRENT, _recurrent(gates), _RECURRENT_FROM_ZERO)
        for name, gates in RECURRENT.items()
    },
    "Bidirectional": Stock({"merge_mode": a.word("concat", "sum", "mul", "ave")}),
}
for _n in (1, 2, 3):
    STOCK |= {
        f"Conv{_n}D": Stock({**_OF_CONVOLUTION, "filters": a.whole()}, _convolution, _FROM_ZERO),
        f"Conv{_n}DTranspose": Stock(
            {**_UNGROUPED, "filters": a.whole(), "output_padding": a.optional(_PADS)},
            _convolution,
            _FROM_ZERO,
        ),
        f"MaxPooling{_n}D": Stock(_OF_POOL),
        f"AveragePooling{_n}D": Stock(_OF_POOL),
        f"GlobalMaxPooling{_n}D": Stock({"data_format": _FORMAT, "keepdims": a.flag}),
        f"GlobalAveragePooling{_n}D": Stock({"data_format": _FORMAT, "keepdims": a.flag}),
        f"ZeroPadding{_n}D": Stock({"padding": _PADS, "data_format": _FORMAT}),
        f"Cropping{_n}D": Stock({"cropping": _PADS, "data_format": _FORMAT}),
        f"UpSampling{_n}D": Stock({"size": _SIZES, "data_format": _FORMAT}),
        f"SpatialDropout{_n}D": Stock({**_OF_DROPOUT, "data_format": _FORMAT}),
    }
for _n in (1, 2):
    STOCK |= {
        f"DepthwiseConv{_n}D": Stock(
            {**_UNGROUPED, "depth_multiplier": a.whole()},
            _depthwise,
            {"depthwise_initializer": "zeros"},
        ),
        f"SeparableConv{_n}D": Stock(
            {**_UNGROUPED, "filters": a.whole(), "depth_multiplier": a.whole()},
            _separable,
            {"depthwise_initializer": "zeros", "pointwise_initializer": "zeros"},
        ),
    }
STOCK["GroupedQueryAttention"] = STOCK["GroupQueryAttention"]._replace(  # its name in `.h5`
    cls=keras.layers.GroupQueryAttention
)
STOCK["UpSampling2D"] = Stock(
    {**STOCK["UpSampling2D"].takes, "interpolation": a.word("nearest", "bilinear", "bicubic")}
)
