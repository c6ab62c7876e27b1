"""Campaigns of numbered random cases, each in a process that it may end, for `fuzz_*.py`."""

import argparse
import collections
import os
import pathlib
import resource
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "reading")]

TOGETHER = 250  # cases of one process
SECONDS, PATIENCE = 5.0, 60  # of computing, and of waiting, for a file that is read


def campaign(taken, good, what, kinds=None, seconds=SECONDS, patience=PATIENCE):
    """Takes cases by the options of the command line; 1 where one of them is a finding, else 0.

    Args:
        taken: a case's number → what came of it. TensorFlow must not have run before.
        good: what may come of it.
        what: is counted.
        kinds: of cases; `taken` then has a second argument, those that are asked for.
        seconds, patience: of computing, beyond which a case is a finding, and of waiting, beyond
            which it is ended.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    parser.add_argument(f"--{what}", type=int, default=1000, dest="count")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    if kinds:
        parser.add_argument("--kind", choices=kinds, action="append")
    options = parser.parse_args()
    given = (tuple(options.kind or kinds),) if kinds else ()
    counts, begun, findings = collections.Counter(), time.monotonic(), 0
    start, stop = options.seed, options.seed + options.count
    while start < stop and time.monotonic() - begun < options.seconds:
        left = list(range(start, min(start + TOGETHER, stop)))
        start = left[-1] + 1
        while left:
            done, ended = _together(left, lambda number: taken(number, *given), patience)
            for number, (outcome, taking, memory) in zip(left, done, strict=False):
                counts[outcome] += 1
                counts["most MiB"] = max(counts["most MiB"], memory)
                if outcome not in good or taking > seconds:
                    findings += 1
                    print(f"{number}: {outcome}, {taking:.1f} s of computing", flush=True)
            left = left[len(done) :]
            if ended:
                findings += 1
                counts["ended the process"] += 1
                print(f"{left[0]}: ended the process", flush=True)
                left = left[1:]
        print(f"{start - options.seed:,} of {options.count:,} {what}", file=sys.stderr, flush=True)
    print(f"{start - options.seed} {what}, {findings} findings: {dict(counts)}")
    return int(findings > 0)


def _together(numbers, taken, patience):
    """What came of the first of these cases, in one process, and whether the next one ended it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with open(os.devnull, "wb") as nowhere:
            for stream in (1, 2):
                os.dup2(nowhere.fileno(), stream)
        _outcome(taken, numbers[0])  # the first call of anything takes its time
        for number in numbers:
            signal.alarm(patience)
            begun = time.process_time()
            outcome = _outcome(taken, number).replace("\n", " ").replace("|", " ")
            seconds = time.process_time() - begun
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            os.write(writing, f"{outcome}|{seconds}|{memory}\n".encode("ascii", "replace"))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        lines = [line.decode().split("|") for line in file.read().splitlines()]
    os.waitpid(child, 0)
    done = [(outcome, float(seconds), int(memory)) for outcome, seconds, memory in lines]
    return done, len(done) < len(numbers)


def _outcome(taken, number):
    try:
        return taken(number)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:200]
