"""A config → a Keras model, of layers from a table, with weights still to be given.

The config says which layers there are and how they are connected. Nothing that it says is run or
looked up: each layer is made here by the class of Keras that the table has, of arguments that were
looked at one by one. Before a layer is called, which makes its weights, the numbers that they take
are counted, and must be left of those that the file has; so a few bytes cannot ask for a lot.

Nodes are processed in the order in which Keras does, so that their numbers mean the same.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

import keras_curv
from keras_curv.errors import InputError
from keras_curv.keras_file import arguments
from keras_curv.keras_file.graph import Place, require_few, tensors_of
from keras_curv.keras_file.stock import RECURRENT, STOCK, Stock
from keras_curv.saved_model import limits

_MODELS = ("Sequential", "Functional", "Model")
_WRAPPERS = (
    *("CRTModel", "CRTRegressor", "CurvatureRegularizer", "CROWNIBPModel", "COAPModel"),
    *("NoiseModel", "PGDModel", "TRADESModel"),
)
_MODULES = re.compile(r"(tf_)?keras(\.src)?(\.(layers|models|engine)(\.[a-z0-9_.]+)?)?")
_CALLS = 280  # of layers, all nested models together
_DEPTH = 8  # of models in models
_INPUT = ("batch_shape", "batch_input_shape")
_COMMON = {"name", "trainable", "dtype", *_INPUT}
_DROPPED = ("_initializer", "_regularizer", "_constraint")  # which nothing says at inference
_REFUSALS = (
    *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError, NotImplementedError),
    tf.errors.OpError,
)
_EXPORT = "export the model, or build it of layers that are read, see docs/methods.md"

_BEHIND = "; the part behind it is certified of the export, with a cut"


@dataclasses.dataclass
class Builder:
    """Makes models of configs, within what the file allows."""

    source: str  # the file, for messages
    keras_2: bool  # whether Keras 2 wrote it
    entries: int  # numbers that the file has, of which no layer has taken any yet
    calls: int = 0  # of layers, so far

    def model(self, config: dict[str, Any]) -> keras.Model:
        """Returns the model of a config.

        Raises:
            InputError: it has a layer, an argument or a connection that is not read.
        """
        name = _class_name(config)
        if name not in _MODELS:
            known = "only Sequential and functional models are read"
            advice = "; save its base, or save it as .keras" if name in _WRAPPERS else ""
            raise self._refused(config, known + advice)
        return self._model(config, 1)

    def _model(self, config: dict[str, Any], depth: int) -> keras.Model:
        limits.require_at_most(depth, _DEPTH, f"{self.source}: the number of models in models")
        said = _dict(config, "config", f"{self.source}: the model")
        if _class_name(config) == "Sequential":
            return self._sequential(config, said, depth)
        return self._functional(said, depth)

    def _layer(self, config: Any, depth: int) -> Layer:
        """Makes a layer, or a model in a model."""
        if not isinstance(config, dict) or not isinstance(config.get("config"), dict):
            raise InputError(f"{self.source}: a layer of its config is none")
        kind = _class_name(config)
        if kind in _MODELS:
            return Layer(self._model(config, depth + 1), kind)
        if kind == "InputLayer":
            return Layer(self._input(config["config"]), kind)
        if kind == "keras_curv>Carry":
            inner = self._wrapped(config, "layer", ("Dense",))
            given = self._common(config)
            layer = self._made(keras_curv.Carry, {"layer": inner.layer, **given}, config)
            return Layer(layer, kind, inner.stock, inner.given)
        if kind == "Bidirectional":
            return self._both_ways(config)
        known = OURS.get(kind) or STOCK.get(kind)
        if known is None:
            raise self._refused(config, f"it is no layer that is read; {_EXPORT}{_BEHIND}")
        given = self._arguments(config, known)
        cls = known.cls or getattr(keras.layers, kind)
        built = config.get("build_config")
        shape = built.get("input_shape") if isinstance(built, dict) else None
        layer = self._made(cls, {**self._common(config), **given, **known.fixed}, config)
        return Layer(layer, kind, known, given, shape)

    def _wrapped(self, config: dict[str, Any], name: str, kinds: Iterable[str]) -> Layer:
        """Makes the layer that a wrapper has under this name, of one of these kinds."""
        inner = config["config"].get(name)
        if not isinstance(inner, dict) or _class_name(inner) not in kinds:
            raise self._refused(config, f"its {name} must be one of {', '.join(kinds)}")
        return self._layer(inner, 1)

    def _both_ways(self, config: dict[str, Any]) -> Layer:
        """Makes a recurrent layer that reads its sequence forward, and one that reads it back."""
        said, known = config["config"], STOCK["Bidirectional"]
        names = ["layer", *(["backward_layer"] if said.get("backward_layer") is not None else ())]
        ways = {name: self._wrapped(config, name, RECURRENT) for name in names}
        rest = {name: part for name, part in said.items() if not name.endswith("layer")}
        given = self._common(config) | self._arguments({**config, "config": rest}, known)

        def entries(_: Any, shape: Any) -> int:
            both = [ways[names[0]], ways[names[-1]]]
            return sum(way.stock.entries(way.given, shape) for way in both)  # type: ignore

        layers = {name: way.layer for name, way in ways.items()}
        layer = self._made(keras.layers.Bidirectional, {**layers, **given}, config)
        return Layer(layer, "Bidirectional", known._replace(entries=entries))

    def _common(self, config: dict[str, Any]) -> dict[str, Any]:
        """Returns name, dtype and whether it trains."""
        said = config["config"]
        found: dict[str, Any] = {"name": self._name(said.get("name"))}
        try:
            found["dtype"] = arguments.dtype(said.get("dtype", "float32"))
            found["trainable"] = arguments.flag(said.get("trainable", True))
        except ValueError as error:
            raise self._refused(config, f"its dtype or trainable {error}") from error
        return found

    def _name(self, name: Any) -> str:
        if not isinstance(name, str) or not 0 < len(name) <= 256 or "/" in name:
            raise InputError(f"{self.source}: a layer of its config has no name")
        return name

    def _arguments(self, config: dict[str, Any], known: Stock) -> dict[str, Any]:
        """Returns what a layer is made of, each argument looked at."""
        found = {}
        for name, value in config["config"].items():
            if name in _COMMON or name.endswith(_DROPPED):
                continue
            check = known.takes.get(name)
            if check is None:
                raise self._refused(config, f"its argument {name[:80]!r} is not known; {_EXPORT}")
            if check == "activation":
                check = arguments.activation(self.keras_2)
            try:
                found[name] = check(value)
            except ValueError as error:
                raise self._refused(config, f"its argument {name!r} {error}") from error
        return {name: value for name, value in found.items() if value is not arguments.OMITTED}

    def _made(self, cls: Any, given: dict[str, Any], config: dict[str, Any]) -> Any:
        try:
            return cls(**given)
        except _REFUSALS as error:
            raise self._refused(config, _first_line(error)) from error

    def _input(self, said: dict[str, Any]) -> keras.layers.InputLayer:
        """Makes the layer that stands for an input."""
        shape = next((said[name] for name in _INPUT if said.get(name) is not None), None)
        dtype = said.get("dtype", "float32")
        if not isinstance(dtype, str) or said.get("sparse") or said.get("ragged"):
            raise InputError(f"{self.source}: its input is sparse or ragged, or of no known type")
        name = self._name(said.get("name"))
        return self._made(
            keras.layers.InputLayer,
            {"batch_shape": self._shape(shape), "dtype": dtype, "name": name},
            {"class_name": "InputLayer", "config": said},
        )

    def _shape(self, shape: Any) -> tuple[int | None, ...]:
        """Returns the shape of an input with its batch, which must not be too large."""
        sizes = shape if isinstance(shape, list) else []
        whole = arguments.optional(arguments.whole(1, limits.EXAMPLE_ENTRIES))
        try:
            found = tuple(map(whole, sizes))
        except ValueError as error:
            raise InputError(f"{self.source}: each size of an input {error}") from error
        if not 2 <= len(found) <= limits.AXES:
            raise InputError(
                f"{self.source}: it does not say the shape of its input; build it with an Input"
            )
        limits.require_shape([size or 1 for size in found], limits.EXAMPLE_ENTRIES)
        return found

    def _call(self, layer: Layer, given: Any) -> Any:
        """Calls a layer on symbolic tensors, its weights counted before they are made."""
        shapes = [tuple(tensor.shape) for tensor in keras.tree.flatten(given)]
        args = given if isinstance(given, tuple) else (given,)
        if len(args) > 1 and len({shape[-1] for shape in shapes}) > 1:
            raise InputError(f"{self._about(layer)} attends to tensors of other sizes; export it")
        found = self._try(layer, shapes[0], lambda: layer.layer(*args))
        for tensor in keras.tree.flatten(found):
            self._require_size(layer, tensor.shape)
        return found

    def _shape_of(self, layer: Layer, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns the shape of what a layer makes, and builds it, without a call."""

        def built() -> Any:
            if not layer.layer.built:
                layer.layer.build(shape)
            return layer.layer.compute_output_shape(shape)

        found = self._try(layer, shape, built)
        if not all(size is None or isinstance(size, int) for size in found):
            raise InputError(f"{self._about(layer)} has several outputs, within a chain")
        self._require_size(layer, found)
        return tuple(found)

    def _about(self, layer: Layer) -> str:
        return f"{self.source}: the layer {layer.layer.name[:80]!r} ({layer.kind[:80]})"

    def _try(self, layer: Layer, shape: tuple[int | None, ...], made: Callable[[], Any]) -> Any:
        """Counts a call, and the weights of a layer that is called first; then makes it."""
        self.calls += 1
        limits.require_at_most(self.calls, _CALLS, f"{self.source}: the number of its layers")
        about = self._about(layer)
        if not layer.called:
            self._count(layer, shape, about)
        layer.called = True
        try:
            return made()
        except _REFUSALS as error:
            raise InputError(f"{about} cannot be called: {_first_line(error)}") from error

    def _require_size(self, layer: Layer, shape: Any) -> None:
        size = math.prod(n or 1 for n in shape[1:])
        limits.require_at_most(
            size, limits.EXAMPLE_ENTRIES, f"the output of {self._about(layer)}, in entries,"
        )

    def _count(self, layer: Layer, shape: tuple[int | None, ...], about: str) -> None:
        """Counts the weights of a layer; refuses those that the file does not have."""
        if isinstance(layer.built_for, list) and not _fits(layer.built_for, shape):
            raise InputError(
                f"{about} was built for inputs of shape {str(layer.built_for)[:80]}, and gets "
                f"{shape}"
            )
        if layer.stock is None or layer.stock.entries is None:
            return
        try:
            self.entries -= layer.stock.entries(layer.given, shape)
        except (ValueError, TypeError, LookupError) as error:
            raise InputError(f"{about} has arguments that do not fit: {error}") from error
        if self.entries < 0:
            raise InputError(f"{about} needs more weights than the file has")

    def _sequential(
        self, config: dict[str, Any], said: dict[str, Any], depth: int
    ) -> keras.Sequential:
        """Makes a chain of layers."""
        layers = [self._layer(each, depth) for each in _list(said, "layers", self.source)]
        if not layers:
            raise InputError(f"{self.source}: a model of it has no layers")
        if layers[0].kind != "InputLayer":
            first = said["layers"][0]["config"]
            shape = next((first[name] for name in _INPUT if first.get(name)), None)
            shape = self._shape(shape or said.get("build_input_shape") or _built(config))
            layers.insert(0, Layer(keras.layers.InputLayer(batch_shape=shape), "InputLayer"))
        size = tuple(layers[0].layer.output.shape)
        for each in layers[1:]:
            if each.kind == "InputLayer":
                raise InputError(f"{self.source}: a chain of it has an input within")
            size = self._shape_of(each, size)
        name = self._name(said.get("name"))
        return self._made(
            keras.Sequential, {"layers": [each.layer for each in layers], "name": name}, config
        )

    def _functional(self, said: dict[str, Any], depth: int) -> keras.Model:
        """Makes a graph of layers."""
        about = f"{self.source}: the model {str(said.get('name'))[:80]!r}"
        unknown = {*said} - {"name", "trainable", "layers", "input_layers", "output_layers"}
        if unknown:
            raise InputError(f"{about} has {min(unknown)[:80]!r} in its config, which is not read")
        places: dict[str, Place] = {}
        for each in _list(said, "layers", self.source):
            layer = self._layer(each, depth)
            name = self._name(each.get("name", layer.layer.name))
            if name in places or name != layer.layer.name:
                raise InputError(f"{about} has two layers named {name[:80]!r}, or one of two names")
            places[name] = Place.of(layer, each.get("inbound_nodes"), about)
        require_few(places, about)
        waiting = [place for place in places.values() if place.pending]
        while waiting:
            before = sum(len(place.pending) for place in waiting)
            for place in waiting:
                while place.pending and (given := place.next_input(places)) is not None:
                    place.outputs.append(keras.tree.flatten(self._call(place.layer, given)))
            waiting = [place for place in waiting if place.pending]
            if sum(len(place.pending) for place in waiting) == before:
                name = waiting[0].layer.layer.name
                raise InputError(f"{about}: the layer {name[:80]!r} gets what nothing computes")
        ends = [
            tensors_of(said.get(name), places, f"{about}: its {name}")
            for name in ("input_layers", "output_layers")
        ]
        trainable = said.get("trainable")
        given = {"inputs": ends[0], "outputs": ends[1], "name": self._name(said.get("name"))}
        return self._made(
            keras.Model,
            {**given, "trainable": trainable if isinstance(trainable, bool) else None},
            {"class_name": "Functional", "config": said},
        )

    def _refused(self, config: dict[str, Any], why: str) -> InputError:
        said = config.get("config")
        name = said.get("name") if isinstance(said, dict) else None
        shown = (_class_name(config) or str(config.get("class_name")))[:80]
        return InputError(f"{self.source}: the layer {str(name)[:80]!r} ({shown}): {why}")


