"""Proofs of rows in a folder, a file for each batch; the format is in `docs/auditor.md`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from keras_curv.certificates.certificate import Certificates, Status
from keras_curv.certificates.witnesses import Witnesses
from keras_curv.errors import InputError
from keras_curv.files import parse_json, read_at_most, write_file, write_json, writing
from keras_curv.rows.row import round_down

FORMAT, VERSION = "keras_curv proofs", 3
_LONGEST_HEADER = 2**24


class ProofFolder:
    """A folder of proofs, which a run fills batch by batch and can go on with.

    Args:
        path: of the folder.
        header: what all rows claim, as JSON can hold it.

    Example:
        >>> import tempfile
        >>> folder = ProofFolder(tempfile.mkdtemp() + "/proofs", {"threat": "l2"})
        >>> folder.prepare()
        >>> folder.missing([0, 16])
        [0, 16]
    """

    def __init__(self, path: str, header: dict):
        self._path = pathlib.Path(path)
        self._header = {"format": FORMAT, "version": VERSION} | header

    def prepare(self, *, resume: bool = False) -> None:
        """Makes the folder and its header.

        Args:
            resume: go on with a folder of the same header.

        Raises:
            InputError: there is one already; or of another header; or it cannot be written.
        """
        place = self._path / "proofs.json"
        if resume and place.exists():
            try:
                known = parse_json(read_at_most(place, _LONGEST_HEADER))
            except (OSError, ValueError) as error:
                raise InputError(f"{place} cannot be read: {error}") from error
            if known != self._header:
                raise InputError(f"{self._path} has proofs of another run; name another folder")
            return
        with writing(self._path):
            self._path.mkdir(exist_ok=True)
            if self._path.is_symlink() or any(self._path.iterdir()):
                raise InputError(f"{self._path} is not an empty folder; name another one")
        write_json(place, self._header)

    def missing(self, firsts: Sequence[int]) -> list[int]:
        """Returns those first examples of batches that have no file."""
        return [first for first in firsts if not self._file(first).is_file()]

    def write(self, first: int, result: Certificates, kept: Witnesses) -> None:
        """Writes the proofs of one batch, in place of what may be there.

        Args:
            first: index of its first example.
            result: its certificates; those that are certified are claims.
            kept: its witnesses.

        Raises:
            InputError: it cannot be written.
        """
        rows = np.flatnonzero(result.status == Status.CERTIFIED)
        place = {int(row): i for i, row in enumerate(rows)}
        points = {pair: point for pair, point in kept.points.items() if pair[0] in place}
        slopes = {pair: some for pair, some in kept.slopes.items() if pair[0] in place}
        layers = len(kept.widths)
        wide = next(map(len, points.values()), kept.exact.shape[1])
        units = sum(kept.widths)
        both = np.array([*slopes.values()], np.float64)
        both = both.reshape(len(slopes), 2 * (units + layers))
        arrays = {
            "index": first + rows.astype(np.int64),
            "label": result.prediction[rows].astype(np.int64),
            "radius": np.array([float(round_down(r)) for r in result.radius[rows]], np.float64),
            "x": kept.exact[rows],
            "served": kept.served[rows],
            "method": kept.method[rows],
            "point_row": np.array([place[row] for row, _ in points], np.int64),
            "point_rival": np.array([rival for _, rival in points], np.int64),
            "point": np.array([*points.values()], np.float64).reshape(-1, wide),
            "slope_row": np.array([place[row] for row, _ in slopes], np.int64),
            "slope_rival": np.array([rival for _, rival in slopes], np.int64),
            "slope": both[:, :units],
            "turn": both[:, units : 2 * units],
            "multiplier": both[:, 2 * units :].reshape(len(slopes), layers, 2),
        }

        def save(file: BinaryIO) -> None:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # of arrays alone

        write_file(self._file(first), save)

    def _file(self, first: int) -> pathlib.Path:
        return self._path / f"{first}.npz"
