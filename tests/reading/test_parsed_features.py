"""Signatures that parse tf.Examples: their dense float features are the inputs."""

from __future__ import annotations

import base64
import dataclasses
import json

import keras
import logged
import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import edited
from refused import assert_refused, spec
from scripts import call

from keras_curv.certificates.certifier import Certifier
from keras_curv.data.tf_examples import TFExamples
from keras_curv.reading import served_model
from keras_curv.reading.inputs import Inputs
from keras_curv.rows.row import round_down
from keras_curv.serving.outcomes import certify_block
from keras_curv.serving.refusal import Refusal
from keras_curv.serving.request_examples import examples_of
from keras_curv.serving.requests import RequestLog
from keras_curv.serving.rest_body import parse_body
from keras_curv.serving.versions import Versions

Fixed = tf.io.FixedLenFeature
KEYS = {
    "b": Fixed([1, 2], tf.float32),
    "a": Fixed([3], tf.float32, default_value=[1.0, 2.0, 3.0]),
    "unused": Fixed([], tf.int64),
    "words": tf.io.VarLenFeature(tf.string),
}


def _joined(parsed):
    return tf.concat([parsed["a"], tf.reshape(parsed["b"], (-1, 2))], axis=1, name="both")


def _with_integers(parsed):
    return tf.concat([tf.cast(parsed["n"], tf.float32), parsed["a"][:, :2]], axis=1, name="both")


def _with_lengths(parsed):
    return tf.concat([tf.reshape(parsed["v"].values, (-1, 2)), parsed["a"]], axis=1, name="both")


SIGNATURES = {
    "serving_default": (KEYS, _joined),
    "integers": (KEYS | {"n": Fixed([3], tf.int64)}, _with_integers),
    "lengths": (KEYS | {"v": tf.io.VarLenFeature(tf.float32)}, _with_lengths),
}


def _serving(net, keys, joined):
    return lambda examples: {"logits": net(joined(tf.io.parse_example(examples, keys)))}


@pytest.fixture(scope="module")
def net():
    layers = keras.layers.Dense(6, "tanh"), keras.layers.Dense(3)
    return keras.Sequential([keras.Input((5,)), *layers])


@pytest.fixture(scope="module")
def path(net, tmp_path_factory):
    path = tmp_path_factory.mktemp("parsing") / "model"
    archive = keras.export.ExportArchive()
    archive.track(net)
    for name, (keys, joined) in SIGNATURES.items():
        serve = _serving(net, keys, joined)
        archive.add_endpoint(name, serve, [spec(None, dtype=tf.string, name="examples")])
    archive.write_out(str(path), verbose=False)
    return path


def _records(x):
    for a, b, y in zip(x["a"], x["b"], range(len(x["a"])), strict=True):
        held = {"b": b.ravel(), "a": a} if y else {"b": b.ravel()}
        feature = {
            name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
            for name, values in held.items()
        }
        label = tf.train.Int64List(value=[y % 3])
        feature["label"] = feature["unused"] = tf.train.Feature(int64_list=label)
        features = tf.train.Features(feature=feature)
        yield tf.train.Example(features=features).SerializeToString()


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(4)
    x = {"a": rng.normal(size=(5, 3)), "b": rng.normal(size=(5, 1, 2))}
    x["a"][0] = [1.0, 2.0, 3.0]  # which its record leaves out
    return {name: array.astype(np.float32) for name, array in x.items()}


