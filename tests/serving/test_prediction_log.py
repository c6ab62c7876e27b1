"""The parser of logs: what it reads, and that nothing it is fed makes it crash or grow."""

import gzip
import os
import struct
import time
import tracemalloc

import logged
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_curv.data import tf_record
from keras_curv.data.tf_record import read_records
from keras_curv.errors import InputError
from keras_curv.rows.reason import Reason
from keras_curv.saved_model.crc32c import masked_crc32c
from keras_curv.serving.prediction_log import REPEATED_NUMBERS, parse_log, read_tensor
from keras_curv.serving.refusal import Refusal, plain

LENGTHS = [0, 1, 3, 11, 63, 64, 65, 127, 1000, 4097, 2**18, 2**18 + 3, 2**18 + 64, 700_001]
SHAPE = (2, 3)
X = np.arange(12, dtype=np.float32).reshape(2, *SHAPE)


def records(rng, lengths):
    return [rng.bytes(length) for length in lengths]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_records_are_those_that_tensorflow_wrote(tmp_path, rng, compression):
    expected = records(rng, LENGTHS)
    path = logged.write(tmp_path / "log", expected, compression)
    assert list(read_records(path)) == expected


def test_a_length_that_looks_like_gzip(tmp_path, rng):
    expected = records(rng, [0x8B1F, 5])
    path = logged.write(tmp_path / "log", expected)
    assert open(path, "rb").read(2) == b"\x1f\x8b"
    assert list(read_records(path)) == expected


def test_gzip_that_is_cut_or_broken(tmp_path, rng):
    whole = open(logged.write(tmp_path / "log", records(rng, [9, 400, 20]), "GZIP"), "rb").read()
    for position in range(12, len(whole), 7):
        for broken in (whole[:position], flip(whole, position)):
            (tmp_path / "broken").write_bytes(broken)
            found, message = drain(tmp_path / "broken")
            assert message is None or f"{tmp_path / 'broken'}: record {len(found)} " in message
            assert found == list(read_records(str(tmp_path / "log")))[: len(found)]


def drain(path):
    """The records that come out, and the message at the end if it is an error."""
    found = []
    try:
        for record in read_records(str(path)):
            found.append(record)
    except InputError as error:
        return found, str(error)
    return found, None


def flip(data, position, bit=3):
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def test_every_cut_and_every_flip_of_a_file_is_seen(tmp_path, rng):
    expected = records(rng, [5, 0, 80, 3])
    path = tmp_path / "log"
    whole = open(logged.write(path, expected), "rb").read()
    ends = np.cumsum([16 + len(record) for record in expected])
    for position in range(len(whole)):
        complete = int(np.searchsorted(ends, position, side="right"))
        path.write_bytes(whole[:position])
        found, message = drain(path)
        assert found == expected[:complete]
        if position in (0, *ends):
            assert message is None
        else:
            assert f"{path}: record {complete} is cut off" in message
        path.write_bytes(flip(whole, position, position % 8))
        found, message = drain(path)
        assert found == expected[:complete]
        assert f"{path}: record {complete} is c" in message


def header(length):
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


