"""The nearest adversarial point met for each example of a run, as the model itself answers it.

A search in float64 (`attacks/nearest.py`) proposes a point. It is rounded to the model's dtype,
within the box of the threat, and served. For argmax it counts if the served class has changed; if
rounding took it back across the boundary, points a little farther on the same line are served. For
other properties it counts if the property fails in float64 at the point as it is rounded.

What is found goes into parts beside the file, some hundred examples each, until all is there: a
search that was stopped goes on behind them. A part has a digest of all that it follows from.
"""

from __future__ import annotations

import hashlib
import pathlib
import zipfile
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from keras_curv.attacks.nearest import fails, nearest_points
from keras_curv.certificates.certificate import CORRECT
from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError
from keras_curv.files import write_file
from keras_curv.network.network import FeedForward
from keras_curv.npz_file import NpzFile
from keras_curv.rows.row import Row
from keras_curv.threats.by_example import Around, moved_along
from keras_curv.threats.norms import NORMS
from keras_curv.threats.properties.property import ARGMAX

_FARTHER = 1.0, 1.0 + 1e-6, 1.0 + 1e-5, 1.0 + 1e-4, 1.0 + 1e-3, 1.01  # of a change
_TOGETHER = 512  # examples


class AdversarialPoints:
    """Takes the rows of a run, and searches the nearest adversarial point of each example.

    Args:
        certifier: of the run.
        settings: of the run, which say what is searched for.
        resume: take what an earlier search has found.

    Attributes:
        distance: of the nearest point, of every example, in the norm and the units of the threat;
            0 where the property does not hold at the example, `inf` where none was found.
    """

    def __init__(self, certifier: Certifier, settings: str = "", *, resume: bool = False):
        self._certifier, self._settings, self._resume = certifier, settings.encode(), resume
        self._rows: list[tuple[int, int, bool]] = []  # prediction, label, whether it holds
        self.distance = np.zeros(0)

    def add(self, rows: Iterable[Row]) -> None:
        """Takes more rows, in their order. A property is one of the label, where there is one."""
        for row in rows:
            label = row.prediction if row.label is None else row.label
            self._rows.append((row.prediction, label, row.status in CORRECT))

    def search(self, batches: Iterable[np.ndarray], path: str) -> None:
        """Searches near all examples, and writes what was found.

        Args:
            batches: the examples in their order, as the model is served, `(n, *input shape)`.
            path: of the .npz file, with arrays of one entry for each example: `x`, the point, or
                the example where none was found; `distance`; `prediction` at the example; and
                `becomes`, the class served at the point; −1 where none was found, and for other
                properties than argmax.
        """
        found: list[tuple[np.ndarray, ...]] = []
        parts: list[pathlib.Path] = []
        done = 0
        for batch in batches:
            for start in range(0, len(batch), _TOGETHER):
                x = batch[start : start + _TOGETHER]
                rows = self._rows[done : done + len(x)]
                parts.append(pathlib.Path(f"{path}.{done}.part"))
                _, label, holds = map(np.array, zip(*rows, strict=True))
                found.append(self._part(parts[-1], x, label, holds))
                done += len(x)
        x, self.distance, becomes = (np.concatenate(parts) for parts in zip(*found, strict=True))
        prediction = np.array([prediction for prediction, *_ in self._rows])

        def write(file: BinaryIO) -> None:
            np.savez(file, x=x, distance=self.distance, becomes=becomes, prediction=prediction)

        write_file(path, write)
        for part in parts:
            part.unlink(missing_ok=True)

    def _part(
        self, path: pathlib.Path, x: np.ndarray, label: np.ndarray, holds: np.ndarray
    ) -> tuple:
        """Returns `_searched`, from a file if an earlier run has searched the same."""
        digest = hashlib.sha256(self._settings)
        for array in (x, label, holds):
            digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
        key = np.frombuffer(digest.digest(), np.uint8)
        known = _known(path, key, x) if self._resume else None
        if known is not None:
            return known
        found = self._searched(x, label, holds)

        def write(file: BinaryIO) -> None:
            np.savez(file, key=key, x=found[0], distance=found[1], becomes=found[2])

        if path.parent != pathlib.Path("/dev"):  # a device keeps nothing
            write_file(path, write)
        return found

    def _searched(self, x: np.ndarray, label: np.ndarray, holds: np.ndarray) -> tuple:
        """Returns points, distances and served classes of a batch."""
        served, threat = self._certifier.served, self._certifier.threat
        exact = np.asarray(x, served.input_dtype.as_numpy_dtype)
        points, flat = exact.copy(), exact.reshape(len(x), -1).astype(np.float64)
        distance, becomes = np.where(holds, np.inf, 0.0), np.full(len(x), -1)
        rows = np.flatnonzero(holds)
        if not len(rows):
            return points, distance, becomes
        here = flat[rows]
        numbers = self._certifier.property.numbers(served.network, threat.claimed(here, here))
        network, start = self._searched_in(here, numbers)
        args = self._certifier.property, NORMS[threat.norm], start, label[rows]
        with np.errstate(all="ignore"):
            near = nearest_points(network, *args)
        open_ = np.isfinite(near.distance)
        for share in _FARTHER:
            some = np.flatnonzero(open_)
            if not len(some):
                break
            change = share * (near.point - start)[some]
            point = self._rounded(here[some], change, exact.dtype)
            lines = rows[some]
            changed, answer = self._changed(point, exact[lines], numbers[some], label[lines])
            reached = lines[changed]
            points[reached] = point[changed].reshape(points[reached].shape)
            becomes[reached] = answer[changed]
            distance[reached] = self._distance(point, here[some], change)[changed]
            open_[some[changed]] = False
        return points, distance, becomes

    @property
    def _directions(self) -> list[str] | None:
        """Returns the names of directions that each example has by itself; None for none."""
        threat = self._certifier.threat
        return threat.config()["basis"] if threat.by_example else None

    def _searched_in(self, x: np.ndarray, numbers: np.ndarray) -> tuple[FeedForward, np.ndarray]:
        """Returns the network in whose coordinates points are searched, and where x is there."""
        certifier, names = self._certifier, self._directions
        if names is not None:
            start = np.concatenate([np.zeros((len(x), len(names))), x, numbers], axis=1)
            return Around(certifier.network, names, x.shape[1]), start
        start = np.concatenate([certifier.threat.coordinates(x), numbers], axis=1)
        return certifier.method.network, start

    def _rounded(self, x: np.ndarray, change: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Returns `x + δ` in the model's dtype, within the box, for changes in the threat's
        coordinates."""
        threat, names = self._certifier.threat, self._directions
        if names is not None:
            point = moved_along(names, x, change)
        elif threat.has_basis:
            basis = np.array(threat.config()["basis"])
            point = x + change[:, : basis.shape[1]] @ basis.T
        else:
            point = x + threat.factors(x.shape[1])[0] * change[:, : x.shape[1]]
        low, high = threat.limits(x.shape[1])
        point = np.clip(point, low, high)
        if np.issubdtype(dtype, np.integer):
            info = np.iinfo(dtype)
            return np.clip(np.rint(point), info.min, info.max).astype(dtype)
        cast = point.astype(dtype)
        cast = np.where(cast.astype(np.float64) < low, np.nextafter(cast, dtype.type(np.inf)), cast)
        over = cast.astype(np.float64) > high
        return np.where(over, np.nextafter(cast, dtype.type(-np.inf)), cast).astype(dtype)

    def _changed(
        self, point: np.ndarray, x: np.ndarray, numbers: np.ndarray, label: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns at which points the answer has changed, and, of argmax, the classes served."""
        certifier, shape = self._certifier, self._certifier.served.input_shape
        if certifier.property == ARGMAX:
            before, after = (
                _classes(certifier.served.call(tf.constant(a.reshape(-1, *shape))))
                for a in (x, point)
            )
            return after != before, after
        before, after = (
            certifier.network.logits(np.concatenate([a.reshape(len(x), -1), numbers], 1)).numpy()
            for a in (x, point)
        )
        return fails(certifier.property, before, label, after), np.full(len(x), -1)

    def _distance(self, point: np.ndarray, x: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Returns how far points are, in the threat's coordinates."""
        threat, dim = self._certifier.threat, x.shape[1]
        if threat.has_basis:
            return NORMS[threat.norm].of(change)
        moved = (point.astype(np.float64) - x) / threat.factors(dim)[0]
        return NORMS[threat.norm].of(moved)


def _classes(outputs: Any) -> np.ndarray:
    """Returns the served classes, `(n,)`; of one output whether it is above one half."""
    outputs = np.asarray(outputs).reshape(len(outputs), -1)
    return outputs.argmax(axis=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0.5).astype(int)


def _known(path: pathlib.Path, key: np.ndarray, x: np.ndarray) -> tuple | None:
    """Returns what a part holds for these examples; None where it is no such part."""
    shapes = {"key": key.shape, "x": x.shape, "distance": x.shape[:1], "becomes": x.shape[:1]}
    try:
        with NpzFile(str(path)) as file:
            arrays = [file.described(name) for name in shapes]
            if [array and array.shape for array in arrays] != [*shapes.values()]:
                return None
            known, *found = (file.whole(array) for array in arrays if array)
    except (OSError, InputError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return tuple(found) if np.array_equal(known, key) else None
