"""From a model and arrays of examples to certificates."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.category_changes import after_changes
from keras_curv.certificates.certificate import RIVALS, Certificates, moved_away
from keras_curv.certificates.float32 import Float32Error
from keras_curv.certificates.method import Method, ServedError, no_error
from keras_curv.certificates.options import ProofOptions
from keras_curv.certificates.other_norms import NormCertificate
from keras_curv.certificates.smoothing.black_box import certify_smoothed
from keras_curv.certificates.witnesses import Witnesses
from keras_curv.data.containers import is_table, of_dataset
from keras_curv.errors import (
    InputError,
    optional_at_least,
    require_at_least,
    require_one_of,
    require_positive,
)
from keras_curv.network.network import Network
from keras_curv.network.products import float32_keeps_digits
from keras_curv.numerics.rounding import up
from keras_curv.options import accepts, with_options
from keras_curv.process import certifying
from keras_curv.progress import in_notebook, progress_bar
from keras_curv.reading import served_model
from keras_curv.reading.served_inputs import ServedInputs
from keras_curv.threats.norms import NORMS, farthest
from keras_curv.threats.properties.property import ARGMAX, Property
from keras_curv.threats.threat import PLAIN, Threat

_EXACT_IN_FLOAT32 = (tf.float32, tf.float16, tf.uint8, tf.int8, tf.int16)
_Rows = slice | np.ndarray
_CELLS = 2**24  # float64 numbers that a batch may take in one array
_WORK = 2.0**35  # multiplications that one bound of a whole batch may take: seconds, all in all


@accepts(ProofOptions)
class Certifier:
    """One model, read and bounded once, that certifies any number of batches.

    Args:
        model: a SavedModel directory (or a base path with numbered versions), a `.keras` or
            `.h5` file, or a built Keras model. A live model is read as it is now; train on, and
            read it again.
        columns: names of the features of a model with one input, as of a DataFrame, by which a
            threat may name them; those of several inputs, or behind a cut, have names of their own.
        decide: radii at which alone the answer matters; None asks for the largest radius. An
            example is done once each of them is proved or refuted. The radius that is returned is
            proved all the same, and exceeds those of `decide` that the method can prove.
        {options}

    Attributes:
        served, network: the model, as it is read, and its network with the inputs of a property.
        threat: the threat, with indices in place of names.
        fixed: names of inputs that are no floats beside others that are, and so held fixed.

    Raises:
        InputError: see `keras_curv.read`, `choose_method` and `Float32Error`.

    Example:
        >>> from keras_curv import data
        >>> x, y = data.load_all("digits")
        >>> certifier = Certifier("saved_models/digits", method="crc")
        >>> certifier.certify(x[:4], y[:4]).radius.round(1)
        array([0.8, 0. , 0.7, 0.8])
    """

    @certifying
    def __init__(
        self,
        model: Any,
        *,
        columns: Sequence[str] = (),
        decide: Sequence[float] | None = None,
        **options: Any,
    ):
        asked = with_options(ProofOptions(), options)
        self.property, self.threat = Property.of(asked.property), asked.threat
        self.served = served_model.read(
            model, asked.signature, output_name=asked.output_name, scores=True, cut=asked.cut
        )
        self._guarantee = asked.guarantee
        places, dim = self.served.places(columns), self.served.network.dim
        fixed = [places[name].reshape(-1) for name in self.served.inputs.fixed]
        self.threat = self.threat.located(places)
        self.threat = self.threat.holding(np.concatenate([np.zeros(0, int), *fixed]), dim)
        held = self.threat.factors(dim)[1]
        if self.threat.categories is not None:
            held = held & ~self.threat.categories.of(np.zeros(dim, bool))
        self.fixed = tuple(n for n in self.served.inputs.fixed if held[places[n]].any())
        self.network = self.property.network(self.served.network, self.served.head)
        # A basis that each example has by itself is asked for with a stand-in, for what is refused.
        stand_in = np.arange(float(dim)) / dim
        network = self.threat.network(self.network, dim, stand_in)
        error = no_error
        if asked.guarantee == "float32":
            error = _float32_error(self.served, network, self.property, self.threat)
        self._tolerance, self._decide = asked.tolerance, _radii_to_decide(decide)
        self._method_of = functools.partial(_method, asked, self.threat.norm, error)
        self.method = self._method_of(network)
        labels = self.property.labels(network)
        self._labelled = labels > 0
        self._inputs = ServedInputs(self.served, labels)
        _warn_if_factors_are_rounded()

    def __repr__(self) -> str:
        source, method = self.served.source, self.method.name
        behind = f", cut={self.served.cut!r}" if self.served.cut else ""
        return f"Certifier({source!r}{behind}, method={method!r}, guarantee={self._guarantee!r})"

    @certifying
    def certify(
        self,
        x: np.ndarray | Mapping[str, np.ndarray],
        y: np.ndarray | None = None,
        *,
        rivals: str = "all",
        seed: int = 0,
        first_index: int = 0,
        keep: Callable[[Witnesses], None] | None = None,
    ) -> Certificates:
        """Certifies one batch. The first one is also run through the model's own signature.

        Args:
            x: `(n, *input shape)`, what the model is served, in its own units; of several inputs
                `(n, total)`, joined in the order of `ServedModel.inputs`, or name → array; with a
                cut, what flows there, or of a live model what that takes.
            y: `(n,)` integers, or None to certify the predicted classes.
            rivals: see `CurvatureCertificate.certify`.
            seed: for random rivals.
            first_index: of the first example, for messages and for random rivals, which do not
                depend on how examples are cut into batches.
            keep: called at the end with what the proofs rest on; None keeps nothing.

        Raises:
            InputError: wrong shape, NaN or infinite entries, labels out of range, or a model
                whose signature disagrees with what was read from it.
        """
        args = self.served.joined(x), y
        return self._certified(*args, rivals=rivals, seed=seed, first_index=first_index, keep=keep)

    def _certified(
        self,
        x: np.ndarray,
        y: np.ndarray | None,
        *,
        rivals: str,
        seed: int,
        first_index: int,
        keep: Callable[[Witnesses], None] | None = None,
    ) -> Certificates:
        """Certifies one batch of what the network takes, `(n, *input shape)`."""
        require_one_of(rivals, RIVALS, "rivals")
        if rivals != "all" and self._guarantee == "float32" and self.served.head != "logits":
            # A third class, far above both, leaves two served probabilities of 0: a tie.
            raise InputError(
                f"{self.served.source} ends in {self.served.head}: in float32 one rival alone says "
                "nothing of what is served; use rivals 'all'"
            )
        if rivals != "all" and self.property != ARGMAX:
            raise InputError(
                f"rivals {rivals!r} are for argmax. Received: {self.property.spelling}"
            )
        if rivals != "all" and self.threat.categories is not None:
            raise InputError(f"where categories change, all rivals count. Received: {rivals!r}")
        seed = require_at_least(seed, 0, "seed")
        flat, label, moved = self._inputs.checked(x, y, first_index)
        served = np.asarray(flat, np.float64)
        exact = np.asarray(x, np.float64).reshape(served.shape)
        if not self.threat.plain:
            self.threat.require_inside(exact, first_index)
            if not self.threat.moves_freely:
                moved = self.threat.moved(served, exact - served)
            moved = self._in_norm(moved)
        seeds = None
        if rivals == "random":
            pairs = [(seed, first_index + i) for i in range(len(flat))]
            seeds = np.array([np.random.SeedSequence(p).generate_state(1)[0] for p in pairs])
        claimed = self.threat.claimed(served, exact)
        numbers = self.property.numbers(self.served.network, claimed)
        kept = keep and Witnesses(exact, served, self.method.network)
        how: dict[str, Any] = {"rivals": rivals, "noted": kept.note if kept else None}

        def certified(rows: _Rows, x: np.ndarray, label: np.ndarray | None) -> Certificates:
            whole = np.concatenate([self.threat.coordinates(x), numbers[rows]], axis=1)
            if not self.threat.by_example:
                of_all = {**how, "seeds": seeds}
                return self._proved(self.method, whole, label, moved[rows], **of_all)
            parts = []
            for i, example in enumerate(x):
                one = slice(i, i + 1)
                network = self.threat.network(self.network, x.shape[1], example)
                of_one: dict[str, Any] = {
                    "rivals": rivals,
                    "seeds": None if seeds is None else seeds[one],
                }
                given = whole[one], None if label is None else label[one], moved[rows][one]
                parts.append(self._proved(self._method_of(network), *given, **of_one))
            return Certificates.joined(parts)

        result = certified(slice(None), served, label)
        if keep and kept:
            keep(kept)
        if self.threat.categories is None:
            return result
        known = label if label is not None or not self._labelled else result.prediction
        args = self.threat.categories, served, known, result, self.property == ARGMAX
        return after_changes(certified, *args)

    def _proved(
        self,
        method: Method,
        x: np.ndarray,
        label: np.ndarray | None,
        moved: np.ndarray,
        **how: Any,
    ) -> Certificates:
        """Certifies what a method's network takes, `(n, dim)`, each at a distance of `moved` from
        what the certificate is about."""
        how |= {"property": self.property, "tolerance": self._tolerance, "decide": self._decide}
        result = moved_away(method.certify(x, label, **how), moved)
        # A radius beyond all that the attacker can reach is one of all that there is.
        away = up(farthest(method.network, x, NORMS[self.threat.norm]) + moved)
        return dataclasses.replace(
            result, radius=np.where(result.radius > away, np.inf, result.radius)
        )

    def _in_norm(self, length: np.ndarray) -> np.ndarray:
        """Returns the most that a change of such an l2 length has in the norm of the threat."""
        return up(length * self.method.network.dim**0.5, 8) if self.threat.norm == "l1" else length

    @certifying
    def certify_all(
        self,
        x: Any,
        y: np.ndarray | None = None,
        *,
        rivals: str = "all",
        seed: int = 0,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> Certificates:
        """Certifies any number of examples, a batch at a time; see `certify`.

        Args:
            x, y: as in `certify`; x may also be a `tf.data.Dataset`, of x or of (x, y).
            batch_size: examples at a time; None chooses by the size of the network.
            progress: as in `certify`.
        """
        if isinstance(x, tf.data.Dataset):
            if y is not None:
                raise InputError("a dataset has its own labels, or none; leave y out")
            x, y = of_dataset(x, (self.served.before or self.served.inputs).shapes)
        x = self.served.joined(x)
        if y is not None and np.shape(y)[:1] != x.shape[:1]:
            raise InputError(f"y must be of shape {x.shape[:1]}. Received: {np.shape(y)}")
        optional_at_least(batch_size, 1, "batch_size")
        size = batch_size or self.batch_size(rivals)
        parts, shown = [], in_notebook() if progress is None else progress
        with progress_bar(len(x), 0, visible=shown) as advance:
            for start in range(0, max(len(x), 1), size):
                some = slice(start, start + size)
                known = None if y is None else np.asarray(y)[some]
                how: dict[str, Any] = {"rivals": rivals, "seed": seed, "first_index": start}
                parts.append(self._certified(x[some], known, **how))
                advance(len(x[some]))
        return Certificates.joined(parts)

    def batch_size(self, rivals: str = "all") -> int:
        """Returns the number of examples that fit a batch of moderate memory and time."""
        network = self.method.network
        against = network.classes - 1 if rivals == "all" else 1
        widest = max(max(affine.kernel.shape) for affine in network.affines)
        work = (self.method.cost + against) * network.multiplications
        most = _CELLS / (against * widest), _WORK / work
        return int(np.clip(min(most), 1, 1024))


@accepts(ProofOptions)
def certify(
    model: Any,
    x: Any,
    y: np.ndarray | None = None,
    *,
    decide: Sequence[float] | None = None,
    rivals: str = "all",
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> Certificates:
    """Proves, for each input, an l2 radius within which the prediction cannot change.

    For every δ with `‖δ‖₂ < radius[i]`, the class with the largest logit at `x[i] + δ` is
    `prediction[i]`; see `certificate.py` for what is proved and what is not. Radii are in the
    model's own input units. Under a threat all this is of the changes that it allows, in its units.

    Args:
        model: a SavedModel directory, a `.keras` or `.h5` file, or a built Keras model; with the
            method smoothing any callable, see `certify_smoothed`.
        x: `(n, *input shape)`. Of a model with several inputs it is one vector an example, `(n,
            total)`: each input flattened, one after the other, in the order of sorted names; or
            name → `(n, *shape)`. Radii are of that vector. A `tf.data.Dataset`, of x or of (x, y),
            batched or not, and a DataFrame, whose columns are entries or inputs, will do, too.
        y: `(n,)` integer labels; an example that is not predicted as its label gets radius 0.
            None certifies the predictions.
        decide: radii at which alone the answer matters, see `Certifier`; many times faster.
        rivals: "all" for a certificate; "runner_up", "random" or "least" for the single-rival
            protocols of the paper's tables.
        batch_size: examples at a time; None chooses by the size of the network.
        seed: for random rivals.
        progress: whether to show a bar; None: in a notebook.
        {options}

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
    if options.get("method") == "smoothing":
        if rivals != "all" or decide is not None:
            raise InputError("the method smoothing takes all rivals, and no radii to decide")
        options = {name: value for name, value in options.items() if name != "method"}
        return certify_smoothed(model, x, y, seed=seed, batch_size=batch_size, **options)
    columns = [*x.columns] if is_table(x) else []
    certifier = Certifier(model, columns=columns, decide=decide, **options)
    how: dict[str, Any] = {"rivals": rivals, "seed": seed, "progress": progress}
    return certifier.certify_all(x, y, batch_size=batch_size, **how)


