"""Files of Keras models that hold code, ask for more than they have, or are not what they say."""

from __future__ import annotations

import copy
import functools
import json
import os
import pathlib
import struct
import tempfile
import warnings
import zipfile

import keras
import numpy as np

from hostile_inputs.threats import special
from keras_curv.certificates.certifier import Certifier

CASES = {}
ARCHIVE, LEGACY = "model.keras", "model.h5"
CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
X = np.linspace(-1.0, 1.0, 8, dtype=np.float32).reshape(2, 4)


def attempt(folder):
    """Certifies by the file that is there."""
    (path,) = (folder / name for name in (ARCHIVE, LEGACY) if os.path.lexists(folder / name))
    certifier = Certifier(str(path), method="lipschitz")
    certifier.certify(X)


@functools.cache
def saved():
    """A small model, functional, as an archive's members and as an `.h5` file."""
    L = keras.layers
    keras.utils.set_random_seed(4)
    x = keras.Input((4,), name="x")
    chain = keras.Sequential([keras.Input((5,)), L.Dense(3, "tanh", name="b")], name="chain")
    hidden = L.BatchNormalization(name="norm")(L.Dense(5, "softplus", name="a")(x))
    model = keras.Model(x, L.Dense(3, name="c")(chain(hidden)), name="small")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' own
        for name in (ARCHIVE, LEGACY):
            model.save(pathlib.Path(folder, name))
        with zipfile.ZipFile(pathlib.Path(folder, ARCHIVE)) as file:
            members = {name: file.read(name) for name in file.namelist()}
        return members, pathlib.Path(folder, LEGACY).read_bytes()


def archive(folder, changed=(), packed=zipfile.ZIP_STORED):
    """Writes the archive, some members changed; of None they are left out."""
    with zipfile.ZipFile(folder / ARCHIVE, "w", packed) as file:
        for name, content in (saved()[0] | dict(changed)).items():
            if content is not None:
                file.writestr(name, content)


def config():
    """The config of the model, to be changed."""
    return json.loads(saved()[0][CONFIG])


def configured(folder, change):
    """Writes the archive with `change(config, layers by name)` made."""
    made = config()
    layers = {layer["name"]: layer for layer in made["config"]["layers"]}
    returned = change(made, layers)
    text = json.dumps(made if returned is None else returned).encode()
    archive(folder, {CONFIG: text})


def _case(name):
    def register(build):
        CASES[f"keras: {name}"] = build
        return build

    return register


def _config(name, change):
    _case(name)(lambda folder: configured(folder, change))


def given(name, **arguments):
    """Changes arguments of a layer."""
    return lambda made, layers: layers[name]["config"].update(arguments)


def kind(name, **said):
    """Changes what a layer says that it is."""
    return lambda made, layers: layers[name].update(said)


LAMBDA = {"class_name": "__lambda__", "config": {"value": "4wEAAAAA", "defaults": None}}
FUNCTION = {"module": "os", "class_name": "function", "config": "system", "registered_name": None}
_config("a Lambda", kind("a", class_name="Lambda", config={"name": "a", "function": LAMBDA}))
_config("a lambda as an activation", given("a", activation=LAMBDA))
_config("os.system as an activation", given("a", activation=FUNCTION))
_config("an activation of this package that is none", given("a", activation="keras_curv>train"))
_config("a layer of the user", kind("a", module="mine", registered_name="mine>Dense"))
_config("a layer of another module", kind("a", module="os", class_name="system"))
_config("a layer that is a function of keras", kind("a", class_name="deserialize"))
_config("a layer named by a path", kind("a", class_name="keras.layers.Dense"))
_config("a layer whose class is a list", kind("a", class_name=["Dense"]))
_config("a layer of TFSMLayer", kind("a", class_name="TFSMLayer", config={"filepath": "/etc"}))
_config("a layer of TorchModuleWrapper", kind("a", class_name="TorchModuleWrapper"))
_config("a StringLookup of a file", kind("a", class_name="StringLookup"))
_config("an initializer that is a lambda", given("a", kernel_initializer=LAMBDA))
_config("a regularizer of os.system", given("a", kernel_regularizer=FUNCTION))
_config("a model of another class", lambda made, layers: made.update(class_name="Mine"))
_config("a model of another module", lambda made, layers: made.update(module="os"))
_config("a config that is a list", lambda made, layers: [made])
_config("a config without layers", lambda made, layers: made["config"].pop("layers") and None)
_config("no inputs", lambda made, layers: made["config"].update(input_layers=[]))
_config("no outputs", lambda made, layers: made["config"].update(output_layers={}))
_config("a custom object to be imported", lambda made, layers: made["config"].update(module="os"))


