"""Random damage to files that users give: it may cause only InputError.

    nice python benchmarks/fuzz_files.py --files 20000
    nice python benchmarks/fuzz_files.py --kind rows --files 5000 --seed 100000

Each case is the folder of a run with one file changed in a few places: bytes set, cut out, doubled
or swapped, numbers and words replaced by others. Data behind a checksum are changed before the
checksum is computed: an array within its archive, an entry within an index of variables. Then the
library reads the files (`tests/hostile_inputs`). It must refuse them in one line or read them as
what they are, within five seconds, and change no other file. Every case can be made again from its
number.
"""

import functools
import gzip
import io
import json
import pathlib
import sys
import tempfile
import warnings

import numpy as np
from fuzzing import campaign  # first of what follows: it says where that is
from hostile_inputs import (
    OUTSIDE,
    archives,
    flags,
    keras_files,
    logs,
    properties,
    rows,
    shards,
    threats,
    trainings,
)
from hostile_models import models
from hostile_models.index import block_of, table_of
from sample_rows import row

from keras_curv.data.tf_examples import TFExamples
from keras_curv.errors import InputError
from keras_curv.saved_model import checkpoint

NUMBERS = (b"0", b"-1", b"1", b"2", b"65536", b"2147483648", b"-9223372036854775808", b"1e999")
WORDS = (*NUMBERS, *b'nan inf null [] {} , "'.split(), b"\n", b"\0", b"\xff", b"\x1b[")


def damaged(content, rng):
    """Returns the bytes with one change or a few."""
    content = bytearray(content)
    for _ in range(1 + rng.poisson(0.7)):
        first, last = sorted(rng.integers(len(content) + 1, size=2).tolist())
        last = min(last, first + int(rng.geometric(0.1)))
        kind = rng.integers(7)
        if kind == 0 and content:
            content[min(first, len(content) - 1)] = int(rng.integers(256))
        elif kind == 1:
            del content[first:last]
        elif kind == 2:
            content[first:first] = content[first:last] * int(rng.integers(1, 4))
        elif kind == 3:
            content[first:last] = WORDS[rng.integers(len(WORDS))]
        elif kind == 4:
            del content[first:]
        elif kind == 5:  # a number, where there is one
            digits = [i for i in range(first, len(content)) if chr(content[i]).isdigit()][:1]
            for i in digits:
                content[i : i + 1] = NUMBERS[rng.integers(len(NUMBERS))]
        elif kind == 6:
            content[first:last] = content[first:last][::-1]
    return bytes(content)


def archive(folder, rng):
    """Damages an archive of examples: its array, or the archive itself."""
    dtype = rng.choice(["<f4", "<f8", "|u1", "<i4"])
    shape = tuple(rng.integers(1, 5, rng.integers(1, 4)).tolist())
    file = io.BytesIO()
    np.save(file, rng.integers(0, 9, shape).astype(dtype))
    inside = rng.random() < 0.7
    array = damaged(file.getvalue(), rng) if inside else file.getvalue()
    archives.archive(folder, content=array)
    if not inside:
        path = folder / "x.npz"
        path.write_bytes(damaged(path.read_bytes(), rng))


def run(folder, rng):
    """Damages rows, or their settings."""
    files = dict(rows.whole())
    name = rows.FILES[rng.integers(len(rows.FILES))]
    models.write(folder, files | {name: damaged(files[name], rng)})


@functools.cache
def worked():
    """Damages what workers leave, and their key."""
    with tempfile.TemporaryDirectory() as folder:
        left = shards.of(pathlib.Path(folder))
        left.prepare()
        left.write([row(2), row(3)])
        files = [file for file in pathlib.Path(folder).rglob("*") if file.is_file()]
        return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def batches(folder, rng):
    """Damages a batch of rows, or the record of its owner."""
    files = worked()
    name = sorted(files)[rng.integers(len(files))]
    models.write(folder, files | {name: damaged(files[name], rng)})


def training(folder, rng):
    """Damages a checkpoint, recipe or history; sometimes one entry of an index, checksum mended."""
    files = trainings.begun()
    name = sorted(files)[rng.integers(len(files))]
    content = files[name]
    if name.endswith(trainings.INDEX) and rng.random() < 0.7:
        entries = list(checkpoint.index_entries(content))
        place = rng.integers(len(entries))
        key, value = entries[place]
        entries[place] = (key, damaged(value, rng)) if rng.random() < 0.8 else (value, key)
        content = table_of(block_of(entries))
    else:
        content = damaged(content, rng)
    models.write(folder, files | {name: content})


THREATS = (
    {"scale": [0.5, 2.0, 1.0, 1.0], "low": [-2, None, -1, -1], "high": 7.5},
    {"groups": [[0, 1]], "changes": 1},
    {"groups": [0, 0, -1, -1], "frozen": [2], "norm": "l1"},
    {"basis": [[1, 0], [0, 1], [0.5, 0.5], [0, 0]]},
    {"frozen": [True, False, False, True], "low": -2, "high": 2},
)


