"""Whatever cannot be read, or must not be run, is refused in one line that names it."""

from __future__ import annotations

import contextlib
import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from hostile_models import Net, edited, export
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saver_pb2

from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.curvature.bounds import curvature_bounds
from keras_curv.errors import InputError
from keras_curv.reading import allow_list, saved_model

L = keras.layers


def assert_refused(source, *words, **options):
    """One line, with the directory and every word in it; returns the line."""
    with pytest.raises(InputError) as caught:
        saved_model.read(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    name = getattr(source, "name", "") if isinstance(source, keras.Model) else str(source)
    for word in (name, *words):
        assert word in message
    return message


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(tf.saved_model, "load", lambda *_, **__: pytest.fail("it was loaded"))


@pytest.fixture(scope="module")
def plain_files(tmp_path_factory):
    """A good SavedModel as `{relative path: bytes}`, to be written out damaged."""
    path = export(tmp_path_factory.mktemp("plain"))
    saved_model.read(path).check(np.ones((2, 4), np.float32))
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def write(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


# Files


def test_a_missing_directory_is_named(tmp_path):
    assert_refused(tmp_path / "nowhere", "does not exist")


@pytest.mark.parametrize("name", ["٩", "99999999999999999999", "1.0", "v2"])
def test_what_a_server_takes_for_no_version_is_none(name, tmp_path):
    for version in ("007", name):
        export(tmp_path / version)
    assert saved_model.resolve_directory(tmp_path).name == "007"


def test_a_newer_version_in_another_format_is_not_passed_over(tmp_path):
    export(tmp_path / "1")
    (tmp_path / "2").mkdir()
    assert saved_model.resolve_directory(tmp_path).name == "1"  # nothing in it yet
    (tmp_path / "2" / "saved_model.pbtxt").write_text("")
    assert_refused(tmp_path, "newer than 1", "another format")


def test_an_empty_directory_is_named(tmp_path):
    assert_refused(tmp_path, "saved_model.pb")


def test_a_base_path_without_a_finished_version_is_refused(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "model").mkdir()
    export(tmp_path / "model" / "export")
    assert_refused(tmp_path, "numbered version")


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_files_are_pointed_to_export(tmp_path, suffix):
    file = tmp_path / f"digits{suffix}"
    file.write_bytes(b"PK")
    assert_refused(file, "not a SavedModel directory", "model.export('digits')")


def test_any_other_file_is_refused(tmp_path):
    file = tmp_path / "saved_model.pb"
    file.write_bytes(b"")
    assert "export" not in assert_refused(file, "is a file")


GARBAGE = {
    "empty": b"",
    "text": b"this is not a model\n" * 40,
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "html": b"<!DOCTYPE html>\n<html></html>\n",
    "noise": np.random.default_rng(0).bytes(5000),
    "two graphs": b"\x08\x01\x12\x00\x12\x00",
    "bare": b"\x08\x01\x12\x00",
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_is_refused(case, plain_files, tmp_path, nothing_is_loaded):
    path = write(tmp_path, {**plain_files, "saved_model.pb": GARBAGE[case]})
    assert_refused(path)


@pytest.mark.parametrize("part", [0.0001, 0.01, 0.25, 0.5, 0.9, 0.999, -1])
def test_a_cut_off_graph_is_refused(part, plain_files, tmp_path, nothing_is_loaded):
    whole = plain_files["saved_model.pb"]
    cut = int(len(whole) * part) if part > 0 else len(whole) - 1
    assert_refused(write(tmp_path, {**plain_files, "saved_model.pb": whole[:cut]}))


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_graph_is_read_or_refused_but_never_crashes(seed, plain_files, tmp_path):
    rng = np.random.default_rng(seed)
    damaged = bytearray(plain_files["saved_model.pb"])
    for place in rng.integers(0, len(damaged), 1 + seed % 4):
        damaged[place] ^= 1 << rng.integers(8)
    path = write(tmp_path, {**plain_files, "saved_model.pb": bytes(damaged)})
    try:
        served = saved_model.read(path)
        served.check(np.ones((2, 4), np.float32))
    except InputError as error:
        assert "\n" not in str(error)


DATA, INDEX = "variables/variables.data-00000-of-00001", "variables/variables.index"


@pytest.mark.parametrize("name", [DATA, INDEX])
@pytest.mark.parametrize("keep", [None, 0.0, 0.3, 0.9])
def test_missing_or_cut_off_variables_are_refused(name, keep, plain_files, tmp_path):
    files = dict(plain_files)
    if keep is None:
        del files[name]
    else:
        files[name] = files[name][: int(keep * len(files[name]))]
    assert_refused(write(tmp_path, files), "cannot load")


def test_a_changed_weight_is_refused_by_its_checksum(plain_files, tmp_path):
    data = bytearray(plain_files[DATA])
    kernel = np.float32(Net().w.numpy()).tobytes()
    place = bytes(data).index(kernel)
    data[place + 2] ^= 1
    assert_refused(write(tmp_path, {**plain_files, DATA: bytes(data)}), "cannot load")


def test_no_variables_folder_is_refused(plain_files, tmp_path):
    files = {"saved_model.pb": plain_files["saved_model.pb"]}
    assert_refused(write(tmp_path, files), "cannot load")


def test_a_root_that_is_no_module_is_refused(tmp_path):
    path = export(tmp_path / "model")
    with edited(path) as meta:
        root, variable = meta.object_graph_def.nodes[0], None
        for node in meta.object_graph_def.nodes:
            variable = node if node.WhichOneof("kind") == "variable" else variable
        root.variable.CopyFrom(variable.variable)
        del root.children[:]
    assert_refused(path)


# Signatures


def test_an_unknown_signature_lists_the_known_ones(tmp_path):
    net, spec = Net(), tf.TensorSpec((None, 4), tf.float32)
    function = tf.function(net.__call__).get_concrete_function(spec)
    tf.saved_model.save(net, str(tmp_path), signatures={"classify": function, "predict": function})
    assert_refused(tmp_path, "'serving_default'", "classify, predict")
    assert_refused(tmp_path, "'nope'", "classify, predict", signature="nope")
    assert saved_model.read(tmp_path, signature="predict").network.classes == 3


def test_no_signature_at_all_is_said(tmp_path):
    tf.saved_model.save(Net(), str(tmp_path / "model"))
    assert_refused(tmp_path / "model", "none")


def spec(*shape, dtype=tf.float32, name=None):
    return tf.TensorSpec(shape, dtype, name=name)


INPUTS = {
    "two": (
        [spec(None, 4, name="a"), spec(None, 4, name="b")],
        lambda a, b, n: n(a + b),
        "2 inputs",
    ),
    "unused second": (
        [spec(None, 4, name="a"), spec(None, 4, name="b")],
        lambda a, b, n: n(a),
        "2 inputs",
    ),
    "unknown width": ([spec(None, None)], lambda x, n: n(tf.ensure_shape(x, (None, 4))), ""),
    "unknown width, reshaped": (
        [spec(None, None)],
        lambda x, n: n(tf.reshape(x, (-1, 4))),
        "known",
    ),
    "unknown rank": ([tf.TensorSpec(None)], lambda x, n: n(tf.reshape(x, (-1, 4))), "known"),
    "strings": (
        [spec(None, 4, dtype=tf.string)],
        lambda x, n: n(tf.strings.to_number(x)),
        "StringToNumber",
    ),
    "half": ([spec(None, 4, dtype=tf.float16)], lambda x, n: x @ tf.cast(n.w, tf.float16), "Cast"),
    "integers without a cast": (
        [spec(None, 4, dtype=tf.int32)],
        lambda x, n: tf.cast(x * 2, tf.float32) @ n.w,
        "Mul",
    ),
}


@pytest.mark.parametrize("case", INPUTS)
def test_inputs_that_are_not_one_known_tensor_are_refused(case, tmp_path):
    specs, body, word = INPUTS[case]
    assert_refused(export(tmp_path / "model", body, specs), word)


def test_a_fixed_batch_is_checked_or_refused_but_never_crashes(tmp_path):
    path = export(tmp_path / "model", specs=[spec(2, 4)])
    with contextlib.suppress(InputError):
        saved_model.read(path).check(np.ones((3, 4), np.float32))


# Graphs that load, and have a part without a rule. Each: body, words of the message.


def _image(x):
    return tf.reshape(x, (-1, 2, 2, 1))


def _hidden(x, net):
    return tf.nn.softplus(x @ net.w)


def _mixed(dtype):
    def body(x, net):
        return tf.cast(tf.cast(x, dtype) @ tf.cast(net.w, dtype), tf.float32)

    return body


def _batch_average(x, net):
    return net(x - tf.reduce_mean(x, axis=0, keepdims=True))


def _batch_size(x, net):
    """Weights that depend on how many examples are asked at once."""
    return net(x) + tf.cast(tf.shape(x)[0], tf.float32) * tf.constant([1.0, 2.0, 3.0])


def _loop(x, net):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y @ net.square), (0, x))[1]


UNREADABLE = {
    "relu6": (lambda x, n: tf.nn.relu6(x @ n.w) @ n.v, ["Relu6", "not supported", "softplus"]),
    "leaky relu": (lambda x, n: tf.nn.leaky_relu(x @ n.w) @ n.v, ["LeakyRelu", "softplus"]),
    "selu": (lambda x, n: tf.nn.selu(x @ n.w) @ n.v, ["Selu", "not supported", "softplus"]),
    "exp": (lambda x, n: tf.exp(x @ n.w) @ n.v, ["Exp"]),
    "square": (lambda x, n: tf.square(x @ n.w) @ n.v, ["Square"]),
    "absolute": (lambda x, n: tf.abs(x @ n.w) @ n.v, ["Abs"]),
    "max pooling": (
        lambda x, n: tf.reshape(tf.nn.max_pool2d(_image(x), 2, 1, "SAME"), (-1, 4)) @ n.w,
        ["MaxPool", "not supported", "average pooling"],
    ),
    "transposed convolution": (
        lambda x, n: (
            tf.reshape(
                tf.nn.conv2d_transpose(_image(x), tf.ones((1, 1, 1, 1)), (1, 2, 2, 1), 1), (-1, 4)
            )
            @ n.w
        ),
        ["Conv2DBackpropInput"],
    ),
    "residual": (lambda x, n: x + tf.tanh(x @ n.square), ["Add", "depend on the input"]),
    "branch": (lambda x, n: _hidden(x, n) @ n.v - x @ n.w @ n.v, ["Sub"]),
    "twice the same": (lambda x, n: n(x) + n(x), ["Add"]),
    "product": (lambda x, n: tf.tanh(x @ n.w) * tf.sigmoid(x @ n.w) @ n.v, ["Mul", "depend"]),
    "quotient": (lambda x, n: tf.constant(1.0) / (x @ n.w), ["RealDiv"]),
    "attention": (lambda x, n: tf.matmul(tf.matmul(x, x, transpose_b=True), x) @ n.w, ["MatMul"]),
    "input on the right": (lambda x, n: tf.matmul(n.w, x, True, True), ["MatMul", "left"]),
    "batch transposed": (
        lambda x, n: tf.matmul(tf.transpose(x), tf.ones((4, 3)), transpose_a=True),
        ["Transpose", "batch"],
    ),
    "batch transposed in the product": (
        lambda x, n: tf.matmul(tf.reshape(x, (-1, 4)), tf.ones((4, 3)), transpose_a=True),
        ["MatMul", "batch"],
    ),
    "reshape over examples": (lambda x, n: tf.reshape(x, (-1, 2)) @ tf.ones((2, 3)), ["Reshape"]),
    "reshape to one": (lambda x, n: tf.reshape(x, (1, -1)), ["Reshape", "mixes"]),
    "reshape and back": (lambda x, n: n(tf.reshape(tf.reshape(x, (2, -1)), (-1, 4))), ["Reshape"]),
    "batch mean": (_batch_average, ["Mean"]),
    "batch size": (_batch_size, []),
    "batch size, as a vector": (
        lambda x, n: n(x) + tf.cast(tf.shape(x)[:1], tf.float32) * tf.constant([1.0, 2.0, 3.0]),
        [],
    ),
    "per example constant": (lambda x, n: n(x) + tf.ones((2, 3)), []),
    "broadcast": (lambda x, n: tf.reshape(n(x), (-1, 3, 1)) + tf.ones((1, 1, 2)), []),
    "slice": (lambda x, n: x[:, 1:] @ n.w[1:], ["StridedSlice"]),
    "concatenation": (lambda x, n: tf.concat([x[:, :2], x[:, 2:]], 1) @ n.w, []),
    "clip": (lambda x, n: n(tf.clip_by_value(x, 0.0, 1.0)), []),
    "rounding": (lambda x, n: n(tf.round(x)), ["Round"]),
    "integer cast": (
        lambda x, n: n(tf.cast(tf.cast(x, tf.int32), tf.float32)),
        ["Cast", "int32", "rounds"],
    ),
    "half precision": (_mixed(tf.float16), ["Cast"]),
    "bfloat16": (_mixed(tf.bfloat16), ["Cast"]),
    "batch product": (lambda x, n: tf.einsum("ni,io->no", x, n.w), ["Einsum"]),
    "no features axis": (
        lambda x, n: tf.reshape(tf.reshape(x, (-1, 2, 2)) @ tf.ones((2, 2)), (-1, 4)),
        [],
    ),
    "softmax inside": (lambda x, n: tf.nn.softmax(x @ n.w) @ n.v, ["MatMul", "softmax"]),
    "log of softmax": (lambda x, n: tf.math.log(tf.nn.softmax(n(x))), ["Log"]),
    "softmax of pixels": (
        lambda x, n: tf.reshape(tf.nn.softmax(tf.reshape(x, (-1, 2, 2))), (-1, 4)),
        ["Softmax"],
    ),
    "scaled softmax": (lambda x, n: -tf.nn.softmax(n(x)), ["Neg", "softmax"]),
    "one unit": (lambda x, n: n(x) @ tf.ones((3, 1)), ["one number", "sigmoid"]),
    "one unit, softmax": (lambda x, n: tf.nn.softmax(n(x) @ tf.ones((3, 1))), []),
    "tanh at the end": (lambda x, n: tf.tanh(n(x)), ["tanh"]),
    "softplus at the end": (lambda x, n: tf.nn.softplus(n(x)), ["softplus"]),
    "three dimensions": (lambda x, n: tf.reshape(n(x), (-1, 3, 1)), ["(None, 3, 1)"]),
    "one dimension": (lambda x, n: tf.reshape(n(x) @ tf.ones((3, 1)), (-1,)), ["output"]),
    "classes only": (lambda x, n: tf.argmax(n(x), axis=1), ["int64"]),
    "two matrices": (lambda x, n: {"a": n(x), "b": -n(x)}, ["'logits'"]),
    "logits are classes": (lambda x, n: {"logits": tf.argmax(n(x), axis=1)}, []),
    "constant": (lambda x, n: tf.zeros((2, 3)) + 2.0 * tf.transpose(n.v)[:, 0], []),
    "loop": (_loop, ["While"]),
    "condition": (
        lambda x, n: tf.cond(tf.reduce_sum(x) > 0.0, lambda: n(x), lambda: -n(x)),
        ["If"],
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_graphs_without_a_rule_are_refused_by_name(case, tmp_path):
    body, words = UNREADABLE[case]
    assert_refused(export(tmp_path / "model", body), *words)


HALF = {
    "tanh": tf.tanh,
    "silu": lambda x: x * tf.sigmoid(x),
    "log_sigmoid": lambda x: -tf.nn.softplus(-x),
    "softmax": tf.nn.softmax,
    "negative": lambda x: -x,
    "twice": lambda x: x + x,
}


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("case", HALF)
def test_arithmetic_in_half_precision_is_refused(case, dtype, tmp_path):
    """It rounds a thousand times as much as any certificate charges."""

    def body(x, net):
        part = HALF[case](x)
        return part if case == "softmax" else net(tf.cast(part, tf.float32))

    specs = [tf.TensorSpec((None, 4), dtype)]
    assert_refused(export(tmp_path / "model", body, specs), dtype.name, "only float32")


def test_inputs_in_half_precision_are_read(tmp_path):
    def body(x, net):
        return net(tf.cast(tf.reshape(tf.reshape(x, (-1, 2, 2)), (-1, 4)), tf.float32))

    specs = [tf.TensorSpec((None, 4), tf.float16)]
    served = saved_model.read(export(tmp_path / "model", body, specs))
    served.check(np.arange(8, dtype=np.float16).reshape(2, 4))


def _small_integers(x, net):
    """A server multiplies 20 · 13 in eight bits."""
    size = tf.reduce_prod(tf.constant([20, 13], tf.int8), keepdims=True)
    shape = tf.concat([tf.shape(x)[:1], tf.cast(size, tf.int32), [-1]], 0)
    return tf.transpose(tf.reshape(x, shape), (0, 2, 1))[:, 0]


def _wrapping(x, net):
    """65536² is 0 in 32 bits."""
    size = tf.reduce_prod(tf.constant([65536, 65536]), keepdims=True)
    return net(tf.reshape(x, tf.concat([tf.shape(x)[:1], size + 4], 0)))


@pytest.mark.parametrize(
    ("body", "word"), [(_small_integers, "int8"), (_wrapping, "wrap around")], ids=["int8", "2^32"]
)
def test_integers_that_a_server_would_wrap_are_refused(body, word, tmp_path):
    specs = [tf.TensorSpec((None, 260 if word == "int8" else 4), tf.float32)]
    assert_refused(export(tmp_path / "model", body, specs), word)


def test_a_constant_that_overflows_its_cast_is_refused(tmp_path):
    def body(x, net):
        return net(x * tf.cast(net.big, tf.float32))

    net = Net()
    net.big = tf.Variable(1e60, dtype=tf.float64)
    assert_refused(export(tmp_path / "model", body, net=net), "too large for float32")


def test_relu_is_read_but_has_no_curvature(tmp_path):
    path = export(tmp_path / "model", lambda x, n: tf.nn.relu(x @ n.w) @ n.v)
    network = saved_model.read(path).network
    assert [activation.name for activation in network.activations] == ["relu"]
    for refuses in (CurvatureCertificate, curvature_bounds):
        with pytest.raises(
            InputError, match="'relu' is not differentiable.*methods crown and.*softplus"
        ):
            refuses(network)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["w", "v"])
def test_weights_that_are_not_finite_are_refused(bad, name, tmp_path):
    net = Net()
    variable = getattr(net, name)
    variable.assign(tf.tensor_scatter_nd_update(variable, [[1, 2]], [bad]))
    assert_refused(export(tmp_path / "model", net=net), "NaN or infinite")


STEPS = {
    "divided by zero": lambda x, n: n(x / tf.constant([1.0, 0.0, 1.0, 1.0])),
    "root of a negative": lambda x, n: n(x * tf.sqrt(tf.constant(-1.0))),
    "shifted by infinity": lambda x, n: n(x) + tf.constant(np.inf),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", STEPS)
def test_folding_that_leaves_the_numbers_is_refused(case, tmp_path):
    assert_refused(export(tmp_path / "model", STEPS[case]), "NaN or infinite")


# Keras models, exported and live


def _residual():
    image = keras.Input((4,))
    return keras.Model(image, L.Dense(3)(L.Add()([image, L.Dense(4, "tanh")(image)])))


def _two_inputs():
    inputs = [keras.Input((4,)), keras.Input((4,))]
    return keras.Model(inputs, L.Dense(3)(L.Concatenate()(inputs)))


def _stack(*layers, shape=(4,)):
    return lambda: keras.Sequential(
        [keras.Input(shape), *(layer() for layer in layers), L.Dense(3)]
    )


KERAS = {
    "leaky relu": (_stack(lambda: L.Dense(5), L.LeakyReLU), "LeakyRelu"),
    "elu with alpha": (_stack(lambda: L.Dense(5), lambda: L.ELU(alpha=0.5)), "op "),
    "max pooling": (_stack(lambda: L.MaxPool2D(2), L.Flatten, shape=(4, 4, 1)), "MaxPool"),
    "mixed float16": (_stack(lambda: L.Dense(5, "tanh", dtype="mixed_float16")), "float16"),
    "mixed bfloat16": (_stack(lambda: L.Dense(5, "tanh", dtype="mixed_bfloat16")), "bfloat16"),
    "lstm": (_stack(lambda: L.LSTM(5), shape=(3, 4)), ""),
    "layer norm": (_stack(L.LayerNormalization), ""),
    "unknown size": (_stack(L.GlobalAveragePooling1D, shape=(None, 4)), ""),
    "residual": (_residual, "depend on the input"),
    "two inputs": (_two_inputs, "2 inputs"),
}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("case", KERAS)
def test_keras_models_without_a_rule_are_refused(case, live, tmp_path):
    build, word = KERAS[case]
    model = build()
    if not live:
        model.export(str(tmp_path / "model"), verbose=False)
    assert_refused(model if live else tmp_path / "model", word)


def test_a_model_without_a_shape_is_refused():
    assert_refused(keras.Sequential([L.Dense(3)]), "not a built Keras model")


@pytest.mark.parametrize("source", [None, 3, Net()])
def test_things_that_are_no_model_are_refused(source):
    with pytest.raises(InputError, match="not a built Keras model"):
        saved_model.read(source)


# Hostile models: refused unloaded, and nothing has run


def _write(x, net, marker):
    tf.io.write_file(marker, "owned")
    return net(x)


def _python(x, net, marker):
    return tf.ensure_shape(tf.py_function(lambda v: net(v), [x], tf.float32), (None, 3))


def _numpy(x, net, marker):
    return tf.ensure_shape(tf.numpy_function(lambda v: v[:, :3], [x], tf.float32), (None, 3))


def _read(x, net, marker):
    size = tf.strings.length(tf.io.read_file("/etc/passwd"))
    return net(x) + tf.cast(size, tf.float32)


def _print(x, net, marker):
    tf.print(x)
    return net(x)


def _save(x, net, marker):
    saved = tf.raw_ops.SaveV2(
        prefix=marker, tensor_names=["a"], shape_and_slices=[""], tensors=[net.v]
    )
    with tf.control_dependencies([saved]):
        return net(tf.identity(x))


def _restore(x, net, marker):
    stolen = tf.raw_ops.RestoreV2(
        prefix=marker, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32]
    )
    return net(x) + tf.reshape(stolen[0], (1, 3))


def _merge(x, net, marker):
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=[marker], destination_prefix=marker + "2")
    return net(x)


def _data(x, net, marker):
    for line in tf.data.TextLineDataset("/etc/passwd"):
        x += tf.cast(tf.strings.length(line), tf.float32)
    return net(x)


def _debug(x, net, marker):
    return net(tf.raw_ops.DebugIdentityV2(input=x, debug_urls=[f"file://{marker}"]))


def _files(x, net, marker):
    return net(x) + tf.cast(tf.size(tf.io.matching_files("/etc/*")), tf.float32)


def _nested(x, net, marker):
    @tf.function
    def inner(x):
        return _write(x, net, marker)

    @tf.function
    def outer(x):
        return inner(x) * 2.0

    return outer(x)


def _saver_like(x, net, marker):
    @tf.function
    def __inference__traced_save(x):
        return _read(x, net, marker)

    return __inference__traced_save(x)


def _mapped(x, net, marker):
    return tf.map_fn(lambda row: _write(row[None], net, marker)[0], x)


HOSTILE = {
    "write_file": (_write, "WriteFile"),
    "py_function": (_python, "EagerPyFunc"),
    "numpy_function": (_numpy, "PyFunc"),
    "read_file": (_read, "ReadFile"),
    "print": (_print, "StringFormat"),
    "save": (_save, "SaveV2"),
    "restore": (_restore, "RestoreV2"),
    "merge": (_merge, "MergeV2Checkpoints"),
    "dataset": (_data, ""),
    "debug": (_debug, "DebugIdentityV2"),
    "matching_files": (_files, "MatchingFiles"),
    "nested": (_nested, "WriteFile"),
    "named like the saver": (_saver_like, "ReadFile"),
    "mapped": (_mapped, ""),
}


def hostile(tmp_path, body):
    """The model, and the file that it would write."""
    marker = tmp_path / "marker"
    path = export(tmp_path / "model", lambda x, net: body(x, net, str(marker)))
    return path, marker


def assert_nothing_ran(marker):
    assert list(marker.parent.glob("marker*")) == []


@pytest.mark.parametrize("case", HOSTILE)
def test_ops_that_reach_outside_are_refused_unloaded(case, tmp_path, nothing_is_loaded):
    body, op = HOSTILE[case]
    path, marker = hostile(tmp_path, body)
    assert_refused(path, op, "not on the list of ops that are safe")
    assert_nothing_ran(marker)


def test_an_unsafe_function_that_no_signature_calls_is_refused(tmp_path, nothing_is_loaded):
    net, marker = Net(), tmp_path / "marker"
    net.initialise = tf.function(
        lambda x: _write(x, net, str(marker)), input_signature=[spec(None, 4)]
    )
    assert_refused(export(tmp_path / "model", net=net), "WriteFile")
    assert_nothing_ran(marker)


def name_as_saver(meta, function):
    """Adds a node that calls it and names that node in `saver_def`; the real saver stays."""
    node = meta.graph_def.node.add(name="helper", op="StatefulPartitionedCall")
    node.attr["f"].func.name = function
    meta.saver_def.filename_tensor_name = "helper:0"


def assert_unread_and_unrun(path, marker):
    """Refused; and if not, at least say what got as far as to run."""
    try:
        saved_model.read(path).check(np.ones((2, 4), np.float32))
    except InputError:
        assert_nothing_ran(marker)
        return
    assert_nothing_ran(marker)
    pytest.fail("it was read")


@pytest.mark.parametrize("body", [_save, _restore, _write, _merge])
def test_a_saver_that_is_the_signature_is_refused(body, tmp_path, nothing_is_loaded):
    """The saver's own functions may save; naming the served one as the saver must not help."""
    path, marker = hostile(tmp_path, body)
    with edited(path) as meta:
        (output,) = meta.signature_def["serving_default"].outputs.values()
        meta.saver_def.filename_tensor_name = output.name
    assert_refused(path)
    assert_nothing_ran(marker)


def test_a_signature_that_is_the_saver_is_refused(tmp_path):
    """The object graph hands out functions too: serving must not reach the one that saves."""
    path, marker = hostile(tmp_path, _save)
    with edited(path) as meta:
        (output,) = meta.signature_def["serving_default"].outputs.values()
        nodes = meta.graph_def.node
        serving = next(node for node in nodes if node.name == output.name.split(":")[0])
        name_as_saver(meta, serving.attr["f"].func.name)
        nodes.remove(serving)
    assert_unread_and_unrun(path, marker)


def test_registered_classes_are_refused(tmp_path):
    """TensorFlow makes a table of any object that carries this name, and runs its initialiser."""
    net, marker = Net(), tmp_path / "marker"
    net.table = tf.Module()
    net.table._initialize = tf.function(
        lambda: _save(tf.zeros((1, 4)), net, str(marker)), input_signature=[]
    )
    net.table._create_resource = tf.function(lambda: tf.constant(0.0), input_signature=[])
    path = export(tmp_path / "model", net=net)
    with edited(path) as meta:
        nodes = meta.object_graph_def.nodes
        table = next(c.node_id for c in nodes[0].children if c.local_name == "table")
        nodes[table].registered_name = "tf.StaticHashTable"
        children = {child.local_name: child.node_id for child in nodes[table].children}
        (name,) = nodes[children["_initialize"]].function.concrete_functions
        name_as_saver(meta, name)
    assert_unread_and_unrun(path, marker)


# The op list alone, on graphs written by hand: {function: [op or @function called]}


def _fill(node, index, what):
    node.name = f"n{index}"
    node.op = "StatefulPartitionedCall" if what.startswith("@") else what
    if what.startswith("@"):
        node.attr["f"].func.name = what[1:]


def screen(main, **functions):
    """Screens a main graph `{node name: op or @function}`; the node `saver` is the saver's."""
    definition = graph_pb2.GraphDef()
    for index, (name, what) in enumerate(main.items()):
        node = definition.node.add()
        _fill(node, index, what)
        node.name = name
    for name, body in functions.items():
        function = definition.library.function.add()
        function.signature.name = name
        for index, what in enumerate(body):
            _fill(function.node_def.add(), index, what)
    saver = saver_pb2.SaverDef(
        filename_tensor_name="path:0", save_tensor_name="saver:0", restore_op_name="restorer"
    )
    allow_list.refuse_unsafe_ops(definition, saver, (), "the model")


MAIN = {"path": "Placeholder", "saver": "@save", "restorer": "@restore", "serve": "@net"}


def test_saving_and_restoring_by_the_saver_alone_is_allowed():
    screen(
        MAIN,
        save=["StringJoin", "@shard", "MergeV2Checkpoints"],
        shard=["SaveV2"],
        restore=["RestoreV2"],
        net=["MatMul", "Softplus"],
    )


SCREENED = {
    "in the main graph": (dict(MAIN, extra="SaveV2"), {}, "SaveV2"),
    "saver writes": (MAIN, {"save": ["WriteFile"]}, "WriteFile"),
    "saver itself": (dict(MAIN, saver="WriteFile"), {}, "WriteFile"),
    "saver op": (dict(MAIN, saver="SaveV2"), {}, "SaveV2"),
    "served too": (MAIN, {"save": ["SaveV2"], "net": ["@save"]}, "SaveV2"),
    "served below": (
        MAIN,
        {"save": ["@a"], "a": ["@b"], "b": ["SaveV2"], "net": ["@c"], "c": ["@b"]},
        "SaveV2",
    ),
    "served above": (MAIN, {"save": ["@a"], "a": ["@b"], "b": ["SaveV2"], "net": ["@a"]}, "SaveV2"),
    "write shared": (MAIN, {"save": ["@w"], "w": ["WriteFile"], "net": ["@w"]}, "WriteFile"),
    "only by name": (MAIN, {"__inference__traced_save_7": ["RestoreV2"]}, "RestoreV2"),
    "never called": (MAIN, {"idle": ["EagerPyFunc"]}, "EagerPyFunc"),
    "called as an op": (MAIN, {"save": ["@Conv1D"], "Conv1D": ["SaveV2"], "net": ["Conv1D"]}, ""),
}


@pytest.mark.parametrize("case", SCREENED)
def test_ops_are_screened_wherever_they_hide(case):
    main, functions, op = SCREENED[case]
    with pytest.raises(InputError, match=f"the model.*{op}"):
        screen(main, **functions)


def test_a_second_function_of_the_same_name_is_screened_too():
    definition = graph_pb2.GraphDef()
    for index, op in enumerate(["WriteFile", "Softplus"]):
        function = definition.library.function.add()
        function.signature.name = "net"
        _fill(function.node_def.add(), index, op)
    with pytest.raises(InputError, match="WriteFile"):
        allow_list.refuse_unsafe_ops(definition, saver_pb2.SaverDef(), (), "the model")


# Objects with code of their own


def _table(tmp_path):
    keys, values = tf.constant(["a"]), tf.constant([1.0])
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0.0)


