"""Malicious SavedModels: each must be refused, before any of it runs, in little memory and time.

    python benchmarks/hostile.py

Each model of `tests/reading/hostile_models` is built in a temporary folder, and certified in a
process of its own that may take 6 GiB more than it starts with, and two minutes. A few have what is
hostile where nobody looks; they are certified as if it were not there.
"""

import argparse
import json
import os
import pathlib
import resource
import select
import shutil
import signal
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "reading")]

import hostile_models
import numpy as np

from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError

MEMORY = 6 * 2**30
SECONDS = 120
EXPECTED = {"refused": hostile_models.CASES, "certified": hostile_models.HARMLESS}


def in_child(work, seconds):
    """What `work()` returns in a process of its own, or how that ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        try:
            answer = work()
        except BaseException as error:
            answer = {"outcome": type(error).__name__, "message": str(error)}
        os.write(writing, json.dumps(answer).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    answer = b""
    if select.select([reading], [], [], seconds)[0]:
        while piece := os.read(reading, 2**16):
            answer += piece
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if answer:
        return json.loads(answer)
    ended = os.waitstatus_to_exitcode(status)
    return {"outcome": "hung" if ended == -signal.SIGKILL else f"ended with {ended}"}


def certified(path):
    """Certifies one example within the limits: outcome, message, seconds and MiB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    before, started = peak(), time.monotonic()
    try:
        certifier = Certifier(str(path), method="crc")
        certifier.certify(np.ones((1, *certifier.served.input_shape), np.float32))
        answer = {"outcome": "certified", "message": ""}
    except InputError as error:
        answer = {"outcome": "refused", "message": str(error)}
    return answer | {"seconds": time.monotonic() - started, "mib": peak() - before}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def attempt(name, build):
    """Builds one model and certifies it."""
    with tempfile.TemporaryDirectory() as folder:
        path, canary = pathlib.Path(folder) / "model", pathlib.Path(folder) / "canary"

        def make():
            build(path, canary)
            return {"outcome": "built"}

        built = in_child(make, SECONDS)
        if built["outcome"] != "built":
            return {"outcome": "not built", "message": str(built), "ran": False}
        result = in_child(lambda: certified(path), SECONDS)
        result["ran"] = bool(list(canary.parent.glob("canary*")))
        result["message"] = result.get("message", "").replace(folder, "")
        shutil.rmtree(path, ignore_errors=True)
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    only = parser.parse_args().only
    counts = {"tried": 0, "refused": 0, "certified": 0, "other": 0, "ran": 0}
    worst = [0.0, 0.0]
    for expected, cases in EXPECTED.items():
        for name, build in cases.items():
            if only not in name:
                continue
            result = attempt(name, build)
            as_expected = result["outcome"] == expected and not result["ran"]
            counts["tried"] += 1
            counts[result["outcome"] if as_expected else "other"] += 1
            counts["ran"] += result["ran"]
            seconds, mib = result.get("seconds", SECONDS), result.get("mib", 0.0)
            worst = [max(worst[0], seconds), max(worst[1], mib)]
            mark = "  " if as_expected else "!!"
            print(
                f"{mark} {name:44} {result['outcome']:10} {seconds:6.2f} s {mib:6.0f} MiB  "
                f"{result['message'][:110]}",
                flush=True,
            )
    print(
        f"tried {counts['tried']}, refused {counts['refused']}, harmless and certified "
        f"{counts['certified']}, neither {counts['other']}, ran something {counts['ran']}; "
        f"at most {worst[0]:.1f} s and {worst[1]:.0f} MiB"
    )
    return 1 if counts["other"] or counts["ran"] else 0


if __name__ == "__main__":
    sys.exit(main())
