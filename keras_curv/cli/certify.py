"""Proves, for every example of a data set, an l2 radius within which the prediction of a
SavedModel, or of a file that Keras saved, cannot change, and sums it up.

    keras_curv certify
    keras_curv certify --saved_model DIR --dataset mnist --data_dir DIR --radius 1.58 --output rows.csv
    keras_curv certify --saved_model MODEL.keras --inputs FILE.npz --radius 0.5
    keras_curv certify --saved_model DIR --inputs FILE.npz --decide --require 0.25=0.95 --require 0.5=0.9
    keras_curv certify --saved_model DIR --dataset mnist --output rows.csv --runner DirectRunner --beam_option direct_num_workers=8 --beam_option direct_running_mode=multi_processing
    keras_curv certify --saved_model DIR --vnnlib FILE.vnnlib
    keras_curv certify --saved_model BASE/8 --requests 'logs/*' --baseline BASE --radius 0.5 --max_lost 0.01

Exit status: 0 done, 2 bad input or no request that could be certified, 3 the verdict is that a requirement is not met, or that an instance of VNN-LIB is not verified.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from keras_curv.certificates.smoothing.options import Smoothing
from keras_curv.cli.command import DATA_DIR, DIGITS, Command, fail, loading
from keras_curv.errors import InputError, UnwrittenError
from keras_curv.rows.requirement import parse_requirements
from keras_curv.runs.options import ExampleOptions, RunOptions
from keras_curv.serving.options import RequestOptions

COMMAND = Command("certify", __doc__, "go on with --resume if there is an --output")
FLAGS = COMMAND.flags


MODEL_OPTIONS = ("signature", "output_name", "cut", "method")  # that --vnnlib takes, too
MODEL = COMMAND.section("Model and proof")
MODEL.strings(
    {
        "saved_model": "Directory of the SavedModel to certify, or a base path with numbered versions, of which the newest is taken; or a .keras or .h5 file, as Keras saves a model; default: the model of digits that comes with the package."
    },
    saved_model=str(DIGITS),
)
MODEL.options(RunOptions, "signature output_name cut method guarantee tolerance decide property")
MODEL.strings(
    {
        "threat": "File of what the attacker may do (.json or .npz): scale, weights by feature; frozen, features that do not change; basis, directions of change; low and high, between which he stays; groups, one-hot features of which he may change the category, and changes, of how many; norm. Default: any change.",
        "scale": "Weights by feature, between commas, or one: radii are in these units. Short for a --threat.",
        "box": "LOW,HIGH, between which the attacker stays, as 0,1; one may be left out. This is a weaker claim than one of all changes, and reports say so. Short for a --threat.",
        "norm": "Norm of changes: l2; l1, where a radius bounds their sum, a budget; or linf, where it bounds each. Short for a --threat.",
    }
)

NAMED = COMMAND.section("A data set by name")
NAMED.strings(
    {
        "dataset": "Data set to certify on: digits, which come with the package, or mnist, fashion_mnist or cifar10, through tfds; pixels are in [0, 1].",
        "split": "Split of the data set: train, test, or any of tfds' split expressions.",
        "data_dir": DATA_DIR,
    },
    dataset="digits",
    split="test",
)

EXAMPLES = COMMAND.section("Examples, of a data set or a file")
EXAMPLES.strings(
    {
        "inputs": "File of arrays x and, if there are labels, y (.npz), to certify instead of a data set. Of a model with several inputs: an array for each, under its name, in place of x. Or TFRecord files of tf.Examples (.tfrecord in the name; a shell pattern): the inputs are features by name, the label is y or label."
    }
)
EXAMPLES.options(ExampleOptions, "input_scale rivals seed")

REQUESTS = COMMAND.section("Logged requests, instead of a data set")
REQUESTS.define(
    "multi_string",
    "requests",
    None,
    "Files of requests to certify instead of a data set: TFRecord files of PredictionLog, as TF Serving logs them, warm-up files, or JSON lines of the bodies of REST requests; plain or gzip; a shell pattern. If --saved_model is a base path, each request is certified for the version that served it.",
)
REQUESTS.options(RequestOptions, "model_name max_unpacked")

VNNLIB = COMMAND.section("Instances of VNN-LIB, instead of a data set")
VNNLIB.define(
    "multi_string",
    "vnnlib",
    None,
    "File of VNN-LIB against which to verify the model, instead of certifying a data set: a box of inputs, and the outputs that are unsafe in it. Each is answered by verified, falsified, with the input that shows it, or unknown. Or a list of instances (.csv), as VNN-COMP's instances.csv: model, file and seconds in each line, with a SavedModel or a .keras file as the model; --output FILE.csv writes the results as they come, --resume goes on with them.",
)
VNNLIB.define(
    "float", "timeout", 60.0, "Seconds for each instance, after which no more boxes are bounded."
)

SMOOTHING = COMMAND.section("Smoothing by noise")
SMOOTHING.options(Smoothing, "deviation samples failure_probability noise")

REPORTED = COMMAND.section("What to report, and a release gate")
REPORTED.options(RequestOptions, radius="radii")
REPORTED.options(RequestOptions, "limit batch_size confidence", slice="slices", require="required")
REPORTED.options(RunOptions, "baseline max_lost lost gained")
REPORTED.alias("require_certified_accuracy", "require")

OUTPUT = COMMAND.section("What to write, and who does the work")
OUTPUT.options(ExampleOptions, "proofs adversarial")
OUTPUT.options(
    RunOptions, "output resume summary junit plot report runner", beam_option="beam_options"
)
OUTPUT.define(
    "boolean", "verbose", False, "Prints all terms of the result, and not only those that limit it."
)


@COMMAND.main
def main() -> int:
    """Certifies a data set, or logged requests; returns the exit status."""
    refuse_flags_without_effect()
    if FLAGS.vnnlib:
        return verify_instances()
    required = parse_requirements(FLAGS.require)
    if not FLAGS.radius and any(one.radius is None for one in required):
        raise InputError("--require of a figure alone needs a --radius")
    if not FLAGS.radius and FLAGS.max_lost is not None:
        raise InputError("--max_lost needs a --radius")
    with loading():
        from keras_curv.reports.console import print_summary
        from keras_curv.reports.junit import github_annotations
        from keras_curv.reports.requests import all_refused

    try:
        summary = certify_requests() if FLAGS.requests else certify_examples()
    except UnwrittenError as error:  # what was proved is worth a table all the same
        print_summary(error.summary, verbose=FLAGS.verbose)
        raise
    verdict = summary["verdict"] or {"passed": True, "checks": []}
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        print_summary(summary, verbose=FLAGS.verbose)
        for line in (
            github_annotations(verdict) if os.environ.get("GITHUB_ACTIONS") == "true" else ()
        ):
            print(line)
        print(end="", flush=True)
    except OSError as error:
        fail("certify", f"cannot write to stdout: {error.strerror or error}")
        return 2 if verdict["passed"] else 3
    if not verdict["passed"]:
        return 3
    reason = all_refused(summary)
    return fail("certify", reason) if reason else 0


def refuse_flags_without_effect() -> None:
    """Raises InputError for flags that say something of another kind of run."""
    if FLAGS.vnnlib:
        for section in (NAMED, EXAMPLES, REQUESTS, SMOOTHING, REPORTED):
            section.refuse("is not for --vnnlib, which says by itself what is verified")
        MODEL.refuse("is not for --vnnlib", but=["saved_model", *MODEL_OPTIONS])
        if not listed_instances():
            OUTPUT.refuse("is not for --vnnlib, but for a list of instances", but=["summary"])
            return
        OUTPUT.refuse("is not for a list of instances", but=["output", "resume"])
        why = "is not for a list of instances, which says it in each line"
        MODEL.refuse(why, but=MODEL_OPTIONS)
        VNNLIB.refuse(why, but=["vnnlib"])
        return
    VNNLIB.refuse("is for --vnnlib")
    if FLAGS.requests:
        if FLAGS.proofs is not None:
            raise InputError("--proofs is not for --requests, which have no format of proofs yet")
        if FLAGS.adversarial is not None:
            raise InputError("--adversarial is not for --requests; it is for --dataset or --inputs")
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


def listed_instances() -> bool:
    """Returns whether --vnnlib names a list of instances."""
    lists = [path for path in FLAGS.vnnlib if path.endswith(".csv")]
    if lists and len(FLAGS.vnnlib) > 1:
        raise InputError("--vnnlib takes one list of instances (.csv), or files of VNN-LIB")
    return bool(lists)


def verify_listed() -> int:
    """Answers a list of instances; returns 0 if all of them are verified."""
    with loading():
        from keras_curv.specifications.instances import answer_all

    if FLAGS.resume and FLAGS.output is None:
        raise InputError("--resume needs the --output of the run to go on with")
    results = set()
    options = {"output": FLAGS.output, "resume": FLAGS.resume, **COMMAND.values(*MODEL_OPTIONS)}
    for result, said in answer_all(FLAGS.vnnlib[0], **options):
        results.add(result)
        print(said, flush=True)
    return 0 if results == {"verified"} else 3


def verify_instances() -> int:
    """Verifies the model against instances of VNN-LIB; returns 0 if all of them are verified."""
    if listed_instances():
        return verify_listed()
    with loading():
        from keras_curv.files import require_replaceable, write_json
        from keras_curv.specifications.report import described, in_words
        from keras_curv.specifications.verify import Result, Verifier

    if FLAGS.summary:
        require_replaceable(FLAGS.summary)
    verifier = Verifier(FLAGS.saved_model, **COMMAND.values(*MODEL_OPTIONS))
    answers = []
    for path in FLAGS.vnnlib:
        answers.append(verifier.verify(path, timeout=FLAGS.timeout))
        print(in_words(path, answers[-1]), flush=True)
    if FLAGS.summary:
        write_json(FLAGS.summary, described(verifier, FLAGS.vnnlib, answers))
    return 0 if all(answer.result is Result.VERIFIED for answer in answers) else 3


def certify_examples() -> dict:
    """Certifies a data set; returns the summary."""
    with loading():
        from keras_curv import data
        from keras_curv.data.tf_examples import is_tfrecord
        from keras_curv.reading.served_model import read
        from keras_curv.runs.certify_examples import certify_examples

    chosen = chosen_options(ExampleOptions)
    if FLAGS.method == "smoothing":
        if FLAGS.deviation is None:
            raise InputError("--method smoothing needs a --deviation")
        del chosen["method"]
        chosen["smoothing"] = Smoothing(**COMMAND.chosen(Smoothing))
    options = ExampleOptions(**chosen)
    examples: Any
    if FLAGS.inputs is None:
        examples = data.load(FLAGS.dataset, FLAGS.split, data_dir=FLAGS.data_dir)
    elif is_tfrecord(FLAGS.inputs):
        examples = data.TFExamples(FLAGS.inputs)
    else:
        arrays = [name for name in options.sliced if name != "class"]
        inputs: list[str] = []
        if data.beside_x(FLAGS.inputs, arrays):  # which may be one input of several
            asked = COMMAND.values("signature", "output_name", "cut")
            inputs = [*read(FLAGS.saved_model, scores=True, **asked).inputs.specs]
        named = inputs if len(inputs) > 1 and "x" in inputs else ()
        examples = data.load_npz(FLAGS.inputs, FLAGS.limit, arrays, named)
    return certify_examples(FLAGS.saved_model, examples.limited(FLAGS.limit), options)


def certify_requests() -> dict:
    """Certifies a server's log; returns the summary."""
    with loading():
        from keras_curv.serving.certify_requests import certify_requests

    options = RequestOptions(**chosen_options(RequestOptions))
    return certify_requests(FLAGS.saved_model, FLAGS.requests, options)


def chosen_options(kind: type[RunOptions]) -> dict[str, Any]:
    """Returns the options of a run by name: those of the flags, and what goes with a command."""
    with loading():
        from keras_curv.threats.threat_file import parse_threat

    if FLAGS.runner is not None:
        with loading(), contextlib.suppress(ImportError):
            import keras_curv.runs.beam  # noqa: F401  which greets too
    required = [one.radius for one in parse_requirements(FLAGS.require) if one.radius is not None]
    known = {"radii": list(dict.fromkeys(required))} if required else {}
    return (
        known
        | COMMAND.chosen(kind)
        | {
            "threat": parse_threat(FLAGS.threat, FLAGS.scale, FLAGS.box, FLAGS.norm),
            "read_from": [FLAGS.threat] if FLAGS.threat else [],
            "progress": True,
            "command": command(),
        }
    )


def command() -> list[str]:
    """Returns the words that make this report again: the flags that decide what comes out."""
    but = [*OUTPUT.names, "lost", "gained"]
    curve = ["--adversarial=adversarial.npz"] if FLAGS.adversarial is not None else []
    return [*COMMAND.words(but=but), *curve, "--report=report.html"]