def _file_table(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    number, line = tf.lookup.TextFileIndex.LINE_NUMBER, tf.lookup.TextFileIndex.WHOLE_LINE
    source = tf.lookup.TextFileInitializer(str(words), tf.string, line, tf.int64, number)
    return tf.lookup.StaticHashTable(source, 0)


def _mutable_table(tmp_path):
    return tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)


def _asset(tmp_path):
    (tmp_path / "words.txt").write_text("a\n")
    return tf.saved_model.Asset(str(tmp_path / "words.txt"))


OBJECTS = {"table": _table, "table of a file": _file_table, "table that grows": _mutable_table}


@pytest.mark.parametrize("make", [*OBJECTS.values(), _asset], ids=[*OBJECTS, "asset"])
@pytest.mark.parametrize("used", [False, True])
def test_objects_with_code_of_their_own_are_refused(make, used, tmp_path, nothing_is_loaded):
    net = Net()
    net.extra = make(tmp_path)

    def body(x, net):
        if used and hasattr(net.extra, "size"):
            return net(x) + tf.cast(net.extra.size(), tf.float32)
        return net(x)

    assert_refused(export(tmp_path / "model", body, net=net))


def _with_table(path):
    """A plain model with a child object that only functions hang on, and nothing unsafe."""
    net = Net()
    net.table = tf.Module()
    for name in ("_initialize", "_create_resource"):
        setattr(net.table, name, tf.function(lambda: tf.constant(0.0), input_signature=[]))
    return export(path, net=net)


