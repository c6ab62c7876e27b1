"""Coverage-guided fuzzing of the readers of untrusted files: they may raise only InputError.

    pip install atheris
    nice python benchmarks/fuzz.py --target requests --seconds 600 --folder /tmp/fuzz
    nice python benchmarks/fuzz.py --target model --seconds 600 --folder /tmp/fuzz

`requests` is a TFRecord file, or a record in one, on its way to a batch of examples. `model` is a
`saved_model.pb` on its way to the flat graph that a server answers by, with the variables of
another one; or a frozen graph on its way to a network; or the index of variables. TensorFlow's own
loader is never run. Inputs that crash, hang or blow up are written to the folder; give one as
`--replay FILE` to see it again.
"""

import argparse
import os
import pathlib
import random
import struct
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import atheris
import logged
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

with atheris.instrument_imports(
    include=["keras_curv.saved_model", "keras_curv.lowering", "keras_curv.serving"]
):
    from keras_curv.lowering import graph, patterns
    from keras_curv.lowering.rules import registry
    from keras_curv.saved_model import checkpoint, meta_graph, server
    from keras_curv.serving import requests, versions
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_curv.errors import InputError
from keras_curv.saved_model.crc32c import masked_crc32c
from keras_curv.saved_model.files import ModelFiles

SHAPE = (4,)


def export(folder):
    """A small model, its SavedModel and frozen graph as seeds."""
    net = tf.Module()
    net.w = tf.Variable(np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(4, 5))
    net.v = tf.Variable(np.linspace(-1.0, 1.0, 15, dtype=np.float32).reshape(5, 3))

    @tf.function(input_signature=[tf.TensorSpec((None, *SHAPE), tf.float32, name="x")])
    def logits(x):
        hidden = tf.nn.softplus(tf.reshape(x * 2.0 - 1.0, (-1, 4)) @ net.w)
        return {"logits": tf.nn.softmax(hidden @ net.v)}

    tf.saved_model.save(net, str(folder), signatures=logits)
    image = tf.TensorSpec((None, 4), tf.float32, name="x")
    kernel = tf.reshape(tf.range(8, dtype=tf.float32), (2, 2, 1, 2))

    @tf.function(input_signature=[image])
    def convolution(x):
        x = tf.nn.conv2d(tf.reshape(x, (tf.shape(x)[0], 2, 2, 1)), kernel, 1, "SAME")
        x = tf.nn.avg_pool2d(tf.transpose(x * tf.sigmoid(x), (0, 2, 1, 3)), 2, 1, "SAME")
        return tf.reduce_mean(tf.expand_dims(x, 1), (2, 3))[:, 0] @ tf.ones((2, 3))

    frozen = []
    for function in (logits, convolution):
        concrete = function.get_concrete_function()
        frozen.append(convert_variables_to_constants_v2(concrete).graph.as_graph_def())
    return frozen


class Requests:
    """`flag` byte: an odd one frames what follows as one valid record."""

    messages = ()

    def __init__(self, folder):
        self.file = folder / "log"
        export(folder / "model")
        self.versions = [versions.Versions(str(folder / "model"), method="crc")]

    def seeds(self):
        x = np.ones((2, 4), np.float32)
        logs = [
            logged.predict(x, timestamp=7, served=1),
            logged.predict(x.astype(np.float64), "y", label="stable"),
            logged.predict(tf.make_tensor_proto(0.5, shape=(3, 4)).SerializeToString()),
            logged.field(2, b"") + logged.field(1, logged.field(4, 9)),
        ]
        yield from (b"\1" + log for log in logs)
        yield b"\0" + b"".join(self.framed(log) for log in logs)

    @staticmethod
    def framed(log):
        length = struct.pack("<Q", len(log))
        check = struct.pack("<I", masked_crc32c(length))
        return length + check + log + struct.pack("<I", masked_crc32c(log))

    def __call__(self, data):
        self.file.write_bytes(self.framed(data[1:]) if data[:1] > b"\0" else data[1:])
        log = requests.RequestLog([str(self.file)], self.versions)
        log.survey()
        for request in log.requests():
            assert request.count > 0