def test_the_features_are_the_inputs_and_the_answer_is_the_servers(path, x):
    served = served_model.read(path)
    assert served.inputs.shapes == {"a": (3,), "b": (1, 2)}
    assert served.defaults["a"].tolist() == [1.0, 2.0, 3.0] and served.defaults["b"] is None
    flat = served.inputs.joined(x)
    served.check(flat)
    server = tf.saved_model.load(str(path)).signatures["serving_default"]
    theirs = server(examples=tf.constant([*_records(x)]))["logits"].numpy()
    ours = served.network.logits(np.float64(flat)).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_a_file_of_records_is_certified_as_arrays_are(path, x, script, capfd, tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as file:
        for record in _records(x):
            file.write(record)
    np.savez(tmp_path / "x.npz", y=np.arange(5) % 3, **x)
    for name in ("x.tfrecord", "x.npz"):
        files = "--inputs", tmp_path / name, "--output", tmp_path / f"{name}.csv"
        code, out, err = call(script, capfd, "--saved_model", path, "--method", "crc", *files)
        assert (code, err) == (0, "") and f"model on {name}" in out
    rows = [(tmp_path / f"x.{kind}.csv").read_bytes() for kind in ("tfrecord", "npz")]
    assert rows[0] == rows[1] and rows[0].count(b"\n") == 6
    files = "--inputs", tmp_path / "x.tfrecord", "--limit", "2"
    gate = "--slice", "unused", "--require", "unused:0.01=1"
    code, out, _ = call(script, capfd, "--saved_model", path, "--method", "crc", *files, *gate)
    assert code == 3 and "2 examples (" in out and "Certified, by unused" in out


def test_integers_are_held_fixed(path, tmp_path):
    """As a server reads them, of a file and of a logged request."""
    served = served_model.read(path, "integers")
    assert served.inputs.fixed == ["n"] and not served.inputs.counts
    held = {"n": tf.train.Feature(int64_list=tf.train.Int64List(value=[3, -2, 2**20]))}
    floats = tf.train.FloatList(value=[0.5, -1.5])
    held["b"] = tf.train.Feature(float_list=floats)
    held["unused"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
    record = tf.train.Example(features=tf.train.Features(feature=held)).SerializeToString()
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as file:
        file.write(record)
    known = served.inputs.shapes, served.defaults, (), served.inputs.fixed
    ((x, _),) = TFExamples(str(tmp_path / "x.tfrecord")).read(*known).batches(9, 0)
    vector = served.inputs.of_numbers(x)
    assert vector[0].tolist() == [1.0, 2.0, 3.0, 3.0, -2.0, 2.0**20]
    server = tf.saved_model.load(str(path)).signatures["integers"]
    theirs = server(examples=tf.constant([record]))["logits"].numpy()
    np.testing.assert_allclose(served.network.logits(np.float64(vector)), theirs, rtol=1e-5)
    body = json.dumps({"instances": [{"b64": base64.b64encode(record).decode()}]})
    logged_ones = examples_of(parse_body(body.encode(), 0), served)
    np.testing.assert_array_equal(logged_ones, vector)


def test_features_of_any_length_are_refused(path):
    assert_refused(path, "sparse or ragged", "cut behind", signature="lengths")
    assert served_model.read(path, "lengths", cut="both").input_shape == (5,)


def _parsing(meta):
    for function in meta.graph_def.library.function:
        yield from (node for node in function.node_def if node.op == "ParseExampleV2")


def _same_keys(meta):
    for function in meta.graph_def.library.function:
        for node in function.node_def:
            if node.name.endswith("dense_keys"):
                node.attr["value"].tensor.string_val[:] = [b"a"] * len(
                    node.attr["value"].tensor.string_val
                )


def _huge(meta):
    for node in _parsing(meta):
        for shape in node.attr["dense_shapes"].list.shape:
            for dim in shape.dim:
                dim.size = 2**40


def _any_length(meta):
    for node in _parsing(meta):
        for shape in node.attr["dense_shapes"].list.shape:
            for dim in shape.dim:
                dim.size = -1


def _fewer(meta):
    for node in _parsing(meta):
        del node.attr["dense_shapes"].list.shape[0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_same_keys, "two features alike"),
        (_huge, "too large"),
        (_any_length, "is of any length"),
        (_fewer, "two features alike, or none"),
    ],
)
def test_what_lies_about_its_features_is_refused(change, word, path, tmp_path):
    copied = tmp_path / "model"
    for file in (file for file in path.rglob("*") if file.is_file()):
        target = copied / file.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    with edited(copied) as meta:
        change(meta)
    assert_refused(copied, word)


