"""From a model and arrays of examples to certificates."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv.attacks import curvature_attack
from keras_curv.certificate import GUARANTEES, RIVALS, Certificates, around, choose_rivals
from keras_curv.errors import InputError, require_at_least, require_one_of
from keras_curv.methods.best_of import METHODS, choose_method
from keras_curv.methods.crc import CurvatureCertificate
from keras_curv.methods.float32 import Float32Error
from keras_curv.methods.method import no_error
from keras_curv.reading import saved_model
from keras_curv.rounding import norm_bound

_CHECKED = 32  # examples on which the read network is held against the signature
_EXACT_IN_FLOAT32 = (tf.float32, tf.float16, tf.uint8, tf.int8, tf.int16)
_USUAL = 2.0**40
_CELLS = 2**24  # float64 numbers that a batch may take in one array


class Certifier:
    """One model, read and bounded once, that certifies any number of batches.

    Args:
        model: a SavedModel directory (or a base path with numbered versions), or a built
            Keras model. A live model is read as it is now; train on, and read it again.
        signature: of a SavedModel.

        method, guarantee: see `certify`.

    Raises:
        InputError: see `saved_model.read`, `choose_method` and `Float32Error`.

    Example:
        >>> from keras_curv import data
        >>> x, y = data.load_all("digits")
        >>> certifier = Certifier("saved_models/digits", method="crc")
        >>> certifier.certify(x[:4], y[:4]).radius.round(1)
        array([0.8, 0. , 0.7, 0.8])
    """

    def __init__(
        self,
        model,
        *,
        signature: str = saved_model.DEFAULT_SIGNATURE,
        method: str = "auto",
        guarantee: str = "real",
    ):
        require_one_of(method, METHODS, "method")
        require_one_of(guarantee, GUARANTEES, "guarantee")
        self.served = saved_model.read(model, signature)
        error = no_error if guarantee == "real" else _float32_error(self.served)
        self.method = choose_method(method, self.served.network, error)
        self._checked = False

    def certify(
        self,
        x: np.ndarray,
        y: np.ndarray | None = None,
        *,
        rivals: str = "all",
        seed: int = 0,
        first_index: int = 0,
    ) -> Certificates:
        """Certifies one batch. The first one is also run through the model's own signature.

        Args:
            x: `(n, *input shape)`, what the model is served, in its own units.
            y: `(n,)` integers, or None to certify the predicted classes.
            rivals: see `CurvatureCertificate.certify`.
            seed: for random rivals.
            first_index: of the first example, for messages and for random rivals, which do not
                depend on how examples are cut into batches.

        Raises:
            InputError: wrong shape, NaN or infinite entries, labels out of range, or a model
                whose signature disagrees with what was read from it.
        """
        served, moved = self._as_served(np.asarray(x), first_index)
        label = (
            None if y is None else self._validate_labels(np.asarray(y), len(served), first_index)
        )
        require_one_of(rivals, RIVALS, "rivals")
        if seed < 0:
            raise InputError(f"seed must not be negative. Received: {seed}")
        self._check(served)
        seeds = None
        if rivals == "random":
            pairs = [(seed, first_index + i) for i in range(len(served))]
            seeds = np.array([np.random.SeedSequence(p).generate_state(1)[0] for p in pairs])
        result = self.method.certify(
            served.reshape(len(served), self.served.network.dim),
            label,
            rivals=rivals,
            seeds=seeds,
        )
        return around(result, moved)

    def certify_all(
        self,
        x: np.ndarray,
        y: np.ndarray | None = None,
        *,
        rivals: str = "all",
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Certificates:
        """Certifies any number of examples, a batch at a time; see `certify`.

        Args:
            batch_size: examples at a time; None chooses by the size of the network.
        """
        x = np.asarray(x)
        if x.ndim == 0:
            raise InputError("x must be an array of examples. Received: one number")
        if y is not None and np.shape(y) != x.shape[:1]:
            raise InputError(f"y must be of shape {x.shape[:1]}. Received: {np.shape(y)}")
        if batch_size is not None:
            require_at_least(batch_size, 1, "batch_size")
        size = batch_size or self.batch_size(rivals)
        parts = [
            self.certify(
                x[start : start + size],
                None if y is None else np.asarray(y)[start : start + size],
                rivals=rivals,
                seed=seed,
                first_index=start,
            )
            for start in range(0, max(len(x), 1), size)
        ]
        return Certificates(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def batch_size(self, rivals: str = "all") -> int:
        """How many examples fit a batch of moderate memory."""
        network = self.served.network
        against = network.classes - 1 if rivals == "all" else 1
        widest = max(max(affine.kernel.shape) for affine in network.affines)
        return int(np.clip(_CELLS // (against * widest), 1, 512))

    def _check(self, served: np.ndarray) -> None:
        """Once, on the first examples at which no model overflows on its way."""
        size = np.abs(served.astype(np.float64)).reshape(len(served), self.served.network.dim)
        usual = served[size.max(axis=1, initial=0.0) < _USUAL]
        if not self._checked and len(usual):
            self.served.check(usual[:_CHECKED])
            self._checked = True

    def _as_served(self, x: np.ndarray, first_index: int) -> tuple[np.ndarray, np.ndarray]:
        """x in the dtype of the model, and bounds of how far that moved each example."""
        served = self.served
        if x.ndim == 0 or x.shape[1:] != served.input_shape:
            raise InputError(
                f"examples of shape {x.shape[1:]} do not fit {served.source}, which takes "
                f"{served.input_shape}; reshape x to (n, {plain_shape(served.input_shape)})"
            )
        if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
            raise InputError(f"x must hold numbers. Received: {x.dtype}")
        self._refuse_where(~np.isfinite(x), first_index, "has NaN or infinite entries")
        exact = target = x.astype(np.float64)
        dtype = served.input_dtype.as_numpy_dtype
        name = served.input_dtype.name
        if np.issubdtype(dtype, np.integer):
            limits, target = np.iinfo(dtype), np.rint(exact)
            fits = (target >= limits.min) & (target <= limits.max)
            near = np.abs(target - exact) <= 1e-5 * np.maximum(1.0, np.abs(exact))
            self._refuse_where(
                ~(fits & near),
                first_index,
                f"is not of whole numbers in the range of {name}, which {served.source} takes "
                "(pixels in [0, 1] need an input scale of 255)",
            )
        with np.errstate(over="ignore"):
            converted = target.astype(dtype)
        back = converted.astype(np.float64)
        self._refuse_where(~np.isfinite(back), first_index, f"overflows {name}")
        return converted, norm_bound((exact - back).reshape(len(x), served.network.dim), axis=1)

    def _refuse_where(self, bad: np.ndarray, first_index: int, what: str) -> None:
        rows = bad.reshape(len(bad), self.served.network.dim).any(axis=1)
        if rows.any():
            raise InputError(f"example {first_index + rows.argmax()} {what}")

    def _validate_labels(self, y: np.ndarray, count: int, first_index: int) -> np.ndarray:
        classes = self.served.network.classes
        if y.shape != (count,) or not np.issubdtype(y.dtype, np.integer):
            raise InputError(
                f"y must be integers of shape ({count},). Received: {y.dtype} {y.shape}"
            )
        bad = (y < 0) | (y >= classes)
        if bad.any():
            where = int(bad.argmax())
            raise InputError(
                f"example {first_index + where} has label {y[where]}, but {self.served.source} "
                f"has {classes} classes (0 to {classes - 1})"
            )
        return y.astype(np.int64)


def certify(
    model,
    x: np.ndarray,
    y: np.ndarray | None = None,
    *,
    method: str = "auto",
    guarantee: str = "real",
    rivals: str = "all",
    signature: str = saved_model.DEFAULT_SIGNATURE,
    batch_size: int | None = None,
    seed: int = 0,
) -> Certificates:
    """Proves, for each input, an l2 radius within which the prediction cannot change.

    For every δ with `‖δ‖₂ < radius[i]`, the class with the largest logit at `x[i] + δ` is
    `prediction[i]`; see `certificate.py` for what is proved and what is not. Radii are in the
    model's own input units.

    Args:
        model: a SavedModel directory, or a built Keras model.
        x: `(n, *input shape)`.
        y: `(n,)` integer labels; an example that is not predicted as its label gets radius 0.
            None certifies the predictions.
        method: one of `METHODS`; "auto" takes the largest radius of all that apply.
        guarantee: "real": in real arithmetic on the stored weights; "float32": as served in
            float32.
        rivals: "all" for a certificate; "runner_up", "random" or "least" for the single-rival
            protocols of the paper's tables.
        signature: of a SavedModel.
        batch_size: examples at a time; None chooses by the size of the network.
        seed: for random rivals.

    Returns:
        `Certificates`, arrays of length n.

    Raises:
        InputError: anything about the model or the examples that cannot be used.

    Example:
        >>> import keras_curv
        >>> x, y = keras_curv.data.load_all("digits")
        >>> result = keras_curv.certify("saved_models/digits", x, y)
        >>> bool((result.radius > 0.25).mean() > 0.8)
        True
    """
    certifier = Certifier(model, signature=signature, method=method, guarantee=guarantee)
    return certifier.certify_all(x, y, rivals=rivals, seed=seed, batch_size=batch_size)


def success_rates(
    certificate: CurvatureCertificate,
    x: np.ndarray,
    label: np.ndarray,
    *,
    radius: float,
    tolerance: float = 1e-3,
    steps: int = 40,
) -> tuple[float, float]:
    """How often primal = dual, for the certificate and for the attack, against the runner-up.

    Args:
        certificate: of the network.
        x: `(n, dim)`.
        label: `(n,)`.
        radius: of the attack.
        tolerance: of the attack's gap, relative to 1 + |f(x)|.
        steps: gradients for each attack.

    Returns:
        Fractions of all examples: those whose closest adversarial point was found and proved
        closest, and those whose worst point in the ball was found and proved worst.

    Example:
        >>> from keras_curv import data
        >>> x, y = data.load_all("digits")
        >>> certificate = Certifier("saved_models/digits", method="crc").method
        >>> closest, worst = success_rates(certificate, x[:50].reshape(50, -1), y[:50], radius=0.3)
        >>> 0.2 < closest < worst == 1.0
        True

    Reference: Singla & Feizi (2020), table 2, "certificate success" and "attack success".
    """
    network = certificate.network
    label = np.asarray(label)
    logits = certificate.logits(x)
    found = certificate.certify(x, label, rivals="runner_up").primal_equals_dual
    rival = choose_rivals(logits, label, "runner_up", np.zeros(len(label), int))[:, 0]
    kappa = -certificate.curvature.lower[label, rival]
    worst = curvature_attack(
        network,
        tf.constant(x, tf.float64),
        tf.constant(label),
        tf.constant(rival),
        radius=radius,
        curvature=tf.constant(kappa),
        steps=steps,
        tolerance=tolerance,
    ).primal_equals_dual
    return float(np.mean(found)), float(np.mean(worst))


def _float32_error(served: saved_model.ServedModel) -> Float32Error:
    """What serving this model in float32 may take off its margins."""
    if served.input_dtype not in _EXACT_IN_FLOAT32:
        raise InputError(
            f"{served.source} takes {served.input_dtype.name}, which serving in float32 rounds; "
            "the float32 guarantee needs inputs of float32 or of a smaller type"
        )
    return Float32Error(served.network, served.head)


def plain_shape(shape: tuple[int, ...]) -> str:
    """A shape without its brackets."""
    return ", ".join(map(str, shape))
