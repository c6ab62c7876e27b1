"""A tensor on its way through a graph that is being read: affine in outputs of activations.

Scalings, shifts, permutations and products pile up here until the next activation, and are then
folded into one affine map, with a bound of what folding rounds away (`error_ball.py`). Where
branches meet (`branches.py`), the base is the outputs of several activations, one after the other;
`chain.py` brings them into layers in the end.

**Underflow.** A server in float32 may flush what is below τ = 2⁻¹²⁶ to zero, as it reads or as it
writes. Of an entry that depends on the input this is an *absolute* error, which no error of a
weight stands for, and which the next map multiplies. It is held in `shift.served`, also where the
shift is 0. If y is off by e in the sense that `y = a (W + ΔW) + s + e`, then a product with K reads
entries that are off by e + τ, flushes each of its n terms and of its n partial sums, and comes out
off by at most `|K|ᵀ(e + τ) + 2nτ`, times 1 + γ_{n+1}: the rule of `Ball.__matmul__` for the error
of a shift, which adds 8nτ. Scaling by c makes of it `|c| (e + τ) + τ`; a sum adds at most 3τ.

**Overflow.** What cancels in the folded map has been large on the way. `mass` bounds entries by
products of absolute values: with `|a| ≤ α`, `|y_j| ≤ mass_j (1 + α)` for each entry y_j of the
tensor and for every partial sum of it, in any order.

**Folding by the runtime.** TensorFlow multiplies constants that scale one after the other before
it sees an input. `runs` bounds the products of factors in a row, from below and from above: one
below τ may be flushed, one beyond float32 is infinite, whatever stands before.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.lowering.chain import Source
from keras_curv.lowering.error_ball import Ball, served_columns
from keras_curv.lowering.sparse_error_ball import SparseBall, as_thin
from keras_curv.lowering.stencil import Bounded, Stencil
from keras_curv.network import activations, sparse_affine
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.numerics.rounding import FLOAT32_TINY, FLOAT32_UNIT, gamma
from keras_curv.saved_model.limits import (
    EXAMPLE_ENTRIES,
    LAYER,
    LAYERS,
    PASS,
    TENSOR_ENTRIES,
    VECTOR_PASS,
    charge,
    keep,
    require_at_most,
    require_shape,
    roomy,
)

SPARSE_FROM = 2**22  # entries of a matrix of which few are stored, or beside large ones
_FEW = 8  # of so many entries one


@dataclasses.dataclass(frozen=True)
class Flow:
    """A tensor that depends on the input: affine in its base, the outputs of its sources.

    Entry j of an example, flattened, is `(base @ kernel)[j] * scale[j] + shift[j]` where
    there is a kernel, else `base[order[j]] * scale[j] + shift[j]`.
    """

    shape: tuple[int, ...]  # of one example
    sources: tuple[Source, ...]  # whose outputs, one after the other, are the base
    base: int  # the size of that
    # `(base, size)`, or None for a picking of entries. It is sparse where it is large
    kernel: Ball | SparseBall | None
    order: np.ndarray  # `(size,)`, where there is no kernel
    scale: Ball  # scale, shift: `(size,)`; scale is 1 where there is a kernel
    shift: Ball
    mass: np.ndarray  # bounds of its entries as products of absolute values, `(size,)`; see above
    # the least and the largest product of factors in a row up to the last one, `(2, size)`
    runs: np.ndarray
    # of convolutions and rearrangements that it is the product of, in order, for its norm; None
    # where it is of other maps, too
    stencils: tuple[Stencil | Bounded, ...] | None = ()
    head: str = "logits"  # what has been applied to the logits, "logits" while nothing has
    served_gain: float = 1.0  # the largest mass on the way, constant, or product of constants
    terms: int = 0  # how many terms the last product sums, 0 before there is one
    shifts: int = 0  # how many offsets have been added since the last product
    # sum of the absolute values of these offsets and of the shift before, `(size,)`
    gross: np.ndarray | float = 0.0

    @classmethod
    def input(cls, shape: tuple[int, ...], source: Source | None = None) -> Flow:
        """Returns the input itself, or the output of an activation."""
        require_shape(shape, EXAMPLE_ENTRIES)
        size = math.prod(shape)
        return cls(
            shape=shape,
            sources=(source or Source(size),),
            base=size,
            kernel=None,
            order=np.arange(size),
            scale=Ball.exact(np.ones(size)),
            shift=Ball.exact(np.zeros(size)),
            mass=np.ones(size),
            runs=np.ones((2, size)),
        )

    @property
    def is_base(self) -> bool:
        """Returns whether nothing has been done to the base."""
        in_order = self.kernel is None and np.array_equal(self.order, np.arange(self.base))
        untouched = self.scale.equals(1.0) and self.shift.equals(0.0)
        return len(self.sources) == 1 and in_order and untouched

    @property
    def product(self) -> Ball | SparseBall:
        """The kernel, of a flow that has one."""
        assert self.kernel is not None
        return self.kernel

    @property
    def stored(self) -> int:
        """The number of entries that its kernel stores."""
        return 0 if self.kernel is None else self.kernel.entries.value.size

    def over(self, sources: tuple[Source, ...]) -> Flow:
        """Returns the flow over a larger base, of these sources."""
        if sources == self.sources:
            return self
        ends = dict(zip(sources, np.cumsum([source.size for source in sources]), strict=True))
        own = [np.arange(ends[each] - each.size, ends[each]) for each in self.sources]
        places, base = np.concatenate(own), sum(source.size for source in sources)
        if self.kernel is None:
            return dataclasses.replace(self, sources=sources, base=base, order=places[self.order])
        kernel, shape = self.kernel, (base, self.shift.shape[0])
        if self.stencils is not None and _better_sparse(math.prod(shape), kernel):
            kernel = SparseBall.of(kernel)
        elif self.stencils is None and not kernel.is_sparse:
            require_shape(shape)
        kernel = kernel.with_rows(places, base)
        return dataclasses.replace(self, sources=sources, base=base, kernel=kernel)

    def multiplied(self) -> Flow:
        """Returns the flow with a kernel: where there is none, one that no server multiplies by."""
        if self.kernel is not None:
            return self
        size, scale = self.shift.shape[0], self.scale
        at, shape = (self.order, np.arange(size)), (self.base, size)
        places = SparseBall.exact(scipy.sparse.csr_array((np.ones(size), at), shape=shape)).places
        kernel = SparseBall.at(places, scale[places.indices])
        large = self.base * size > min(SPARSE_FROM, _dense_up_to())
        return dataclasses.replace(
            self,
            kernel=kernel if large else kernel.dense(),
            scale=Ball.exact(np.ones(size)),
            stencils=(Bounded(1.0).with_inputs_scaled(scale),),
        )

    def scaled(self, factor: Ball) -> Flow:
        """Multiplies each entry by its factor, `(size,)`."""
        _require_finite(factor)
        size = factor.served_size()
        runs = size * np.array([np.minimum(self.runs[0], 1.0), np.maximum(self.runs[1], 1.0)])
        # A product that may be flushed is off by τ, or by all of it.
        flushed = np.where(size > 0.0, np.minimum(8.0 * FLOAT32_TINY / runs[0], 1.0), 0.0)
        factor = factor.away(size * flushed)
        flow = self._become(
            shift=self._read_shift() * factor,
            gross=self.gross * size * (1.0 + 4.0 * FLOAT32_UNIT),
            mass=self.mass * size,
            runs=runs,
            largest=runs[1].max(initial=0.0),
        )
        if self.kernel is None:
            return dataclasses.replace(flow, scale=factor * self.scale)
        stencils = self.stencils
        if stencils:
            stencils = *stencils[:-1], stencils[-1].with_outputs_scaled(factor)
        return dataclasses.replace(flow, kernel=self.kernel * factor, stencils=stencils)

    def __neg__(self) -> Flow:
        return self.scaled(Ball.exact(-np.ones(self.shift.shape)))

    def shifted(self, offset: Ball) -> Flow:
        """Adds its offset to each entry, `(size,)`.

        A runtime may add constant offsets to one another first (TensorFlow's does), and may begin a
        sum of products with them (XLA's does): then each passes through as many roundings as there
        are offsets and products, none larger than their `gross`.
        """
        _require_finite(offset)
        shift, shifts, size = self.shift + offset, self.shifts + 1, offset.served_size()
        gross = self.gross + size
        if self.terms + shifts > 1:
            shift = shift.away(gamma(self.terms + shifts, FLOAT32_UNIT) * gross)
        parts = {"shift": shift, "shifts": shifts, "gross": gross, "mass": self.mass + size}
        return self._rounded()._become(**parts, largest=size.max(initial=0.0))

    def rounded(self) -> Flow:
        """Returns the flow after the server has rounded it."""
        return dataclasses.replace(self._rounded(), shift=self.shift.rounded())

    def _become(self, *, mass: np.ndarray, largest: float, **parts: Any) -> Flow:
        """Returns the flow after an op; how large a server's numbers may get is written down.

        Args:
            mass: of the result.
            largest: the largest constant of the op, which a runtime may have folded into others.
            parts: any other fields.
        """
        mass = mass * (1.0 + 1e-6)  # its roundings, and those of a server's sums
        most = float(np.max([self.served_gain, largest, mass.max(initial=0.0)]))
        return dataclasses.replace(self, mass=mass, served_gain=most, **parts)

    def _read_shift(self) -> Ball:
        """Returns the shift, off also by what an op that reads the tensor may flush to zero."""
        return self.shift.away(np.full(self.shift.shape, FLOAT32_TINY))

    def _rounded(self) -> Flow:
        if self.kernel is None:
            return dataclasses.replace(self, scale=self.scale.rounded())
        return dataclasses.replace(self, kernel=self.kernel.rounded())

    def rearranged(self, positions: np.ndarray) -> Flow:
        """Moves the former entry `positions[j]` to entry j, in the shape of `positions`."""
        flat = positions.reshape(-1)
        kernel, stencils = self.kernel, self.stencils
        moves = not np.array_equal(flat, np.arange(len(flat)))
        if kernel is not None and moves:
            kernel = kernel.with_columns(flat)
        if stencils and (moves or positions.shape != self.shape):
            # The next map has another image before it than the last convolution made.
            stencils = *stencils, Bounded(1.0)
        return dataclasses.replace(
            self,
            shape=positions.shape,
            kernel=kernel,
            stencils=stencils,
            order=self.order if self.kernel is not None else self.order[flat],
            scale=self.scale[flat],
            shift=self.shift[flat],
            mass=self.mass[flat],
            runs=self.runs[:, flat],
            gross=np.broadcast_to(self.gross, self.shift.shape)[flat],
        )

    def times(self, kernel: Ball | SparseBall, stencil: Stencil | Bounded | None = None) -> Flow:
        """Multiplies by a matrix `(size, out)`, dense or sparse.

        Args:
            kernel: the matrix.
            stencil: that it is of, where it is sparse: then a large product may be so, too.

        Raises:
            InputError: the product would be too large.
        """
        _require_finite(kernel)
        entries, stencils = self.base * kernel.shape[1], self._stencils_with(stencil)
        sparse = stencils is not None and entries > _dense_up_to()
        if not sparse and self.kernel is not None and entries > TENSOR_ENTRIES:
            raise InputError(
                f"an array of {self.base} × {kernel.shape[1]} entries is too large (at most "
                f"{TENSOR_ENTRIES}); put an activation between two large layers"
            )
        product = self._product(kernel, sparse)
        if not sparse:
            product = product.dense()
            stencils = None if self.kernel is not None and self.kernel.is_sparse else stencils
        shift = self._read_shift() @ kernel
        if not (np.any(self.shift.value) or np.any(self.shift.error)):
            shift = dataclasses.replace(shift, error=np.zeros(kernel.shape[1]))
        weights, mass = served_columns(kernel, np.maximum(self.runs[1], 1.0), self.mass)
        return self._become(
            shape=(kernel.shape[1],),
            kernel=product,
            stencils=stencils,
            scale=Ball.exact(np.ones(kernel.shape[1])),
            shift=shift,
            mass=mass,
            runs=np.stack([np.ones(kernel.shape[1]), weights]),
            largest=weights.max(initial=0.0),
            terms=kernel.shape[0],
            shifts=0,
            gross=shift.served_size(),
        )

    def _stencils_with(
        self, stencil: Stencil | Bounded | None
    ) -> tuple[Stencil | Bounded, ...] | None:
        if stencil is None or self.stencils is None:
            return None
        if not self.stencils:
            return (stencil if self.scale.equals(1.0) else stencil.with_inputs_scaled(self.scale),)
        return *self.stencils[:-1], *self.stencils[-1].then(stencil)

    def _product(self, kernel: Ball | SparseBall, sparse: bool) -> Ball | SparseBall:
        """Returns the matrix of a product for the base, with a sparse factor if it is to be so."""
        terms = kernel.shape[0]
        if sparse:
            kernel = SparseBall.of(kernel)
            terms = kernel.terms
        else:
            require_shape((self.base, kernel.shape[1]))
        if self.kernel is not None:
            return (SparseBall.of(self.kernel) if sparse else as_thin(self.kernel, kernel)) @ kernel
        rows = kernel.rounded(terms + 1).with_rows_scaled(self.scale)
        in_order = np.array_equal(self.order, np.arange(self.base))
        return rows if in_order else rows.with_rows(self.order, self.base)

    def _as_product(self) -> Flow:
        """Returns the flow, multiplied by an identity where there has been no product."""
        if self.kernel is not None:
            return self
        identity = SparseBall.exact(scipy.sparse.eye_array(self.shift.shape[0]))
        return self.times(identity, Bounded(1.0))

    def affine(self) -> Affine:
        """Returns the map, with an identity for a kernel where there has been no product."""
        flow = self._as_product()
        kernel, shift = flow.product, flow.shift
        entries = math.prod(kernel.shape)
        dense = not kernel.is_sparse or entries <= _dense_up_to()
        stored = entries if dense else flow.stored
        charge(LAYER + 8 * stored * PASS + shift.shape[0] * VECTOR_PASS, "a layer")
        keep(stored)
        if dense:
            kernel = kernel.dense()
        errors = kernel.entries.norm_of_error(), shift.norm_of_error()
        served = kernel.served, shift.served, flow.served_gain
        known = kernel.value, shift.value, *errors, *served
        return Affine(*known) if dense else sparse_affine.SparseAffine(*known)

    def made(self, sigma: Activation | None = None) -> Source:
        """Makes the flow a source, behind its activation if there is one."""
        flow = self._as_product()
        return Source(
            size=flow.shift.shape[0],
            depth=1 + max(source.depth for source in flow.sources),
            sources=flow.sources,
            affine=flow.affine(),
            stencils=flow.stencils or (),
            reads=flow.product.nonzero_rows(),
            sigma=sigma,
        )

    def activated(self, sigma: str | Activation) -> Flow:
        """Returns the output of an activation, as a new base."""
        layers = 1 + max(source.depth for source in self.sources)
        require_at_most(layers, LAYERS, "the number of layers")
        sigma = activations.get(sigma) if isinstance(sigma, str) else sigma
        return Flow.input(self.shape, self.made(sigma))


# An argument or a result of an op: it depends on the input, or is of floats, or of integers.
Value = Flow | Ball | np.ndarray


def _better_sparse(entries: int, kernel: Ball | SparseBall) -> bool:
    """Returns whether a matrix of so many entries, of `kernel` and zeros, should be sparse."""
    few = entries > SPARSE_FROM and _FEW * np.count_nonzero(kernel.entries.value) < entries
    return bool(few) or entries > sparse_affine.DENSE_UP_TO


def _dense_up_to() -> int:
    """Returns up to how many entries a convolution's matrix is dense: fewer once many are."""
    most = TENSOR_ENTRIES if roomy() else SPARSE_FROM
    return min(most, sparse_affine.DENSE_UP_TO)


def _require_finite(constant: Ball | SparseBall) -> None:
    """Refuses what real arithmetic does not define, such as x / 0, whatever comes of it later."""
    for part in (constant.entries.value, constant.entries.error):
        if not np.isfinite(part).all():
            raise InputError(
                "a constant is NaN or infinite, or something is divided by what may be 0, as by "
                "BatchNormalization where a variance + epsilon is not positive"
            )
