"""Cases of `freeze.py` other than rows and trainings: commands, logs, reports, functions.

Paths, seconds and the version are removed from texts. Each command is a process, as a user starts
it.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf
from freeze_models import ROOT, examples, generator, model_of, small

sys.path.append(str(ROOT / "tests"))
import logged

import keras_curv
from keras_curv import Certifier, Network, Threat

_TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/tmp\w{8}\b")
_SECONDS = re.compile(r'"seconds": [0-9.e-]+|\b[0-9.]+ (?:ms|s|min)\b')


def plain(text):
    """Removes what may differ between runs: temporary folders, root, version, seconds."""
    text = _TEMPORARY.sub("FOLDER", text).replace(str(ROOT), "ROOT")
    text = text.replace(keras_curv.__version__, "VERSION")
    return _SECONDS.sub("SECONDS", text)


def texts(folder, *names):
    """Returns the text of a folder's files, one after the other, each under its name."""
    parts = []
    for name in names:
        path = pathlib.Path(folder) / name
        content = plain(path.read_text()) if path.exists() else "is not there\n"
        parts.append(f"=== {name}\n{content}")
    return "\n".join(parts)


def command(*words, files=()):
    """Returns status, output and files of `keras_curv` with these words; FOLDER is a fresh one."""
    with tempfile.TemporaryDirectory() as folder:
        given = [word.replace("FOLDER", folder) for word in words]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
        done = subprocess.run(
            [sys.executable, "-m", "keras_curv", *given],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        error = done.stderr.splitlines()[-1:] if done.returncode == 2 else []
        head = f"status {done.returncode}\n=== stdout\n{plain(done.stdout)}\n"
        return head + plain("\n".join(error)) + "\n" + texts(folder, *files)


WRITTEN = ("rows.csv", "summary.json", "report.html")
OUTPUTS = (
    "--output=FOLDER/rows.csv",
    "--summary=FOLDER/summary.json",
    "--report=FOLDER/report.html",
)
DIABETES = (
    *("--saved_model=saved_models/diabetes", "--inputs=saved_models/diabetes.npz"),
    *("--threat=saved_models/diabetes_threat.json", "--property=interval:10", "--radius=1"),
)
COMMANDS = {
    "digits": (("certify", "--limit=48", "--radius=0.5", "--radius=0.8", *OUTPUTS), WRITTEN),
    "gate": (
        ("certify", "--limit=32", "--radius=0.5", "--decide", "--require_certified_accuracy=0.99"),
        (),
    ),
    "diabetes": (
        ("certify", *DIABETES, "--require_certified_accuracy=1", *OUTPUTS[:2]),
        WRITTEN[:2],
    ),
    "smoothing": (
        ("certify", "--limit=8", "--method=smoothing", "--deviation=0.2", "--samples=200"),
        (),
    ),
    "refused_flag": (("certify", "--radius=much"), ()),
    "refused_model": (("certify", "--saved_model=docs"), ()),
    "refused_together": (("certify", "--method=smoothing", "--guarantee=float32"), ()),
    "help": (("certify", "--help"), ()),
    "help_of_train": (("train", "--help"), ()),
    "tables": (("reproduce", "--list"), ()),
}


FILES = {"summary": "summary.json", "report": "report.html"}


def report(name, **options):
    """Returns the report and the summary of a run over some examples."""
    x, y = (None if part is None else part[:32] for part in examples(name))
    with tempfile.TemporaryDirectory() as folder:
        options |= {key: f"{folder}/{file}" for key, file in FILES.items()}
        keras_curv.certify_examples(model_of(name), (x, y), **options)
        return texts(folder, *FILES.values())


REPORTS = {
    "digits": {"name": "digits", "radii": (0.5, 1.0)},
    "digits_in_a_box": {"name": "digits", "threat": Threat(low=0.0, high=1.0)},
    "top_2": {"name": "digits", "property": "top_2", "method": "crown"},
    "clip": {"name": "clipping", "required": None},
    "relu2_in_float32": {"name": "relu2", "guarantee": "float32"},
    "verdict": {"name": "digits", "radii": (0.5,), "decide": True, "required": 0.5},
}


def requests(**options):
    """Returns rows, losses, summary and report of a log of requests to two versions of a model."""
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder) / "models"
        for version in (1, 10):
            logged.save(base / str(version), version)
        files = write_logs(pathlib.Path(folder))
        written = {"output": "rows.csv", "summary": "summary.json", "report": "report.html"}
        if "baseline" in options:
            written["lost"], options["baseline"] = "lost.csv", str(base / options["baseline"])
        paths = {key: f"{folder}/{name}" for key, name in written.items()}
        model = options.pop("model", "")
        keras_curv.certify_requests(str(base / model), files, **paths, **options)
        return texts(folder, *written.values())


