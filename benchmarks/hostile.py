"""Malicious models, logs, archives, rows, shards, trainings and folders: none may do anything.

    nice python benchmarks/hostile.py
    nice python benchmarks/hostile.py --only 'npz:'

Each case of `tests/hostile_models` and `tests/hostile_inputs` is built in a temporary folder, and
taken. It must end in a refusal within five seconds of computing and 1,024 MiB of memory above the
start, or in what the file honestly is, which may take four times as long and twice as much; without
an end of the process, anything run, or anything changed beside its folder. No more than 2 GiB may
be mapped beside what TensorFlow has mapped by then. What is certified is compared with what a
server answers.

One process takes case after case, until one of them ends it or keeps it waiting; then the next one
does. The first call of a method traces graphs, whatever the model: each process certifies the plain
model first.
"""

import argparse
import collections
import contextlib
import functools
import gc
import json
import os
import pathlib
import resource
import select
import signal
import sys
import tempfile
import time
import typing
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "reading")]

import hostile_inputs
import hostile_models
import numpy as np
from hostile_models.models import export
from server_oracle import assert_read_as_answered

from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError
from keras_curv.reading import served_model

MEMORY = 2 * 2**30  # bytes that may be mapped beside those at the start
MIB = 1024  # resident, above the start, until a refusal
SECONDS = 5.0  # of computing, likewise
TAKEN = 4.0, 2.0  # times as many seconds and MiB for what is no refusal
DEEPEST, WIDEST = 40, 2048  # networks with products that are certified, too
PATIENCE = 90  # seconds of waiting, on a machine that does other things too
ANY = ("refused", "certified")  # what is well-formed may turn out to be small enough


def certified(path, method="lipschitz"):
    """Certifies one example, which is also run through the model's own signature."""
    certifier = Certifier(str(path), method=method)
    certifier.certify(np.ones((1, *certifier.served.input_shape), np.float32))


def attacked(path):
    """Certifies two examples by linear bounds, as there are products; random points try them.

    Larger networks are only read: bounds take time by themselves.
    """
    served, rng = served_model.read(str(path)), np.random.default_rng(0)
    if served.network.depth > DEEPEST or max(served.network.sizes) > WIDEST:
        return
    certifier = Certifier(str(path), method="crown")
    x = np.stack([np.ones(served.network.dim), rng.normal(size=served.network.dim)])
    found = certifier.certify(x.astype(np.float32).reshape(-1, *served.input_shape))
    for one, label, radius in zip(x, found.prediction, found.radius, strict=True):
        change = rng.normal(size=(200, len(one)))
        change *= min(radius, 1e30) * (1.0 - 1e-6) / np.linalg.norm(change, axis=1, keepdims=True)
        logits = served.network.logits(np.float32(one) + change).numpy()
        margin = logits[:, [label]] - np.delete(logits, label, axis=1)
        assert not radius > 0.0 or margin.min() > -1e-9 * np.abs(logits).max(), margin.min()


class ModelCase(typing.NamedTuple):
    """A malicious model."""

    name: str
    expected: tuple[str, ...]
    make: typing.Callable

    def build(self, folder):
        """Builds it."""
        self.make(folder / "model", folder / "canary")

    def take(self, folder):
        """Certifies it."""
        (attacked if "product: " in self.name else certified)(folder / "model")

    def ran(self, folder):
        """Whether anything of it ran."""
        return bool(list(folder.glob("canary*")))

    def alike(self, folder):
        """Whether a session of TensorFlow 1 answers by what was read; None: it cannot load it."""
        try:
            assert_read_as_answered(folder / "model")
        except AssertionError:
            return False
        except Exception:  # whatever TensorFlow raises
            return None
        return True


class InputCase(typing.NamedTuple):
    """Another malicious file, or folder."""

    name: str
    expected: tuple[str, ...]
    kind: typing.Any

    def build(self, folder):
        """Puts it there."""
        (folder / hostile_inputs.OUTSIDE).write_bytes(b"kept")
        self.kind.CASES[self.name](folder)

    def take(self, folder):
        """Reads it, or goes on with it."""
        self.kind.attempt(folder)

    def ran(self, folder):
        """Whether what is outside has changed."""
        outside = folder / hostile_inputs.OUTSIDE
        return outside.is_symlink() or outside.read_bytes() != b"kept"

    def alike(self, folder):
        """Nothing to compare."""