def sized(size):
    return lambda made, layers: layers["x"]["config"].update(batch_shape=[None, size])


for size in (0, -1, 2**31, 2**63, 10**300, 1.5, True, "5", None, [5], {}):
    _config(f"units {str(size)[:9]}", given("a", units=size))
    _config(f"an input of {str(size)[:9]}", sized(size))
_config("65536 units", given("a", units=65536))
_config("an input of no rank", given("x", batch_shape=[]))
_config("an input of 99 axes", given("x", batch_shape=[1] * 99))
_config("an input of strings", given("x", dtype="string"))
_config("an input of a type that is none", given("x", dtype="os"))
_config("an input that is ragged", given("x", ragged=True))
_config("half precision", given("a", dtype="float16"))
_config("a policy of int8", given("a", dtype={"class_name": "QuantizedDTypePolicy", "config": {}}))
_config("an argument that nobody knows", given("a", call="system"))
_config("LoRA", given("a", lora_rank=4))
_config("batch renormalization", given("norm", renorm=True))
for axis in (7, -9, [1, 2], None, 10**9):
    _config(f"normalized over {axis}", given("norm", axis=axis))
_config("an epsilon of 1e308", given("norm", epsilon=1e308))
_config("a layer that is called on itself", lambda made, layers: _history(layers["a"], "a"))
_config("a layer that gets a later one", lambda made, layers: _history(layers["a"], "c"))
_config("a layer that gets what is not there", lambda made, layers: _history(layers["a"], "z"))
for number in (-1, 1, 255, 2**40, None, 0.0, True):
    _config(
        f"the call {number} of a layer", lambda made, layers, number=number: _history(
            layers["norm"], "a", number
        ),
    )  # fmt: skip
_config("training at inference", lambda made, layers: _called(layers["norm"], training=True))
_config("a mask", lambda made, layers: _called(layers["norm"], mask=[1]))
_config("two layers of one name", lambda made, layers: _named(made, layers))
_config("a layer within a layer", given("a", units={"module": "keras.layers"}))
_config("built for another shape", kind("norm", build_config={"input_shape": [None, 1, 5]}))


