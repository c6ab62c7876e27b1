"""Affine maps `z = a W + b` in Keras' orientation: kernels are `(in, out)`, the paper's Wᵀ."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.network.activations import Activation
from keras_curv.numerics.rounding import (
    FLOAT32_UNIT,
    SLOPE_FLOOR,
    LayerNorms,
    gamma,
    norm_bound,
    up,
)
from keras_curv.numerics.spectral import Gram, spectral_norm_bound

# Entries of a dense matrix for each that is not 0 of a sparse one, where products take as long:
# with many vectors; and with so few that a dense matrix takes as long to read.
_THIN, _SPARSE, _FEW = 16, 8, 8


@dataclasses.dataclass(frozen=True, eq=False)
class Affine:
    """A dense affine map with bounds on its rounding errors.

    The real map is `(kernel + ΔW, bias + Δb)` with `‖ΔW‖ ≤ kernel_error` and
    `‖Δb‖ ≤ bias_error`: both are 0 for weights as stored, and positive once a normalisation or
    a second affine map has been folded in, because folding rounds.

    Raises:
        InputError: shapes do not fit, or a weight is NaN or infinite.
    """

    kernel: np.ndarray  # `(in, out)`, float64
    bias: np.ndarray  # `(out,)`, float64
    kernel_error: float = 0.0  # bound on the spectral norm of ΔW
    bias_error: float = 0.0  # bound on the l2 norm of Δb
    # entrywise bound on the distance from the kernel to one with which exact arithmetic gives what
    # a server computes in float32; None: the bound for one matrix product with a bias
    served_kernel_error: Any = None
    served_bias_error: Any = None  # the same for the bias
    # no intermediate number of a served map exceeds this times (1 + the largest entry of |a|)
    served_gain: Any = None

    def __post_init__(self) -> None:
        kernel = np.array(self.kernel, np.float64)  # copies: bounds must not outlive weights
        bias = np.array(self.bias, np.float64)
        if kernel.ndim != 2 or bias.shape != kernel.shape[1:] or 0 in kernel.shape:
            raise InputError(
                "an affine map needs a kernel (in, out) and a bias (out,), none empty. "
                f"Received: kernel {kernel.shape}, bias {bias.shape}"
            )
        errors = np.array([self.kernel_error, self.bias_error])
        if not (
            np.isfinite(kernel).all() and np.isfinite(bias).all() and np.isfinite(errors).all()
        ):
            raise InputError(f"the weights of an affine map {kernel.shape} are NaN or infinite")
        kernel.setflags(write=False)
        bias.setflags(write=False)
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "bias", bias)
        self._serve_as_one_product()

    def _serve_as_one_product(self) -> None:
        """Sets the served errors that are None to those of one float32 product with a bias."""
        # The bias may be the first term of the sum.
        roundings = gamma(self.fan_in + 1, FLOAT32_UNIT)
        if self.served_kernel_error is None:
            object.__setattr__(self, "served_kernel_error", self._kernel_error_of(roundings))
        if self.served_bias_error is None:
            served = roundings * (np.abs(self.bias) + self.bias_error)
            object.__setattr__(self, "served_bias_error", served)
        if self.served_gain is None:
            object.__setattr__(self, "served_gain", gain(self.kernel, self.bias))

    def _kernel_error_of(self, roundings: float) -> Any:
        return roundings * self.magnitude

    @property
    def fan_in(self) -> int:
        """Returns the number of entries of a."""
        return self.kernel.shape[0]

    @property
    def fan_out(self) -> int:
        """Returns the number of entries of z."""
        return self.kernel.shape[1]

    @property
    def is_sparse(self) -> bool:
        """Returns whether the kernel is a sparse array; see `sparse_affine.py`."""
        return False

    @property
    def absolute(self) -> Any:
        """Returns |W| of the stored kernel, `(in, out)`."""
        return np.abs(self.kernel)

    @property
    def magnitude(self) -> np.ndarray:
        """Returns an entrywise bound on |W|, `(in, out)`: `|W_ij + ΔW_ij| ≤ |W_ij| + ‖ΔW‖`."""
        return self.absolute + self.kernel_error

    @functools.cached_property
    def pass_work(self) -> float:
        """Returns the multiplications of dense matrices that take as long as one with a vector."""
        dense = float(self.fan_in) * self.fan_out
        if self.is_sparse:
            return dense
        return min(dense, _THIN * float(np.count_nonzero(self.kernel)))

    @property
    def is_thin(self) -> bool:
        """Returns whether most entries are 0: products are quicker by `thin_kernel`."""
        return self.is_sparse or self.pass_work < self.kernel.size

    def is_thin_for(self, count: int) -> bool:
        """Returns whether products with so many vectors are quicker by `thin_kernel`, if that is
        sparse at all."""
        return self.is_thin or count <= _FEW

    @functools.cached_property
    def thin_kernel(self) -> Any:
        """Returns the kernel for products with few vectors: sparse where most entries are 0."""
        if self.is_sparse or np.count_nonzero(self.kernel) * _SPARSE >= self.kernel.size:
            return self.kernel
        return scipy.sparse.csr_array(self.kernel)

    @functools.cached_property
    def thin_transpose(self) -> Any:
        """Returns the transpose of `thin_kernel`."""
        thin = self.thin_kernel
        return thin.T.tocsr() if scipy.sparse.issparse(thin) else thin.T

    @functools.cached_property
    def _thin_absolute(self) -> Any:
        """Returns |W| as `thin_kernel` has it; None for a dense array, which is not kept."""
        if self.is_sparse:
            return self.absolute
        return abs(self.thin_kernel) if scipy.sparse.issparse(self.thin_kernel) else None

    @functools.cached_property
    def row_norms(self) -> np.ndarray:
        """Bounds the l2 norms of the rows of the stored kernel from above, `(in,)`."""
        return norm_bound(self.kernel, axis=1)

    @functools.cached_property
    def column_norms(self) -> np.ndarray:
        """Bounds the l2 norms of the columns of the stored kernel from above, `(out,)`."""
        return norm_bound(self.kernel, axis=0)

    @functools.cached_property
    def column_bounds(self) -> np.ndarray:
        """Bounds the l2 norms of the columns of the real kernel from above, `(out,)`."""
        return up(self.column_norms + self.kernel_error)

    def norms_within(self, rows: np.ndarray) -> np.ndarray:
        """Bounds the l2 norms of the columns of the stored kernel within some rows from above.

        Args:
            rows: masks of rows, `(n, in)`.

        Returns:
            `(n, out)`.
        """
        largest, squares = self._squares
        total = rows.astype(np.float64) @ squares
        found = largest * up(np.sqrt(up(total, self.fan_in + 8)) + SLOPE_FLOOR)
        return np.nextafter(found, np.inf)  # rounding of subnormal numbers is not relative

    @functools.cached_property
    def _squares(self) -> tuple[float, Any]:
        """Returns the largest entry, and the squares of all in units of it."""
        largest = float(self.absolute.max()) or 1.0
        return largest, (self.thin_kernel / largest) ** 2

    @functools.cached_property
    def frobenius(self) -> float:
        """Bounds the Frobenius norm of the stored kernel from above."""
        return norm_bound(self.kernel)

    def largest(self, sizes: np.ndarray) -> np.ndarray:
        """Bounds the entries of `|a| |W| + |b|` from above where `|a| ≤ sizes`: `(n, out)`."""
        folding = self.kernel_error * sizes.sum(axis=1, keepdims=True) + self.bias_error
        thin = self._thin_absolute if self.is_thin_for(len(sizes)) else None
        absolute = self.absolute if thin is None else thin
        return up(sizes @ absolute + np.abs(self.bias) + folding, self.fan_in + 8)

    @property
    def is_zero(self) -> bool:
        """Returns whether the map is constant."""
        return not self.kernel_error and self.frobenius == 0.0

    def stored_bytes(self) -> bytes:
        """Returns the weights and their error bounds as bytes, for a fingerprint."""
        errors = self.kernel_error, self.bias_error, self.served_gain
        parts = self.kernel, self.bias, self.served_kernel_error, self.served_bias_error
        return b"".join(np.asarray(part, np.float64).tobytes() for part in (*parts, *errors))

    @functools.cached_property
    def gram(self) -> Gram:
        """Returns WᵀW, for eigenvalue bounds with many diagonals."""
        return Gram(self.kernel)

    @functools.cached_property
    def norm(self) -> float:
        """Bounds ‖W‖ from above."""
        return up(spectral_norm_bound(self.kernel) + self.kernel_error)

    @functools.cached_property
    def magnitude_norm(self) -> float:
        """Bounds ‖|W|‖ from above."""
        return spectral_norm_bound(self.magnitude)

    @functools.cached_property
    def bias_norm(self) -> float:
        """Bounds ‖b‖ from above."""
        return norm_bound(self.bias)

    def norms(self, activation: Activation | None) -> LayerNorms:
        """Returns the norms of this map and of the activation after it, for the rounding charge."""
        return LayerNorms(
            fan_in=self.fan_in,
            fan_out=self.fan_out,
            norm=self.norm,
            magnitude=self.magnitude_norm,
            bias=self.bias_norm,
            kernel_error=self.kernel_error,
            bias_error=self.bias_error,
            slope=activation.steepest if activation else 1.0,
            bend=float(np.max(activation.bend)) if activation else 0.0,
            floor=float(np.max(activation.value_floor)) if activation else 0.0,
        )


def gain(kernel: np.ndarray, shift: np.ndarray) -> float:
    """Bounds the entries of `|a| |W| + |shift|` from above, in units of one plus max |a|."""
    return float(max(1.0, abs(kernel).sum(axis=0).max(), np.abs(shift).max()))