def all_cases():
    for name, make in hostile_models.CASES.items():
        open_end = name.startswith(("work:", "variant:"))
        yield ModelCase(name, ANY if open_end else ("refused",), make)
    for name, make in hostile_models.HARMLESS.items():
        yield ModelCase(name, ("certified",), make)
    for kind in hostile_inputs.KINDS.values():
        for name in kind.CASES:
            yield InputCase(name, ANY, kind)


@contextlib.contextmanager
def limited_memory():
    """Lets the process map so much more."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def resident(name):
    """Of this process, in MiB: VmRSS now, VmHWM at most since it was reset."""
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) / 1024


def outcome_of(case, folder):
    """What came of it, after how much."""
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before, begun = resident("VmRSS"), time.process_time()
    answer = {"outcome": "certified", "message": ""}
    try:
        with limited_memory(), warnings.catch_warnings():
            warnings.simplefilter("error")  # a refusal is one line, and nothing beside it
            case.take(folder)
    except InputError as error:
        answer = {"outcome": "refused", "message": str(error)}
    except BaseException as error:
        answer = {"outcome": type(error).__name__, "message": str(error)}
    spent = {"seconds": time.process_time() - begun, "mib": resident("VmHWM") - before}
    return answer | spent | {"ran": case.ran(folder)}


def work(cases, tell):
    """Takes case after case; of each it tells two things."""
    with tempfile.TemporaryDirectory() as folder:
        certified(export(pathlib.Path(folder)))
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            try:
                case.build(folder)
            except Exception as error:
                tell({"outcome": "not built", "message": str(error)})
                tell({})
                continue
            result = outcome_of(case, folder)
            tell(result | {"message": result["message"].replace(name, "")})
            tell({"alike": case.alike(folder)} if result["outcome"] == "certified" else {})


def say(pipe, answer):
    os.write(pipe, json.dumps(answer).encode() + b"\n")


def results(cases):
    """Of each case what came of it; a new process for those behind one that ended its own."""
    cases = list(cases)
    while cases:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            work(cases, functools.partial(say, writing))
            os._exit(0)
        os.close(writing)
        with open(reading, "rb", buffering=0) as pipe:
            while cases:
                first = line_of(pipe)
                second = line_of(pipe) if first is not None else None
                if first is None:
                    first = {"outcome": "hung, or ended", "message": ""}
                yield cases.pop(0), first | (second or {})
                if second is None:
                    break
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def line_of(pipe):
    """The next thing that a process says; None if it ends, or says nothing for long."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([pipe], [], [], PATIENCE)[0]:
            return None
        piece = pipe.read(1)
        if not piece:
            return None
        line += piece
    return json.loads(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    only = parser.parse_args().only
    counts = collections.Counter()
    worst = {"seconds": 0.0, "mib": 0.0}
    chosen = [case for case in all_cases() if only in case.name]
    if not chosen:
        parser.error(f"no case has {only!r} in its name")
    for case, result in results(chosen):
        name, expected = case.name, case.expected
        message = result.get("message", "")
        longer, larger = (1.0, 1.0) if result["outcome"] == "refused" else TAKEN
        late = result.get("seconds", PATIENCE) > SECONDS * longer
        late |= result.get("mib", 0.0) > MIB * larger
        wrong = {
            "another outcome": result["outcome"] not in expected,
            "ran something": result.get("ran", False),
            "served otherwise": result.get("alike") is False,
            "too dear": late,
            "not one line": not message.isprintable(),
        }
        counts.update([what for what, is_so in wrong.items() if is_so])
        counts.update(["tried", result["outcome"] if not wrong["another outcome"] else "other"])
        counts["as a server answers"] += result.get("alike") is True
        for what in worst:
            worst[what] = max(worst[what], result.get(what, 0.0))
        print(
            f"{'!!' if any(wrong.values()) else '  '} {name[:56]:56} {result['outcome']:10} "
            f"{result.get('seconds', PATIENCE):6.2f} s {result.get('mib', 0.0):6.0f} MiB  "
            f"{message[:110]}",
            flush=True,
        )
    bad = {what: counts[what] for what in wrong}
    print(
        f"tried {counts['tried']}: refused {counts['refused']}, taken {counts['certified']}, of "
        f"which {counts['as a server answers']} models compared with a server; "
        + ", ".join(f"{what} {count}" for what, count in bad.items())
        + f"; at most {worst['seconds']:.1f} s and {worst['mib']:.0f} MiB"
    )
    return 1 if any(bad.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