@dataclasses.dataclass
class Layer:
    """A layer that was made."""

    layer: Any  # Keras' own
    kind: str  # what the file calls its class
    stock: Stock | None = None  # its entry of the table; None for a model and for an input
    given: dict[str, Any] = dataclasses.field(default_factory=dict)  # the arguments it was made of
    built_for: Any = None  # the shape that the file says it was built for
    called: bool = False  # whether it has its weights


# Layers that `keras_curv` registers, which are read without the code of training.
OURS = {
    "keras_curv>ClipInput": Stock(
        dict.fromkeys(("low", "high", "dead_zone"), arguments.number),
        cls=lambda **given: keras_curv.ClipInput(**given),
    ),
    "keras_curv>TrainedAveragePooling2D": STOCK["AveragePooling2D"]._replace(
        # Of that name, by which its place in the file is found.
        cls=type("TrainedAveragePooling2D", (keras.layers.AveragePooling2D,), {})
    ),
}


def base_of(config: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the config of the model inside, of what `keras_curv` trains; None of any other."""
    kind, said = _class_name(config), config.get("config")
    if kind not in {f"keras_curv>{name}" for name in _WRAPPERS} or not isinstance(said, dict):
        return None
    base = said.get("base")
    return base if isinstance(base, dict) else None


def _class_name(config: dict[str, Any]) -> str:
    """Returns the name of a class: as Keras has it, with a package before what is registered."""
    name, module = config.get("class_name"), config.get("module")
    registered = config.get("registered_name")
    if not isinstance(name, str):
        return ""
    if registered not in (None, name):
        same = isinstance(registered, str) and registered == f"{registered.split('>')[0]}>{name}"
        return registered if same else f"{str(registered)[:80]}>{name}"
    stock = module is None or (isinstance(module, str) and _MODULES.fullmatch(module))
    return name if stock else f"{str(module)[:80]}>{name}"


def _dict(config: dict[str, Any], name: str, about: str) -> dict[str, Any]:
    found = config.get(name)
    if not isinstance(found, dict):
        raise InputError(f"{about} has no {name}")
    return found


def _list(config: dict[str, Any], name: str, about: str) -> list[Any]:
    found = config.get(name)
    if not isinstance(found, list):
        raise InputError(f"{about}: its config has no {name}")
    limits.require_at_most(len(found), _CALLS, f"{about}: the number of its layers")
    return found


def _built(config: dict[str, Any]) -> Any:
    built = config.get("build_config")
    return built.get("input_shape") if isinstance(built, dict) else None


def _fits(built: list[Any], shape: tuple[int | None, ...]) -> bool:
    """Returns whether a shape that is said may be this one; of several inputs nothing is said."""
    if any(isinstance(size, list) for size in built):
        return True
    return len(built) == len(shape) and all(
        one is None or other is None or one == other
        for one, other in zip(built, shape, strict=True)
    )


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
