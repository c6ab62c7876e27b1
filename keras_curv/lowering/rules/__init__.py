"""Rules of ops: each of these modules enters its own into the table of `registry.py`."""

from keras_curv.lowering.rules import (  # noqa: F401
    activations,
    arithmetic,
    convolution,
    image,
    pool,
    products,
    resizing,
    shape,
)