def test_strings_that_are_read_besides_are_refused(net, tmp_path):
    archive = keras.export.ExportArchive()
    archive.track(net)

    def serve(examples):
        parsed = tf.io.parse_example(examples, {"a": Fixed([5], tf.float32)})
        again = tf.io.parse_example(examples, {"b": Fixed([5], tf.float32)})
        return {"logits": net(tf.add(parsed["a"], again["b"], name="sum"))}

    archive.add_endpoint("serving_default", serve, [spec(None, dtype=tf.string, name="examples")])
    archive.write_out(str(tmp_path / "model"), verbose=False)
    assert_refused(tmp_path / "model", "op ParseExampleV2", "cut at 'sum'")
    assert served_model.read(tmp_path / "model", cut="sum").input_shape == (5,)


def _logged(path, tmp_path, *records):
    """The rows of a log of requests, of records or of JSON lines."""
    if isinstance(records[0], bytes):
        log = logged.write(tmp_path / "log", records)
    else:
        log = tmp_path / "log"
        log.write_text("".join(json.dumps(body) + "\n" for body in records))
    requests = RequestLog([str(log)], [Versions(str(path), method="crc")])
    count = requests.survey().count
    return certify_block(next(requests.blocks(min(count, 512), 0, count)), 0)


def test_logged_requests_are_certified_as_arrays_are(path, x, tmp_path):
    sent = [*_records(x)]
    proto = tf.make_tensor_proto(sent).SerializeToString()
    texts = [{"b64": base64.b64encode(record).decode()} for record in sent]
    named = {"instances": [{"examples": text} for text in texts]}
    want = Certifier(str(path), method="crc").certify(x).radius.tolist()
    for records in (
        (logged.predict(proto, "examples"),),
        ({"instances": texts},),
        ({"inputs": {"examples": texts}},),
        (named,),
    ):
        rows = _logged(path, tmp_path, *records)
        assert [(row.status, repr(row.radius)) for row in rows] == [
            ("CERTIFIED", round_down(radius)) for radius in want
        ]


def _b64(content):
    return {"instances": [{"b64": base64.b64encode(content).decode()}]}


def _strings(values, count=None):
    proto = tf.make_tensor_proto(values)
    if count is not None:
        proto.tensor_shape.dim[0].size = count
    return logged.predict(proto.SerializeToString(), "examples")


BROKEN_LOGS = {
    "numbers": (logged.predict(np.ones((2, 5), np.float32), "examples"), "WRONG_DTYPE"),
    "numbers in JSON": ({"instances": [[1, 2, 3, 4, 5]]}, "WRONG_SHAPE"),
    "text": ({"instances": ["aGk="]}, "WRONG_DTYPE"),
    "no tf.Example": (_strings([b"a"]), "BROKEN_TENSOR"),
    "no feature": (_strings([b""]), "BROKEN_TENSOR"),
    "no base64": ({"instances": [{"b64": "*"}]}, "BROKEN_TENSOR"),
    "no tf.Example in JSON": (_b64(b"a"), "BROKEN_TENSOR"),
    "an image of strings": (_strings([[b"a"]]), "WRONG_SHAPE"),
    "more claimed": (_strings([b"a", b"b"], 3), "BROKEN_TENSOR"),
    "fewer claimed": (_strings([b"a", b"b"], 1), "BROKEN_TENSOR"),
    "thousands claimed": (_strings([b"a", b"b"], 4000), "BROKEN_TENSOR"),
}


@pytest.mark.parametrize("name", BROKEN_LOGS)
def test_logged_requests_that_hold_no_such_examples_are_refused(name, path, tmp_path):
    record, status = BROKEN_LOGS[name]
    first, *_ = _logged(path, tmp_path, record)
    assert first.status == status and first.radius == 0.0


def test_what_defaults_stand_for_is_limited(path):
    """A few bytes each, of which every one would be a long feature."""
    served = served_model.read(path)
    feature = dataclasses.replace(
        served,
        inputs=Inputs({"a": tf.TensorSpec((None, 2**12))}, "the model"),
        defaults={"a": np.zeros(2**12)},
    )
    body = {"instances": [{"b64": ""}] * 65}
    request = parse_body(json.dumps(body).encode(), 0)
    with pytest.raises(Refusal) as found:
        examples_of(request, feature)
    assert found.value.detail == "0 bytes for 266240 numbers"
