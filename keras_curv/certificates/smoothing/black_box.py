"""Smoothing of whatever can be called: a certificate by votes, of any architecture.

As in `smoothing.py`, but nothing is read of the model: the base classifier c is the function that
is called, in its own arithmetic. What is certified is the classifier that takes the vote of c on
noisy copies.

**Lattice.** A vote of c at `x + s ξ′`, ξ′ exactly normal, must be one that was seen, and c may
change between any two numbers. So c is asked on a lattice alone: it is defined on ℝᵈ as the answer
at the nearest multiples of q, a power of two near `2⁻²⁰ s`, as float32. The noise that is drawn is
off from ξ′ by a bound (`votes.py`), to which the rounding of the sum is added. A draw counts only
where, whatever the error within that bound, each entry has the same nearest multiple: then c was
seen where it would have been asked. The others are lost, some 10⁻⁸ of all for each entry.

The proof assumes that the function answers an example the same each time, whatever else is in the
batch. It is always called with batches of one size.

Reference: Cohen, Rosenfeld & Kolter, "Certified adversarial robustness via randomized smoothing"
(2019), theorem 1, proposition 2.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_curv.certificates.certificate import Certificates
from keras_curv.certificates.smoothing.options import Smoothing
from keras_curv.certificates.smoothing.smoothing import SmoothedClassifier, voted
from keras_curv.certificates.smoothing.votes import key_of, normal_noise, total_variation
from keras_curv.data.containers import plain
from keras_curv.errors import InputError, optional_at_least, require_at_least, wrong_labels
from keras_curv.numerics.clopper_pearson import smoothed_radius
from keras_curv.numerics.rounding import UNIT
from keras_curv.process import certifying

SELECTION_SAMPLES = 100
_BATCH = 256
_FINER = 20  # binary digits of the lattice beyond the deviation


def certify_smoothed(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    deviation: float | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    **options: Any,
) -> Certificates:
    """Certifies the smoothed classifier; `keras_curv.certify` with the method smoothing.

    Args:
        model: what is called itself, of any architecture, see `certify_by_votes`; or a path, whose
            model must be one that is read, see `SmoothedClassifier`.
        x, y, seed, batch_size: see these.
        deviation: s, in input units; there is no default.
        **options: samples, failure_probability and noise, of `Smoothing`; of a path also signature
            and output_name.

    Raises:
        InputError: an option that smoothing does not have, and see these.
    """
    if deviation is None:
        raise InputError(
            "the method smoothing needs a deviation: that of its noise, in input units"
        )
    chosen = {name: options.pop(name) for name in ("signature", "output_name") if name in options}
    fields = {field.name for field in dataclasses.fields(Smoothing)}
    named = not isinstance(model, (str, os.PathLike))
    if unknown := (options.keys() - fields) | (chosen.keys() if named else set()):
        raise InputError(f"smoothing takes no {min(unknown)!r}, only {', '.join(sorted(fields))}")
    smoothing = Smoothing(deviation, **options)
    if named:
        return certify_by_votes(model, x, y, smoothing=smoothing, seed=seed, batch_size=batch_size)
    read = SmoothedClassifier(model, deviation, **chosen)
    size = batch_size or read.batch_size()
    parts = [
        read.certify(
            x[start : start + size],
            None if y is None else y[start : start + size],
            seed=seed,
            first_index=start,
            **smoothing.votes(),
        )
        for start in range(0, max(len(x), 1), size)
    ]
    return Certificates.joined(parts)


@certifying
def certify_by_votes(
    model: Callable[[Any], Any],
    x: Any,
    y: Any = None,
    *,
    smoothing: Smoothing,
    seed: int = 0,
    batch_size: int | None = None,
) -> Certificates:
    """Certifies the classifier that takes the vote of a function on noisy copies of an example.

    For each example: with probability at least 1 − α over the noise, either the radius is 0, or for
    every δ with `‖δ‖₂ < radius` the class `prediction` has probability above 1/2 at `x + δ + s ξ`.
    The function itself may change its answer within the radius.

    Args:
        model: takes `(n, *input shape)`, float32, and returns logits or probabilities, `(n,
            classes)`, which may be the one entry of a mapping: a Keras model of one input, called
            with `training=False`, or any callable.
        x: `(n, *input shape)`.
        y: `(n,)` integers, or None to certify the votes.
        smoothing: deviation s, samples, and α; the noise is each example's own.
        seed: of the noise.
        batch_size: noisy copies at a time; None: 256.

    Returns:
        `Certificates`; where the vote is not won, the status is ABSTAINED, prediction −1.

    Raises:
        InputError: what is called does not answer so, or examples or labels that do not fit.

    Example:
        >>> x = np.array([[2.0, 0.0], [0.0, 1e-3]])
        >>> result = certify_by_votes(lambda x: x, x, smoothing=Smoothing(1.0, samples=1000))
        >>> result.prediction, bool(1.0 < result.radius[0] < 2**0.5), result.radius[1]
        (array([ 0, -1]), True, np.float64(0.0))
    """
    if smoothing.noise != "own":
        raise InputError("noise 'shared' is for models that are read; use noise 'own'")
    seed = require_at_least(seed, 0, "seed")
    optional_at_least(batch_size, 1, "batch_size")
    x = _examples(x)
    with np.errstate(over="ignore"):
        deviation = float(np.float32(smoothing.deviation))
    if not np.finfo(np.float32).tiny * 2.0**30 <= deviation < math.inf:
        raise InputError(f"deviation is out of range. Received: {smoothing.deviation}")
    votes = _Votes(model, x.shape[1:], deviation, batch_size or _BATCH)
    label, wins = np.zeros(len(x), np.int64), np.zeros(len(x), np.int64)
    for i, each in enumerate(x):
        counted = votes.count(each, SELECTION_SAMPLES, key_of(seed, 0), i)
        label[i] = counted.argmax()
        wins[i] = votes.count(each, smoothing.samples, key_of(seed, 1), i)[label[i]]
    tail = total_variation(x[0].size) if len(x) else 0.0
    alpha = smoothing.failure_probability
    radius = smoothed_radius(wins, smoothing.samples, alpha, deviation, tail)
    return voted(label, np.full(len(x), -1), radius, _labels(y, len(x), votes.classes))


class _Votes:
    """Counts the votes of a function.

    Args:
        model: the function.
        shape: of one example.
        deviation: s.
        size: noisy copies of a batch.

    Attributes:
        classes: how many there are; 0 before the first call.
    """

    def __init__(self, model: Callable, shape: tuple[int, ...], deviation: float, size: int):
        self.classes = 0
        self._shape, self._deviation, self._size = shape, deviation, size
        self._step = 2.0 ** (math.frexp(deviation)[1] - 1 - _FINER)
        self._call = model
        if isinstance(model, keras.Layer):
            self._call = tf.function(lambda x: model(x, training=False), autograph=False)

    def count(self, x: np.ndarray, samples: int, key: tf.Tensor, index: int) -> np.ndarray:
        """Returns how many draws each class won at one example, `(classes,)`."""
        total: np.ndarray | int = 0
        own = tf.random.experimental.stateless_fold_in(key, index, alg="philox")
        for start in range(0, samples, self._size):
            block = tf.random.experimental.stateless_fold_in(own, start, alg="philox")
            point, same = self._draw(x.reshape(-1), block)
            counted = same & (np.arange(start, start + self._size) < samples)
            total = total + (self._winners(point) & counted[:, None]).sum(axis=0)
        return np.asarray(total)

    def _draw(self, x: np.ndarray, key: tf.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Returns points of the lattice, and for which draws they are the right ones."""
        normal, gap = (part.numpy() for part in normal_noise(self._size, x.size, key))
        noise = self._deviation * normal
        gap = np.repeat(gap, 2, axis=1)[:, : x.size] * self._deviation
        with np.errstate(over="ignore", invalid="ignore"):
            moved = x + noise
            off = gap * (1.0 + 2.0**-40) + 8.0 * UNIT * (np.abs(noise) + np.abs(moved))
            low, high = (np.floor(end / self._step + 0.5) for end in (moved - off, moved + off))
            point = (low * self._step).astype(np.float32)
        same = (low == high).all(axis=1)
        return point.reshape(-1, *self._shape), same & np.isfinite(point).all(axis=1)

    def _winners(self, point: np.ndarray) -> np.ndarray:
        """Returns which class wins each draw, `(draws, classes)`; none where two are equal."""
        try:
            answer = self._call(tf.constant(point))
            if isinstance(answer, Mapping) and len(answer) == 1:  # as signatures return it
                (answer,) = answer.values()
            answer = np.asarray(answer)
        except Exception as error:  # whatever a function of the user's raises
            line = next((line for line in str(error).splitlines() if line.strip()), "")
            what = f"{type(error).__name__}: {line}"
            raise InputError(f"the model cannot be called on {point.shape}: {what}") from error
        classes = self.classes or (answer.shape[1] if answer.ndim == 2 else 0)
        if answer.dtype.kind not in "fiu" or answer.shape != (len(point), classes) or classes < 2:
            raise InputError(
                f"the model must return logits or probabilities, ({len(point)}, classes), of two "
                f"classes or more. Received: {answer.dtype} {answer.shape}"
            )
        self.classes = classes
        answer = answer.astype(np.float64)
        best = np.arange(classes) == answer.argmax(axis=1)[:, None]
        ties = (answer == answer.max(axis=1, keepdims=True)).sum(axis=1) > 1
        valid = np.isfinite(answer).all(axis=1) & ~ties
        return best & valid[:, None]


def _examples(x: Any) -> np.ndarray:
    """Returns examples in float64, which must hold them."""
    x = plain(x)
    if x.ndim < 2 or x.dtype.kind not in "fiu":
        raise InputError(f"x must be numbers (n, *input shape). Received: {x.dtype} {x.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        exact = x.astype(np.float64)
    if not np.isfinite(exact).all() or (exact.astype(x.dtype) != x).any():
        raise InputError("x has entries that are NaN, infinite, or that float64 cannot hold")
    return exact


def _labels(y: Any, count: int, classes: int) -> np.ndarray | None:
    if y is None:
        return None
    y = np.asarray(y)
    if y.shape != (count,) or y.dtype.kind not in "iu":
        raise wrong_labels(y, count)
    if ((y < 0) | (y >= classes)).any():
        raise InputError(f"y must be of the {classes} classes, from 0. Received: {y.max()}")
    return y
