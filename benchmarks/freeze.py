"""Writes what the library answers, and compares two such folders: a safety net for refactoring.

    python benchmarks/freeze.py write DIR [--only WORD] [--quick]
    python benchmarks/freeze.py compare OLD NEW [--only WORD] [--tolerance 1e-9]

`write` makes one file a case: rows of runs (.csv), texts of commands, reports and logs (.txt),
arrays of certificates and trainings (.npz), or the message of a refusal (.refused) or a crash
(.failed). It runs the code beside it by public names only, so that the script works in a tree whose
modules have moved. Seconds, paths and the version are left
out. `--quick` takes a few examples of each model, and none of the large ones.

`compare` prints the verdict on each case, with the largest change of a radius down and up, and a
summary; its exit status is 1 if anything differs by more than the tolerance. Both folders must come
from one machine: the number of processors decides how examples are cut into batches, which changes
last digits.
"""

import argparse
import contextlib
import faulthandler
import io
import os
import pathlib
import subprocess
import sys
import time

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from freeze_compare import compare, named

_LARGE = ("mnist", "cifar10")  # in names of cases that `--quick` leaves out
_FEW = 4  # examples of each model that it asks about


def write(folder, only=None, quick=False, share="0/1"):
    """Writes the cases whose names have one of these words: a share of them, every so many groups.

    Cases of one model stand in one group, as they share the graphs that are traced for it.
    """
    import freeze_models
    import freeze_outputs
    import freeze_rows
    import freeze_training

    with contextlib.suppress(io.UnsupportedOperation):  # where stderr is no file, as in a test
        faulthandler.enable()  # a process that dies says where
    freeze_models.examples_at_most = _FEW if quick else freeze_models.EXAMPLES
    os.chdir(ROOT)  # shipped models are named from here
    cases = [*freeze_rows.cases(), *freeze_outputs.cases(), *freeze_training.cases()]
    cases = [case for case in cases if named(case[0], only or [""])]
    cases = [case for case in cases if not (quick and named(case[0], _LARGE))]
    mine, shares = map(int, share.split("/"))
    groups = list(dict.fromkeys(group_of(name) for name, _ in cases))
    for name, make in cases:
        if groups.index(group_of(name)) % shares == mine:
            begun = processor_seconds()
            suffix = freeze_case(folder / name, make)
            print(f"{processor_seconds() - begun:6.2f} s  {name} {suffix}", flush=True)


def processor_seconds():
    """Returns the time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def group_of(name):
    """Returns the group of a case: its folder, or itself if it is a training."""
    return name if name.startswith("training") else name.rpartition("/")[0]


def write_at_once(folder, arguments, processes):
    """Starts that many processes, each with its share of cases; returns whether all ended well."""
    words = [sys.executable, __file__, "write", str(folder), *arguments]
    shares = [[*words, f"--share={i}/{processes}"] for i in range(processes)]
    begun = [subprocess.Popen(share) for share in shares]
    return not any([process.wait() for process in begun])


def sum_up(folder, seconds):
    """Prints how much was written, in what time; returns the names of cases that crashed."""
    files = [path for path in folder.rglob("*.*") if path.is_file()]
    rows = sum(path.read_text().count("\n") - 1 for path in files if path.suffix == ".csv")
    refused = sum(path.suffix == ".refused" for path in files)
    crashed = [str(path.relative_to(folder)) for path in files if path.suffix == ".failed"]
    print(f"{len(files)} cases, {rows} rows, {refused} refused; {seconds:.0f} s", end=", ")
    print(f"{processor_seconds():.0f} s of processors; crashed: {', '.join(crashed) or 'none'}")
    return crashed


def freeze_case(path, make):
    """Writes what a case makes; returns the suffix of its file."""
    import freeze_outputs
    import numpy as np

    from keras_curv import InputError

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        made = make()
    except InputError as error:
        path, made = path.with_suffix(".refused"), f"{error}\n"
    except Exception as error:  # a crash is an answer too, and the other cases are worth having
        path, made = (
            path.with_suffix(".failed"),
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}\n",
        )
    if isinstance(made, dict):
        np.savez(path, **made)
    else:
        path.write_text(freeze_outputs.plain(made))
    return path.suffix


def main(arguments=None):
    given = parsed(arguments)
    if given.command == "compare":
        return 1 if compare(given.old, given.new, given.tolerance, given.only) else 0
    folder, started = pathlib.Path(given.folder).resolve(), time.monotonic()
    if given.share is not None:
        write(folder, given.only, given.quick, given.share)
        return 0
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"freeze: {folder} is not empty; give a new folder")
    if given.processes > 1:
        passed = [*(f"--only={word}" for word in given.only or ()), *["--quick"] * given.quick]
        ended_well = write_at_once(folder, passed, given.processes)
    else:
        ended_well = write(folder, given.only, given.quick) is None
    return 1 if sum_up(folder, time.monotonic() - started) or not ended_well else 0


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="freeze what the code beside this script answers")
    writing.add_argument("folder")
    writing.add_argument("--quick", action="store_true", help="few examples, no large models")
    writing.add_argument("--processes", type=int, default=2, help="at a time")
    writing.add_argument("--share", help="of one of them: its number, /, how many there are")
    comparing = commands.add_parser("compare", help="say how two folders differ")
    comparing.add_argument("old")
    comparing.add_argument("new")
    comparing.add_argument("--tolerance", type=float, default=1e-9, help="relative change allowed")
    for one in (writing, comparing):
        one.add_argument(
            "--only", action="append", help="cases with this word in their names; repeatable"
        )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
