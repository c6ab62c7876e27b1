"""Bodies of REST requests: what is read from a line, and what is refused by its number."""

import base64
import contextlib
import gzip
import json
import os
import time
import tracemalloc

import numpy as np
import pytest
import scripts
import several_inputs
import tensorflow as tf
from certified_requests import assert_rows_are, rows_of, run
from logged import predict, write

import keras_curv
from keras_curv.data.json_lines import MAX_LINE, begins_json
from keras_curv.data.tf_record import read_records
from keras_curv.errors import InputError
from keras_curv.rows.reason import Reason
from keras_curv.rows.row import round_down
from keras_curv.serving.refusal import Refusal
from keras_curv.serving.rest_body import parse_body
from keras_curv.serving.versions import Versions

X = np.array([[[0.5, 1, -2], [3, 1e-3, 0]], [[1, 2, 3], [4, 5, 6]]], np.float32)


def lines(path, *bodies, pack=lambda content: content):
    texts = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
    path.write_bytes(pack("\n".join([*texts, ""]).encode()))
    return str(path)


def value_of(body, dtype=tf.float32, shape=(2, 3)):
    (tensor,) = parse_body(json.dumps(body).encode(), 0).inputs.values()
    return tensor.read(dtype, shape)


def refusal(line, dtype=tf.float32, shape=(2, 3)):
    with pytest.raises(Refusal) as found:
        (tensor,) = parse_body(line.encode(), 4).inputs.values()
        tensor.read(dtype, shape)
    return found.value