def test_a_hostile_length_takes_no_memory(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(header(2**62) + b"x" * 100)
    tracemalloc.start()
    found, message = drain(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [] and "record 0 is cut off" in message
    assert peak < 2 * tf_record.MAX_RECORD


def test_a_long_record_of_holes_is_passed_over_at_once(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(header(2**40))
    os.truncate(path, 12 + 2**40 + 4)
    begun = time.process_time()
    assert list(read_records(str(path))) == [None]
    os.truncate(path, 12 + 2**40 + 3)
    found, message = drain(path)
    assert found == [] and "record 0 is cut off" in message
    assert time.process_time() - begun < 1.0


def test_a_record_above_the_limit_is_passed_over(tmp_path, monkeypatch, rng):
    monkeypatch.setattr(tf_record, "MAX_RECORD", 100)
    path = logged.write(tmp_path / "log", records(rng, [100, 101, 1000, 7]))
    assert [r if r is None else len(r) for r in read_records(path)] == [100, None, None, 7]


def test_no_file_and_no_log(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="is not a file"):
            list(read_records(str(path)))
    (tmp_path / "text").write_text("not a log at all, but text")
    with pytest.raises(InputError, match="record 0 is corrupt.*neither a TFRecord file"):
        list(read_records(str(tmp_path / "text")))
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"not a log at all, but text"))
    with pytest.raises(InputError, match="record 0 is corrupt"):
        list(read_records(str(tmp_path / "text.gz")))


def test_what_a_log_says():
    log = logged.predict(
        X, "in", timestamp=1_700_000_000, name="digits", signature="raw", version=3
    )
    request = parse_log(log)
    assert request.model == "digits" and request.signature == "raw"
    assert (request.version, request.version_label) == (3, "")
    assert request.timestamp == 1_700_000_000
    assert list(request.inputs) == ["in"]
    np.testing.assert_array_equal(read_tensor(request.inputs["in"], tf.float32, SHAPE), X)


@pytest.mark.parametrize(
    "versions, expected",
    [
        (dict(), None),
        (dict(metadata=1), 1),
        (dict(metadata=1, version=2), 2),
        (dict(metadata=1, version=2, served=3), 3),
        (dict(label="stable", served=3), 3),
        (dict(version=0), 0),
        (dict(version=-1), -1),
    ],
)
def test_the_version_is_that_which_served(versions, expected):
    assert parse_log(logged.predict(X, **versions)).version == expected


def test_a_label_alone_is_no_version():
    request = parse_log(logged.predict(X, label="stable"))
    assert (request.version, request.version_label) == (None, "stable")


def test_the_fields_are_those_of_tensorflow_serving():
    """Written by the code that Google generated from the public protos."""
    prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.signature_name = "digits", "raw"
    request.model_spec.version_label = "stable"
    request.output_filter.append("logits")
    request.client_id = b"someone"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(X))
    log.predict_log.response.model_spec.version.value = 7
    log.predict_log.response.outputs["logits"].CopyFrom(tf.make_tensor_proto(X))
    log.log_metadata.timestamp_secs = 12
    log.log_metadata.sampling_config.sampling_rate = 0.5
    parsed = parse_log(log.SerializeToString())
    assert parsed[1:] == ("digits", 7, "", "raw", 12, "")
    np.testing.assert_array_equal(read_tensor(parsed.inputs["x"], tf.float32, SHAPE), X)
    for name in ("classify", "regress", "multi_inference", "session_run", "predict_streamed"):
        other = prediction_log_pb2.PredictionLog()
        getattr(other, f"{name}_log").SetInParent()
        assert refusal(parse_log, other.SerializeToString()).reason is Reason[name.upper()]


def refusal(function, *arguments):
    with pytest.raises(Refusal) as caught:
        function(*arguments)
    return caught.value


@pytest.mark.parametrize("record", [b"", b"\xff" * 20, logged.field(1, b""), b"\x08\x01"])
def test_what_is_no_log(record):
    assert refusal(parse_log, record).reason is Reason.NOT_A_LOG


DTYPES = (tf.float32, tf.float64, tf.float16, tf.uint8, tf.int8, tf.int16, tf.int32)
FIELDS = {tf.float32: 5, tf.float64: 6, tf.float16: 13}


def message(dtype, sizes, more=b""):
    """A TensorProto, read back as `parse_log` reads it."""
    shape = b"".join(logged.field(2, logged.field(1, size)) for size in sizes)
    tensor = logged.field(1, dtype if isinstance(dtype, int) else dtype.as_datatype_enum)
    return parse_log(logged.predict(tensor + logged.field(2, shape) + more)).inputs["x"]


def typed(values, dtype):
    """Values in the typed field of their dtype, packed."""
    if dtype in (tf.float32, tf.float64):
        packed = np.asarray(values, dtype.as_numpy_dtype).tobytes()
    elif dtype == tf.float16:
        packed = b"".join(
            map(logged.varint, np.asarray(values, np.float16).view(np.uint16).tolist())
        )
    else:
        packed = b"".join(logged.varint(int(value)) for value in values)
    return logged.field(FIELDS.get(dtype, 7), packed)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_both_encodings_of_a_tensor(dtype):
    x = (X - (0 if dtype == tf.uint8 else 5)).astype(dtype.as_numpy_dtype)
    bytes_of = logged.field(4, x.tobytes())
    for body in (bytes_of, typed(x.reshape(-1), dtype)):
        found = read_tensor(message(dtype, x.shape, body), dtype, SHAPE)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, x)
    flat = typed(x.reshape(-1)[:5], dtype)
    expected = tf.io.parse_tensor(  # TensorFlow's own reading of missing values
        logged.field(1, dtype.as_datatype_enum)
        + logged.field(2, b"".join(logged.field(2, logged.field(1, n)) for n in x.shape))
        + flat,
        dtype,
    )
    np.testing.assert_array_equal(
        read_tensor(message(dtype, x.shape, flat), dtype, SHAPE), expected
    )


def test_no_values_are_zeros():
    found = read_tensor(message(tf.float32, (4, *SHAPE)), tf.float32, SHAPE)
    np.testing.assert_array_equal(found, np.zeros((4, *SHAPE)))


