"""Limits on the size of models, which may come from anywhere: larger ones are refused, not tried.

A few bytes can ask for any amount of memory or time. No model that certification could finish
comes near these limits.

Sizes have a limit each. Work has one for all that reading a model takes: `charge` counts it before
it is done, so that no refusal comes later than some seconds. So have the matrices of all layers,
side by side or one after the other: `keep` counts them.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterable, Iterator

from keras_curv.errors import InputError

GRAPH_BYTES = 2**26  # of saved_model.pb; parsed, a hostile one takes up to 30 times as much
INDEX_BYTES = 2**24  # of variables.index
VARIABLE_BYTES = 2**30  # of all variables together
NODES = 2**16  # of a graph with its calls written out, and of entries of a shape
FIELDS = 2**19  # of a message, and of its parts that have tables
OBJECTS = 2**18  # of Python's, in a SavedModel or in its checkpoint, with the names of their parts
CALL_DEPTH = 64  # of functions that call one another
TENSOR_ENTRIES = 3 * 2**22  # of one constant, or of the matrix of one layer
CONVOLUTION_ENTRIES = 26 * 2**20  # of the matrix of one, zeros not counted: a GiB while it is made
STORED_ENTRIES = 2**24  # of kernels and rearrangements, written out
PRODUCTS = 2**26  # multiplications, to make one sparse map of two that have no activation between
EXAMPLE_ENTRIES = 2**19  # of one example, at the input or at any layer
REPEATED_ENTRIES = 2**24  # of all constants that are written down shorter than they are
TOTAL_ENTRIES = 2**25  # of all variables, of what is folded at a time, and of all layers, together
LAYERS = 256
CLASSES = 1024  # each is held against every other
INDEX_BLOCKS = 2**12  # of variables.index; TensorFlow makes one for each 256 KiB
KEY_BYTES = 2**12  # of the name of one variable in it; INDEX_BYTES of all, written out
FUNCTIONS = 2**12  # calls of functions that are written out
INPUTS = 2**8  # of a signature
AXES = 16  # of any shape that is written down
WORK = 31 * 2**29  # multiplications, to read a model; some five seconds
PASS = 16  # multiplications take as long as what an op does to each weight
NODE = 3 * 2**17  # multiplications take as long as finding out what a node of the graph is
OP = 3 * 2**20  # multiplications take as long as what there is to do for any op
LAYER = 2**25  # the same for any layer
VECTOR_PASS = 320  # the same for each entry of an example, of which more is known
SPARSE = 384  # multiplications of dense matrices take as long as one of sparse ones
HALF_SPARSE = 6  # the same for a product of a dense and a sparse one
OPTIONAL = 3 * WORK // 4  # multiplications for what need not be, as sharper norms

# Multiplications, entries and optional multiplications so far; None: nobody counts.
_spent: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("spent", default=None)


class TooLarge(InputError):
    """A model of which reading takes more time or memory than it may."""


@contextlib.contextmanager
def one_budget() -> Iterator[None]:
    """Counts together whatever is charged and kept within."""
    token = _spent.set([0, 0, 0])
    try:
        yield
    finally:
        _spent.reset(token)


def charge(multiplications: int, what: str) -> None:
    """Counts work before it is done.

    Raises:
        InputError: it is more than reading a model may take.
    """
    if not _counted(multiplications):
        raise TooLarge(
            f"{what} takes {multiplications:,} multiplications: with what was read before, more "
            f"than {WORK:,}; use smaller layers, or fewer of them without an activation between"
        )


def _counted(multiplications: int) -> bool:
    """Counts work, unless there is not enough left; returns whether there is."""
    spent = _spent.get()
    total = multiplications + (spent[0] if spent else 0)
    if total > WORK:
        return False
    if spent:
        spent[0] = total
    return True


def charge_entries(passes: int, entries: int, what: str) -> None:
    """Counts work that is done to each entry before it is done.

    Args:
        passes: how often as much is done as an op does to each weight.
        entries: how many there are.
        what: for the message.

    Raises:
        InputError: it is more than reading a model may take.
    """
    charge(passes * PASS * entries, what)


def affords(multiplications: int) -> bool:
    """Counts optional work before it is done, if there is enough left; returns whether there is.

    A share is left for what must be done, so that no model is refused because of it.
    """
    spent = _spent.get()
    total = multiplications + (spent[2] if spent else 0)
    if total > OPTIONAL or not _counted(multiplications):
        return False
    if spent:
        spent[2] = total
    return True


def keep(entries: int) -> None:
    """Counts the matrix of one more layer.

    Raises:
        InputError: all together are too large.
    """
    spent = _spent.get()
    require_room(entries)
    if spent:
        spent[1] += entries


def require_room(entries: int) -> None:
    """Refuses matrices before they are made that are too large beside those that are kept.

    Raises:
        InputError: all together are too large.
    """
    spent = _spent.get()
    kept = spent[1] if spent else 0
    require_at_most(kept + entries, TOTAL_ENTRIES, "the network, in entries of all layers,")


def roomy() -> bool:
    """Returns whether the matrices that are kept so far are at most a quarter of what may be."""
    spent = _spent.get()
    return spent is None or spent[1] <= TOTAL_ENTRIES // 4


def require_at_most(number: int, limit: int, what: str) -> None:
    """Refuses a number beyond its limit."""
    if number > limit:
        raise TooLarge(f"{what} is too large: {number}, at most {limit}")


def require_shape(sizes: Iterable[int], limit: int = TENSOR_ENTRIES) -> None:
    """Refuses the shape of an array that would be too large."""
    sizes = [int(size) for size in sizes]
    if math.prod(sizes) > limit:
        shape = " × ".join(map(str, sizes[:8]))
        raise TooLarge(f"an array of {shape} entries is too large (at most {limit})")
