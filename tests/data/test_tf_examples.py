"""TFRecord files of tf.Examples: what is read, and what is refused by record and feature."""

from __future__ import annotations

import gzip
import struct
import time
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_curv.data.tf_examples import TFExamples, parse_example
from keras_curv.errors import InputError
from keras_curv.saved_model.crc32c import masked_crc32c

SHAPES = {"a": (3,), "b": (1, 2)}
T = tf.train


def example(**features):
    """A serialized tf.Example: floats, integers and strings by the type of the first value."""

    def feature(values):
        kind = type(values[0]) if values else float
        if kind is int:
            return T.Feature(int64_list=T.Int64List(value=values))
        if kind is bytes:
            return T.Feature(bytes_list=T.BytesList(value=values))
        return T.Feature(float_list=T.FloatList(value=values))

    held = {name: feature(values) for name, values in features.items()}
    return T.Example(features=T.Features(feature=held)).SerializeToString()


GOOD = example(a=[1.0, 2.0, 3.0], b=[4.0, 5.5], y=[2], word=[b"no"], more=[7, 8])


def write(path, *records):
    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records:
            file.write(record)
    return str(path)


def test_features_by_name_and_the_label(tmp_path):
    other = example(a=[0.0, -1.0, 1e-3], b=[0.5, 0.25], y=[0])
    write(tmp_path / "1.tfrecord", GOOD)
    write(tmp_path / "2.tfrecord", other, GOOD)
    found = TFExamples(str(tmp_path / "*.tfrecord")).read(SHAPES)
    ((x, y),) = found.batches(10, 0)
    assert x.tolist()[0] == [1, 2, 3, 4, 5.5] and y.tolist() == [2, 0, 2]
    assert found.inputs == SHAPES and x.dtype == np.float32
    parsed = tf.io.parse_example(
        [GOOD, other], {n: tf.io.FixedLenFeature(s, tf.float32) for n, s in SHAPES.items()}
    )
    theirs = np.concatenate([np.reshape(parsed[name], (2, -1)) for name in "ab"], axis=1)
    np.testing.assert_array_equal(x[:2], theirs)
    first = TFExamples(str(tmp_path / "*.tfrecord")).limited(2).read({"b": (2,)})
    assert (first.count, first.shape) == (2, (2,)) and first.origin().count == 2


def test_a_packed_file_and_labels_that_are_not_there(tmp_path):
    plain = write(tmp_path / "x.tfrecord", example(a=[1.0]), example(a=[2.0]))
    with open(plain, "rb") as file:
        (tmp_path / "x.tfrecord.gz").write_bytes(gzip.compress(file.read()))
    ((x, y),) = TFExamples(plain + ".gz").read({"a": (1,)}).batches(9, 0)
    assert x.tolist() == [[1.0], [2.0]] and y is None
    mixed = write(tmp_path / "y.tfrecord", example(a=[1.0], label=[1]), example(a=[2.0]))
    with pytest.raises(InputError, match="record 1 has no label, others do"):
        TFExamples(mixed).read({"a": (1,)})


def _message(number, content):
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number):
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _entry(name, feature):
    return _message(1, _message(1, name) + _message(2, feature))


def _features(*entries):
    return _message(1, b"".join(entries))


def test_what_is_left_out_is_its_default():
    """As TensorFlow's parser has it, also of a feature that says no kind."""
    default = np.array([7.0, 8.0], np.float32)
    specs = {"b": tf.io.FixedLenFeature([2], tf.float32, default_value=default)}
    for record in (example(a=[1.0]), _features(_entry(b"b", b"")), b""):
        found, *_ = parse_example(record, {"b": (2,)}, {"b": default})
        theirs = tf.io.parse_single_example(record, specs)
        assert found["b"].tolist() == theirs["b"].numpy().tolist() == [7.0, 8.0]


ONE = _message(2, _message(1, struct.pack("<f", 1.0)))
NEST = b""
for _ in range(2000):
    NEST = _message(1, NEST)


def test_slices_by_features(tmp_path):
    """Integers below 0, text of any script, floats; the parts are there again for a worker."""
    north = example(a=[1.0], site=[-7], shift=["Früh".encode()], gain=[0.1], rest=[1, 2])
    south = example(a=[2.0], site=[2**40], shift=[b""], gain=[0.5])
    path = write(tmp_path / "x.tfrecord", north, south, north)
    found = TFExamples(path).limited(2).read({"a": (1,)}, slices=["site", "shift", "gain"])
    parts = {name: part.parts for name, part in found.slices.items()}
    shift = "(empty)", "Früh"
    assert parts == {"site": ("-7", str(2**40)), "shift": shift, "gain": ("0.1", "0.5")}
    assert found.origin().slices["shift"].places.tolist() == [1, 0]


NO_SLICES = {
    "none": ("other", example(x=[1.0]), "no feature 'other'; it has: x"),
    "several": ("n", example(x=[1.0], n=[1, 2]), "must be one number, or text"),
    "empty": ("n", example(x=[1.0], n=[]), "must be one number, or text"),
    "long": ("n", example(x=[1.0], n=[b"a" * 401]), "at most 100 characters"),
    "another type": ("n", example(x=[1.0], n=[b"1"]), "of another type in others"),
    "cut off": (
        "n",
        _features(_entry(b"x", ONE), _entry(b"n", _message(3, b"\x0a\x01\x81\x01"))),
        "is no tf.Example",
    ),
}


