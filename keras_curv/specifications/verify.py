"""Verifies a model against a VNN-LIB instance: verified, falsified by a point, or unknown.

**Verified** means: for every case and every point of its box, one of the case's conditions is false
in real arithmetic on the stored weights. It is proved box by box: for each box and case one of the
conditions is refuted on all of the box, by the methods that prove radii in l∞ (`margins.py`). What
stays open is halved along the input that moves margins most, all boxes along the same one, so that
they stay alike; a condition that is refuted on a box is so on its parts.

**Falsified** means: the model itself, as it is served, returns unsafe outputs for the input that is
given, which is in the box exactly.

**Unknown** is everything else. Served outputs are in float32, so that an instance with a margin of
the size of rounding may be falsified though it would be verified.

Reference: Bunel et al., "Branch and bound for piecewise linear neural network verification" (2020),
for halving inputs.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.certificates.auto import METHODS, choose_method
from keras_curv.certificates.method import Method
from keras_curv.certificates.other_norms import NormCertificate
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError, require_one_of, require_positive
from keras_curv.network.network import Network
from keras_curv.process import certifying
from keras_curv.reading import served_model
from keras_curv.reading.served_model import ServedModel
from keras_curv.specifications.counterexamples import (
    Counterexample,
    conditions_of,
    descend,
    served_counterexample,
    starts_in,
)
from keras_curv.specifications.margins import Boxes, refuted_by, rounded_down, rounded_up
from keras_curv.specifications.vnnlib import Case, Instance, read_vnnlib
from keras_curv.threats.norms import LINF

_HALVED = 32  # inputs: with more, halves are hardly smaller
_BOXES = 4096  # open at a time
_BEYOND = 1.0 + 1e-9  # of the radius to prove, so that it is exceeded


class Result(enum.Enum):
    """The answer to an instance; its value is what the user reads."""

    VERIFIED = "verified"
    FALSIFIED = "falsified"
    UNKNOWN = "unknown"


class Answer(NamedTuple):
    """The answer to one instance."""

    result: Result  # see `verify.py` for what each one means
    seconds: float  # how long it took
    boxes: int  # how many boxes were bounded
    counterexample: Counterexample | None = None  # where it is falsified; else None
    reason: str = ""  # why it is unknown; else ""


class Verifier:
    """One model, read once, that is verified against any number of instances.

    Args:
        model: as of `keras_curv.certify`.
        method: of proof, as of `keras_curv.certify`.
        signature, output_name, cut: as of `keras_curv.certify`.

    Raises:
        InputError: the model cannot be read; see `keras_curv.certify`.
    """

    @certifying
    def __init__(
        self,
        model: Any,
        *,
        method: str = "auto",
        signature: str = served_model.DEFAULT_SIGNATURE,
        output_name: str | None = None,
        cut: str | None = None,
    ):
        self.method = require_one_of(method, METHODS, "method")
        self.served = served_model.read(
            model, signature, output_name=output_name, scores=True, cut=cut
        )
        if self.served.inputs.fixed:
            raise InputError(
                f"{self.served.source} takes {', '.join(map(repr, self.served.inputs.fixed))}, "
                "and instances of VNN-LIB are about floats; cut behind what encodes them"
            )

    @certifying
    def verify(self, instance: Instance | str | os.PathLike, *, timeout: float = 60.0) -> Answer:
        """Verifies the model against an instance.

        Args:
            instance: a file of VNN-LIB, or what `read_vnnlib` returns. X_i is entry i of the
                flattened input, of several inputs as `ServedModel.inputs` joins them; Y_j is
                output j.
            timeout: seconds after which no more boxes are bounded. A bound is not interrupted.

        Raises:
            InputError: the file cannot be read, or does not fit the model.
        """
        timeout, began = require_positive(timeout, "timeout"), time.monotonic()
        if not isinstance(instance, Instance):
            instance = read_vnnlib(instance)
        self._require_fit(instance)
        boxes, until = 0, began + timeout
        unknown = ""
        for cases in _by_box(instance.cases):
            found, bounded, reason = _Search(self.served, self.method, cases).run(until)
            boxes, unknown = boxes + bounded, unknown or reason
            if found is not None:
                seconds = time.monotonic() - began
                return Answer(Result.FALSIFIED, seconds, boxes, found)
        result = Result.UNKNOWN if unknown else Result.VERIFIED
        return Answer(result, time.monotonic() - began, boxes, None, unknown)

    def _require_fit(self, instance: Instance) -> None:
        """Refuses an instance of other inputs or outputs."""
        network, source = self.served.network, self.served.source
        outputs = 1 if self.served.head == "binary_sigmoid" else network.classes
        if (instance.inputs, instance.outputs) != (network.dim, outputs):
            raise InputError(
                f"{instance.name} has {instance.inputs} inputs and {instance.outputs} outputs, but "
                f"{source} has {network.dim} and {outputs}"
            )
        if self.served.head != "logits":
            raise InputError(
                f"conditions on outputs are on logits, but {source} ends in {self.served.head}; "
                "use a model without it"
            )


def verify(
    model: Any,
    instance: Instance | str | os.PathLike,
    *,
    timeout: float = 60.0,
    method: str = "auto",
    signature: str = served_model.DEFAULT_SIGNATURE,
    output_name: str | None = None,
    cut: str | None = None,
) -> Answer:
    """Verifies a model against one VNN-LIB instance.

    Args:
        model: a SavedModel directory, a `.keras` or `.h5` file, or a built Keras model, that
            returns logits or other numbers.
        instance: a file of VNN-LIB, or what `read_vnnlib` returns.
        timeout: seconds after which no more boxes are bounded.
        method, signature, output_name, cut: as of `certify`.

    Returns:
        The answer; see `specifications/verify.py` for what it means.

    Raises:
        InputError: the model or the file cannot be used, or they do not fit.

    Example:
        >>> import keras
        >>> from keras_curv.specifications.vnnlib import parse_vnnlib
        >>> net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="line")])
        >>> net.get_layer("line").set_weights([np.array([[2.0]]), np.array([1.0])])
        >>> box = "(declare-const X_0 Real) (declare-const Y_0 Real)"
        >>> box += "(assert (<= X_0 1.0)) (assert (>= X_0 0.0))"
        >>> answer = verify(net, parse_vnnlib(box + "(assert (>= Y_0 3.1))"))
        >>> answer.result.value
        'verified'
        >>> verify(net, parse_vnnlib(box + "(assert (>= Y_0 3.0))")).counterexample
        Counterexample(x=array([1.], dtype=float32), y=array([3.], dtype=float32))
    """
    verifier = Verifier(model, method=method, signature=signature, output_name=output_name, cut=cut)
    return verifier.verify(instance, timeout=timeout)


class _Search:
    """The search for a proof, or a counterexample, of cases that have the same box."""

    def __init__(self, served: ServedModel, method: str, cases: Sequence[Case]):
        self._served, self._name, self._cases = served, method, cases
        self._conditions, self._of = conditions_of(cases)
        low = [rounded_down(number) for number in cases[0].low]
        high = [rounded_up(number) for number in cases[0].high]
        self._low, self._high = np.array([low]), np.array([high])
        free = [case for case in cases if not case.conditions]
        self._certain = free[0] if free else None  # its whole box is unsafe
        self._network: Network | None = None
        if not free:
            self._network = refuted_by(self._conditions).network(served.network, served.head)
        served.check(self._centre().reshape(1, *served.input_shape))

    def _centre(self) -> np.ndarray:
        return Boxes(self._low, self._high).centre

    def run(self, until: float) -> tuple[Counterexample | None, int, str]:
        """Returns a counterexample if one was met, how many boxes were bounded, and what is open.

        Args:
            until: the time, of `time.monotonic`, at which to end.
        """
        if self._network is None:
            assert self._certain is not None
            found = served_counterexample(self._served, self._certain, self._centre())
            return found, 0, "no input of the model's dtype is in a box that is unsafe as a whole"
        low, high = self._low, self._high
        start = starts_in(low[0], high[0], seed=0)
        found = self._descended(start, *(np.repeat(end, len(start), axis=0) for end in (low, high)))
        refuted = np.zeros((1, len(self._conditions)), bool)
        bounded = 0
        while found is None:
            boxes = Boxes(low, high)
            network = boxes.network(self._network)
            self._refute(network, boxes, refuted, until)
            bounded += len(low)
            rest = np.flatnonzero(~self._safe(refuted))
            if not len(rest):
                return None, bounded, ""
            open_ = f"{len(rest)} of {bounded} boxes are open"
            movable = np.any(high[rest] > low[rest], axis=0)
            if movable.sum() > _HALVED or not movable.any():
                return None, bounded, f"{open_}, and are not halved: {movable.sum()} inputs move"
            if 2 * len(rest) > _BOXES or time.monotonic() >= until:
                why = "the time is over" if time.monotonic() >= until else f"{_BOXES} are the most"
                return None, bounded, f"{open_}, and {why}"
            part = Boxes(low[rest], high[rest])
            found = self._descended(part.centre, part.low, part.high, steps=4)
            entry = self._steepest(network, boxes.points[rest], refuted[rest], movable)
            low, high = part.halves(entry)
            refuted = np.tile(refuted[rest], (2, 1))
        return found, bounded, ""

    def _descended(
        self, start: np.ndarray, low: np.ndarray, high: np.ndarray, **options: int
    ) -> Counterexample | None:
        """Returns a counterexample that descents from these points meet, or None."""
        assert self._network is not None
        ends = descend(self._network, self._of, start, low, high, **options)
        for index, case in enumerate(self._cases):
            points = ends[index :: len(self._cases)]
            found = served_counterexample(self._served, case, points)
            if found is not None:
                return found
        return None

    def _safe(self, refuted: np.ndarray) -> np.ndarray:
        """Returns for which boxes every case has a condition that is refuted, `(n,)`."""
        return np.all([refuted[:, some].any(axis=1) for some in self._of], axis=0)

    def _refute(self, network: Network, boxes: Boxes, refuted: np.ndarray, until: float) -> None:
        """Notes which conditions are refuted on which boxes, `(n, conditions)`, in place."""
        open_ = np.zeros(refuted.shape, bool)
        for some in self._of:
            rows = np.flatnonzero(~refuted[:, some].any(axis=1))
            open_[np.ix_(rows, some)] = True
        which, condition = np.nonzero(open_)
        points, method = boxes.points, _in_linf(self._name, network)
        for some in np.array_split(np.arange(len(which)), max(1, len(which) // 64)):
            if time.monotonic() >= until and some.size and some[0]:
                return
            radius = boxes.radius[which[some]]
            question = Question.of(
                points[which[some]],
                np.zeros(len(some), np.int64),
                condition[some, None] + 1,
                decide=[float(radius.max()) * _BEYOND],
            )
            proved = method.prove(question).radius[:, 0]
            refuted[which[some], condition[some]] = proved > radius

    def _steepest(
        self, network: Network, points: np.ndarray, refuted: np.ndarray, movable: np.ndarray
    ) -> int:
        """Returns the input along which open margins change most, in widths of the boxes."""
        rivals = np.tile(np.arange(1, network.classes), (len(points), 1))
        label = tf.zeros(len(points), tf.int32)
        gradient = network.evaluate(tf.constant(points), label, tf.constant(rivals)).gradient
        mean = np.abs(gradient.numpy()[~refuted]).mean(axis=0)[: len(movable)]
        # Where units are off, gradients are 0: the weights of the first map then say it.
        weights = np.linalg.norm(network.affines[0].kernel, axis=1)[: len(movable)]
        score = mean / (mean.max() or 1.0) + 0.5 * weights / (weights.max() or 1.0)
        return int(np.where(movable, score, -1.0).argmax())


def _in_linf(name: str, network: Network) -> Method:
    return NormCertificate(choose_method(name, network), LINF)


def _by_box(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Yields the cases of each box."""
    groups: dict[tuple, list[Case]] = {}
    for case in cases:
        groups.setdefault((case.low, case.high), []).append(case)
    yield from groups.values()