def _history(layer, name, number=0):
    layer["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = [name, number, 0]


def _called(layer, **kwargs):
    layer["inbound_nodes"][0]["kwargs"] = kwargs


def _named(made, layers):
    made["config"]["layers"].append(layers["a"])


def _wide(made, layers):
    """Many layers that have no weights, each as large as may be."""
    layer = layers["a"]
    layer |= {"class_name": "RepeatVector", "config": {"name": "a", "n": 2**16}}
    layers["norm"] |= {"class_name": "UpSampling1D", "config": {"name": "norm", "size": 2**16}}
    for each in layers.values():
        each.pop("build_config", None)


def _many(made, layers):
    for number in range(10_000):
        each = copy.deepcopy(layers["a"]) | {"name": f"more{number}"}
        each["config"]["name"] = f"more{number}"
        made["config"]["layers"].append(each)


def _deep(made, layers):
    chain = layers["chain"]
    for number in range(100):
        inside = {**chain["config"], "layers": [copy.deepcopy(chain)], "name": f"m{number}"}
        chain = {"class_name": "Sequential", "config": inside}
    layers["chain"]["config"] = chain["config"]


def _joined(made, layers):
    """A layer that gets 65,536 tensors."""
    given = layers["a"]["inbound_nodes"][0]["args"][0]
    layers["norm"] |= {"class_name": "Add", "config": {"name": "norm"}}
    layers["norm"]["inbound_nodes"][0]["args"] = [[given] * 2**14]


_config("a vector repeated 2^16 times", _wide)
_config("ten thousand layers", _many)
_config("a hundred models in models", _deep)
_config("a layer that gets 2^14 tensors", _joined)


def _text(name, text):
    made = text if callable(text) else lambda: text
    _case(f"a config of {name}")(lambda folder: archive(folder, {CONFIG: made()}))


_text("nothing", b"")
_text("null", b"null")
_text("no UTF-8", b'{"class_name": "\xff"}')
_text("a name twice", b'{"class_name": "Sequential", "class_name": "Functional"}')
_text("NaN", b'{"class_name": "Sequential", "config": NaN}')
_text("a number of 400 digits", lambda: saved()[0][CONFIG].replace(b"5", b"9" * 400, 1))
_text("a number of 5,000 digits", b'{"class_name": %s}' % (b"1" * 5000))
_text("a number of 4 MB of digits", b'{"class_name": %s}' % (b"1" * 4_000_000))
_text("brackets of depth 10^5", b"[" * 10**5)
_text("objects of depth 900", b'{"config":' * 900 + b"1" + b"}" * 900)
_text("brackets of depth 900 in a place", lambda: _nested(900))
_text("4 MB of lists", lambda: b'{"config": [%s[]]}' % (b"[]," * 1_300_000))
_text("2^23 bytes", lambda: saved()[0][CONFIG] + b" " * 2**23)


def _nested(depth):
    return saved()[0][CONFIG].replace(b'"units": 5', b'"units": ' + b"[" * depth + b"]" * depth)


# The archive.

_case("no metadata")(lambda folder: archive(folder, {METADATA: None}))
_case("no weights")(lambda folder: archive(folder, {WEIGHTS: None}))
for path in ("../outside", "/etc/x", "assets/x", "config.json\\", "outside", "a/../config.json"):
    _case(f"a member {path!r}")(lambda folder, path=path: archive(folder, {path: b"1"}))
for packed in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
    _case(f"packed by method {packed}")(lambda folder, packed=packed: archive(folder, (), packed))


@_case("a member twice")
def _twice(folder):
    archive(folder, {"confi_.json": b"{}"})
    path = folder / ARCHIVE
    path.write_bytes(path.read_bytes().replace(b"confi_", b"config"))


@_case("a bomb of 2 GiB of zeros as weights")
def _bomb(folder):
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name in (CONFIG, METADATA):
            file.writestr(name, saved()[0][name])
        with file.open(WEIGHTS, "w", force_zip64=True) as stream:
            for _ in range(2**11):
                stream.write(b"\0" * 2**20)


@_case("400 MiB behind the weights")
def _padded(folder):
    archive(folder, {WEIGHTS: saved()[0][WEIGHTS] + b"\0" * (400 * 2**20)})


@_case("400 MiB of ones in the place of weights")
def _ones(folder):
    archive(folder, {WEIGHTS: b"\1" * (400 * 2**20)})


def _lying(folder, packed, size):
    """Says another size of what is unpacked than it has."""
    archive(folder, {WEIGHTS: saved()[0][WEIGHTS] + b"\0" * packed}, zipfile.ZIP_DEFLATED)
    path = folder / ARCHIVE
    raw = bytearray(path.read_bytes())
    entry = raw.index(b"PK\1\2", raw.index(b"PK\1\2"))
    while raw[entry + 46 : entry + 46 + len(WEIGHTS)] != WEIGHTS.encode():
        entry = raw.index(b"PK\1\2", entry + 1)
    raw[entry + 24 : entry + 28] = struct.pack("<I", size)
    path.write_bytes(raw)


_case("weights said to be of 9 bytes")(lambda folder: _lying(folder, 0, 9))
_case("weights said to be of 400 MB")(lambda folder: _lying(folder, 0, 4 * 10**8))
_case("a bomb, said to be of 9 bytes")(lambda folder: _lying(folder, 10**8, 9))


@_case("a hundred thousand members")
def _members(folder):
    with zipfile.ZipFile(folder / ARCHIVE, "w") as file:
        for number in range(100_000):
            file.writestr(f"{number}", b"")


for part in (0, 1, 30, 400, -1, -23):
    for legacy in (False, True):

        @_case(f"cut off at {part}, {LEGACY if legacy else ARCHIVE}")
        def _cut(folder, part=part, legacy=legacy):
            archive(folder)
            whole = saved()[1] if legacy else (folder / ARCHIVE).read_bytes()
            (folder / ARCHIVE).unlink()
            (folder / (LEGACY if legacy else ARCHIVE)).write_bytes(whole[:part])


_case("weights cut off")(lambda folder: archive(folder, {WEIGHTS: saved()[0][WEIGHTS][:3000]}))
_case("an archive in the place of an h5 file")(
    lambda folder: (archive(folder), (folder / ARCHIVE).rename(folder / LEGACY))
)
_case("an h5 file in the place of an archive")(
    lambda folder: (folder / ARCHIVE).write_bytes(saved()[1])
)
for file in (ARCHIVE, LEGACY):
    special(lambda name, make, file=file: _case(f"{name}, as {file}")(
        lambda folder, make=make, file=file: make(folder / file)
    ))  # fmt: skip
