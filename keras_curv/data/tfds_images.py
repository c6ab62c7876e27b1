"""Image sets through tensorflow-datasets (tfds), prepared before or downloaded now."""

from __future__ import annotations

import functools
import json
import operator
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from keras_curv.data.examples import Examples, fingerprint_of
from keras_curv.data.pipeline import without_tuning
from keras_curv.errors import InputError

CONNECT_SECONDS = 8.0  # for a host to answer; a download itself may take any time
_KNOWN_BY = 32  # images that tell a copy of a set from another of the same version
_pair = operator.itemgetter("image", "label")  # of an example, or of a batch


def load_tfds(name: str, split: str, data_dir: str | None) -> Examples:
    """Loads a labelled image set.

    Args:
        name: as tfds knows it.
        split: any tfds split expression.
        data_dir: where tfds keeps its files; None: `TFDS_DATA_DIR`, or tfds' own default.

    Raises:
        InputError: the split is unknown, or the files are not there and cannot be fetched.
    """
    import tensorflow_datasets as tfds

    if data_dir is not None and not pathlib.Path(data_dir).is_dir():
        raise InputError(f"the data directory {data_dir} does not exist")
    if not sys.stderr.isatty():
        tfds.disable_progress_bar()
    try:
        builder = _builder(name, data_dir)
        count = builder.info.splits[split].num_examples
        read = functools.partial(builder.as_dataset, shuffle_files=False)
        dataset = read(split=split)
        stored = read(split=split, decoders={"image": tfds.decode.SkipDecoding()}).take(_KNOWN_BY)
        files, labels = zip(*map(_pair, without_tuning(stored).as_numpy_iterator()), strict=True)
    except Exception as error:  # network, disk and tfds errors have no common class
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(
            f"tfds cannot provide {name}, split {split!r}, from {data_dir or 'its default place'}: "
            f"{reason} … Point --data_dir or TFDS_DATA_DIR to a prepared copy"
        ) from error

    def batches(size: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if start >= count:  # of a slice without examples tfds raises an error
            return
        # A slice is much quicker than skipping what was parsed; of one file both have one order.
        plain = start and split in ("train", "test") and builder.info.splits[split].num_shards == 1
        rest = read(split=f"{split}[{start}:]") if plain else dataset.skip(start)
        for x, y in map(_pair, without_tuning(rest.batch(size).prefetch(2)).as_numpy_iterator()):
            yield (x / np.float32(255)).astype(np.float32), y.astype(np.int64)

    known_by = fingerprint_of(np.frombuffer(b"".join(files), np.uint8), np.array(labels))[:16]
    jpeg = " (JPEG)" if files[0].startswith(b"\xff\xd8") else ""  # which loses some
    return Examples(
        f"{name}{jpeg} {split}",
        count,
        builder.info.features["image"].shape,
        batches,
        f"tfds {name} {builder.version} {known_by}",
        reshapable=True,
    )


def _builder(name: str, data_dir: str | None) -> Any:
    """Returns what reads a set: the newest version of it that is there, or one prepared now.

    Prepared files are enough to read them. tfds would look for the code of the set first, and to
    find it load that of every set that it knows.
    """
    import tensorflow_datasets as tfds

    folder = pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser() / name
    found = [info.parent.name for info in folder.glob("*/dataset_info.json")]
    versions = filter(tfds.core.Version.is_valid, found)  # others were broken off
    if newest := max(versions, key=tfds.core.Version, default=None):
        return tfds.builder_from_directory(folder / newest)
    builder = tfds.builder(name, data_dir=data_dir)
    _prepare(builder)
    return builder


def _prepare(builder: Any) -> None:
    """Downloads and prepares a set that is not there yet.

    tfds tries a host that does not answer again and again, for minutes. So every host of files
    that are to be fetched is first asked once for an answer of any kind.

    Raises:
        ConnectionError: a host gives none.
    """
    if not builder.data_path.exists():  # where it does, tfds takes what is there
        hosts = {urlsplit(url).netloc: url for url in _urls_to_fetch(builder)}
        for url in hosts.values():
            _require_answer(url)
    builder.download_and_prepare()


def _urls_to_fetch(builder: Any) -> list[str]:
    """Returns the addresses of files that tfds has neither downloaded nor been given by hand.

    Beside each file that it downloaded, tfds keeps a note with the address.
    """
    downloads = builder.data_dir_root / "downloads"
    fetched: set[str] = set()
    for folder in (downloads, downloads / builder.name):
        for note in folder.glob("*.INFO"):
            fetched.update(json.loads(note.read_text()).get("urls", ()))
    return [
        url
        for url, info in (builder.url_infos or {}).items()
        if url not in fetched
        and not (info.filename and (downloads / "manual" / info.filename).exists())
    ]


def _require_answer(url: str) -> None:
    """Raises ConnectionError where the host does not answer within `CONNECT_SECONDS`."""
    import requests

    errors: list[Exception | None] = []

    def ask() -> None:
        try:
            requests.head(url, timeout=CONNECT_SECONDS)
            errors.append(None)
        except requests.RequestException as error:
            errors.append(error)

    # No timeout bounds the look-up of a name, nor all the addresses of one; a thread can be left.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    error = errors[0] if errors else TimeoutError()
    if error is not None:
        raise ConnectionError(f"{urlsplit(url).netloc} cannot be reached") from error
