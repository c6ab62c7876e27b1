"""Examples of a data set as a model takes them: in its shape and units."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from keras_curv.data.examples import Examples
from keras_curv.errors import InputError
from keras_curv.reading.inputs import reshaping
from keras_curv.reading.served_inputs import in_float64
from keras_curv.reading.served_model import ServedModel
from keras_curv.runs.options import ExampleOptions


def require_plain(served: ServedModel, options: ExampleOptions) -> None:
    """Refuses what has no meaning yet for a model some of whose inputs are no floats."""
    if served.inputs.fixed and (options.proofs is not None or options.input_scale != 1.0):
        raise InputError(
            "proofs, and an input scale, are for models whose inputs are all floats. Not so: "
            f"{', '.join(served.inputs.fixed)}"
        )


def times(x: np.ndarray, scale: float) -> np.ndarray:
    """Returns examples in float64, times the input scale; InputError where it cannot hold them."""
    exact, lost = in_float64(x)
    if np.any(lost & np.isfinite(exact)):  # NaN is told of as in other examples
        raise InputError(f"there are {x.dtype} entries that float64 cannot hold, to be scaled")
    return exact * scale


def fitting_shape(examples: Examples, served: ServedModel) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what brings examples of a named data set into the model's shape."""

    def plain(shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(n for n in shape if n != 1)

    wanted, have = served.input_shape, tuple(examples.shape)
    if served.before is not None:
        return lambda x: x  # which looks at them itself
    if examples.inputs is not None:
        if len(served.inputs.specs) == 1:
            names = ", ".join(examples.inputs)
            raise InputError(
                f"{examples.name} has no array 'x'; it has: {names}. For a model of one input, "
                "call the examples x and the labels y"
            )
        served.inputs.require(examples.inputs, examples.name)
        return served.inputs.of_numbers
    flattened = wanted == (int(np.prod(have)),)
    if have == wanted:
        return lambda x: x
    if examples.reshapable and (plain(have) == plain(wanted) or flattened):
        return lambda x: x.reshape((len(x), *wanted))
    known = "; others are given by --dataset or --inputs"  # of a named set nobody reshapes images
    advice = known if examples.reshapable else reshaping(have, wanted)
    raise InputError(
        f"examples of {examples.name} have shape {have}, but {served.source} takes "
        f"{served.inputs}{advice}"
    )
