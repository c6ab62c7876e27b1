"""Logged requests as a stream: the examples of each record, and the models they belong to."""

from __future__ import annotations

import array
import dataclasses
import functools
import glob
import hashlib
import os
import pathlib
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from keras_curv.data.json_lines import Line
from keras_curv.data.tf_record import read_records
from keras_curv.errors import InputError
from keras_curv.rows.reason import Reason
from keras_curv.saved_model.files import version_number
from keras_curv.serving.prediction_log import LoggedRequest, batch_size, parse_log
from keras_curv.serving.refusal import Refusal
from keras_curv.serving.request_examples import examples_of
from keras_curv.serving.rest_body import JsonTensor, parse_body
from keras_curv.serving.versions import Model, Versions

CHANGED = "the files of requests changed while they were being read; try again"
FEWEST_EXAMPLES = 2**12  # that a file may have whatever its size, as of a warm-up
_WARM_UP = ("assets.extra", "tf_serving_warmup_requests")


@dataclasses.dataclass(frozen=True)
class Batch:
    """The examples of one request for one model."""

    model: Model  # that certifies it
    x: np.ndarray  # `(n, *input shape)`


@dataclasses.dataclass(frozen=True)
class Request:
    """Examples of one record, one after the other."""

    file: str  # its name
    record: int  # in the file, from 0
    first: int  # the first of these examples, in the record's batch
    count: int  # how many; where no model takes the request, by what it says itself
    timestamp: int  # seconds since 1970, or 0
    # for the model to certify, and the baseline if there is one: a batch of `count` examples, or
    # the reason why there is none
    asked: tuple[Batch | Refusal, ...]

    def cut(self, start: int, stop: int) -> Request:
        """Returns the request with a part of its examples."""
        return dataclasses.replace(
            self,
            first=self.first + start,
            count=stop - start,
            asked=tuple(
                Batch(part.model, part.x[start:stop]) if isinstance(part, Batch) else part
                for part in self.asked
            ),
        )


@dataclasses.dataclass
class Survey:
    """Findings of a first reading of all files."""

    count: int = 0  # of rows
    records: int = 0  # read
    fingerprint: str = ""  # SHA-256 of the records
    # of the first and the last predict request; None where one has no timestamp
    times: tuple[int, int] | None = None
    broken: InputError | None = None  # why the reading ended before the end of the files, if it did