@pytest.mark.parametrize("case", NO_SLICES)
def test_features_that_are_no_slice_are_refused(case, tmp_path):
    name, record, words = NO_SLICES[case]
    path = write(tmp_path / "x.tfrecord", example(x=[1.0], n=[1], other=[1]), record)
    with pytest.raises(InputError, match=words) as caught:
        TFExamples(path).read({"x": (1,)}, slices=[name])
    assert "x.tfrecord: record 1" in str(caught.value)


HOSTILE = {
    "cut off": (GOOD[:-1], "is no tf.Example"),
    "a lying length": (b"\x0a\xff\xff\xff\xff\x0f", "is no tf.Example"),
    "an endless number": (b"\x0a" + b"\xff" * 20, "is no tf.Example"),
    "deep nesting": (NEST, "is no tf.Example"),
    "two of one name": (_features(_entry(b"x", ONE), _entry(b"x", ONE)), "feature twice"),
    "two lists": (_features(_entry(b"x", ONE + _message(3, b"\x08\x01"))), "int64_list twice"),
    "a list twice": (_features(_entry(b"x", ONE + ONE)), "float_list twice"),
    "features twice": (_features(_entry(b"x", ONE)) * 2, "features twice"),
    "an unknown field": (_features(_entry(b"x", ONE)) + _message(9, b""), "a field that none has"),
    "features as a number": (b"\x08\x01", "a field that none has"),
    "a group": (b"\x0b\x0c", "has a group"),
    "doubles": (_features(_entry(b"x", _message(2, b"\x09" + b"\0" * 8))), "that none has"),
    "half a float": (_features(_entry(b"x", _message(2, _message(1, b"abc")))), "is no tf.Example"),
    "a name of no text": (_features(_entry(b"\xff", ONE)), "is no tf.Example"),
    "too many numbers": (example(x=[1.0, 2.0]), "'x' has 2 numbers, and 1 are wanted"),
    "no numbers": (example(x=[]), "'x' has 0 numbers"),
    "integers": (example(x=[1]), "'x' has integers, and floats are wanted"),
    "strings": (example(x=[b"1"]), "'x' has strings, and floats are wanted"),
    "none of that name": (example(z=[1.0]), "no feature 'x'; it has: z"),
    "two labels": (example(x=[1.0], y=[1], label=[1]), "both a feature 'y' and"),
    "a label of two": (example(x=[1.0], y=[1, 2]), "must be one integer"),
    "a label of floats": (example(x=[1.0], y=[1.0]), "must be one integer"),
    "a label below 0": (example(x=[1.0], y=[-1]), "must be one integer, at least 0"),
    "a name that steers": (example(**{"\x1b[2J\n": [1.0]}), "it has: .x1b"),
    "no record at all": (b"", "no feature 'x'; it has: none"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_such_example_is_refused(case, tmp_path):
    record, words = HOSTILE[case]
    path = write(tmp_path / "x.tfrecord", example(x=[1.0]), record)
    with pytest.raises(InputError, match=words) as caught:
        TFExamples(path).read({"x": (1,)})
    assert "x.tfrecord: record 1" in str(caught.value) and str(caught.value).isprintable()


def test_huge_counts_take_no_memory_and_little_time(tmp_path):
    """A million floats one by one, or a hundred thousand features; a length of an exabyte."""
    alone = b"\x0d\0\0\0\0" * 1_000_000
    many = _features(*(_entry(b"%d" % i, b"") for i in range(200_000)))
    for record in (_features(_entry(b"x", _message(2, alone))), many):
        path = write(tmp_path / "x.tfrecord", record)
        start = time.process_time()
        with pytest.raises(InputError, match="in fields, is too large"):
            TFExamples(path).read({"x": (1,)})
        assert time.process_time() - start < 5.0
        tracemalloc.start()
        with pytest.raises(InputError, match="in fields, is too large"):
            TFExamples(path).read({"x": (1,)})
        assert tracemalloc.get_traced_memory()[1] < 2**28
        tracemalloc.stop()
    head = struct.pack("<Q", 2**60)
    (tmp_path / "y.tfrecord").write_bytes(head + struct.pack("<I", masked_crc32c(head)))
    with pytest.raises(InputError, match="record 0 is cut off"):
        TFExamples(str(tmp_path / "y.tfrecord")).read({"x": (1,)})


def test_a_wrong_check_and_no_file(tmp_path):
    path = write(tmp_path / "x.tfrecord", example(x=[1.0]))
    content = bytearray((tmp_path / "x.tfrecord").read_bytes())
    content[-6] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(bytes(content))
    with pytest.raises(InputError, match="record 0 is corrupt"):
        TFExamples(path).read({"x": (1,)})
    with pytest.raises(InputError, match="no.tfrecord is not a file"):
        TFExamples(str(tmp_path / "no.tfrecord")).read({"x": (1,)})
    with pytest.raises(InputError, match="the limit must be"):
        TFExamples(path).limited(0)


@given(st.binary(max_size=60))
def test_no_bytes_end_otherwise_than_in_an_error_of_ours(record):
    try:
        found, *_ = parse_example(record, {"x": (1,)}, {})
        assert found["x"].shape == (1,)
    except ValueError:
        pass


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_whatever_is_read_is_what_tensorflow_reads(place, byte):
    """A byte of a good record is changed; what is still read must be the same by both."""
    changed = bytearray(GOOD)
    changed[place] = byte
    try:
        found, *_ = parse_example(bytes(changed), SHAPES, {})
    except ValueError:
        return
    specs = {name: tf.io.FixedLenFeature(shape, tf.float32) for name, shape in SHAPES.items()}
    theirs = tf.io.parse_single_example(bytes(changed), specs)
    for name in SHAPES:
        np.testing.assert_array_equal(found[name], theirs[name])