def threat(folder, rng):
    """Damages a threat as text, or as an archive."""
    chosen = THREATS[rng.integers(len(THREATS))]
    path = folder / threats.FILES[rng.integers(2)]
    if path.suffix == ".json":
        path.write_bytes(damaged(json.dumps(chosen).encode(), rng))
        return
    arrays = {name: np.array(value, None if None not in value else float)
              if isinstance(value, list) else value for name, value in chosen.items()}  # fmt: skip
    np.savez(path, **arrays)
    path.write_bytes(damaged(path.read_bytes(), rng))


SPELLINGS = (b"argmax", b"top_2", b"harmful:1,2", b"harmful:0>1,2;1>0", b"threshold:0.5",
             b"threshold:0=0.5,2=1e0", b"interval:0.1", b"interval:1=0.25")  # fmt: skip


def property_of(folder, rng):
    """Damages a table of harmful classes, or the text of a property."""
    if rng.random() < 0.5:
        table = json.dumps({"0": [1, 2], "1": [0], "2": []}).encode()
        (folder / properties.TABLE).write_bytes(damaged(table, rng))
        return
    spelled = damaged(SPELLINGS[rng.integers(len(SPELLINGS))], rng)
    (folder / properties.SPELLING).write_text(spelled.decode("latin-1"))


FLAGS = b"# mine\n--radius=0.5\n--radius=1\n--scale=2\n--box=0,16\n--batch_size=3\n"


def flagged(folder, rng):
    """Damages a file of flags."""
    (folder / flags.FILE).write_bytes(damaged(FLAGS, rng))


def requests(folder, rng):
    """Damages a log: a record, checksums mended, or the file; packed or not."""
    inside = rng.random() < 0.8
    record = logs.shaped((2, 2, 3), content=bytes(48)) if rng.random() < 0.5 else logs.X
    content = logs.logged.predict(record, served=1, timestamp=7)
    content = logs.framed(damaged(content, rng) if inside else content) + logs.GOOD
    content = content if inside else damaged(content, rng)
    (folder / "log").write_bytes(gzip.compress(content) if rng.random() < 0.3 else content)


NAMES = ("instances", "inputs", "signature_name", "b64", "x", "pixels", "more")
JSON = (*b"[ ] { } , : null true NaN 1e999 -0".split(), b'{"b64": ""}')
SHAPES = (2, 2, 3), (1, 2, 3), (2, 3), (2, 2, 2), (0, 2, 3)
ENTRIES = (0, 1, -0.5, 255, 1e39, 2**70)


def _json(rng, depth=0):
    """Some value of JSON; rather often a tensor that a model may take."""
    kind = rng.integers(8)
    if kind < 3:
        sizes = SHAPES[rng.integers(len(SHAPES))]
        return rng.choice(ENTRIES, sizes, p=[0.3, 0.3, 0.3, 0.06, 0.02, 0.02]).tolist()
    if kind < 5 and depth < 4:
        names = rng.choice(NAMES, rng.integers(4), replace=False)
        return {str(name): _json(rng, depth + 1) for name in names}
    if kind == 5 and depth < 4:
        return [_json(rng, depth + 1) for _ in range(rng.integers(4))]
    return (None, True, "serving_default", "raw", 10**400, 1.5)[rng.integers(6)]


def bodies(folder, rng):
    """Writes lines of JSON: bodies of requests in every form, some of them damaged."""
    lines = []
    for _ in range(rng.integers(1, 5)):
        value = _json(rng)
        body = ({"instances": value}, {"inputs": value}, {"inputs": {"x": value}}, value)
        line = json.dumps(body[rng.choice(4, p=[0.35, 0.25, 0.25, 0.15])]).encode()
        if rng.random() < 0.3:
            line = damaged(line, rng)
        if rng.random() < 0.3:
            place = rng.integers(len(line) + 1)
            more = JSON[rng.integers(len(JSON))] * int(rng.geometric(0.3))
            line = line[:place] + more + line[place:]
        lines.append(line)
    content = b"\n".join([logs.BODY.strip(), *lines][rng.integers(2) :])
    (folder / "log").write_bytes(gzip.compress(content) if rng.random() < 0.3 else content)


def saved(folder, rng):
    """Damages a file of Keras: the config or weights of an archive, the archive, or an `.h5`."""
    part = rng.integers(4)
    if part == 0:
        legacy(folder, rng)
        return
    members, _ = keras_files.saved()
    config, weights = members[keras_files.CONFIG], members[keras_files.WEIGHTS]
    if part == 1:
        config = damaged(config, rng)
    elif part == 2:
        weights = _struck(weights, rng)
    keras_files.archive(folder, {keras_files.CONFIG: config, keras_files.WEIGHTS: weights})
    if part == 3:
        path = folder / keras_files.ARCHIVE
        path.write_bytes(damaged(path.read_bytes(), rng))


def legacy(folder, rng):
    """Damages an `.h5` file of Keras."""
    _, content = keras_files.saved()
    (folder / keras_files.LEGACY).write_bytes(_struck(content, rng))


