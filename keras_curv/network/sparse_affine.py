"""Affine maps whose matrix is too large to be dense: convolutions of larger images.

They support the certificates that need no dense matrix, only norms, products with vectors, and
row norms.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.network.affine import Affine
from keras_curv.numerics.column_groups import ColumnGroups
from keras_curv.numerics.rounding import up
from keras_curv.numerics.spectral import spectral_norm_estimate

DENSE_UP_TO = 2**24  # entries: 128 MiB, and seconds for each proof of an eigenvalue
_SIDE, _WORK = 4096, 2**35  # inputs, and multiplications, for each proof of an eigenvalue
_STEPS = 12  # of power iteration


@dataclasses.dataclass(frozen=True, eq=False)
class SparseAffine(Affine):
    """An affine map with a sparse matrix; see `Affine`.

    Raises:
        InputError: a weight is NaN or infinite; or a norm exceeds its proved bound, which would be
            a bug.
    """

    kernel: Any  # `(in, out)`, CSR, float64
    proved_norm: float = math.inf  # proved bound on the norm of the real matrix
    # proved bound on the norm of the matrix of its absolute values
    proved_magnitude: float = math.inf

    def __post_init__(self) -> None:
        kernel = scipy.sparse.csr_array(self.kernel, dtype=np.float64)
        kernel.sort_indices()
        bias = np.array(self.bias, np.float64)
        numbers = kernel.data, bias, self.kernel_error, self.bias_error
        if not all(np.isfinite(each).all() for each in numbers):
            raise InputError(f"the weights of an affine map {kernel.shape} are NaN or infinite")
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "bias", bias)
        # The proofs rely on how the matrix was made; this tests those that are used.
        for signed, proved in ((True, self.proved_norm), (False, self.proved_magnitude)):
            if proved >= self._schur:
                continue
            matrix = kernel if signed else _magnitudes(kernel)
            with np.errstate(over="ignore", invalid="ignore"):
                least = spectral_norm_estimate(matrix, iterations=_STEPS) - self.kernel_error
            if math.inf > least > proved * (1.0 + 1e-6):
                raise InputError(
                    f"the bound of the norm of an affine map {kernel.shape}, {proved:.6g}, is less "
                    f"than what was met, {least:.6g}; please report this model"
                )
        self._serve_as_one_product()

    def _kernel_error_of(self, roundings: float) -> Any:
        # Folding may have changed entries that are not stored, so nothing is known of them.
        return (math.inf if self.kernel_error else roundings) * _magnitudes(self.kernel)

    @property
    def is_sparse(self) -> bool:
        """Returns True."""
        return True

    @functools.cached_property
    def absolute(self) -> scipy.sparse.csr_array:
        """Returns |W| of the stored kernel, kept as it is asked for again and again."""
        return _magnitudes(self.kernel)

    @functools.cached_property
    def column_groups(self) -> ColumnGroups | None:
        """Returns the columns for eigenvalue bounds; None where these would take too long."""
        if self.fan_in > _SIDE:
            return None
        groups = ColumnGroups(self.kernel)
        return groups if groups.work <= _WORK else None

    @functools.cached_property
    def norm(self) -> float:
        """Bounds ‖W‖ from above by the smaller of `proved_norm` and `schur_bound`."""
        return up(min(self.proved_norm, self._schur) + self.kernel_error)

    @functools.cached_property
    def magnitude_norm(self) -> float:
        """Bounds ‖|W|‖ from above."""
        return up(min(self.proved_magnitude, self._schur) + self.kernel_error)

    @functools.cached_property
    def _schur(self) -> float:
        return schur_bound(self.kernel)

    def stored_bytes(self) -> bytes:
        """Returns the weights and their error bounds as bytes, as in `Affine`."""
        errors = np.array([self.kernel_error, self.bias_error, self.served_gain], np.float64)
        parts = [self.kernel.data, self.kernel.indices, self.kernel.indptr, self.bias, errors]
        parts += [self.served_kernel_error.data, self.served_bias_error]
        return b"".join(b"%d " % part.nbytes + part.tobytes() for part in parts)


def as_array(kernel: Any) -> np.ndarray:
    """Returns a dense or sparse kernel as a dense array."""
    return kernel.toarray() if scipy.sparse.issparse(kernel) else kernel


def schur_bound(matrix: scipy.sparse.csr_array) -> float:
    """Bounds `√(‖W‖₁ ‖W‖_∞) ≥ ‖|W|‖` from above."""
    sizes = _magnitudes(scipy.sparse.csr_array(matrix))
    rows, columns = (sizes.sum(axis=axis).max() for axis in (1, 0))
    return up(math.sqrt(rows) * math.sqrt(columns), sum(matrix.shape) + 8)


def _magnitudes(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Returns |W|, which shares the index arrays of W in memory."""
    parts = np.abs(matrix.data), matrix.indices, matrix.indptr
    return scipy.sparse.csr_array(parts, shape=matrix.shape)