class RequestLog:
    """The requests in TFRecord files of `PredictionLog`, or in JSON lines of REST bodies.

    Args:
        patterns: paths, or shell patterns of paths (`**` for any depth).
        sides: versions that requests are held against; one, or one and a baseline.
        model_name: only requests to the model of this name; None: the files name but one.
        but: files to leave out though a pattern matches them, as those that the run writes.
        max_unpacked: bytes that each gzip file may unpack to; see `read_records`.

    Attributes:
        files: that the patterns match, in the order of patterns, each pattern's sorted.
        sides: as given.

    Raises:
        InputError: a pattern matches nothing.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        sides: Sequence[Versions],
        *,
        model_name: str | None = None,
        max_unpacked: int | None = None,
        but: Sequence[str | pathlib.Path] = (),
    ):
        self.files = _matches(patterns, {os.path.realpath(path) for path in but})
        self.sides = tuple(sides)
        self._model_name = model_name
        self._max_unpacked = max_unpacked
        self._surveyed = array.array("Q")  # after each record, of all up to it

    def survey(self, limit: int | None = None) -> Survey:
        """Reads everything once, up to `limit` rows, and every model that is needed.

        Raises:
            InputError: requests name several models, or there are none.
        """
        found, digest = Survey(), hashlib.sha256()
        self._surveyed = array.array("Q")
        names: set[str] = set()
        times: list[int] | None = []
        try:
            for record, parsed, request in self._requests():
                self._surveyed.append(_digest(digest, request, record))
                found.records += 1
                found.count += request.count
                if isinstance(parsed, LoggedRequest):
                    if len(names) < 2:
                        names |= {parsed.model} - {""}
                    if parsed.timestamp == 0:
                        times = None
                    if times is not None:
                        times = [min([*times, parsed.timestamp]), max([*times, parsed.timestamp])]
                if limit is not None and found.count >= limit:
                    found.count = limit
                    break
        except InputError as error:
            if not found.count:
                raise
            found.broken = error
        _require_one_model(names, self._model_name)
        if not found.count:
            raise InputError(f"there are no requests in {', '.join(self.files[:3])}")
        found.fingerprint = digest.hexdigest()
        found.times = (times[0], times[1]) if times else None
        return found

    def requests(self) -> Iterator[Request]:
        """Yields all requests, in the order of files and records.

        Raises:
            InputError: a record is not what it was when it was surveyed, or is broken.
        """
        digest = hashlib.sha256()
        for at, (record, _, request) in enumerate(self._requests()):
            now = _digest(digest, request, record)
            if now != (self._surveyed[at] if at < len(self._surveyed) else now):
                raise InputError(CHANGED)
            yield request

    def blocks(self, size: int, start: int, stop: int) -> Iterator[list[Request]]:
        """Yields rows `start` to `stop` in lists of `size` rows, requests cut where they must be.

        Raises:
            InputError: the log ends before, or is not what it was when it was surveyed; of such
                records there are no rows.
        """
        if start == stop:
            return
        block: list[Request] = []
        position, filled = 0, 0
        for request in self.requests():
            begin = max(start - position, 0)
            position += request.count
            while begin < request.count:
                taken = min(request.count - begin, size - filled, stop - start)
                block.append(request.cut(begin, begin + taken))
                begin, filled, start = begin + taken, filled + taken, start + taken
                if filled == size or start == stop:
                    yield block
                    block, filled = [], 0
                if start == stop:
                    return
        raise InputError(CHANGED)

    def _requests(self) -> Iterator[tuple[bytes | None, LoggedRequest | Refusal, Request]]:
        """Yields each record, what was parsed of it, and the request in it.

        Raises:
            InputError: a file has more examples than bytes, as packed bytes, or a shape without
                values, may claim.
        """
        for file in self.files:
            most, count = 0, 0
            for number, record in enumerate(read_records(file, self._max_unpacked)):
                most = most or max(FEWEST_EXAMPLES, os.stat(file).st_size)
                parsed = _parse(record, number)
                request = self._request(file, number, parsed)
                count += request.count
                if count > most:
                    raise InputError(
                        f"{file}: with record {number} it has {count} examples, and {most} are "
                        f"the most of a file of its size; the rest is not read"
                    )
                yield record, parsed, request

    def _request(self, file: str, number: int, parsed: LoggedRequest | Refusal) -> Request:
        if isinstance(parsed, Refusal):
            return Request(file, number, 0, 1, 0, (parsed,) * len(self.sides))
        if parsed.model and self._model_name not in (None, parsed.model):
            other = Refusal(Reason.OTHER_MODEL, repr(parsed.model[:80]))
            return Request(file, number, 0, 1, 0, (other,) * len(self.sides))
        asked = tuple(_ask(versions, parsed, file) for versions in self.sides)
        return Request(file, number, 0, _count(asked, parsed), parsed.timestamp, asked)


def _digest(digest: hashlib._Hash, request: Request, record: bytes | None) -> int:
    """Adds a record, and where it stands; returns eight bytes of what has come of it."""
    place = request.file, request.record, len(record or b"")
    digest.update(repr(place).encode() + (record or b""))
    return int.from_bytes(digest.copy().digest()[:8])


def _parse(record: bytes | None, number: int) -> LoggedRequest | Refusal:
    if record is None:
        return Refusal(Reason.TOO_LONG)
    try:
        return parse_body(record, number) if isinstance(record, Line) else parse_log(record)
    except Refusal as refusal:  # whose traceback would keep the record
        return Refusal(refusal.reason, refusal.detail)


def _count(asked: Sequence[Batch | Refusal], request: LoggedRequest) -> int:
    """Returns how many examples a request has."""
    counts = [len(part.x) if isinstance(part, Batch) else int(part.alone) for part in asked]
    return max(counts) or _announced(request)


def _announced(request: LoggedRequest) -> int:
    """Returns how many examples a request says that it has, 1 at least."""
    tensors = list(request.inputs.values())
    of_json = [max(tensor.entries, 1) for tensor in tensors if isinstance(tensor, JsonTensor)]
    return max(of_json, default=0) or batch_size(tensors)


def _ask(versions: Versions, request: LoggedRequest, file: str) -> Batch | Refusal:
    version = ""
    try:
        model = versions.find(request, _file_version(file))
        version = model.version
        return Batch(model, examples_of(request, model.certifier.served))
    except Refusal as refusal:
        version = refusal.version or version
        detail = ": ".join(filter(None, [request.place, refusal.detail]))
        return Refusal(refusal.reason, detail, version, alone=refusal.alone)


@functools.lru_cache
def _file_version(file: str) -> int | None:
    """Returns the version in whose directory a warm-up file lies."""
    path = pathlib.Path(file).absolute()
    number = version_number(path.parent.parent.name)
    return number if path.parts[-2:] == _WARM_UP else None


def _require_one_model(names: set[str], chosen: str | None) -> None:
    if chosen is None and len(names) > 1:
        raise InputError(
            f"the requests are to several models, {' and '.join(map(repr, sorted(names)))}; "
            "choose one by its name"
        )


def _matches(patterns: Sequence[str], but: Collection[str]) -> list[str]:
    files: dict[str, str] = {}  # by where they are: two spellings of one are one
    for pattern in patterns:
        if pathlib.Path(pattern).is_dir():
            raise InputError(f"{pattern} is not a file; give files, or a pattern of them")
        found = [pattern]
        if not pathlib.Path(pattern).exists():
            paths = [p for p in glob.glob(pattern, recursive=True) if not pathlib.Path(p).is_dir()]
            found = sorted(path for path in paths if os.path.realpath(path) not in but)
        if not found:
            raise InputError(f"no file matches {pattern!r}; give files of requests")
        for file in found:
            files.setdefault(os.path.realpath(file), file)
    for file in files.values():
        if not file.isprintable():
            raise InputError(f"the name {file!r} has unprintable characters; rename the file")
    return list(files.values())
