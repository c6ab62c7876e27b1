"""A tensor on its way through a graph that is being read: affine in the last activation's output.

Scalings, shifts, permutations and products pile up here until the next activation, and are then
folded into one affine map, with a bound of what folding rounds away (`ball.py`).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.network import activations, sparse_affine
from keras_curv.network.affine import Affine, gain
from keras_curv.numerics.rounding import FLOAT32_UNIT, gamma
from keras_curv.reading.ball import Ball
from keras_curv.reading.limits import (
    EXAMPLE_ENTRIES,
    LAYERS,
    TENSOR_ENTRIES,
    TOTAL_ENTRIES,
    require_at_most,
    require_shape,
)
from keras_curv.reading.sparse_ball import SparseBall
from keras_curv.reading.stencil import Bounded, Stencil, magnitude_of_product, norm_of_product


@dataclasses.dataclass(frozen=True)
class Flow:
    """A tensor that depends on the input: affine in the output of the last activation.

    Entry j of an example, flattened, is `(base @ kernel)[j] * scale[j] + shift[j]` where
    there is a kernel, else `base[order[j]] * scale[j] + shift[j]`.

    Attributes:
        shape: of one example.
        layers: the affine maps and activations that make the base.
        base: its size.
        kernel: `(base, size)`, or None for a picking of entries. It is sparse where it is large.
        stencils: of convolutions and rearrangements that it is the product of, in order, for its
            norm; None where it is of other maps, too.
        order: `(size,)`, where there is no kernel.
        scale, shift: `(size,)`; scale is 1 where there is a kernel.
        head: what has been applied to the logits, "logits" while nothing has.
        served_gain: the largest `gain` of what it has been on the way.
        terms: how many terms the last product sums, 0 before there is one.
        shifts: how many offsets have been added since the last product.
        gross: sum of the absolute values of these offsets and of the shift before, `(size,)`.
    """

    shape: tuple[int, ...]
    layers: tuple
    base: int
    kernel: Ball | SparseBall | None
    order: np.ndarray
    scale: Ball
    shift: Ball
    stencils: tuple[Stencil | Bounded, ...] | None = ()
    head: str = "logits"
    served_gain: float = 1.0
    terms: int = 0
    shifts: int = 0
    gross: np.ndarray | float = 0.0

    @classmethod
    def input(cls, shape: tuple[int, ...], layers: tuple = ()) -> Flow:
        """The input itself; or, behind layers, the output of the last activation."""
        require_shape(shape, EXAMPLE_ENTRIES)
        size = math.prod(shape)
        return cls(
            shape=shape,
            layers=layers,
            base=size,
            kernel=None,
            order=np.arange(size),
            scale=Ball.exact(np.ones(size)),
            shift=Ball.exact(np.zeros(size)),
        )

    @property
    def is_base(self) -> bool:
        """Whether nothing has been done to the base."""
        in_order = self.kernel is None and np.array_equal(self.order, np.arange(self.base))
        return in_order and self.scale.equals(1.0) and self.shift.equals(0.0)

    def scaled(self, factor: Ball) -> Flow:
        """Each entry times its factor, `(size,)`."""
        shift = self.shift if self.shift.equals(0.0) else self.shift * factor
        gross = self.gross * factor.served_size() * (1.0 + 4.0 * FLOAT32_UNIT)
        if self.kernel is None:
            return self._become(scale=factor * self.scale, shift=shift, gross=gross)
        stencils = self.stencils
        if stencils:
            stencils = *stencils[:-1], stencils[-1].with_outputs_scaled(factor)
        kernel = self.kernel * factor
        return self._become(kernel=kernel, shift=shift, gross=gross, stencils=stencils)

    def shifted(self, offset: Ball) -> Flow:
        """Each entry plus its offset, `(size,)`.

        A runtime may add constant offsets to one another first (TensorFlow's does), and may begin a
        sum of products with them (XLA's does): then each passes through as many roundings as there
        are offsets and products, none larger than their `gross`.
        """
        shift, shifts = self.shift + offset, self.shifts + 1
        gross = self.gross + offset.served_size()
        if self.terms + shifts > 1:
            shift = shift.away(gamma(self.terms + shifts, FLOAT32_UNIT) * gross)
        return self._rounded()._become(shift=shift, shifts=shifts, gross=gross)

    def rounded(self) -> Flow:
        """The same, after the server has rounded it."""
        return dataclasses.replace(self._rounded(), shift=self.shift.rounded())

    def _become(self, **parts) -> Flow:
        """With other parts, after an op; how large a server's numbers may get is written down."""
        flow = dataclasses.replace(self, **parts)
        kernel = flow.scale.value[None] if flow.kernel is None else flow.kernel.value
        largest = max(self.served_gain, gain(kernel, flow.shift.value))
        return dataclasses.replace(flow, served_gain=largest)

    def _rounded(self) -> Flow:
        if self.kernel is None:
            return dataclasses.replace(self, scale=self.scale.rounded())
        return dataclasses.replace(self, kernel=self.kernel.rounded())

    def rearranged(self, positions: np.ndarray) -> Flow:
        """Entry j becomes the former entry `positions[j]`; the shape is that of `positions`."""
        flat = positions.reshape(-1)
        kernel, stencils = self.kernel, self.stencils
        moves = not np.array_equal(flat, np.arange(len(flat)))
        if kernel is not None and moves:
            dense = isinstance(kernel, Ball)
            kernel = kernel[:, flat] if dense else kernel.with_columns(flat)
        if stencils and (moves or positions.shape != self.shape):
            # What follows has another image before it than the last convolution made.
            stencils = *stencils, Bounded(1.0)
        return dataclasses.replace(
            self,
            shape=positions.shape,
            kernel=kernel,
            stencils=stencils,
            order=self.order if self.kernel is not None else self.order[flat],
            scale=self.scale[flat],
            shift=self.shift[flat],
            gross=np.broadcast_to(self.gross, self.shift.shape)[flat],
        )

    def times(self, kernel: Ball, stencil: Stencil | Bounded | None = None) -> Flow:
        """The product with a matrix `(size, out)`, dense or sparse.

        Args:
            kernel: the matrix.
            stencil: that it is of, where it is sparse: then a large product may be so, too.

        Raises:
            InputError: the product would be too large.
        """
        entries, stencils = self.base * kernel.shape[1], self._stencils_with(stencil)
        if stencils is not None and entries > sparse_affine.DENSE_UP_TO:
            product = self._sparse_product(kernel)
        elif self.kernel is not None and entries > TENSOR_ENTRIES:
            raise InputError(
                f"an array of {self.base} × {kernel.shape[1]} entries is too large (at most "
                f"{TENSOR_ENTRIES}); put an activation between two large layers"
            )
        elif isinstance(self.kernel, SparseBall):
            product, stencils = (self.kernel @ SparseBall.of(kernel)).dense(), None
        else:
            require_shape((self.base, kernel.shape[1]))
            product = self._dense_product(kernel)
        shift = Ball.exact(np.zeros(kernel.shape[1]))
        if not self.shift.equals(0.0):
            shift = self.shift @ kernel
        return self._become(
            shape=(kernel.shape[1],),
            kernel=product,
            stencils=stencils,
            scale=Ball.exact(np.ones(kernel.shape[1])),
            shift=shift,
            terms=kernel.shape[0],
            shifts=0,
            gross=shift.served_size(),
        )

    def _stencils_with(self, stencil) -> tuple[Stencil | Bounded, ...] | None:
        if stencil is None or self.stencils is None:
            return None
        if not self.stencils:
            return (stencil if self.scale.equals(1.0) else stencil.with_inputs_scaled(self.scale),)
        return *self.stencils[:-1], *self.stencils[-1].then(stencil)

    def _dense_product(self, kernel: Ball) -> Ball:
        if self.kernel is not None:
            return self.kernel @ kernel
        scale = self.scale.reshape((-1, 1))
        rows = kernel.dense().rounded(kernel.shape[0] + 1)  # the terms of a sum
        rows = rows * scale if not self.scale.equals(1.0) else rows
        product = Ball.exact(np.zeros((self.base, kernel.shape[1])))
        product.value[self.order] = rows.value
        product.error[self.order] = rows.error
        product.served[self.order] = rows.served
        return product

    def _sparse_product(self, kernel: Ball) -> SparseBall:
        rows = SparseBall.of(kernel)
        if self.kernel is not None:
            dense = isinstance(self.kernel, Ball)
            return (SparseBall.of(self.kernel) if dense else self.kernel) @ rows
        rows = rows.rounded(rows.terms + 1)
        rows = rows.with_rows_scaled(self.scale) if not self.scale.equals(1.0) else rows
        in_order = np.array_equal(self.order, np.arange(self.base))
        return rows if in_order else rows.with_rows(self.order)

    def affine(self) -> Affine:
        """The map, with an identity for a kernel where there has been no product."""
        flow, size = self, self.shift.shape[0]
        if self.kernel is None:
            identity = scipy.sparse.eye_array(size, format="csr")
            flow = self.times(Ball.exact(identity), Bounded(1.0))
        kernel, shift = flow.kernel, flow.shift
        known = (
            kernel.value,
            shift.value,
            kernel.norm_of_error(),
            shift.norm_of_error(),
            kernel.served,
            shift.served,
            flow.served_gain,
        )
        if isinstance(kernel, Ball):
            return Affine(*known)
        norms = norm_of_product(flow.stencils), magnitude_of_product(flow.stencils)
        return sparse_affine.SparseAffine(*known, *norms)

    def activated(self, name: str) -> Flow:
        """The output of that activation, as a new base."""
        require_at_most(len(self.layers), LAYERS, "the number of layers")
        entries = sum(affine.kernel.size for affine, _ in self.layers)
        require_at_most(entries, TOTAL_ENTRIES, "the network, in entries of all layers,")
        layer = (self.affine(), activations.get(name))
        return Flow.input(self.shape, (*self.layers, layer))