FORMS = {
    "rows": {"instances": X.tolist()},
    "rows by name": {"instances": [{"x": one.tolist()} for one in X]},
    "columns": {"inputs": X.tolist()},
    "columns by name": {"inputs": {"x": X.tolist()}},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_each_form_is_certified_as_the_same_request_in_a_prediction_log(
    form, pack, base, versions, tmp_path
):
    body = FORMS[form] | {"signature_name": "serving_default", "more": None}
    rows = rows_of([lines(tmp_path / "log", body, FORMS[form], pack=pack)], versions)
    assert_rows_are(rows, base / "10", np.concatenate([X, X]))
    assert [(row.record, row.example) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_numbers_are_those_of_the_signature(base, versions, tmp_path):
    pixels = np.arange(12).reshape(2, 2, 3)
    body = {"instances": pixels.tolist(), "signature_name": "raw"}
    (of_json,) = [rows_of([lines(tmp_path / "json", body)], versions)]
    record = predict(pixels.astype(np.uint8), "pixels", signature="raw")
    of_proto = rows_of([write(tmp_path / "proto", [record])], versions)
    assert [row.radius for row in of_json] == [row.radius for row in of_proto]
    assert any(row.radius > 0 for row in of_json)
    for dtype in (tf.float16, tf.float32, tf.float64):
        found = value_of({"inputs": [[0.1, 1, -3e-5]]}, dtype, (3,))
        expected = np.array([[0.1, 1, -3e-5]], dtype.as_numpy_dtype)
        assert found.dtype == expected.dtype and (found == expected).all()


def test_both_kinds_of_logs_are_told_apart_by_their_content(base, versions, tmp_path):
    """The length of a first record may be spelled as the beginning of JSON."""
    length = int.from_bytes(b'{"', "little")
    path = write(tmp_path / "a", [b"a" * length])
    assert begins_json(open(path, "rb").read(12))
    assert [len(record) for record in read_records(path)] == [length]
    files = [lines(tmp_path / "b", FORMS["rows"]), write(tmp_path / "c", [predict(X)])]
    assert_rows_are(rows_of(files, versions), base / "10", np.concatenate([X, X]))


BAD = {
    "cut off": ('{"instances": [[1, 2', "NOT_A_LOG"),
    "no JSON": ("GET / HTTP/1.1", "NOT_A_LOG"),
    "nothing": ("", "NOT_A_LOG"),
    "a list": ("[[1, 2]]", "NOT_A_LOG"),
    "neither": ('{"examples": [{"x": 1}]}', "NOT_A_LOG"),
    "both": ('{"instances": [1], "inputs": [1]}', "NOT_A_LOG"),
    "a name twice": ('{"instances": [1], "instances": [2]}', "NOT_A_LOG"),
    "an input twice": ('{"inputs": {"x": [1], "x": [2]}}', "NOT_A_LOG"),
    "a signature that is no text": ('{"signature_name": 1, "inputs": [1]}', "NOT_A_LOG"),
    "NaN": ('{"instances": [[[NaN, 1, 1], [1, 1, 1]]]}', "NOT_A_LOG"),
    "infinity": ('{"instances": [[[-Infinity, 1, 1], [1, 1, 1]]]}', "NOT_A_LOG"),
    "digits without end": ('{"inputs": [[[' + "1" * 5000 + ", 1, 1], [1, 1, 1]]]}", "NOT_A_LOG"),
    "deep": ('{"inputs": ' + "[" * 10**5 + "]" * 10**5 + "}", "NOT_A_LOG"),
    "instances of several inputs": ('{"instances": [{"x": 1}, {"y": 1}]}', "NOT_A_LOG"),
    "instances with and without a name": ('{"instances": [{"x": 1}, 1]}', "NOT_A_LOG"),
    "instances that are no list": ('{"instances": {"x": 1}}', "NOT_A_LOG"),
    "another input": ('{"inputs": {"y": [1]}}', "WRONG_INPUTS"),
    "an input more": ('{"inputs": {"x": [1], "y": [1]}}', "WRONG_INPUTS"),
    "no input": ('{"inputs": {}}', "WRONG_INPUTS"),
    "signature": ('{"instances": [1], "signature_name": "other"}', "NO_SIGNATURE"),
    "shape": ('{"instances": [[[1, 2], [3, 4]]]}', "WRONG_SHAPE"),
    "no batch": ('{"inputs": [[1, 2, 3], [4, 5, 6]]}', "WRONG_SHAPE"),
    "lengths": ('{"instances": [[[1, 2, 3], [4, 5]]]}', "WRONG_SHAPE"),
    "depths": ('{"instances": [[[1, 2, 3], [4, 5, [6]]]]}', "WRONG_SHAPE"),
    "a number": ('{"inputs": 1}', "WRONG_SHAPE"),
    "no examples": ('{"instances": []}', "WRONG_SHAPE"),
    "too large": ('{"inputs": [[[1e39, 1, 1], [1, 1, 1]]]}', "BROKEN_TENSOR"),
    "too large for any": ('{"inputs": [[[1e999, 1, 1], [1, 1, 1]]]}', "BROKEN_TENSOR"),
    "a large integer": ('{"inputs": [[[1' + "0" * 400 + ", 1, 1], [1, 1, 1]]]}", "BROKEN_TENSOR"),
    "text": ('{"inputs": [[["1", 1, 1], [1, 1, 1]]]}', "WRONG_DTYPE"),
    "null": ('{"inputs": [[[null, 1, 1], [1, 1, 1]]]}', "WRONG_DTYPE"),
    "true": ('{"inputs": [[[true, 1, 1], [1, 1, 1]]]}', "WRONG_DTYPE"),
    "an object": ('{"inputs": [[[{"x": 1}, 1, 1], [1, 1, 1]]]}', "WRONG_DTYPE"),
    "base64": ('{"inputs": [[[{"b64": "AA=="}, 1, 1], [1, 1, 1]]]}', "WRONG_DTYPE"),
}


def test_a_bad_line_is_a_row_that_names_it_and_no_certificate(base, versions, tmp_path):
    bodies = [FORMS["rows"]]
    for line, _ in BAD.values():
        bodies += [line, FORMS["rows"]]
    rows = rows_of([lines(tmp_path / "log", *bodies)], versions)
    refused = [row for row in rows if row.prediction < 0]
    for i, (row, (name, (_, reason))) in enumerate(zip(refused, BAD.items(), strict=True)):
        assert (row.status, row.record, row.radius) == (reason, 2 * i + 1, 0.0), name
        assert row.detail.startswith(f"line {2 * i + 2}: "), name
    taken = [row for row in rows if row.prediction >= 0]
    assert_rows_are(taken, base / "10", np.concatenate([X] * (len(BAD) + 1)))


def test_messages_say_what_is_wrong():
    assert refusal('{"inputs": [NaN]}').detail == "line 5: NaN is no number in JSON"
    assert "'x' is named twice" in refusal('{"inputs": {"x": 1, "x": 1}}').detail
    encoded = json.dumps({"instances": [{"b64": base64.b64encode(b"a").decode()}]})
    assert refusal(encoded, shape=()).detail == "base64, not float32"
    assert (
        refusal('{"inputs": [1.0]}', tf.uint8, ()).detail == "a number with a fraction, not uint8"
    )
    assert refusal('{"inputs": [256]}', tf.uint8, ()).reason is Reason.BROKEN_TENSOR
    assert refusal('{"inputs": [-1]}', tf.uint8, ()).reason is Reason.BROKEN_TENSOR
    assert refusal('{"inputs": [[1, 2]]}').detail == "(1, 2), not (n, 2, 3)"
    assert refusal('{"inputs": []}', shape=()).reason is Reason.EMPTY_BATCH


def test_a_refused_line_counts_with_all_its_examples(versions, tmp_path):
    """Else a gate would pass where most of what is asked cannot be certified."""
    for body in (
        {"instances": [[1, 2]] * 40},
        {"inputs": {"x": [[1]] * 40}},
        {"inputs": [[1], 2] * 20},
    ):
        assert len(rows_of([lines(tmp_path / "log", body)], versions)) == 40


@pytest.mark.parametrize("filler", ["[],", "{},", "0,", '{"a":0.1},', "0.1,", '"a\u1234",', "[0],"])
def test_what_is_in_a_line_takes_bounded_memory(filler):
    """The worst lines; 8 MiB of them would take less than 800 MiB."""
    size = 2**19
    line = '{"inputs": [' + (filler * (size // len(filler.encode()))).rstrip(",") + "]}"
    tracemalloc.start()
    (tensor,) = parse_body(line.encode(), 0).inputs.values()
    with contextlib.suppress(Refusal):
        tensor.read(tf.float32, (2,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * size


def test_a_line_of_too_many_parts_or_bytes_is_refused(tmp_path, versions):
    part = "[]," * (MAX_LINE // 3 - 10)
    assert "more than 1048576 lists" in refusal('{"inputs": [' + part[:-1] + "]}").detail
    for size, count in ((MAX_LINE, 0), (MAX_LINE + 1, 1)):
        line = '{"inputs": []}'.ljust(size)
        path = lines(tmp_path / "log", FORMS["rows"], line, FORMS["rows"])
        rows = rows_of([path], versions)
        assert [row.record for row in rows] == [0, 0, 1, 2, 2]
        assert (rows[2].status == "TOO_LONG") is bool(count)


def test_a_line_without_end_ends_the_reading(tmp_path, versions):
    path = lines(tmp_path / "log", FORMS["rows"])
    os.truncate(path, 2**40)
    begun = time.process_time()
    with pytest.raises(InputError, match="record 1 cannot be read: its line has more than"):
        list(read_records(path))
    assert time.process_time() - begun < 3.0
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(json.dumps(FORMS["rows"]).encode() + b" " * 2**24)[:-9])
    with pytest.raises(InputError, match="record 0 cannot be read|record 0 is cut off"):
        list(read_records(str(packed)))


def test_a_base64_body_of_a_model_of_text_is_refused_by_its_model(tmp_path, versions, base):
    """No model that takes text is certified."""

    class Texts(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="x")])
        def __call__(self, x):
            return {"logits": tf.one_hot(tf.strings.length(x), 3)}

    model = Texts()
    tf.saved_model.save(model, str(tmp_path / "m"), signatures=model.__call__)
    path = lines(tmp_path / "log", {"instances": [{"b64": "AA=="}]})
    with pytest.raises(InputError, match="StringLength"):
        run(tmp_path / "m", [path])


def test_a_model_of_several_inputs_is_certified_as_arrays_are(tmp_path):
    path, model = tmp_path / "model", several_inputs.MODELS["branches"]()
    model.export(str(path), verbose=False)
    x = several_inputs.examples_of(model, count=3)
    columns = {name: value.tolist() for name, value in x.items()}
    entries = [{name: value[i] for name, value in columns.items()} for i in range(3)]
    log = lines(tmp_path / "log", {"inputs": columns}, {"instances": entries})
    rows = rows_of([log], Versions(str(path), method="crown"))
    radius = keras_curv.certify(str(path), x, method="crown").radius
    assert [row.radius for row in rows] == [float(round_down(r)) for r in [*radius, *radius]]
    assert (radius > 0.0).any()
    (first, *_), short = x, {name: value[: 2 + (name > "a")] for name, value in columns.items()}
    bad = lines(tmp_path / "bad", {"inputs": short}, {"inputs": {first: columns[first]}})
    found = rows_of([bad], Versions(str(path), method="crown"))
    assert {row.status for row in found} == {"WRONG_SHAPE", "WRONG_INPUTS"}
    assert found[0].detail == "line 1: inputs of 2 and of 3 examples"


def test_where_everything_is_refused_the_command_says_so_first_and_fails(base, tmp_path, capfd):
    bad = lines(tmp_path / "bad", {"instances": [[1, 2]] * 3})
    good = lines(tmp_path / "good", {"instances": [[1, 2]]}, FORMS["rows"])
    for path, status in ((bad, 2), (good, 0)):
        flags = ["--saved_model", str(base), "--requests", path, "--method", "crown"]
        found, stdout, stderr = scripts.call(scripts.load(), capfd, *flags)
        assert found == status
        told = "no request could be certified: 3 examples refused, 0 records skipped"
        assert stdout.startswith(told) is bool(status)
        assert (told in stderr) is bool(status)
        assert "line 1: (3, 2), not (n, 2, 3)" in stdout or not status
