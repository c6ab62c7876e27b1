"""What decides the rows of a run: a model, a data set, and how to certify."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator

import numpy as np

from keras_curv.certificates.certificate import RIVALS
from keras_curv.certificates.certifier import Certifier
from keras_curv.certificates.smoothing import VOTE_RIVALS, SmoothedClassifier, Smoothing
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError, require_at_least, require_one_of, require_positive
from keras_curv.reading import saved_model
from keras_curv.reading.served_inputs import plain_shape
from keras_curv.rows.row import Row
from keras_curv.version import __version__


class Job:
    """A model that is read and bounded once, and the examples to certify with it.

    Args:
        model, examples, signature, method, guarantee, smoothing, rivals, input_scale, batch_size,
            seed: as for `run.certify_examples`.

    Attributes:
        examples: as given.
        served: the model that was read.
        scale: float32, what examples are multiplied by.
        settings: all that rows depend on, as JSON can hold it.
        as_input: brings examples of the data set into the model's shape and units.

    Raises:
        InputError: what cannot be used, of all this.

    Example:
        >>> from keras_curv import data
        >>> job = Job("saved_models/digits", data.load("digits"), method="crc", batch_size=8)
        >>> [row.index for row in next(job.batches(16))]
        [16, 17, 18, 19, 20, 21, 22, 23]
    """

    def __init__(
        self,
        model,
        examples: Examples,
        *,
        signature: str = saved_model.DEFAULT_SIGNATURE,
        method: str = "auto",
        guarantee: str = "real",
        smoothing: Smoothing | None = None,
        rivals: str = "all",
        input_scale: float = 1.0,
        batch_size: int | None = None,
        seed: int = 0,
    ):
        self._model = model
        self._options = {
            "signature": signature,
            "method": method,
            "guarantee": guarantee,
            "smoothing": smoothing,
            "rivals": rivals,
            "input_scale": input_scale,
            "batch_size": batch_size,
            "seed": seed,
        }
        with np.errstate(over="ignore"):
            self.scale = scale = np.float32(require_positive(float(input_scale), "input_scale"))
        require_positive(scale, "input_scale, in float32,")
        if batch_size is not None:
            require_at_least(batch_size, 1, "batch_size")
        if smoothing is None:
            require_one_of(rivals, RIVALS, "rivals")
            certifier = Certifier(model, signature=signature, method=method, guarantee=guarantee)
            self._certify = certifier.certify
        else:
            require_one_of(rivals, VOTE_RIVALS, "rivals, with smoothing,")
            if method != "auto" or guarantee != "real":
                raise InputError(
                    "smoothing is a method of its own, and its guarantee a probabilistic one: "
                    f"leave both away. Received: {method!r}, {guarantee!r}"
                )
            certifier = SmoothedClassifier(model, smoothing.deviation, signature=signature)
            self._certify = functools.partial(certifier.certify, **smoothing.votes())
            method, guarantee = "smoothing", "probabilistic"
        self.examples = examples
        self.served = served = certifier.served
        fit = _fitting_shape(examples, served)
        self.as_input = lambda x: fit(x if scale == 1.0 else x * scale)
        self.settings = {
            "version": __version__,
            "fingerprint": served.fingerprint,
            "signature": served.signature,
            "dataset": examples.name,
            "dataset_fingerprint": examples.fingerprint,
            "input_scale": float(input_scale),
            "rivals": rivals,
            "method": method,
            "guarantee": guarantee,
            "seed": seed,
            "batch_size": batch_size or certifier.batch_size(rivals),
        }
        if smoothing is not None:
            self.settings |= dataclasses.asdict(smoothing)

    def batches(self, start: int) -> Iterator[list[Row]]:
        """Certifies from example `start` on, which is the first of a batch."""
        rivals, seed = self.settings["rivals"], self.settings["seed"]
        for x, y in self.examples.batches(self.settings["batch_size"], start):
            result = self._certify(self.as_input(x), y, rivals=rivals, seed=seed, first_index=start)
            rows = Row.from_certificates(result, y, start, rivals)
            yield rows
            start += len(rows)

    def elsewhere(self) -> Callable[[], Job]:
        """What makes this job again in another process, to which it can be sent.

        It reads model and examples at the same places, and raises InputError where it finds others
        there.

        Raises:
            InputError: the model or the examples are in memory only.
        """
        if not isinstance(self._model, (str, os.PathLike)):
            raise InputError("a model in memory cannot be sent to workers; export it first")
        if self.examples.origin is None:
            raise InputError(
                f"{self.examples.name}: examples in memory cannot be sent to workers; "
                "take them from data.load or data.load_npz"
            )
        path = os.path.abspath(self.served.source)
        return functools.partial(
            _same_job, path, self.examples.origin, self._options, self.settings
        )


def _same_job(path: str, origin: Callable[[], Examples], options: dict, settings: dict) -> Job:
    job = Job(path, origin(), **options)
    for key, wanted in settings.items():
        if job.settings[key] != wanted:
            raise InputError(
                f"this worker has {key} {job.settings[key]!r} where the run began with {wanted!r}; "
                "all machines need the same package, model and data at the same places"
            )
    return job


def _fitting_shape(examples: Examples, served: saved_model.ServedModel):
    """How to bring an example of a named data set into the model's shape, entries in order."""

    def plain(shape):
        return tuple(n for n in shape if n != 1)

    wanted, have = served.input_shape, tuple(examples.shape)
    flattened = wanted == (int(np.prod(have)),)
    if have == wanted:
        return lambda x: x
    if examples.reshapable and (plain(have) == plain(wanted) or flattened):
        return lambda x: x.reshape((len(x), *wanted))
    raise InputError(
        f"examples of {examples.name} have shape {have}, but {served.source} takes {wanted}; "
        f"reshape x to (n, {plain_shape(wanted)})"
    )
