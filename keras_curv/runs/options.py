"""Options of a run: radii to report, files to write, workers.

Flags are made of these options, so nothing here loads TensorFlow before an option is checked.
"""

from __future__ import annotations

import builtins
import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_curv.certificates.options import ProofOptions
from keras_curv.errors import (
    InputError,
    optional_at_least,
    optional_fraction,
    require_at_least,
    require_one_of,
    require_positive,
    require_probability,
)
from keras_curv.files import part_path, require_replaceable
from keras_curv.reports.drawing import require_drawable
from keras_curv.rows.requirement import parse_requirements

if TYPE_CHECKING:
    from keras_curv.certificates.smoothing.options import Smoothing

DEFAULT_RADII = (0.1, 0.25, 0.5, 1.0, 1.58)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(ProofOptions):
    """Options of every run.

    Attributes:
        decide: decides only whether each of the radii can be proved for an example, which is many
            times faster; the radii in rows are then lower bounds, enough for that.
        radii: radii at which to report certified accuracy, in the model's input units or those of a
            threat; default: 0.1, 0.25, 0.5, 1.0 and 1.58. Those of requirements are added.
        batch_size: number of examples certified at a time; default: by the size of the model, or
            512 logged requests.
        required: smallest certified accuracy, as a fraction, below which the verdict is negative,
            and the exit status 3. 0.9 is required at every one of the radii; 0.25=0.95 at radius
            0.25; 0.25=lower:0.95 of the lower end of the confidence interval there;
            class:0.25=0.8 in every class, or in every part of another slice. May be several.
        slices: what to count examples by, beside all together: class, which is the label, or
            without labels the prediction; or the name of an array of the file of inputs, or of a
            feature of its tf.Examples, with one value for each example.
        confidence: confidence of the Clopper-Pearson intervals of certified accuracy.
        baseline: another model, usually the one in service, for which the same examples are
            certified too; reports which ones it certifies and the model does not, or for another
            class. Of logged requests it may be a base path with versions.
        max_lost: largest fraction, of the examples that the baseline certifies, that may lose their
            certificate at any of the radii; above it the verdict is negative, and the exit status
            3.
        lost: CSV file to write of the examples that the baseline certifies and the model does not,
            or for another class, at any of the radii; it is there once all rows are.
        gained: CSV file to write of the examples that the model certifies and the baseline does
            not, at any of the radii.
        output: CSV file to write of rows, one for each example, as they come. It must not exist,
            unless the run is resumed.
        resume: goes on with the output of an interrupted run.
        summary: JSON file to write of the summary.
        junit: XML file to write of the verdict as JUnit has it, one test case for each requirement.
        plot: image to draw of certified accuracy against radius (.png, .svg, .pdf).
        report: HTML file to write for people: curve, classes, least robust examples, terms.
        command: the words of the command that makes this run again, for the report.
        runner: Apache Beam runner on whose workers to certify, as DirectRunner on this machine.
            Workers leave rows in a folder beside the output, which all of them must reach, like the
            model and the data.
        beam_options: options of the runner, as Beam spells them but without dashes, as
            direct_num_workers=2.
        read_from: files that these options were read from; nothing is written over them. The file
            of a property that is given by its spelling is added.
        progress: shows progress on stderr: a bar, or lines if stderr is no terminal.

    Raises:
        InputError: an option out of range, or one that another needs is missing.
    """

    decide: bool = False
    radii: Sequence[float] = DEFAULT_RADII
    batch_size: int | None = None
    required: float | str | Sequence[float | str] | None = None
    slices: Sequence[str] = ()
    confidence: float = 0.95
    baseline: str | None = None
    max_lost: float | None = None
    lost: str | None = None
    gained: str | None = None
    output: str | None = None
    resume: bool = False
    summary: str | None = None
    junit: str | None = None
    plot: str | None = None
    report: str | None = None
    command: Sequence[str] | None = None
    runner: str | None = None
    beam_options: Sequence[str] = ()
    read_from: Sequence[str] = ()
    progress: bool = False

    def __post_init__(self) -> None:
        from keras_curv.certificates.certificate import radii_of

        if isinstance(self.property, str):
            table = self.property.partition(":")[2]  # of harms, or what is no file
            object.__setattr__(self, "read_from", (*self.read_from, table))
        super().__post_init__()
        radii = radii_of(self.radii)
        if not radii:
            raise InputError("radii must be one at least. Received: none")
        required = self.requirements["required"]
        also = [one.radius for one in required if one.radius is not None]
        object.__setattr__(self, "radii", tuple(dict.fromkeys([*radii, *also])))
        require_probability(self.confidence, "confidence")
        self._require_slices()
        optional_fraction(self.max_lost, "the fraction that may be lost")
        against = self.lost, self.gained, self.max_lost
        if self.baseline is None and any(value is not None for value in against):
            raise InputError("what is lost is lost against a baseline; name one")
        if self.junit is not None and all(v in (None, ()) for v in self.requirements.values()):
            raise InputError("junit is a file of requirements, and there are none; require one")
        optional_at_least(self.batch_size, 1, "batch_size")
        if self.resume and not self.output:
            raise InputError("resume needs the output file of the run to go on with")
        if self.runner is None and self.beam_options:
            raise InputError(
                f"{self.beam_options[0]!r} is an option of Apache Beam: name a runner too"
            )
        if self.runner is not None and not self.output:
            raise InputError(
                "a runner needs an output file: its workers leave their rows beside it"
            )

    @builtins.property
    def certifier(self) -> dict:
        """The arguments of `Certifier`."""
        names = [field.name for field in dataclasses.fields(ProofOptions)]
        decided = self.radii if self.decide else None
        return {name: getattr(self, name) for name in names} | {"decide": decided}

    @builtins.property
    def search(self) -> dict:
        """The settings that rows depend on besides method and guarantee, as JSON can hold them."""
        return {
            "tolerance": self.tolerance,
            "decide": list(self.radii) if self.decide else None,
            "property": str(self.property),
            "threat": str(self.threat),
        }

    @builtins.property
    def requirements(self) -> dict:
        """The figures that the verdict holds the summary against."""
        return {"required": parse_requirements(self.required), "max_lost": self.max_lost}

    @builtins.property
    def sliced(self) -> list[str]:
        """The names of all slices: to be reported, or of a requirement."""
        required = [one.slice for one in parse_requirements(self.required) if one.slice]
        return list(dict.fromkeys([*self.slices, *required]))

    def _require_slices(self) -> None:
        """Refuses names that no slice can have."""
        for name in self.sliced:
            if name in ("", "lower", "x", "y") or "=" in name:
                raise InputError(
                    f"a slice is class, or an array beside x and y. Received: {name!r}"
                )
        if "class" in self.sliced and str(self.property) != "argmax":
            raise InputError(
                f"the slice class is for the property argmax. Received: {self.property}"
            )

    def written(self) -> list[str | None]:
        """Returns the files to write beside the rows; None for each that is not asked for."""
        return [self.summary, self.junit, self.plot, self.report, self.lost, self.gained]

    def files(self) -> list[pathlib.Path]:
        """Returns all files that are written: the rows, their settings, and what is beside them."""
        named = [self.output, *self.written()]
        from keras_curv.rows.row_file import settings_path

        rows = self.output and settings_path(pathlib.Path(self.output))
        return [pathlib.Path(path) for path in (*named, rows) if path]

    def require_files(self, inputs: Sequence[str | None]) -> None:
        """Refuses files that would overwrite one another, or that cannot be there at all.

        Args:
            inputs: the files that are read.

        Raises:
            InputError: a folder that does not exist or cannot be written to, a name that stands for
                two files, a file of a SavedModel, a plot of unknown format, or no matplotlib to
                draw it.
        """
        from keras_curv.saved_model.files import INDEX

        named = [path for path in (self.output, *self.written()) if path is not None]
        if "" in named:
            raise InputError("an empty name is not a file")
        for path in named:
            target = pathlib.Path(path).resolve()
            if not target.parent.is_dir():
                raise InputError(f"the folder of {path} does not exist; make it first")
            if not os.access(target.parent, os.W_OK):
                raise InputError(f"the folder of {path} cannot be written to; name another one")
            if target.is_dir():
                raise InputError(f"{path} is a directory; give the name of a file")
            if target.suffix == ".pb" or (target.parent / INDEX).exists():
                raise InputError(f"{path} would be a file of a SavedModel; give another name")
            require_replaceable(path)
        resolved = [path.resolve() for path in self.files()]
        read = {pathlib.Path(path).resolve() for path in (*inputs, *self.read_from) if path}
        twice = {path for path in resolved if resolved.count(path) > 1} | read & {*resolved}
        twice = twice or {*map(part_path, resolved)} & {*resolved, *read}
        if twice:
            raise InputError(
                "what is read and what is written must all be different files. Received twice: "
                f"{min(twice)}"
            )
        if self.plot:
            require_drawable(self.plot)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleOptions(RunOptions):
    """Options of a run over a data set.

    Attributes:
        smoothing: how to certify the model smoothed by noise, instead of the model itself by a
            method; then the guarantee is probabilistic.
        rivals: classes to hold against the prediction. all makes a certificate of the classifier;
            runner_up, random and least take one class, as the paper's tables do.
        input_scale: number that examples are multiplied by before the model sees them, as 255 for a
            model of raw pixels. Radii are in the model's input units, so they are multiplied too.
        seed: seed of random rivals, and of the noise of smoothing.
        proofs: folder to write of the proofs, for keras_curv check: of what each radius rests on.
            It must not exist or be empty, unless the run is resumed. It is for argmax, under any
            change or in a box.
        adversarial: NumPy file (.npz) to write of the nearest adversarial point met for each
            example, its distance, and the class that the model serves there; the report draws them
            beside what is proved. The search comes after all rows, and costs some hundred gradients
            for each.

    Raises:
        InputError: an option out of range, or options that contradict each other.

    Example:
        >>> ExampleOptions(method="crc", radii=[0.5]).radii
        (0.5,)
    """

    smoothing: Smoothing | None = None
    rivals: str = "all"
    input_scale: float = 1.0
    seed: int = 0
    proofs: str | None = None
    adversarial: str | None = None

    def __post_init__(self) -> None:
        from keras_curv.certificates.certificate import RIVALS
        from keras_curv.certificates.smoothing.smoothing import VOTE_RIVALS

        super().__post_init__()
        require_at_least(self.seed, 0, "seed")
        require_positive(self.input_scale, "input_scale")
        if self.proofs is not None:
            self._require_provable()
        if self.adversarial is not None and self.smoothing is not None:
            raise InputError("adversarial points are of the model itself, not of smoothing's votes")
        if self.requirements["required"] and self.rivals != "all":
            raise InputError(
                "a required certified accuracy needs rivals all: one rival is no certificate. "
                f"Received: {self.rivals!r}"
            )
        if self.baseline is not None and (self.rivals != "all" or self.smoothing is not None):
            raise InputError(
                "a baseline is compared by certificates of the classifier: with rivals all, and "
                "without smoothing"
            )
        if self.smoothing is None:
            require_one_of(self.rivals, RIVALS, "rivals")
            return
        require_one_of(self.rivals, VOTE_RIVALS, "rivals, with smoothing,")
        if self.cut is not None:
            raise InputError(f"smoothing is of whole models, without a cut. Received: {self.cut!r}")
        if self.qualified:
            raise InputError(
                "smoothing is for argmax under any change. "
                f"Received: {self.property}, {self.threat}"
            )
        if self.method != "auto" or self.guarantee != "real":
            raise InputError(
                "smoothing is a method of its own, and its guarantee a probabilistic one: "
                f"leave both out. Received: {self.method!r}, {self.guarantee!r}"
            )

    def written(self) -> list[str | None]:
        """Returns the files to write beside the rows, as in `RunOptions`."""
        return [*super().written(), self.adversarial]

    def _require_provable(self) -> None:
        """Refuses proofs of claims that have no file format yet."""
        if not self.proofs:
            raise InputError("proofs must name a folder. Received: ''")
        if not self.searched or self.rivals != "all" or self.smoothing is not None:
            how = "smoothing" if self.smoothing is not None else f"rivals {self.rivals}"
            raise InputError(
                "proofs are written for argmax under any change or in a box, with all rivals and "
                f"not by smoothing. Received: {self.property}, {self.threat}, {how}"
            )
        parent = pathlib.Path(self.proofs).resolve().parent
        if not parent.is_dir():
            raise InputError(f"the folder of {self.proofs} does not exist; make it first")
