"""The commands in which `faults.py` causes faults: how they start, and what must hold."""

import contextlib
import copy
import functools
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
_ENVIRONMENT = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
_PAGE = 4096


def prepare(base):
    """Writes what the runs read: two models, an .npz file, and a log in three files."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import keras
    import logged
    import numpy as np

    from keras_curv import data, read

    shutil.copytree(ROOT / "saved_models" / "digits", base / "model")
    affines, rng = read(base / "model").network.affines, np.random.default_rng(0)
    given = keras.Input((8, 8, 1), name="keras_tensor")
    hidden = [keras.layers.Dense(affine.fan_out, "softplus") for affine in affines[:-1]]
    other = keras.Sequential([given, keras.layers.Flatten(), *hidden, keras.layers.Dense(10)])
    weights = [part for affine in affines for part in (affine.kernel, affine.bias)]
    other.set_weights([part * rng.uniform(0.5, 1.5, part.shape) for part in weights])
    other.export(str(base / "other"), verbose=False)
    x, y = data.load_all("digits")
    np.savez(base / "x.npz", x=x[:100], y=y[:100])
    for k, name in enumerate("abc"):
        parts = np.array_split(x[40 * k : 40 * k + 40], 10 + 5 * k)
        records = [logged.predict(part, "keras_tensor", timestamp=1 + k) for part in parts]
        logged.write(base / f"{name}.log", records, "GZIP" if name == "b" else "")


class Run:
    """A command in a folder of its own, and what an unbroken run of it writes.

    Attributes:
        folder: its working directory; it writes into `out` there.
        whole: name → bytes that every trial must end with.
        seconds: time of an unbroken run.
        size: bytes that an unbroken run leaves.
    """

    script = ""

    def __init__(self, *arguments):
        self.arguments, self.folder = arguments, None
        self.whole, self.seconds, self.size = {}, 0.0, 0

    @property
    def out(self):
        return self.folder / "out"

    def at(self, folder):
        """Returns the same run for a trial, in a folder beside what `prepare` made."""
        for source in folder.parent.iterdir():
            if source.is_file():
                shutil.copy(source, folder)
            elif source.name in ("model", "other"):
                shutil.copytree(source, folder / source.name)
        run = copy.copy(self)
        run.folder = folder
        run.out.mkdir()
        return run

    def run_unbroken(self, folder):
        """Runs once without faults, to know what must come out."""
        folder.mkdir()
        run, started = self.at(folder), time.monotonic()
        run.check_stopped(run.start(), (0,))
        self.seconds = time.monotonic() - started
        self.whole |= run.results()
        self.size += sum(file.stat().st_size for file in run.out.rglob("*"))

    def start(self, **options):
        with open(self.folder / "stderr", "wb") as errors:
            return subprocess.Popen(
                [sys.executable, ROOT / "bin" / self.script, *self.words()],
                cwd=self.folder,
                env=_ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                **options,
            )

    def await_handler(self, child):
        """Waits until the command handles signals; before, Python itself is starting."""
        while child.poll() is None:
            status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
            if int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1:
                return
            time.sleep(0.005)

    def await_moment(self, child, rng):
        """Waits for a random time, or for a random state of the output and a little more."""
        if rng.random() < 0.3:
            end = time.monotonic() + rng.uniform(0.0, 1.1) * self.seconds
            while child.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            return
        reached = self.milestone(rng)
        while child.poll() is None and not reached():
            time.sleep(0.0005)
        time.sleep(rng.choice([0.0, 0.002, 0.02, 0.1]) * rng.random())

    def check_stopped(self, child, statuses):
        """Checks that it ended by itself, quietly or with one line."""
        try:
            child.wait(600)
        except subprocess.TimeoutExpired:
            child.kill()
        said = (self.folder / "stderr").read_text(errors="replace")
        assert child.returncode in statuses, f"status {child.returncode}: {said[-500:]}"
        lines = said.splitlines()
        assert len(lines) == (child.returncode != 0), f"{len(lines)} lines: {said[-500:]}"
        assert not lines or lines[0].startswith(f"{self.script}: "), said
        self.check_so_far()

    def check_so_far(self):
        """Checks that the rows are the first bytes of all rows, and that none disappeared."""

    def forget(self):
        """What was written so far."""
        shutil.rmtree(self.out)
        self.out.mkdir()

    def finish(self):
        """Resumes to the end if need be; then exactly the expected files must be there."""
        if self.results() != self.whole:
            self.check_stopped(self.start(), (0,))
        found = self.results()
        for name in self.whole | found:
            assert found.get(name) == self.whole.get(name), f"{name} is not of an unbroken run"


class Certify(Run):
    """`bin/certify`, of a data set, an .npz file or a log."""

    script = "certify"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.of_log = any(word.startswith("--requests") for word in arguments)
        self.title = "certify --requests" if self.of_log else "certify"
        self.known = b""

    def words(self):
        files = {"output": "rows.csv", "summary": "summary.json", "plot": "curve.svg"}
        files |= {"lost": "lost.csv"} if self.of_log else {"report": "report.html"}
        where = [f"--{flag}=out/{name}" for flag, name in files.items()]
        return ["--saved_model=model", "--method=crown", "--resume", *self.arguments, *where]

    def milestone(self, rng):
        rows, size = self.out / "rows.csv", rng.randint(0, len(self.whole["rows.csv"]))
        name = rng.choice(["rows.csv", "rows.csv", *self.whole])
        if name == "rows.csv":
            return lambda: rows.exists() and rows.stat().st_size >= size
        return (self.out / name).exists

    def check_so_far(self):
        rows = self.out / "rows.csv"
        now = rows.read_bytes() if rows.exists() else b""
        if self.whole:
            assert self.whole["rows.csv"].startswith(now), "rows differ from an unbroken run's"
        complete = self.known[: self.known.rfind(b"\n") + 1]
        assert now.startswith(complete), "rows that were complete are gone"
        self.known = now

    def results(self):
        files = {file.name: file.read_bytes() for file in self.out.iterdir()}
        files = {name: text for name, text in files.items() if ".part." not in name}
        if "summary.json" in files:
            summary = json.loads(files["summary.json"])
            summary.pop("seconds", None)
            files["summary.json"] = summary
        if "curve.svg" in files:  # matplotlib writes the date, and random names
            files["curve.svg"] = len(files["curve.svg"]) > 0
        return files

    def forget(self):
        super().forget()
        self.known = b""


class Train(Run):
    """`bin/train`, to the end of its certification."""

    script = title = "train"

    def words(self):
        begun = (self.out / "recipe.json").exists()
        return ["--output=out", *self.arguments, *(["--resume"] if begun else [])]

    def milestone(self, rng):
        names = ["recipe.json", "history.csv", "checkpoints", "variables", "saved_model.pb"]
        names += [".checkpoints.part", "certified.json", "CARD.md"]
        names += [f"checkpoints/ckpt-{k}.index" for k in range(1, 5)]
        name = rng.choice(names)
        return (self.out / name).exists

    def results(self):
        files = {name: self.out / name for name in ("history.csv", "recipe.json")}
        found = {name: file.read_bytes() for name, file in files.items() if file.exists()}
        if (self.out / "certified.json").exists():
            summary = json.loads((self.out / "certified.json").read_text())
            found["certified.json"] = {k: v for k, v in summary.items() if k not in _OF_THE_RUN}
        if (self.out / "CARD.md").exists():
            found["CARD.md"] = (self.out / "CARD.md").read_text().replace(" --resume", "")
        if (self.out / "saved_model.pb").exists():
            found["weights"] = _weights(self.out)
        found["checkpoints"] = sum(1 for _ in self.out.glob("checkpoints*"))
        return found


def _weights(directory):
    """Returns the bytes of all weights; Keras numbers them differently at every export."""
    import tensorflow as tf

    stored = tf.train.load_checkpoint(str(directory / "variables" / "variables"))
    names = stored.get_variable_to_shape_map()
    return sorted(stored.get_tensor(n).tobytes() for n in names if "OBJECT_GRAPH" not in n)


_OF_THE_RUN = ("seconds", "fingerprint")  # graphs name their functions by a running number


@contextlib.contextmanager
def disk(run, rng):
    """Gives a run little disk space; yields options of its process.

    A file system in memory with a random number of pages left; where it cannot be mounted, a
    limit on the size of every file.
    """
    free = rng.randint(0, run.size // _PAGE + 8)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={(free + 1) * _PAGE}", "tmpfs", run.out]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        limit = rng.randint(0, run.size)
        limits = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        yield {"preexec_fn": limits}
        return
    try:
        yield {}
        saved = run.folder / "saved"
        shutil.copytree(run.out, saved)
    finally:
        subprocess.run(["umount", run.out], check=True)
    shutil.rmtree(run.out)
    saved.rename(run.out)
