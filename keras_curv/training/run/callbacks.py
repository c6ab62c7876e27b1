"""Certified accuracy while training: the proof itself, on a sample, between epochs."""

from __future__ import annotations

import importlib.util
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_curv.certificates.auto import METHODS
from keras_curv.certificates.certificate import radii_of
from keras_curv.certificates.certifier import Certifier
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.curvature.theorem_4 import theorem4
from keras_curv.errors import (
    InputError,
    optional_at_least,
    require_at_least,
    require_one_of,
)
from keras_curv.threats.properties.property import ARGMAX
from keras_curv.threats.threat import UNRESTRICTED

CERTIFIED = "val_certified_accuracy_"
_CURVE_POINTS = 64


def has_tensorboard() -> bool:
    """Returns whether summaries can be written at all."""
    return importlib.util.find_spec("tensorboard") is not None


class CertifiedAccuracy(keras.callbacks.Callback):
    """Certifies a sample of the validation set, all rivals, at the end of an epoch.

    What it finds goes into the epoch's logs, as `val_certified_accuracy_<radius>`, so that
    history, CSVLogger, ModelCheckpoint and EarlyStopping see it if they come later in the list
    of callbacks. These are certificates of the model as it is then, under the threat and of the
    property of a `CRTModel`; as the sample is one, the figure has its sampling error.

    For TensorBoard, under `log_dir`: certified accuracy at the radii; of the method "crc", mean and
    largest −m, as certificates use it, beside theorem 4's K, over the class pairs; a histogram of
    the radii;
    and, as a run of its own for each epoch, certified accuracy as a curve whose step is the
    radius in thousandths.

    Args:
        x: `(n, *input shape)`.
        y: `(n,)` integer labels; None of numbers, whose property needs none.
        radius: one or several radii, l2, in the model's input units.
        sample: examples, drawn once with `seed`; None takes all of them.
        every: epochs from one certification to the next; the first, and the last of `epochs`,
            have one too.
        log_dir: of TensorBoard; None writes nothing.
        seed: of the sample.
        method: of proof, as for `certify`.

    Raises:
        InputError: a radius or a count that is not positive; before the first epoch, a model that
            cannot be certified, or labels that are not its.

    Example:
        >>> CertifiedAccuracy(np.zeros((8, 4)), np.zeros(8, int), radius=[0.5, 1.0]).names
        ['val_certified_accuracy_0.5', 'val_certified_accuracy_1']
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray | None,
        radius: float | Sequence[float],
        *,
        sample: int | None = 500,
        every: int = 1,
        log_dir: str | pathlib.Path | None = None,
        seed: int = 0,
        method: str = CurvatureCertificate.name,
    ):
        super().__init__()
        require_at_least(every, 1, "every")
        optional_at_least(sample, 1, "sample")
        many = len(x) if y is None else len(y)
        if len(x) != many or len(x) == 0:
            raise InputError(f"x and y must have one length, not 0. Received: {len(x)} and {many}")
        self.radii = [*radii_of(radius)]
        self.names = [f"{CERTIFIED}{value:g}" for value in self.radii]
        if len({*self.names}) < len(self.names):
            raise InputError(f"radii must differ in six digits. Received: {self.radii}")
        self.method = require_one_of(method, METHODS, "method")
        chosen = np.random.default_rng(seed).permutation(len(x))[:sample]
        self.x = np.asarray(x)[chosen]
        self.y = None if y is None else np.asarray(y)[chosen]
        self.every = every
        self.last: dict[str, float] = {}
        self.log_dir = None if log_dir is None else pathlib.Path(log_dir)
        if log_dir is not None and not has_tensorboard():
            raise InputError(
                "log_dir needs TensorBoard, which is not installed: "
                "pip install 'keras_curv[tensorboard]'"
            )

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Certifies one example, so that what is refused is refused before the first epoch."""
        self.last = {}
        self._certifier().certify(self.x[:1], None if self.y is None else self.y[:1])
        if self.log_dir is not None:
            # One file for all epochs: TensorBoard reads files by name, which is not always in order
            # of time.
            self._figures = tf.summary.create_file_writer(str(self.log_dir / "certified"))

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Closes TensorBoard's file."""
        if self.log_dir is not None:
            self._figures.close()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Certifies the model as it is now; between, the figures of the last time are kept."""
        done = epoch + 1
        if done % self.every == 0 or done == self.params.get("epochs") or not self.last:
            finite = all(np.isfinite(weight).all() for weight in self.model.get_weights())
            # Where the training has diverged there is no model to certify.
            self.last = self._certify(epoch) if finite else dict.fromkeys(self.names, math.nan)
        if logs is not None:
            logs.update(self.last)

    def _certifier(self) -> Certifier:
        model = getattr(self.model, "base", self.model)
        held = getattr(self.model, "property", ARGMAX)
        if held is None:
            raise InputError(
                "CertifiedAccuracy needs to know what must not change: give CRTRegressor a "
                "property, as 'interval:0.5'"
            )
        return Certifier(
            model,
            method=self.method,
            threat=getattr(self.model, "threat", UNRESTRICTED),
            property=held,
        )

    def _certify(self, epoch: int) -> dict[str, float]:
        certifier = self._certifier()
        result = certifier.certify_all(self.x, self.y)
        if self.log_dir is not None:
            self._write(self.log_dir, epoch, result.radius, certifier)
        fractions = [result.certified_accuracy(value) for value in self.radii]
        return dict(zip(self.names, fractions, strict=True))

    def _write(
        self, log_dir: pathlib.Path, epoch: int, radii: np.ndarray, certifier: Certifier
    ) -> None:
        """Writes one epoch's summaries for TensorBoard."""
        method: Any = certifier.method
        with self._figures.as_default(step=epoch):
            for name, value in zip(self.names, self.radii, strict=True):
                tf.summary.scalar(name, np.mean(radii > value))
            if self.method == CurvatureCertificate.name:
                between = ~np.eye(len(method.curvature.lower), dtype=bool)
                minus_m = -method.curvature.lower[between]
                tf.summary.scalar("curvature/minus_m_mean", minus_m.mean())
                tf.summary.scalar("curvature/minus_m_largest", minus_m.max())
                theorem4_bound = theorem4(getattr(method, "behind", method.network))[between]
                tf.summary.scalar("curvature/theorem4_K_mean", theorem4_bound.mean())
            finite = radii[np.isfinite(radii)]
            tf.summary.histogram("certified_radius", finite)
        self._figures.flush()
        curve = tf.summary.create_file_writer(str(log_dir / f"radius_curve/{epoch:04d}"))
        end = 1.05 * max(finite.max(initial=0.0), *self.radii)
        with curve.as_default():
            for value in np.linspace(0.0, end, _CURVE_POINTS):
                tf.summary.scalar(
                    "certified_accuracy_by_radius", np.mean(radii > value), step=int(1000 * value)
                )
        curve.close()