CHANGES = {
    "resource": lambda node: node.resource.SetInParent(),
    "asset": lambda node: node.asset.SetInParent(),
    "registered class": lambda node: setattr(node, "registered_name", "tf.StaticHashTable"),
    "registered saver": lambda node: setattr(node, "registered_saver", "Custom.saver"),
    "save functions": lambda node: node.saveable_objects["VARIABLE_VALUE"].SetInParent(),
}


@pytest.mark.parametrize("case", CHANGES)
def test_objects_that_loading_would_run_are_refused(case, tmp_path, nothing_is_loaded):
    path = _with_table(tmp_path / "model")
    with edited(path) as meta:
        nodes = meta.object_graph_def.nodes
        table = next(c.node_id for c in nodes[0].children if c.local_name == "table")
        CHANGES[case](nodes[table])
    assert_refused(path, "code of its own")


def test_a_child_object_with_functions_alone_is_fine(tmp_path):
    assert saved_model.read(_with_table(tmp_path / "model")).network.classes == 3


def test_data_sets_are_refused(tmp_path, nothing_is_loaded):
    net = Net()
    net.data = tf.data.Dataset.range(3)
    assert_refused(export(tmp_path / "model", net=net))


def test_tensorflow_1_models_are_refused(tmp_path, nothing_is_loaded):
    path = tmp_path / "model"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4))
        w = tf.compat.v1.get_variable("w", (4, 3), use_resource=True)
        logits = x @ w
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.saved_model.simple_save(session, str(path), {"x": x}, {"logits": logits})
    assert_refused(path, "TensorFlow 1")


