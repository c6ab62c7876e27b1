"""Proves, for every example of a data set, an l2 radius within which a SavedModel's prediction
cannot change, and sums it up.

    keras_curv certify
    keras_curv certify --saved_model DIR --dataset mnist --data_dir DIR --radius 1.58 --output rows.csv
    keras_curv certify --saved_model DIR --inputs FILE.npz --radius 0.5 --decide --require_certified_accuracy 0.9
    keras_curv certify --saved_model DIR --dataset mnist --output rows.csv --runner DirectRunner --beam_option direct_num_workers=8 --beam_option direct_running_mode=multi_processing
    keras_curv certify --saved_model BASE/8 --requests 'logs/*' --baseline BASE --radius 0.5 --max_lost 0.01

Exit status: 0 done, 2 bad input, 3 the verdict is that a requirement is not met.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys

from keras_curv.cli.command import DATA_DIR, Command, fail, loading
from keras_curv.cli.lean_tensorflow import load_tensorflow
from keras_curv.errors import InputError, UnwrittenError, optional_fraction

DIGITS = pathlib.Path(__file__).with_name("digits").resolve()

COMMAND = Command("certify", __doc__, "go on with --resume if there is an --output")
FLAGS = COMMAND.flags


@dataclasses.dataclass(frozen=True)
class Fields:
    """Types and defaults of the flags."""

    saved_model: str = str(DIGITS)
    signature: str = "serving_default"
    output_name: str | None = None
    method: str = "auto"
    guarantee: str = "real"
    tolerance: float = 0.01
    decide: bool = False
    property: str = "argmax"
    threat: str | None = None
    scale: str | None = None
    box: str | None = None
    norm: str | None = None
    dataset: str = "digits"
    split: str = "test"
    data_dir: str | None = None
    inputs: str | None = None
    input_scale: float = 1.0
    rivals: str = "all"
    requests: list[str] | None = None
    model_name: str | None = None
    max_unpacked: int | None = None
    baseline: str | None = None
    lost: str | None = None
    max_lost: float | None = None
    deviation: float | None = None
    samples: int = 100_000
    failure_probability: float = 1e-3
    radius: list[float] | None = None
    limit: int | None = None
    batch_size: int | None = None
    require_certified_accuracy: float | None = None
    output: str | None = None
    resume: bool = False
    summary: str | None = None
    plot: str | None = None
    report: str | None = None
    runner: str | None = None
    beam_option: list[str] | None = None


MODEL = COMMAND.section("Model and proof").fields(
    Fields,
    {
        "saved_model": "Directory of the SavedModel to certify, or a base path with numbered versions, of which the newest is taken; default: the model of digits that comes with the package.",
        "signature": "Name of the signature that is certified.",
        "output_name": "Name of the output with the logits, of a signature with several; default: logits, or the only one.",
        "method": "Method of proof. auto takes the largest radius of all that apply: crc, crc_local, crown, lipschitz, quadratic, two_stage, each of which can be named alone; interval, coap and smoothing are there to compare with.",
        "guarantee": "What the proof is about. real: real arithmetic on the stored weights; float32: also what a server makes of them in float32.",
        "tolerance": "Fraction by which a further method must be able to enlarge a radius for --method auto to try it; 0 tries all of them. And what a search for a ball may leave of the radius, from 0.1 to 0.3 %. No radius becomes wrong by it, only smaller by as much.",
        "decide": "Asks of each example only whether each --radius is proved or cannot be, which is many times faster; radii in rows are then lower bounds, enough for that.",
        "property": "What must not change within a radius. argmax: the predicted class; top_3: that the label is among the 3 largest logits; harmful:3,5: that no such class gets above the label, harmful:TABLE.json by label; threshold:0.7: the side of it on which the output is; interval:0.1: the output, by more than that.",
        "threat": "File of what the attacker may do (.json or .npz): scale, weights by feature; frozen, features that do not change; basis, directions of change; low and high, between which he stays; groups, one-hot features of which he may change the category, and changes, of how many; norm. Default: any change.",
        "scale": "Weights by feature, between commas, or one: radii are in these units. Short for a --threat.",
        "box": "LOW,HIGH, between which the attacker stays, as 0,1; one may be left out. This is a weaker claim than one of all changes, and reports say so. Short for a --threat.",
        "norm": "Norm of changes: l2, or l1, where a radius bounds their sum, a budget. Short for a --threat.",
    },
)

NAMED = COMMAND.section("A data set by name").fields(
    Fields,
    {
        "dataset": "Data set to certify on: digits, which come with the package, or mnist, fashion_mnist or cifar10, through tfds; pixels are in [0, 1].",
        "split": "Split of the data set: train, test, or any of tfds' split expressions.",
        "data_dir": DATA_DIR,
    },
)

EXAMPLES = COMMAND.section("Examples, of a data set or a file").fields(
    Fields,
    {
        "inputs": "File of arrays x and, if there are labels, y (.npz), to certify instead of a data set. Of a model with several inputs: an array for each, under its name, in place of x.",
        "input_scale": "Number that examples are multiplied by before the model sees them, as 255 for a model of raw pixels. Radii are in the model's input units, so they are multiplied too.",
        "rivals": "Classes to hold against the prediction. all makes a certificate of the classifier; runner_up, random and least take one class, as the paper's tables do.",
    },
)
EXAMPLES.define(
    "integer",
    "seed",
    0,
    "Seed of --rivals random, and of the noise of --method smoothing.",
    lower_bound=0,
)

REQUESTS = COMMAND.section("Logged requests, instead of a data set").fields(
    Fields,
    {
        "requests": "Files of requests to certify instead of a data set: TFRecord files of PredictionLog, as TF Serving logs them, or warm-up files; a shell pattern. If --saved_model is a base path, each request is certified for the version that served it.",
        "model_name": "Name of the model whose requests are certified; those to others are skipped.",
        "max_unpacked": "Size, in MiB, that each gzip file of requests may unpack to; default: 256, or 100 times its own size if that is more.",
        "baseline": "Another SavedModel or base path; reports which requests it certifies and --saved_model does not, or for another class.",
        "lost": "CSV file to write of the examples that the --baseline certifies and --saved_model does not, or for another class.",
        "max_lost": "Largest fraction, of the examples that the --baseline certifies, that may lose their certificate at any --radius; above it the exit status is 3.",
    },
)

SMOOTHING = COMMAND.section("Smoothing by noise").fields(
    Fields,
    {
        "deviation": "Standard deviation of the noise, in input units.",
        "samples": "Number of noisy copies of each example that vote.",
        "failure_probability": "Probability α, for each example, that its radius is wrong.",
    },
)
SMOOTHING.define(
    "enum",
    "noise",
    "own",
    ["own", "shared"],
    "Whether each example has noise of its own, or all share it, which is many times faster, but errors may come together.",
)

COMMAND.section("What to report, and a release gate").fields(
    Fields,
    {
        "radius": "Radius at which to report certified accuracy, in the model's input units or those of a threat; default: 0.1, 0.25, 0.5, 1.0 and 1.58.",
        "limit": "Number of examples to certify, the first ones; default: all.",
        "batch_size": "Number of examples certified at a time; default: by the size of the model, or 512 logged requests.",
        "require_certified_accuracy": "Smallest certified accuracy, as a fraction, that is required at every --radius; below it the exit status is 3.",
    },
)

OUTPUT = COMMAND.section("What to write, and who does the work").fields(
    Fields,
    {
        "output": "CSV file to write of rows, one for each example, as they come.",
        "resume": "Goes on with the --output of an interrupted run.",
        "summary": "JSON file to write of the summary.",
        "plot": "Image to draw of certified accuracy against radius (.png, .svg, .pdf).",
        "report": "HTML file to write for people: curve, classes, least robust examples, terms.",
        "runner": "Apache Beam runner on whose workers to certify, as DirectRunner on this machine. Workers leave rows in a folder beside the --output, which all of them must reach, as they must the model and the data.",
        "beam_option": "Option of the --runner, as Beam spells it but without dashes, as direct_num_workers=2.",
    },
)


@COMMAND.main
def main() -> int:
    """Certifies a data set, or logged requests; returns the exit status."""
    refuse_flags_without_effect()
    for name in ("require_certified_accuracy", "max_lost"):
        optional_fraction(FLAGS[name].value, f"--{name}")
        if FLAGS[name].value is not None and not FLAGS.radius:
            raise InputError(f"--{name} needs a --radius")
    with loading():
        load_tensorflow()
        from keras_curv.reports.console import print_summary
        from keras_curv.reports.wording import describe

    try:
        summary = certify_requests() if FLAGS.requests else certify_examples()
    except UnwrittenError as error:  # what was proved is worth a table all the same
        print_summary(error.summary)
        raise
    verdict = summary["verdict"] or {"passed": True, "checks": []}
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        print_summary(summary)
        for check in verdict["checks"]:
            print(describe(check))
        print(end="", flush=True)
    except OSError as error:
        fail("certify", f"cannot write to stdout: {error.strerror or error}")
        return 2 if verdict["passed"] else 3
    return 0 if verdict["passed"] else 3


def refuse_flags_without_effect() -> None:
    """Raises InputError for flags that say something of another kind of run."""
    if FLAGS.requests:
        for section in (NAMED, EXAMPLES, SMOOTHING):
            section.refuse("is not for --requests, which are certified as served")
    else:
        REQUESTS.refuse("is for --requests")
    if FLAGS.inputs is not None:
        NAMED.refuse("is not for --inputs")
    if FLAGS.method != "smoothing":
        SMOOTHING.refuse("is for --method smoothing")
    elif not FLAGS.requests:
        MODEL.refuse(
            "is not for --method smoothing",
            but=["saved_model", "signature", "output_name", "method"],
        )


def certify_examples() -> dict:
    """Certifies a data set; returns the summary."""
    with loading():
        from keras_curv import Smoothing, data
        from keras_curv.runs.certify_examples import certify_examples
        from keras_curv.runs.options import ExampleOptions

    common, smoothing = common_options(), None
    if FLAGS.method == "smoothing":
        if FLAGS.deviation is None:
            raise InputError("--method smoothing needs a --deviation")
        del common["method"]
        smoothing = Smoothing(
            FLAGS.deviation, FLAGS.samples, FLAGS.failure_probability, FLAGS.noise
        )
    own = COMMAND.values("rivals", "input_scale", "seed")
    options = ExampleOptions(smoothing=smoothing, **own, **common)
    examples = (
        data.load_npz(FLAGS.inputs, FLAGS.limit)
        if FLAGS.inputs is not None
        else data.load(FLAGS.dataset, FLAGS.split, data_dir=FLAGS.data_dir)
    )
    return certify_examples(FLAGS.saved_model, examples.limited(FLAGS.limit), options)


def certify_requests() -> dict:
    """Certifies a server's log; returns the summary."""
    with loading():
        from keras_curv.serving.certify_requests import certify_requests
        from keras_curv.serving.options import RequestOptions

    own = COMMAND.values("baseline", "model_name", "limit", "max_unpacked", "lost", "max_lost")
    options = RequestOptions(**own, **common_options())
    return certify_requests(FLAGS.saved_model, FLAGS.requests, options)


def common_options() -> dict:
    """The options that both kinds of run have."""
    with loading():
        from keras_curv.threats.threat_file import parse_threat

    if FLAGS.runner is not None:
        with loading(), contextlib.suppress(ImportError):
            import keras_curv.runs.beam  # noqa: F401  which greets too
    names = "signature output_name method guarantee tolerance property decide batch_size".split()
    names += "output resume summary plot report runner".split()
    options = COMMAND.values(*names)
    if FLAGS.radius:
        options["radii"] = FLAGS.radius
    return options | {
        "threat": parse_threat(FLAGS.threat, FLAGS.scale, FLAGS.box, FLAGS.norm),
        "read_from": [FLAGS.threat] if FLAGS.threat else [],
        "required": FLAGS.require_certified_accuracy,
        "beam_options": FLAGS.beam_option or (),
        "progress": True,
        "command": command(),
    }


def command() -> list[str]:
    """The words that make this report again: the flags that decide what comes out."""
    but = [*OUTPUT.names, "require_certified_accuracy", "max_lost", "lost"]
    return [*COMMAND.words(but=but), "--report=report.html"]