class StopAfterRamp(keras.callbacks.EarlyStopping):
    """Stops training when a figure no longer improves, counted from the end of the radius's ramp.

    While the radius of a `CRTModel` rises (`ramp_steps`), the task becomes harder with each step,
    and a figure may fall for that reason alone. So no epoch before the end of the ramp counts,
    neither for `patience` nor as the best one. A model without a ramp counts from its first epoch.

    Place it after `CertifiedAccuracy`, whose figures stay the same between two certifications: let
    `patience` be larger than its `every`.

    Args:
        monitor: name of the figure in the logs, as "val_certified_accuracy_0.5".
        mode: "max" for a figure that should rise, "min" for one that should fall.
        patience: epochs without an improvement after which training stops.
        **options: further ones of `keras.callbacks.EarlyStopping`, as `restore_best_weights`.

    Raises:
        InputError: at the end of the ramp, the logs have no such figure.

    Example:
        >>> StopAfterRamp("val_certified_accuracy_0.5", patience=10).patience
        10
    """

    def __init__(self, monitor: str, *, mode: str = "max", patience: int = 0, **options: Any):
        require_one_of(mode, ("max", "min"), "mode")
        require_at_least(patience, 0, "patience")
        super().__init__(monitor, mode=mode, patience=patience, **options)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Counts the epoch, once the optimizer has made as many steps as the ramp has."""
        if int(self.model.optimizer.iterations) < getattr(self.model, "ramp_steps", 0):
            return
        if self.monitor not in (logs or {}):
            known = ", ".join(logs or {})
            raise InputError(f"no {self.monitor!r} is in the logs; they have: {known}")
        super().on_epoch_end(epoch, logs)