ONE = typed([1.0], tf.float32)
BAD = {
    "dtype": ((tf.float64, (1, 2, 3), ONE), Reason.WRONG_DTYPE, "float64, not float32"),
    "no dtype": ((99, (1, 2, 3), ONE), Reason.WRONG_DTYPE, "dtype 99, not float32"),
    "string": ((tf.string, (1, 2, 3), logged.field(8, b"a")), Reason.WRONG_DTYPE, "string"),
    "no batch": ((tf.float32, (2, 3), ONE), Reason.WRONG_SHAPE, "(2, 3), not (n, 2, 3)"),
    "scalar": ((tf.float32, (), ONE), Reason.WRONG_SHAPE, "not (n, 2, 3)"),
    "flat": ((tf.float32, (1, 6), ONE), Reason.WRONG_SHAPE, "(1, 6), not"),
    "negative": ((tf.float32, (-1, 2, 3), ONE), Reason.WRONG_SHAPE, "unknown"),
    "rank": ((tf.float32, (1,) * 99, ONE), Reason.WRONG_SHAPE, "unknown"),
    "empty": ((tf.float32, (0, 2, 3)), Reason.EMPTY_BATCH, ""),
    "huge": ((tf.float32, (2**60, 2, 3), ONE), Reason.BROKEN_TENSOR, "1 values for"),
    "large": ((tf.float32, (REPEATED_NUMBERS // 6 + 1, 2, 3), ONE), Reason.BROKEN_TENSOR, "1 val"),
    "too many": ((tf.float32, (1, 2, 3), typed(range(7), tf.float32)), Reason.BROKEN_TENSOR, "7"),
    "bytes": ((tf.float32, (1, 2, 3), logged.field(4, b"x" * 23)), Reason.BROKEN_TENSOR, "23 by"),
    "huge bytes": (
        (tf.float32, (2**61, 2, 3), logged.field(4, b"xxxx")),
        Reason.BROKEN_TENSOR,
        "4",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_tensor_that_does_not_fit(name):
    arguments, reason, detail = BAD[name]
    tensor = message(*arguments)
    tracemalloc.start()
    found = refusal(read_tensor, tensor, tf.float32, SHAPE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.reason is reason and detail in found.detail
    assert peak < 100_000


@pytest.mark.parametrize("value, dtype", [(256, tf.uint8), (-1, tf.uint8), (70_000, tf.int16)])
def test_values_out_of_range(value, dtype):
    tensor = message(dtype, (1, 2, 3), logged.field(7, logged.varint(value)))
    assert refusal(read_tensor, tensor, dtype, SHAPE).reason is Reason.BROKEN_TENSOR


def swallow(record):
    """How many tensors of a record can be read: nothing but `Refusal` may come out of it."""
    found = 0
    try:
        request = parse_log(record)
    except Refusal as error:
        return found + tidy(error)
    assert 0 <= request.timestamp < 2**63
    for tensor in request.inputs.values():
        for dtype in (tf.float32, tf.uint8):
            try:
                x = read_tensor(tensor, dtype, SHAPE)
            except Refusal as error:
                found += tidy(error)
            else:
                assert x.shape[1:] == SHAPE and x.dtype == dtype.as_numpy_dtype
                assert 0 < x.size <= max(REPEATED_NUMBERS, len(record))
                found += 1
    return found


def tidy(error):
    detail = error.detail
    assert len(detail) <= 160 and detail.isascii() and (detail.isprintable() or not detail)
    return 0


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(record):
    swallow(record)


NUMBERS = st.integers(0, 20)
TREE = st.recursive(
    st.binary(max_size=12),
    lambda inner: st.lists(
        st.tuples(NUMBERS, st.one_of(st.integers(0, 2**64 - 1), inner)), max_size=5
    ).map(lambda fields: b"".join(logged.field(n + 1, value) for n, value in fields)),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(TREE, TREE)
def test_any_fields(tensor, more):
    """Well-formed wire format with the wrong fields in it."""
    swallow(logged.predict(tensor, more=more))
    swallow(logged.field(6, logged.field(1, tensor)) + more)


def test_flipped_and_cut_logs(rng):
    whole = logged.predict(X, timestamp=5, version=1, signature="raw", served=2)
    survived = 0
    for _ in range(5000):
        broken = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        for position in rng.integers(0, len(broken), rng.integers(0, 4)):
            broken[position] = rng.integers(256)
        survived += swallow(bytes(broken))
    assert 0 < survived < 5000


def test_plain_text():
    assert plain("a\x1b[1m\nb\t\u202ec") == "a\\x1b[1m b \\u202ec"
    assert len(plain("ä" * 10_000)) == 160