class Model:
    """Flag byte: 0 a SavedModel, 1 a frozen graph, 2 an index of variables."""

    messages = (saved_model_pb2.SavedModel, graph_pb2.GraphDef)

    def __init__(self, folder):
        self.frozen = export(folder / "model")
        self.folder = folder / "model"
        self.files = ModelFiles.read(self.folder)

    def seeds(self):
        yield b"\0" + (self.folder / "saved_model.pb").read_bytes()
        for definition in self.frozen:
            yield b"\1" + definition.SerializeToString()
        yield b"\2" + (self.folder / "variables" / "variables.index").read_bytes()

    def __call__(self, data):
        kind, content = data[:1], data[1:]
        if kind == b"\0":
            meta = meta_graph.parse(content, "fuzz")
            objects = self.files.object_graph()
            server.answer(meta, "serving_default", self.files.tensor, objects, "fuzz")
        elif kind == b"\1":
            definition = graph_pb2.GraphDef()
            try:
                definition.ParseFromString(content)
            except Exception:  # in the product TensorFlow makes this graph: it parses
                return
            graph.read_network(
                definition,
                inputs={"x": SHAPE},
                output=definition.node[-1].name if definition.node else "",
                source="fuzz",
            )
        else:
            checkpoint.entries_of(content, [1000], "fuzz")


def mutated(message, rng):
    """Changes one field somewhere in a message: cleared, doubled, swapped or given a new value."""
    while True:
        fields = [(f, v) for f, v in message.ListFields()]
        if not fields:
            return
        field, value = rng.choice(fields)
        if field.message_type is None:
            break
        if field.message_type.GetOptions().map_entry:
            key = rng.choice(sorted(value))
            if field.message_type.fields_by_name["value"].message_type is None:
                return
            if rng.random() < 0.1:
                del value[key]
                return
            message = value[key]
        elif field.is_repeated:
            index = rng.randrange(len(value))
            if rng.random() < 0.15:
                change = rng.randrange(3)
                if change == 0:
                    del value[index]
                elif change == 1:
                    value.add().CopyFrom(value[index])
                else:
                    value[index].CopyFrom(rng.choice(value))
                return
            message = value[index]
        else:
            message = value
    numbers = (0, 1, -1, 2, 3, 4, 7, 2**31 - 1, 2**40, -(2**63))
    if field.is_repeated:
        index = rng.randrange(len(value))
        if rng.random() < 0.3:
            del value[index]
        elif rng.random() < 0.5:
            value.append(value[index])
        else:
            value[index] = fresh(value[index], rng, numbers)
    else:
        setattr(message, field.name, fresh(value, rng, numbers))


def fresh(value, rng, numbers):
    """Another value of the same type, within its range."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        number = rng.choice((*numbers, value + 1, value - 1))
        return number if abs(number) < 2**31 else value
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf"), value * 2))
    if isinstance(value, str):
        return rng.choice((*OPS, value + "x", value[:-1]))
    return bytes(rng.choice(value or b"\0") for _ in range(len(value) + rng.randrange(-1, 2)))


OPS = sorted({*registry.RULES, *patterns.NAMES, "Const", "Placeholder", "x", ""})


def mutate(target):
    """A mutator that knows the messages, and leaves the rest to libFuzzer."""

    def custom(data, max_size, seed):
        rng = random.Random(seed)
        kind = data[0] if data else 0
        if kind < len(target.messages) and rng.random() < 0.9:
            message = target.messages[kind]()
            try:
                message.ParseFromString(data[1:])
                for _ in range(1 + int(rng.expovariate(1.0))):
                    mutated(message, rng)
                out = bytes([kind]) + message.SerializeToString()
                return out if len(out) <= max_size else data
            except (ValueError, TypeError, KeyError, OverflowError):
                pass  # what the message does not take, or does not parse
            except Exception as error:
                if type(error).__name__ not in ("DecodeError", "EncodeError"):
                    raise
        return data[:1] + atheris.Mutate(data[1:], max(max_size - 1, 1))

    return custom


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=["model", "requests"], required=True)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--replay", type=pathlib.Path)
    options = parser.parse_args()
    folder = options.folder / options.target
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    target = {"model": Model, "requests": Requests}[options.target](folder)
    for index, seed in enumerate(target.seeds()):
        (corpus / f"seed{index}").write_bytes(seed)

    def run(data):
        try:
            target(data)
        except InputError as error:
            assert str(error).isprintable()

    if options.replay:
        target(options.replay.read_bytes())
        return
    arguments = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={options.seconds}",
        f"-artifact_prefix={folder}/",
        "-max_len=65536",
        "-timeout=20",
        "-rss_limit_mb=6000",
        "-print_final_stats=1",
    ]
    if target.messages:
        atheris.Setup(arguments, run, custom_mutator=mutate(target))
    else:
        atheris.Setup(arguments, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