def write_logs(folder):
    """Writes two files of requests, one packed: good ones, and some that cannot be answered."""
    rng = generator("requests")
    records = []
    for i in range(12):
        x = rng.standard_normal((1 + i % 4, 2, 3)).astype(np.float32)
        records.append(logged.predict(x, timestamp=1000 + i, version=(1, 10)[i % 2]))
    x = rng.standard_normal((2, 2, 3))
    records.append(logged.predict(x.astype(np.float32), version=5))
    records.append(logged.predict(x.astype(np.float32), signature="none", version=1))
    records.append(logged.predict(np.float32(x * np.nan), version=1))
    records.append(logged.predict(x, signature="double", version=10))
    records.append(logged.predict(np.uint8(99 + x), "pixels", signature="raw", version=1))
    records.append(logged.predict(np.float32(x[:, :1]), version=1))
    records.append(b"\x00 no record")
    plain_file = logged.write(folder / "a.log", records[:9])
    return [plain_file, logged.write(folder / "b.log", records[9:], "GZIP")]


REQUESTS = {
    "by_version": {},
    "one_model": {"model": "10", "method": "crc", "limit": 9},
    "baseline": {"model": "10", "baseline": "1", "radii": (0.2, 0.5), "max_lost": 0.1},
    "decide": {"decide": True, "radii": (0.3,), "required": 0.2},
    "float32": {"guarantee": "float32", "method": "crown"},
    "top_2": {"property": "top_2", "threat": Threat(norm="l1")},
}


def certificates(name, count=64, **options):
    """Returns what `certify` returns, to the last digit."""
    x, y = examples(name)
    result = keras_curv.certify(
        model_of(name), x[:count], None if y is None else y[:count], **options
    )
    return {field: np.asarray(value) for field, value in vars(result).items()}


CERTIFICATES = {
    "digits-auto": {"name": "digits"},
    "digits-crc": {"name": "digits", "method": "crc"},
    "digits-float32": {"name": "digits", "guarantee": "float32"},
    "digits-box": {"name": "digits", "threat": {"low": 0.0, "high": 1.0}},
    "relu2-auto": {"name": "relu2"},
    "relu2-crown": {"name": "relu2", "method": "crown"},
    "trunk-auto": {"name": "trunk"},
    "clipping-crc": {"name": "clipping", "method": "crc"},
}


def served(name):
    """Returns the answers of the certified signature."""
    x, _ = examples(name)
    with tempfile.TemporaryDirectory() as folder:
        keras_curv.certified_serving(small(name), f"{folder}/model")
        answer = tf.saved_model.load(f"{folder}/model").signatures["certified"](tf.constant(x))
        return {key: value.numpy() for key, value in answer.items()}


def attacks():
    """Returns points of both attacks, curvature bounds, and how often an attack is exact."""
    x, y = examples("digits")
    x, y = x.reshape(len(x), -1), np.asarray(y)
    certificate = Certifier("saved_models/digits", method="crc").method
    network: Network = keras_curv.read("saved_models/digits").network
    bounds = keras_curv.curvature_bounds(network)
    rival = (y + 1) % 10
    kappa = tf.constant(-bounds.lower[y, rival])
    args = network, tf.constant(x, tf.float64), tf.constant(y)
    found = keras_curv.curvature_attack(*args, tf.constant(rival), radius=0.5, curvature=kappa)
    margin, point = keras_curv.pgd_attack(*args, radius=0.5, steps=10, restarts=11)
    gap = keras_curv.curvature_gap(network, x, y, minimum_examples=2)
    rates = keras_curv.success_rates(certificate, x, y, radius=0.5)
    arrays = {"curvature/lower": bounds.lower, "curvature/upper": bounds.upper, "rates": rates}
    arrays |= {"gap": gap, "pgd/margin": margin, "pgd/point": point, "attack/point": found.point}
    arrays |= {"attack/margin": found.margin, "attack/bound": found.lower_bound}
    return {name: np.asarray(array) for name, array in arrays.items()}


def networks(name):
    """Returns the dense affine maps that are read from a model."""
    network = keras_curv.read(model_of(name)).network
    arrays = {"sizes": np.array(network.sizes)}
    for i, affine in enumerate(network.affines):
        if not affine.is_sparse:
            arrays |= {
                f"{i}/kernel": np.asarray(affine.kernel),
                f"{i}/bias": np.asarray(affine.bias),
            }
    return arrays


def cases():
    """All cases of commands, reports, logs and single functions."""
    for name, (words, files) in COMMANDS.items():
        yield f"commands/{name}.txt", functools.partial(command, *words, files=files)
    for name, options in REPORTS.items():
        yield f"reports/{name}.txt", functools.partial(report, **options)
    for name, options in REQUESTS.items():
        yield f"requests/{name}.txt", functools.partial(requests, **options)
    for name, options in CERTIFICATES.items():
        yield f"certificates/{name}.npz", functools.partial(certificates, **options)
    for name in ("sigmoid3", "smooth_convolutions", "residual_tanh"):
        yield f"functions/served_{name}.npz", functools.partial(served, name)
    for name in ("digits", "mnist_conv", "smooth_convolutions", "max_pooling", "residual_tanh"):
        yield f"functions/read_{name}.npz", functools.partial(networks, name)
    yield "functions/attacks.npz", attacks
