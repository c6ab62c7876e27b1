"""Measures one trained network: the columns of the paper's tables.

Each is measured on the first examples of the test set, as many as its `Column` says: where the
paper takes 150 correct ones for mean certificates we take the first 150 correct ones, and
accuracies are of the whole test set wherever a proof costs milliseconds.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_curv.attacks import foolbox as foolbox_attacks
from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.certificate import Certificates, choose_rivals
from keras_curv.certificates.certifier import Certifier
from keras_curv.certificates.crc.success_rates import success_rates
from keras_curv.certificates.smoothing.smoothing import SmoothedClassifier
from keras_curv.curvature.gap import CurvatureGap, curvature_gap
from keras_curv.data.examples import Examples
from keras_curv.network.network import Network
from keras_curv.reproduce.tables import Row

CORRECT = 150  # of mean certificates
ATTACKED = 1000
LINEAR = 1000  # proved by linear bounds, where there are more than two layers
SMOOTHED = 1000
SAMPLES = 10_000
PAIR = 100  # images of a pair (label, runner-up) that make its curvature worth a mean
_BATCH = 250


class Subject:
    """A trained network and examples, with the results computed for them so far.

    Args:
        model: SavedModel directory.
        row: of the table.
        examples: of the test set.
        radius: ρ.
    """

    def __init__(self, model: str, row: Row, examples: Examples, radius: float):
        self.model, self.row, self.radius = model, row, radius
        self.x, self.y = examples.arrays()
        self.certificates = functools.cache(self._certificates)
        self.linear_bounds_hold = functools.cache(self._linear_bounds_hold)
        self.certifier = functools.cache(lambda method: Certifier(model, method=method))

    @functools.cached_property
    def network(self) -> Network:
        """The network, as read from the SavedModel."""
        return self.certifier("lipschitz").served.network

    @functools.cached_property
    def flat(self) -> np.ndarray:
        """The examples, `(n, dim)`, float64."""
        return self.x.reshape(len(self.x), -1).astype(np.float64)

    @functools.cached_property
    def logits(self) -> np.ndarray:
        """The logits of the examples, `(n, classes)`."""
        return self.certifier("lipschitz").method.logits(self.flat)

    @property
    def correct(self) -> np.ndarray:
        """Whether each prediction is right, `(n,)`."""
        return self.logits.argmax(axis=1) == self.y

    @property
    def curved(self) -> bool:
        """Whether its radii are proved by curvature, not by linear bounds."""
        return self.method("crc") == "crc" and self.row.training not in ("crown_ibp", "coap")

    @functools.cached_property
    def curvature_gap(self) -> CurvatureGap:
        """K_lb and K_ub of the network."""
        pairs = self.y * self.network.classes + self.network.runner_up(self.logits, self.y).numpy()
        least = min(PAIR, np.bincount(pairs).max())
        return curvature_gap(self.network, self.flat, self.y, minimum_examples=least)

    def method(self, name: str) -> str:
        """Returns the value of `--method`: what the paper calls CRC is "quadratic" for ReLU."""
        smooth = all(activation.smooth for activation in self.network.activations)
        return "quadratic" if name == "crc" and not smooth else name

    def _certificates(self, method: str, rivals: str, only: str) -> tuple[Certificates, float]:
        """Certifies "all" examples or the first "correct" ones, at least one, and times it."""
        rows = np.flatnonzero(self.correct)[:CORRECT] if only == "correct" else slice(None)
        certifier, x, y = self.certifier(method), self.x[rows], self.y[rows]
        certifier.certify(x[:2], y[:2], rivals=rivals)  # traced, checked
        started = time.perf_counter()
        found = certifier.certify_all(x, y, rivals=rivals)
        return found, (time.perf_counter() - started) / len(x)

    def mean_radius(self, method: str, rivals: str) -> tuple[float, float]:
        """Returns the mean radius of the first correct examples and seconds for each, or NaN."""
        if not self.correct.any():
            return math.nan, math.nan
        found, seconds = self.certificates(self.method(method), rivals, "correct")
        return found.radius.mean(), seconds

    def _linear_bounds_hold(self, rivals: str) -> np.ndarray:
        """Returns whether CROWN proves the ball of radius ρ, without a search for the largest."""
        count = len(self.x) if self.network.depth == 2 else min(LINEAR, len(self.x))
        proved = np.zeros(count, bool)
        if rivals == "runner_up":  # proved wherever all rivals are
            proved |= self.linear_bounds_hold("all")
        rows = np.flatnonzero(self.correct[:count] & ~proved)
        label, radius = self.y[rows], np.full(len(rows), np.nextafter(self.radius, np.inf))
        against = choose_rivals(self.logits[rows], label, rivals, rows)
        crown: Any = self.certifier("crown").method
        bounds = crown.margin_bounds(self.flat[rows], label, against, radius)
        proved[rows] = (bounds > 0.0).all(axis=1)
        return proved


def _percent(holds: np.ndarray) -> float:
    return 100.0 * float(np.mean(holds))


def _certified(rivals: str, subject: Subject) -> float:
    if subject.row.training == "noise":
        x, y = subject.x[:SMOOTHED], subject.y[:SMOOTHED]
        smoothed = SmoothedClassifier(subject.model, float(subject.row.weight or 0.0))
        found = smoothed.certify(x, y, rivals=rivals, samples=SAMPLES, noise="shared")
    elif subject.curved:
        found, _ = subject.certificates("crc", rivals, "all")
    else:
        return _percent(subject.linear_bounds_hold(rivals))
    return _percent(found.radius > subject.radius)


def _empirical(subject: Subject) -> float:
    count, network = min(ATTACKED, len(subject.x)), subject.network

    @tf.function(reduce_retracing=True, autograph=False)
    def attack(x: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return pgd_attack(network, x, label, radius=subject.radius, steps=100, restarts=3)

    survived = []
    for start in range(0, count, _BATCH):
        part = slice(start, min(start + _BATCH, count))
        margin, _ = attack(tf.constant(subject.flat[part], tf.float32), subject.y[part])
        survived.append((margin.numpy() > 0.0) & subject.correct[part])
    return _percent(np.concatenate(survived))


def _empirical_ddn(subject: Subject) -> float:
    x, y, correct = (part[:ATTACKED] for part in (subject.flat, subject.y, subject.correct))
    distance = foolbox_attacks.ddn_distances(subject.network, x[correct], y[correct])
    return 100.0 * np.sum(distance > subject.radius) / len(x)


def _mean_radius(method: str, rivals: str, subject: Subject) -> float:
    return subject.mean_radius(method, rivals)[0]


def _seconds(method: str, subject: Subject) -> float:
    return subject.mean_radius(method, "runner_up")[1]


def _success(which: int, subject: Subject) -> float:
    method: Any = subject.certifier("crc").method
    x, y = subject.flat[:ATTACKED], subject.y[:ATTACKED]
    return 100.0 * success_rates(method, x, y, radius=subject.radius)[which]


class Column(NamedTuple):
    """A column of a table."""

    heading: str  # what stands above it
    meaning: str  # what exactly is measured, on how many examples
    measure: Callable[[Subject], float]  # `Subject → float`; NaN where there is no such figure
    unit: str = ""  # "%" or ""


_CERTIFIED = (
    "proved at ρ, of all test images: by CRC; CROWN-IBP, COAP and ReLU nets by CROWN, above two "
    f"layers the first {LINEAR:,} images; noise by smoothing, the first {SMOOTHED:,} images, "
    f"{SAMPLES:,} samples, α = 0.001"
)
_MEAN = f"mean radius of the first {CORRECT} correct images"

COLUMNS = {
    "clean": Column(
        "clean", "accuracy on the whole test set", lambda subject: _percent(subject.correct), "%"
    ),
    "empirical": Column(
        "empirical", f"PGD at ρ fails: the first {ATTACKED:,}, 3 × 100 steps", _empirical, "%"
    ),
    "empirical_ddn": Column(
        "empirical, DDN",
        f"Foolbox' DDN finds nothing within ρ: the first {ATTACKED:,}, 200 steps",
        _empirical_ddn,
        "%",
    ),
    "certified": Column(
        "certified, runner-up",
        _CERTIFIED + "; against the runner-up alone, as in the paper: no certificate",
        functools.partial(_certified, "runner_up"),
        "%",
    ),
    "certified_all": Column(
        "certified, all rivals",
        "the same against all rivals, as a certificate must be",
        functools.partial(_certified, "all"),
        "%",
    ),
    "attack_success": Column(
        "attack success",
        f"the attack's point proved worst in the ball, of the first {ATTACKED:,}",
        functools.partial(_success, 1),
        "%",
    ),
    "certificate_success": Column(
        "certificate success",
        f"an adversarial point proved closest, of the first {ATTACKED:,}",
        functools.partial(_success, 0),
        "%",
    ),
    "curvature_below": Column(
        "K_lb",
        f"largest |eigenvalue| of a pair's Hessians, mean over pairs of {PAIR} images or more",
        lambda subject: subject.curvature_gap.lower,
    ),
    "curvature_proved": Column(
        "K, ours",
        "the smallest of our bounds, theorem 3 for two layers, mean over the same pairs",
        lambda subject: subject.curvature_gap.proved,
    ),
    "curvature_above": Column(
        "K_ub", "theorem 4, mean over the same pairs", lambda subject: subject.curvature_gap.upper
    ),
    "crc_local": Column(
        "CRC, local",
        f"{_MEAN}, runner-up, curvature on balls",
        functools.partial(_mean_radius, "crc_local", "runner_up"),
    ),
}
for _method in ("crown", "crc"):
    _name = _method.upper()
    COLUMNS[f"{_method}_seconds"] = Column(
        f"{_name}, s / image", "runner-up, in batches", functools.partial(_seconds, _method)
    )
    for _rivals in ("runner_up", "random", "least"):
        COLUMNS[_method if _rivals == "runner_up" else f"{_method}_{_rivals}"] = Column(
            f"{_name}, {_rivals.replace('_', '-')}",
            f"{_MEAN}, this rival alone",
            functools.partial(_mean_radius, _method, _rivals),
        )
