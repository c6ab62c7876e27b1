"""A run over a data set."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_curv.certificates.certificate import CORRECT, Status
from keras_curv.certificates.certifier import Certifier
from keras_curv.certificates.smoothing.smoothing import SmoothedClassifier
from keras_curv.certificates.witnesses import Witnesses
from keras_curv.data.examples import Examples
from keras_curv.data.tf_examples import TFExamples
from keras_curv.errors import InputError, visible
from keras_curv.network.clip import layers
from keras_curv.network.network import Network
from keras_curv.network.network_file import fingerprint
from keras_curv.options import with_options
from keras_curv.process import certifying
from keras_curv.progress import working
from keras_curv.reading.served_model import ServedModel
from keras_curv.reports.html.cases import Case, entry_names, find_cases
from keras_curv.rows.checks import require_row_of
from keras_curv.rows.proof_folder import ProofFolder
from keras_curv.rows.row import BASELINE_COLUMNS, EXAMPLE_COLUMNS, QUALIFIED, Row, certified_fields
from keras_curv.rows.slices import BY_CLASS, class_of
from keras_curv.runs.adversarial import AdversarialPoints
from keras_curv.runs.fitting import fitting_shape, require_plain, times
from keras_curv.runs.job import Job, Sink, same_job
from keras_curv.runs.options import ExampleOptions
from keras_curv.runs.runner import run
from keras_curv.threats.properties.property import ARGMAX, Property
from keras_curv.version import __version__

_READ_AT_ONCE = 1024  # examples, for their labels
_LOOKED_AT = 64  # examples, for their scale


@certifying
def certify_examples(
    model: Any,
    examples: Examples | TFExamples | tuple,
    options: ExampleOptions | None = None,
    **changes: Any,
) -> dict:
    """Certifies a data set as a stream, writing rows as they come: `keras_curv certify`.

    Args:
        model: as for `certify`.
        examples: arrays `(x, y)`, or `(x, None)` without labels, x as for `certify`; or a stream
            of batches, see `data.load` and `data.load_npz`; or files of tf.Examples.
        options: how, at which radii, and which files to write.
        **changes: fields of `ExampleOptions`, by name.

    Returns:
        The summary; see `Tally.summary` for its keys, and `verdict.verdict`.

    Raises:
        InputError: what cannot be used, before anything is written where that can be known;
            rows already written stay.

    Example:
        >>> from keras_curv import data
        >>> x, y = data.load_all("digits")
        >>> some = x[:20], y[:20]
        >>> summary = certify_examples("saved_models/digits", some, method="crc", radii=[0.5])
        >>> summary["examples"], summary["clean_accuracy"]
        (20, 0.95)
    """
    options = with_options(options or ExampleOptions(), changes)
    stream = _stream(examples)
    files = stream.paths if isinstance(stream, TFExamples) else [stream.path]
    read = [
        *files,
        options.baseline,
        os.fspath(model) if isinstance(model, (str, os.PathLike)) else None,
    ]
    return run(lambda: ExampleJob(model, stream, options), options, inputs=read)


class ExampleJob(Job):
    """One model and the examples of a data set.

    Args:
        model, examples: as for `certify_examples`.
        options: how to certify; what it says of files and workers is the runner's business.

    Attributes:
        examples: as given.
        served: the model that was read.
        as_input: brings examples of the data set into the model's shape and units.

    Raises:
        InputError: what cannot be used, of all this.

    Example:
        >>> from keras_curv import data
        >>> options = ExampleOptions(method="crc", batch_size=8)
        >>> job = ExampleJob("saved_models/digits", data.load("digits"), options)
        >>> [row.index for row in next(job.batches(16))]
        [16, 17, 18, 19, 20, 21, 22, 23]
    """

    def __init__(self, model: Any, examples: Examples | TFExamples, options: ExampleOptions):
        self._model, self._options = model, options
        if options.qualified:
            self.columns = (*EXAMPLE_COLUMNS, *QUALIFIED)
        rivals, smoothing = options.rivals, options.smoothing
        method, guarantee, search = options.method, options.guarantee, options.search
        certifier: Certifier | SmoothedClassifier
        self._certify: Callable
        if smoothing is None:
            certifier = Certifier(model, **options.certifier)
            self._certify, self._network = certifier.certify, certifier.method.network
        else:
            certifier = SmoothedClassifier(
                model,
                smoothing.deviation,
                signature=options.signature,
                output_name=options.output_name,
            )
            self._certify = functools.partial(certifier.certify, **smoothing.votes())
            self._network = certifier.served.network
            method, guarantee, search = "smoothing", "probabilistic", dataclasses.asdict(smoothing)
        self.served = served = certifier.served
        self._fixed = certifier.fixed if isinstance(certifier, Certifier) else ()
        require_plain(served, options)
        if isinstance(examples, TFExamples):
            names = [name for name in options.sliced if name != BY_CLASS]
            known = served.inputs.shapes, served.defaults, names, served.inputs.fixed
            examples = examples.read(*known)
        if examples.reshapable and not _takes_labels(options, self._network):
            examples = examples.unlabelled()  # a named data set is as it is
        _require_labels(examples, options, self._network)
        self.examples, self.count = examples, examples.count
        self._unscaled = _unscaled(examples, served) if options.input_scale == 1.0 else {}
        self.as_input = self._reader(served)
        self.settings = {
            "version": __version__,
            "fingerprint": served.fingerprint,
            "signature": served.signature,
            "output_name": options.output_name,
            "cut": served.cut,
            **({"cut_tensor": served.cut_tensor} if served.cut else {}),
            "dataset": examples.name,
            "dataset_fingerprint": examples.fingerprint,
            "input_scale": float(options.input_scale),
            "rivals": rivals,
            "method": method,
            "guarantee": guarantee,
            "seed": options.seed,
            "batch_size": options.batch_size or certifier.batch_size(rivals),
        } | search
        self._baseline = None
        if options.baseline is not None:
            self._baseline = Certifier(options.baseline, **options.certifier)
            self._as_baseline_input = self._reader(self._baseline.served)
            self.columns = (
                *EXAMPLE_COLUMNS,
                *BASELINE_COLUMNS,
                *self.columns[len(EXAMPLE_COLUMNS) :],
            )
        fingerprint_of_baseline = self._baseline and self._baseline.served.fingerprint
        self.settings["baseline_fingerprint"] = fingerprint_of_baseline
        self._attacked: AdversarialPoints | None = None
        if options.adversarial is not None and isinstance(certifier, Certifier):
            settings = json.dumps(self.settings, sort_keys=True)
            self._attacked = AdversarialPoints(certifier, settings, resume=options.resume)
        self._proofs = None
        if options.proofs is not None:
            self._proofs = ProofFolder(options.proofs, self._proofs_header())

    def batches(self, start: int) -> Iterator[list[Row]]:
        """See `Job`."""
        for x, y in self.examples.batches(self.settings["batch_size"], start):
            yield self._rows(x, y, start)
            start += len(x)

    def _reader(self, served: ServedModel) -> Callable[[np.ndarray], np.ndarray]:
        """Returns what brings examples into the shape and units of a model."""
        fit, scale = fitting_shape(self.examples, served), float(self._options.input_scale)
        # In float64: what rounding the product to the model's dtype moves is taken off the radius.
        return lambda x: fit(x if scale == 1.0 else times(x, scale))

    def _proofs_header(self) -> dict:
        names = ["fingerprint", "input_scale", "dataset", "dataset_fingerprint"]
        names += ["property", "guarantee", "rivals"]
        header = {name: self.settings[name] for name in names} | {"threat": "l2"}
        if self._options.threat.confined:
            header |= {"threat": "l2 in a box", "box": self._options.threat.config()}
        network = fingerprint(self.served.network, self.served.head)
        return header | {"keras_curv": __version__, "network": network}

    def _rows(self, x: np.ndarray, y: np.ndarray | None, start: int) -> list[Row]:
        known = {"rivals": self.settings["rivals"], "seed": self.settings["seed"]}
        kept: list[Witnesses] = []
        if self._proofs is not None:
            known["keep"] = kept.append
        result = self._certify(self.as_input(x), y, first_index=start, **known)
        if self._proofs is not None:
            self._proofs.write(start, result, *kept)
        rows = self.claimed(Row.from_certificates(result, y, start, known["rivals"]))
        if self._baseline is None:
            return rows
        before = self._baseline.certify_all(self._as_baseline_input(x), y)
        answers = [certified_fields(before, i) for i in range(len(rows))]
        names = ("prediction", "radius", "status")
        return [
            row._replace(**{f"baseline_{name}": answer[name] for name in names})
            for row, answer in zip(rows, answers, strict=True)
        ]

    def require_rows(self, rows: Sequence[Row]) -> None:
        """See `Job`."""
        if self._proofs is not None:
            self._proofs.prepare(resume=self._options.resume)
            missing = self._proofs.missing(range(0, len(rows), self.settings["batch_size"]))
            if missing:
                raise InputError(
                    f"{self._options.proofs} has no proofs of the rows from {missing[0]} on, which "
                    "are there already; begin the run again, with another output"
                )
        known, checked = {"rivals": self.settings["rivals"]}, 0
        classes = self.served.network.classes if self._options.property == ARGMAX else None
        for x, y in self.examples.batches(_READ_AT_ONCE, 0) if rows else ():
            labels = [None] * len(x) if y is None else y.tolist()
            for label, row in zip(labels, rows[checked:], strict=False):
                require_row_of(row, known | {"label": label}, classes)
                if self._baseline is not None and row.baseline_status not in Status.__members__:
                    raise InputError(
                        f"row {row.index} cannot be of this run: its baseline_status is "
                        f"{row.baseline_status!r}; name another output"
                    )
            checked += len(x)
            if checked >= len(rows):
                break

    @contextlib.contextmanager
    def _search_around(self, attacked: AdversarialPoints, path: str) -> Iterator[Sink]:
        """Searches adversarial points once all rows are there."""
        yield attacked
        with working("searching adversarial points", visible=self._options.progress):
            batches = self.examples.batches(_READ_AT_ONCE, 0)
            attacked.search((self.served.joined(self.as_input(x)) for x, _ in batches), path)

    def sinks(self) -> Iterator[Any]:
        """See `Job`."""
        if self._attacked is not None and self._options.adversarial is not None:
            yield self._search_around(self._attacked, self._options.adversarial)

    @property
    def distances(self) -> np.ndarray | None:
        """See `Job`."""
        return None if self._attacked is None else self._attacked.distance

    def remote_factory(self) -> Callable[[], Job]:
        """See `Job`."""
        if not isinstance(self._model, (str, os.PathLike)):
            raise InputError("a model in memory cannot be sent to workers; export it first")
        if self.examples.origin is None:
            raise InputError(
                f"{self.examples.name}: examples in memory cannot be sent to workers; "
                "take them from data.load or data.load_npz"
            )
        path = os.path.abspath(self.served.source)
        folders = {name: getattr(self._options, name) for name in ("proofs", "baseline")}
        absolute = {name: os.path.abspath(folder) for name, folder in folders.items() if folder}
        options = dataclasses.replace(self._options, **absolute)
        arguments = path, self.examples.origin, options
        return functools.partial(same_job, _load_job, arguments, self.settings)

    def part_of(self, name: str) -> Callable[[Row], str]:
        """See `Job`."""
        if name == BY_CLASS:
            return class_of
        found = self.examples.slices.get(name)
        if found is None:
            known = ", ".join([BY_CLASS, *self.examples.slices])
            raise InputError(
                f"{self.examples.name} has no slice {name!r}; it has: {known}. Others are arrays "
                "of an .npz file, features of TFRecords, or given to Examples.from_arrays"
            )
        return lambda row: found.parts[found.places[row.index]]

    def facts(self) -> dict:
        """See `Job`."""
        network = self.served.network
        return {
            "saved_model": visible(self.served.source),
            "input_shape": list(self.served.input_shape),
            "classes": network.classes,
            **layers(network),
            **self._unscaled,
            **({"fixed": [*self._fixed]} if self._fixed else {}),
            "claim": self._options.claim,
        }

    def cases(self, rows: Sequence[Row]) -> list[Case]:
        """See `Job`."""
        if not rows:
            return []
        x, inputs = self.examples.at([row.index for row in rows]), self.as_input
        scale = float(self._options.input_scale)
        if self.served.before is not None:  # the points lie behind the cut
            x, scale = self.served.before(inputs(x)), 1.0
            inputs = np.asarray
        names = entry_names(self.examples.inputs or {}) if self.served.before is None else ()
        cases = [Case(row, example, names=names) for row, example in zip(rows, x, strict=True)]
        right = [i for i, row in enumerate(rows) if row.status in CORRECT]
        free = not self.served.inputs.fixed
        if self._options.smoothing is None and self._options.searched and free and right:
            known, some = [rows[i] for i in right], x[right]
            found = find_cases(known, some, inputs(some), network=self._network, scale=scale)
            for i, case in zip(right, found, strict=True):
                cases[i] = case._replace(names=names)
        return cases


def _load_job(path: str, origin: Callable[[], Examples], options: ExampleOptions) -> ExampleJob:
    return ExampleJob(path, origin(), options)


def _stream(examples: Examples | TFExamples | tuple) -> Examples | TFExamples:
    if isinstance(examples, (Examples, TFExamples)):
        return examples
    if isinstance(examples, tuple) and len(examples) == 2:
        return Examples.from_arrays("the examples", *examples)
    raise InputError(
        f"examples must be arrays (x, y), or data.Examples. Received: {type(examples).__name__}"
    )


def _takes_labels(options: ExampleOptions, network: Network) -> bool:
    """Returns whether labels have a meaning."""
    return options.smoothing is not None or Property.of(options.property).labels(network) > 0


def _require_labels(examples: Examples, options: ExampleOptions, network: Network) -> None:
    """Refuses labels that the property does not use, and a required accuracy without labels."""
    takes = _takes_labels(options, network)
    if takes and not options.requirements["required"]:
        return
    given = next(examples.batches(1, 0))[1] is not None
    if given and not takes:
        raise InputError(
            f"{examples.name}: y means nothing here: the property has no labels; leave y out"
        )
    if takes and not given:
        raise InputError(
            f"a certified accuracy is required, but {examples.name} has no labels y, and without "
            "them each prediction counts as correct; add them, or, to require robustness alone, "
            "the predictions of the model as y"
        )


def _unscaled(examples: Examples, served: ServedModel) -> dict[str, Any]:
    """Returns what may say that a model of floats was trained on examples of another scale: the
    dtype of integers, or the largest entry of images."""
    if examples.reshapable or not served.input_dtype.is_floating:
        return {}
    x, images = next(examples.batches(_LOOKED_AT, 0))[0], len(examples.shape) > 1
    if x.dtype.kind in "iu":  # which may be counts
        return {"integers": x.dtype.name} if x.dtype.itemsize == 1 or images else {}
    pixels = images and x.min() >= 0.0 and 50.0 < x.max() <= 255.0
    return {"largest": float(x.max())} if pixels else {}
