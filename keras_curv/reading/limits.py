"""How large a model from anywhere may be: whatever is beyond is refused, not tried.

A few bytes can ask for any amount of memory or time. No model that certification could finish
comes near these limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from keras_curv.errors import InputError

GRAPH_BYTES = 2**26  # of saved_model.pb; parsed, a hostile one takes up to 30 times as much
INDEX_BYTES = 2**24  # of variables.index
VARIABLE_BYTES = 2**33  # of all variables together
NODES = 2**16  # of a graph with its calls written out, and of entries of a shape
CALL_DEPTH = 64  # of functions that call one another
TENSOR_ENTRIES = 2**27  # of one constant, or of the matrix of one layer: a GiB
STORED_ENTRIES = 2**24  # of the matrix of a convolution, zeros not counted: a GiB while it is made
PRODUCTS = 2**28  # multiplications, to make one map of two that have no activation between
EXAMPLE_ENTRIES = 2**24  # of one example, at the input or at any layer
REPEATED_ENTRIES = 2**24  # of all constants that are written down shorter than they are
TOTAL_ENTRIES = 2**28  # of all layers together
LAYERS = 256
INDEX_BLOCKS = 2**12  # of variables.index; TensorFlow makes one for each 256 KiB
KEY_BYTES = 2**12  # of the name of one variable in it; INDEX_BYTES of all, written out
FUNCTIONS = 2**12  # calls of functions that are written out
AXES = 16  # of any shape that is written down


def require_at_most(number: int, limit: int, what: str) -> None:
    """InputError where there is more of it than its limit."""
    if number > limit:
        raise InputError(f"{what} is too large: {number}, at most {limit}")


def require_shape(sizes: Iterable[int], limit: int = TENSOR_ENTRIES) -> None:
    """InputError where an array of that shape would be too large."""
    sizes = [int(size) for size in sizes]
    if math.prod(sizes) > limit:
        shape = " × ".join(map(str, sizes[:8]))
        raise InputError(f"an array of {shape} entries is too large (at most {limit})")