def test_check_refuses_in_one_line(tmp_path):
    served = saved_model.read(export(tmp_path / "model"))
    wrong = dataclasses.replace(served, call=lambda x: served.call(x) + 1.0)
    with pytest.raises(InputError) as caught:
        wrong.check(np.ones((2, 4), np.float32))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def _by_arithmetic(x, net):
    n = tf.shape(x)[0]
    factor = tf.reduce_prod(tf.constant([2, 2])[0:n])  # 2 for a batch of one, else 4
    mixed = tf.transpose(tf.reshape(x, tf.stack([n, factor, -1])), [0, 2, 1])
    return net(tf.reshape(mixed, tf.stack([n, 4])))


def _by_squeeze(x, net):
    rank = tf.shape(tf.squeeze(x))[-1:]  # of a batch of one, the only axis
    return net(tf.reshape(x, tf.concat([tf.shape(x)[:1], rank], 0)))


def _by_length(x, net):
    n = tf.shape(x)[0]
    return net(tf.reshape(x, tf.stack([n, 4 * n // n])))


@pytest.mark.parametrize("body", [_by_arithmetic, _by_squeeze, _by_length])
def test_models_that_look_at_the_batch_size_are_refused(tmp_path, body):
    """A server's batch of one would get another function than the one certified."""
    assert_refused(export(tmp_path, body))


def test_negated_integers_are_refused(tmp_path):
    """−(−128) is −128 in int8."""
    spec = [tf.TensorSpec((None, 4), tf.int8)]
    body = lambda x, net: net(tf.cast(-x, tf.float32))  # noqa: E731
    assert_refused(export(tmp_path, body, spec), "Neg", "wrap around")


def test_a_signature_that_counts_is_refused(tmp_path):
    net = Net()
    net.calls = tf.Variable(0.0)

    def body(x, net):
        net.calls.assign_add(1.0)
        return net(x) * net.calls

    assert_refused(export(tmp_path, body, net=net))


def test_an_unreadable_name_is_an_input_error():
    with pytest.raises(InputError, match="cannot be read"):
        saved_model.read("x" * 5000)
