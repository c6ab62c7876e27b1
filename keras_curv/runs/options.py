"""What a run is asked for: which radii to report, which files to write, who does the work."""

from __future__ import annotations

import builtins
import dataclasses
import os
import pathlib
from collections.abc import Sequence

from keras_curv.certificates.certificate import RIVALS, radii_of
from keras_curv.certificates.smoothing.smoothing import VOTE_RIVALS, Smoothing
from keras_curv.errors import (
    InputError,
    optional_at_least,
    optional_fraction,
    require_fraction,
    require_one_of,
    require_positive,
)
from keras_curv.files import part_path, require_replaceable
from keras_curv.reading import served_model
from keras_curv.reports.drawing import require_drawable
from keras_curv.rows.row_file import settings_path
from keras_curv.saved_model.files import INDEX
from keras_curv.threats.properties.property import ARGMAX, Property
from keras_curv.threats.threat import UNRESTRICTED, Threat

DEFAULT_RADII = (0.1, 0.25, 0.5, 1.0, 1.58)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What every run can be asked for.

    Attributes:
        signature: of the SavedModel; of logged requests, for those that name none.
        output_name, method, guarantee, tolerance: as for `certify`.
        property: what must not change, a `Property` or its spelling.
        threat: what the attacker may do.
        decide: ask for no more of each example than whether each of the radii is proved, or an
            adversarial point within it is known, which is many times faster. The radii in rows are
            proved all the same, and may be far from the largest.
        batch_size: examples at a time; None: by the size of the model, or 512 logged ones.
        radii: at which to report certified accuracy.
        required: certified accuracy at every radius, for the verdict; it asks for labels.
        output: CSV file of rows; see `rows.row.Row`. It must not exist, unless `resume`.
        resume: go on where an interrupted run with the same settings left `output`.
        summary: JSON file for the summary.
        plot: image of certified accuracy against radius (needs matplotlib).
        report: HTML file for people: curve, radii by class, the least robust examples with the
            closest adversarial points found, terms and settings.
        command: that makes this run again, word by word, for the report.
        runner: of Apache Beam, to certify by its workers instead of in this process; the rows are
            the same. See `runs/beam.py` for what workers must be able to reach.
        beam_options: for it, as Beam spells them, without dashes: "direct_num_workers=2".
        read_from: files that these options were read from, which nothing is written over; that of a
            property by its spelling is added.
        progress: tell on stderr how far the run is: a bar, or lines where that is no terminal.

    Raises:
        InputError: an option out of range, or one that another needs is missing.
    """

    signature: str = served_model.DEFAULT_SIGNATURE
    output_name: str | None = None
    method: str = "auto"
    guarantee: str = "real"
    tolerance: float = 0.01
    property: Property | str = ARGMAX
    threat: Threat = UNRESTRICTED
    decide: bool = False
    batch_size: int | None = None
    radii: Sequence[float] = DEFAULT_RADII
    required: float | None = None
    output: str | None = None
    resume: bool = False
    summary: str | None = None
    plot: str | None = None
    report: str | None = None
    command: Sequence[str] | None = None
    runner: str | None = None
    beam_options: Sequence[str] = ()
    read_from: Sequence[str] = ()
    progress: bool = False

    def __post_init__(self) -> None:
        radii = radii_of(self.radii)
        if not radii:
            raise InputError("radii must be one at least. Received: none")
        object.__setattr__(self, "radii", radii)
        if isinstance(self.property, str):
            table = self.property.partition(":")[2]  # of harms, or what is no file
            object.__setattr__(self, "read_from", (*self.read_from, table))
        require_fraction(self.tolerance, "tolerance")
        object.__setattr__(self, "threat", Threat.of(self.threat))
        object.__setattr__(self, "property", Property.of(self.property))
        optional_fraction(self.required, "the certified accuracy required")
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
        return {
            "signature": self.signature,
            "output_name": self.output_name,
            "method": self.method,
            "guarantee": self.guarantee,
            "tolerance": self.tolerance,
            "property": self.property,
            "threat": self.threat,
            "decide": self.radii if self.decide else None,
        }

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
    def qualified(self) -> bool:
        """Whether the claim is another one than of the prediction under any change."""
        return self.property != ARGMAX or not self.threat.plain

    @builtins.property
    def searched(self) -> bool:
        """Whether adversarial points can be searched: of the prediction, in the input's units."""
        return self.property == ARGMAX and self.threat.searchable

    @builtins.property
    def claim(self) -> dict:
        """The claim in words: which changes, what holds, norm and units of the radii."""
        return {
            "changes": self.threat.text,
            "holds": Property.of(self.property).text,
            "units": self.threat.units,
            "norm": self.threat.norm,
        }

    @builtins.property
    def requirements(self) -> dict:
        """The figures that the verdict holds the summary against."""
        return {"required": self.required}

    def written(self) -> list[str | None]:
        """The files that are written beside the rows; None where there is none."""
        return [self.summary, self.plot, self.report]

    def files(self) -> list[pathlib.Path]:
        """All files that are written: the rows, their settings, and what is beside them."""
        named = [self.output, *self.written()]
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
    """What a run over a data set can be asked for beside.

    Attributes:
        smoothing: certify the model smoothed by noise, instead of by a method; then the guarantee
            is probabilistic.
        rivals: as for `certify`.
        input_scale: examples are multiplied by this before the model sees them. Radii are in the
            model's input units, that is, multiplied too.
        seed: for random rivals, and for the noise of smoothing.

    Example:
        >>> ExampleOptions(method="crc", radii=[0.5]).radii
        (0.5,)
    """

    smoothing: Smoothing | None = None
    rivals: str = "all"
    input_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.input_scale, "input_scale")
        if self.required is not None and self.rivals != "all":
            raise InputError(
                "a required certified accuracy needs rivals all: one rival is no certificate. "
                f"Received: {self.rivals!r}"
            )
        if self.smoothing is None:
            require_one_of(self.rivals, RIVALS, "rivals")
            return
        require_one_of(self.rivals, VOTE_RIVALS, "rivals, with smoothing,")
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