def _struck(content, rng):
    """Damages some bytes that say something: most of an HDF5 file is space that is left."""
    if rng.random() < 0.2:
        return damaged(content, rng)
    places = np.flatnonzero(np.frombuffer(content, np.uint8))
    struck = bytearray(content)
    for place in rng.choice(places, 1 + rng.poisson(0.7)):
        struck[place] = int(rng.choice([0, 1, 255, rng.integers(256), struck[place] ^ 1]))
    return bytes(struck)


FEATURES = (b"a", b"b", b"n", b"y", b"label", b"site", b"", b"more")
EXAMPLE = {"a": (2,), "n": (2,), "b": (1, 1)}


def _field(number, content):
    """A field of protobuf with a length."""
    size, found = len(content), bytearray([number << 3 | 2])
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes([*found, size]) + content


def _varints(numbers):
    found = bytearray()
    for number in numbers:
        number %= 2**64
        while number > 127:
            found.append(number & 127 | 128)
            number >>= 7
        found.append(number)
    return bytes(found)


def _feature(name, rng):
    """A feature of the kind that its name has here, or of any other, of any length."""
    count = 2 if rng.random() < 0.95 else int(rng.integers(5))
    count = 1 if name in (b"y", b"label", b"b", b"site") else count
    kind = 3 if name in (b"n", b"y", b"label") else 1 if name == b"site" else 2
    kind = kind if rng.random() < 0.98 else int(rng.integers(1, 4))
    if kind == 1:
        values = _field(1, bytes(rng.integers(256, size=int(rng.integers(9))).tolist()))
    elif kind == 2:
        content = rng.normal(size=count).astype("<f4").tobytes()
        apart = b"".join(b"\x0d" + content[i : i + 4] for i in range(0, len(content), 4))
        values = _field(1, content) if rng.random() < 0.7 else apart
    else:
        numbers = rng.choice(
            [0, 1, -1, 3, 2**31, 2**63 - 1], count, p=[0.3, 0.3, 0.1, 0.2, 0.05, 0.05]
        )
        packed = _varints(numbers.tolist())
        apart = b"".join(b"\x08" + _varints([number]) for number in numbers.tolist())
        values = _field(1, packed) if rng.random() < 0.7 else apart
    return _field(1, _field(1, name) + _field(2, _field(kind, values)))


def tf_examples(folder, rng):
    """Writes records of tf.Examples, some damaged, checksums mended; or damages the file."""
    records = []
    for _ in range(rng.integers(1, 4)):
        usual = [b"a", b"b", b"n", b"y", b"site"]
        names = usual if rng.random() < 0.7 else rng.choice(FEATURES, rng.integers(7)).tolist()
        record = _field(1, b"".join(_feature(name, rng) for name in names))
        records.append(damaged(record, rng) if rng.random() < 0.5 else record)
    content = b"".join(logs.framed(record) for record in records)
    content = damaged(content, rng) if rng.random() < 0.1 else content
    (folder / "x.tfrecord").write_bytes(gzip.compress(content) if rng.random() < 0.2 else content)


def read_examples(folder):
    """Reads them as the inputs of a model, with a slice."""
    defaults = {"a": np.zeros(2, np.float32)}
    found = TFExamples(str(folder / "x.tfrecord")).read(EXAMPLE, defaults, ["site"], ["n"])
    for x, _ in found.batches(2, 0):
        assert x.shape[1:] == (5,) and x.dtype.kind == "f"


KINDS = {
    "threat": (threat, threats.attempt),
    "property": (property_of, properties.attempt),
    "flagfile": (flagged, flags.attempt),
    "log": (requests, logs.attempt),
    "json": (bodies, logs.attempt),
    "tf_examples": (tf_examples, read_examples),
    "keras": (saved, keras_files.attempt),
    "h5": (legacy, keras_files.attempt),
    "npz": (archive, archives.attempt),
    "rows": (run, rows.attempt),
    "shards": (batches, shards.attempt),
    "training": (training, trainings.attempt),
}


def taken(number, kinds=tuple(KINDS)):
    """Returns the kind of a case, and "taken" or "refused"."""
    rng = np.random.default_rng(number)
    kind = kinds[rng.integers(len(kinds))]
    build, attempt = KINDS[kind]
    with tempfile.TemporaryDirectory() as above:
        folder = pathlib.Path(above, "folder")
        folder.mkdir()
        outside = folder.parent / OUTSIDE
        outside.write_bytes(b"outside")
        build(folder, rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                attempt(folder)
            outcome = "taken"
        except InputError as error:
            assert str(error).isprintable()
            outcome = "refused"
        assert outside.read_bytes() == b"outside"
        assert sorted(path.name for path in folder.parent.iterdir()) == ["folder", OUTSIDE]
    return f"{kind} {outcome}"


if __name__ == "__main__":
    good = {f"{kind} {outcome}" for kind in KINDS for outcome in ("taken", "refused")}
    sys.exit(campaign(taken, good, "files", kinds=tuple(KINDS)))
