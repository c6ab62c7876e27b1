"""What is trained and how: architecture, loss, optimizer, schedule."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_curv import data
from keras_curv.errors import InputError, require_at_least, require_positive
from keras_curv.network.activations import ACTIVATIONS, SMOOTH
from keras_curv.options import accepts
from keras_curv.threats.properties.property import ARGMAX, Property
from keras_curv.threats.threat import Threat
from keras_curv.threats.threat_file import parse_threat
from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.models.logits_model import LogitsModel
from keras_curv.training.models.regularizer import CurvatureRegularizer
from keras_curv.training.rivals.coap import COAPModel
from keras_curv.training.rivals.crown_ibp import CROWNIBPModel
from keras_curv.training.rivals.noise import NoiseModel
from keras_curv.training.rivals.pgd import PGDModel
from keras_curv.training.rivals.trades import TRADESModel
from keras_curv.training.run.muon import Muon
from keras_curv.training.run.recipe_options import (
    CLIPPING,
    CURVATURE,
    OBJECTIVES,
    OPTIONS,
    Option,
    RecipeFields,
)
from keras_curv.training.trainable.carry import Carry
from keras_curv.training.trainable.clip_input import ClipInput
from keras_curv.training.trainable.keras_functions import in_keras
from keras_curv.training.trainable.pooling import TrainedAveragePooling2D
from keras_curv.training.trainable.trunk import TRUNK, trunk_layers

OPTIMIZERS = ("muon", "adam")
_LARGEST_SEED = 2**32 - 1
_FROM_ONE = ("epochs", "batch_size", "width", "carry", "kernel_size", "strides", "pool", "trunk")
_POSITIVE = ("learning_rate", "initial_scale", "muon_rate")
_MOST = dict(
    **{"dead_zone": 0.49, "held_out": 0.9, "distortion": 10.0, "halvings": 100.0},
    **dict.fromkeys(("ramp", "flat", "mirror", "shift"), 1.0),
)


@accepts(RecipeFields)
@dataclasses.dataclass(frozen=True)
class Recipe(RecipeFields):
    """All that decides what a training run comes to.

    Args:
        {options}

    Raises:
        InputError: a value out of range, or an option that has no effect on this recipe.

    Example:
        >>> recipe = Recipe(dataset="mnist", width=1024, activation="sparse_plus", radius=1.58)
        >>> recipe.architecture
        '2 × 1024 sparse_plus'
    """

    def __post_init__(self) -> None:
        known = {
            "dataset": data.DATASETS,
            "activation": SMOOTH if self.loss in CURVATURE else ACTIVATIONS,
            "loss": OBJECTIVES,
            "optimizer": OPTIMIZERS,
        }
        for name, names in known.items():
            self._require(name, getattr(self, name) in names, f"one of {', '.join(names)}")
        if self.filters is not None:
            listed = isinstance(self.filters, (tuple, list)) and self.filters
            good = bool(listed) and all(isinstance(n, int) and n >= 1 for n in self.filters)
            self._require("filters", good, "positive integers, at least one")
            object.__setattr__(self, "filters", tuple(self.filters))
        require_at_least(self.layers, 1 if self.filters else 2, "layers")
        for name in ("jit", "clip", "centre"):
            self._require(name, isinstance(getattr(self, name), bool), "True or False")
        if self.clip and self.loss not in CLIPPING:
            raise InputError(
                f"clip is for the loss {', '.join(CLIPPING)}. Received: loss {self.loss!r}"
            )
        others = self.filters or self.trunk or self.carry or self.layers < 2
        if self.centre and (others or self.loss not in CLIPPING):
            raise InputError(
                f"centre is for the loss {', '.join(CLIPPING)} and hidden layers that are dense, "
                f"which do not carry. Received: loss {self.loss!r}, {self.architecture}"
            )
        for name, option in OPTIONS.items():
            self._settle(name, option)
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name, value in given.items():
            if name in _FROM_ONE:
                require_at_least(value, 1, name)
            if name in _POSITIVE:
                require_positive(value, name)
            if name in _MOST:
                self._require(name, 0.0 <= value <= _MOST[name], f"from 0 to {_MOST[name]:g}")
        require_at_least(self.seed, 0, "seed")
        self._require("seed", self.seed <= _LARGEST_SEED, f"at most {_LARGEST_SEED}")
        if self.loss == "penalty":
            self._require("gamma", self.gamma != 0.0, "positive: without it the loss is plain")
        if self.loss == "noise":
            self._require("rivals", self.rivals in (None, 1), "1, the runner-up, or all")
        if self.trunk and self.carry:
            raise InputError(
                "a trunk is for layers that do not carry. "
                f"Received: trunk {self.trunk}, carry {self.carry}"
            )
        threat = self.attacker()
        if self.clip and not threat.plain:
            raise InputError(
                f"a threat is for inputs that are not clipped. Received: clip, and {threat.text}"
            )
        if self.property:  # as it was read, whatever becomes of its file
            object.__setattr__(self, "property", self.claim().spelling)

    def attacker(self) -> Threat:
        """Returns what the attacker may do, as its file has it now.

        Raises:
            InputError: a file that cannot be read, or no threat.
        """
        return parse_threat(self.threat, self.scale, self.box)

    def claim(self) -> Property:
        """Returns what must not change."""
        return Property.parse(self.property) if self.property else ARGMAX

    def _settle(self, name: str, option: Option) -> None:
        """Sets an option that was not given to its default; InputError where it has no effect."""
        value = getattr(self, name)
        if not option.has(self):
            if value is not None:
                why = ", ".join(f"{field} {getattr(self, field)!r}" for field in option.decided_by)
                raise InputError(
                    f"{name} is for {option.what_for}. Received: {name} {value!r} with {why}"
                )
        elif value is None:
            object.__setattr__(self, name, option.default_of(self))

    def given(self) -> dict[str, Any]:
        """Returns what is not as it would be anyway, or is by default because of the loss."""
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        defaults = fields | {name: option.default for name, option in OPTIONS.items()}
        chosen = {name: getattr(self, name) for name in fields}
        return {
            name: value for name, value in chosen.items() if value not in (None, defaults[name])
        }

    def _require(self, name: str, good: bool, what: str) -> None:
        if not good:
            raise InputError(f"{name} must be {what}. Received: {getattr(self, name)!r}")

    @property
    def architecture(self) -> str:
        """The layers in words."""
        clip = "input clipped to [0, 1], " if self.clip else ""
        if self.dead_zone:
            clip += f"dead zone {self.dead_zone:g}, "
        trunk = f"trunk of {self.trunk}, " if self.trunk else ""
        width = f"{self.carry} that carry and {self.width}" if self.carry else self.width
        dense = clip + (f"{self.layers} × {width}" if self.layers > 1 else "logits")
        if not self.filters:
            return f"{trunk}{dense} {self.activation}"
        filters, size = " and ".join(map(str, self.filters)), self.kernel_size
        pool = f", pooled {self.pool} × {self.pool}" if self.pool else ""
        convolutions = f"{trunk}{filters} filters {size} × {size} / {self.strides}{pool}"
        return f"{convolutions}, {dense}, {self.activation}"

    def build(self, input_shape: tuple[int, ...], classes: int) -> keras.Model:
        """Returns the base model: what the recipe has of it, in this order, and logits.

        Raises:
            InputError: its layers do not fit the input.
        """
        shared = {"activation": in_keras(self.activation)}
        convolutions = [
            keras.layers.Conv2D(
                count, self.kernel_size, self.strides, "same", name=f"convolution_{i}", **shared
            )
            for i, count in enumerate(self.filters or (), start=1)
        ]
        pooling = [TrainedAveragePooling2D(self.pool)] if self.pool else []
        carrying = range(1, self.layers - 1 if self.carry else 1)
        dense = [
            keras.layers.Dense(
                self.carry if i in carrying else self.width, name=f"hidden_{i}", **shared
            )
            for i in range(1, self.layers)
        ]
        clip = [ClipInput(dead_zone=self.dead_zone or 0.0, name="clip")] if self.clip else []
        flatten, logits = keras.layers.Flatten(), keras.layers.Dense(classes, name="logits")
        carried = [Carry(dense[i - 1], name=f"carry_{i}") for i in carrying]
        trunk = trunk_layers(self.trunk, input_shape) if self.trunk else []
        hidden = [*clip, *trunk, *convolutions, *pooling, flatten, *carried, *dense[len(carried) :]]
        try:
            base = keras.Sequential([keras.Input(input_shape), *hidden, logits], name=self.dataset)
        except ValueError as error:  # Keras, of a window that is larger than the image
            raise InputError(
                f"{self.architecture} does not fit inputs {input_shape}: nothing is left behind a "
                "layer; use a smaller pool or smaller strides"
            ) from error
        first = [*convolutions, *dense][0]
        first.kernel.assign(self.initial_scale * first.kernel)
        return base

    def model(self, base: keras.Model, steps_per_epoch: int) -> keras.Model:
        """Returns what `fit` trains, compiled."""
        model = self._wrapped(base, round((self.ramp or 0.0) * self.epochs * steps_per_epoch))
        model.compile(self._optimizer(), jit_compile=self.jit)
        return model

    def _wrapped(self, base: keras.Model, ramp_steps: int) -> LogitsModel:
        options: dict[str, Any] = {"radius": self.radius, "ramp_steps": ramp_steps}
        if self.attack_steps is not None:
            options["attack_steps"] = self.attack_steps
        match self.loss:
            case "plain":
                return LogitsModel(base)
            case "penalty":
                return CurvatureRegularizer(base, self.gamma or 0.0)
            case "pgd":
                return PGDModel(base, seed=self.seed, **options)
            case "trades":
                options |= {"trade_off": self.trade_off, "seed": self.seed}
                return TRADESModel(base, **options)
            case "crown_ibp":
                options |= {"kappa": (1.0, self.final_kappa), "beta": (1.0, self.final_beta)}
                return CROWNIBPModel(base, **options)
            case "coap":
                return COAPModel(base, projections=self.projections, seed=self.seed, **options)
            case "noise":
                options |= {"deviation": self.deviation, "seed": self.seed}
                rivals = "all" if self.rivals is None else "runner_up"
                return NoiseModel(base, rivals=rivals, **options)
        options |= {"gamma": self.gamma, "loss": self.loss, "rivals": self.rivals}
        options |= {"threat": self.attacker(), "centre": self.centre}
        return CRTModel(base, property=self.claim(), **options)

    @property
    def training(self) -> str:
        """The loss and what goes with it, in words."""
        values = {key: value for key, value in vars(self).items() if value is not None}
        attacked = f", attacked at {self.radius:g}" if self.loss == "noise" and self.radius else ""
        words = OBJECTIVES[self.loss].format(**values) + attacked
        return words + (f", so that {self.claim().text}" if self.property else "")

    def steps(self, count: int) -> int:
        """Returns the steps in an epoch of so many examples."""
        return -(-count // self.batch_size)

    def _optimizer(self) -> keras.optimizers.Optimizer:
        if self.muon_rate is None:
            return keras.optimizers.Adam(self.learning_rate)
        return Muon(
            self.muon_rate,
            adam_lr_ratio=self.learning_rate / self.muon_rate,
            exclude_layers=["logits", TRUNK],  # an angle of a step at which the rest cannot follow
            rms_rate=None,
            weight_decay=None,
            adam_weight_decay=None,
        )

    def rate(self, epoch: int) -> float:
        """Returns the learning rate that the optimizer is given in an epoch."""
        start = self.learning_rate if self.muon_rate is None else self.muon_rate
        past = max(0.0, epoch / self.epochs - self.flat) / max(1.0 - self.flat, 1e-9)
        return start * 2.0 ** (-self.halvings * past)