def _method(asked: ProofOptions, norm: str, error: ServedError, network: Network) -> Method:
    """Returns the method of the options for a network, in the norm of the threat."""
    method = choose_method(asked.method, network, error, tolerance=asked.tolerance)
    return method if norm == PLAIN else NormCertificate(method, NORMS[norm], error)


def _radii_to_decide(decide: Sequence[float] | None) -> tuple[float, ...]:
    """Returns the radii to decide; InputError unless they are positive and finite."""
    if decide is None:
        return ()
    if isinstance(decide, str) or np.ndim(decide) != 1:
        raise InputError(f"decide takes the radii to decide, as [0.5]. Received: {decide!r}")
    return tuple(require_positive(radius, "a radius to decide") for radius in decide)


def _warn_if_factors_are_rounded() -> None:
    """Warns where TensorFlow's float32 products, by which radii are searched, are inaccurate."""
    spec = tf.TensorSpec((2,), tf.int32)
    keeps_digits = tf.function(float32_keeps_digits, autograph=False).get_concrete_function(spec)
    if not keeps_digits(tf.constant([0, 1])):
        warnings.warn(
            "TensorFlow rounds the factors of float32 products further here, to TF32 or bfloat16: "
            "radii are as valid, and may be some per cent smaller. Set it so by no variable "
            "(ONEDNN_DEFAULT_FPMATH_MODE, TF_SET_ONEDNN_FPMATH_MODE), option of its optimizer "
            "(auto_mixed_precision_onednn_bfloat16) or tf.config.experimental to have them larger",
            RuntimeWarning,
            stacklevel=2,
        )


def _float32_error(
    served: served_model.ServedModel, network: Network, held: Property, threat: Threat
) -> Float32Error:
    """Returns the charge for serving this model in float32, on a property's margins."""
    if not threat.holds_in_float32:
        raise InputError(
            "there is no guarantee float32 under weights by feature or a basis, as inputs between "
            "are rounded; use the guarantee real"
        )
    if not held.holds_in_float32(served.head):
        raise InputError(
            f"there is no guarantee float32 for {held.spelling} of a model that ends in "
            f"{served.head}; use the guarantee real"
        )
    if served.input_dtype not in _EXACT_IN_FLOAT32:
        raise InputError(
            f"{served.source} takes {served.input_dtype.name}, which serving in float32 rounds; "
            "the float32 guarantee needs inputs of float32 or of a smaller type"
        )
    return Float32Error(network, served.head)
