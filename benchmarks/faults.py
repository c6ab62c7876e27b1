"""Causes kills, full disks, broken files and signals in the real commands, many times.

    python benchmarks/faults.py
    python benchmarks/faults.py --quick

Every trial runs a command as a child process, disturbs it at a random moment, and resumes it with
`--resume` until it is done. The fault is survived if

- the rows at any time are the first bytes of those of an unbroken run, and never become fewer;
- any fault but a kill that stops the command shows as one line on stderr, with its own status;
- in the end all files are, byte for byte, those of an unbroken run.

Prints faults caused and survived, and exits with status 1 if one was not. Disks are small file
systems in memory where this user may mount them, else limits on the size of a file.
"""

import collections
import concurrent.futures
import contextlib
import functools
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from absl import app, flags
from fault_runs import ROOT, Certify, Train, disk, prepare
from rich.console import Console
from rich.table import Table

_QUICK = flags.DEFINE_bool("quick", False, "A tenth of the trials.")
_TRIALS = flags.DEFINE_integer("trials", 20, "Of each fault that is dealt at random.")
_KILLS = flags.DEFINE_integer("kills", 3, "In a trial, at most.")
_JOBS = flags.DEFINE_integer("jobs", 2, "Trials at a time.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")
_ONLY = flags.DEFINE_string("only", "", "Faults whose name contains this.")


def killed(run, rng):
    """Sends kill -9, up to `--kills` times; returns how many hit."""
    hit = 0
    for _ in range(rng.randint(1, _KILLS.value)):
        child = run.start()
        run.await_moment(child, rng)
        child.kill()
        if child.wait() == -signal.SIGKILL:
            hit += 1
        run.check_so_far()
    run.finish()
    return hit


def stopped(number, run, rng):
    """Sends a signal that asks to stop."""
    child = run.start()
    run.await_handler(child)
    run.await_moment(child, rng)
    child.send_signal(number)
    run.check_stopped(child, (0, 128 + number))
    run.finish()
    return int(child.returncode != 0)


def disk_full(run, rng):
    """Leaves no space at a random file, then frees it."""
    with disk(run, rng) as limits:
        child = run.start(**limits)
        run.check_stopped(child, (0, 2))
        failed = child.returncode != 0
    run.finish()
    return int(failed)


def vanishes(run, rng, *, what):
    """Removes a file or directory that is read while the command runs."""
    path, away = run.folder / what, run.folder / f"{what}.away"
    child = run.start()
    run.await_moment(child, rng)
    path.rename(away)
    run.check_stopped(child, (0, 2))
    away.rename(path)
    run.finish()
    return 1


def unreadable(run, rng, *, what, spoil):
    """Makes a file in the middle unreadable, or cuts it off."""
    path, away = run.folder / what, run.folder / f"{what}.away"
    path.rename(away)
    spoil(path, away.read_bytes(), rng)
    run.check_stopped(run.start(), (2,))
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    away.rename(path)
    run.forget()  # rows of the readable part of the log, which is another log
    run.finish()
    return 1


SPOILED = {
    "cut off": lambda path, whole, rng: path.write_bytes(whole[: rng.randrange(len(whole))]),
    "a bit flipped": lambda path, whole, rng: path.write_bytes(flipped(whole, rng)),
    "read error (EIO)": lambda path, whole, rng: path.symlink_to("/proc/self/mem"),
    "a directory": lambda path, whole, rng: path.mkdir(),
    "gone": lambda path, whole, rng: None,
}


def flipped(whole, rng):
    place = rng.randrange(len(whole) - 8)  # the last eight of gzip are checked last
    return whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :]


def faults():
    """Returns by name what runs, which fault it suffers, and how often."""
    data_set, inputs = Certify("--limit=120", "--batch_size=7"), Certify("--inputs=x.npz")
    log = Certify(
        *("--requests=a.log", "--requests=b.log", "--requests=c.log", "--batch_size=11"),
        *("--baseline=other", "--radius=0.2"),
    )
    train = Train("--epochs=4", "--width=16", "--nojit", "--batch_size=512")
    many = max(1, _TRIALS.value // (10 if _QUICK.value else 1))
    some = max(1, many // 2)
    table = {
        "certify, kill -9": (data_set, killed, many),
        "certify --requests, kill -9": (log, killed, many),
        "train, kill -9": (train, killed, many),
        "certify, disk full": (data_set, disk_full, some),
        "certify --requests, disk full": (log, disk_full, some),
        "train, disk full": (train, disk_full, some),
        "certify, model vanishes": (
            data_set,
            functools.partial(vanishes, what="model"),
            max(1, some // 2),
        ),
        "certify --requests, log vanishes": (
            log,
            functools.partial(vanishes, what="b.log"),
            max(1, some // 2),
        ),
        "certify --inputs, cut off": (
            inputs,
            functools.partial(unreadable, what="x.npz", spoil=SPOILED["cut off"]),
            max(1, some // 2),
        ),
    }
    for name, spoil in SPOILED.items():
        deal = functools.partial(unreadable, what="b.log", spoil=spoil)
        table[f"certify --requests, log in the middle {name}"] = (log, deal, max(1, some // 5))
    for number in (signal.SIGINT, signal.SIGTERM):
        for run in (data_set, log, train):
            deal = functools.partial(stopped, number)
            table[f"{run.title}, {number.name}"] = (run, deal, max(1, some // 5))
    return {name: entry for name, entry in table.items() if _ONLY.value in name}


def deal(name, kind, fault, trial, base):
    """Runs one trial in its own folder; returns the number of faults, and what went wrong."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=base))
    run = kind.at(folder)
    try:
        return fault(run, random.Random(f"{_SEED.value} {name} {trial}")), None
    except AssertionError as error:
        return 1, f"{name}, trial {trial}: {error}; see {folder}"


def main(argv):
    del argv
    started = time.monotonic()
    base = pathlib.Path(tempfile.mkdtemp(prefix="faults"))
    planned = faults()
    dealt, survived, wrong = collections.Counter(), collections.Counter(), []
    prepare(base)
    for number, kind in enumerate({kind for kind, _, _ in planned.values()}):
        kind.run_unbroken(base / f"unbroken{number}")
    with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as pool:
        jobs = {
            pool.submit(deal, name, kind, fault, trial, base): name
            for name, (kind, fault, count) in planned.items()
            for trial in range(count)
        }
        for job in concurrent.futures.as_completed(jobs):
            count, failure = job.result()
            dealt[jobs[job]] += count
            survived[jobs[job]] += 0 if failure else count
            if failure:
                wrong.append(failure)
                print(failure, file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    table = Table(title=f"faults dealt to {ROOT.name}, seed {_SEED.value}, {seconds:.0f} s")
    for column in ("fault", "trials", "dealt", "survived"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for name, (_, _, count) in planned.items():
        table.add_row(name, str(count), str(dealt[name]), str(survived[name]))
    table.add_row("all", "", str(dealt.total()), str(survived.total()), style="bold")
    Console(width=100).print(table)
    if not wrong:
        shutil.rmtree(base)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    app.run(main)
