"""The command line of the checker."""

from __future__ import annotations

import argparse
import collections
import csv
import pathlib
import random
import sys
import time
from collections.abc import Sequence

import numpy as np

from keras_curv_check.files import (
    CheckError,
    ProofFolder,
    certified_rows,
    read_arrays,
    read_network,
)

_SHOWN = 20  # claims that are not proved, by line


def main(arguments: Sequence[str] | None = None, name: str = "keras_curv_check") -> None:
    """Checks proofs and exits: 0 all proved, 2 bad input, 3 something is not proved."""
    try:
        status = run(parse(arguments, name))
    except (CheckError, MemoryError, OSError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        printable = "".join(c if c.isprintable() else "?" for c in line)
        print(f"{name}: {printable[:1000]}", file=sys.stderr)
        status = 2
    sys.exit(status)


def parse(arguments: Sequence[str] | None, name: str = "keras_curv_check") -> argparse.Namespace:
    """Returns the options of a command line; None: of the process."""
    parser = argparse.ArgumentParser(
        prog=name,
        description="Proves radii again, from the network's numbers, in ball arithmetic.",
        epilog="Exit status: 0 all are proved, 2 bad input, 3 something is not proved.",
        allow_abbrev=False,
    )
    for flag, kind, text in (
        ("proofs", pathlib.Path, "Folder of the proofs."),
        ("network", pathlib.Path, "File of the network as numbers (.npz)."),
        ("rows", pathlib.Path, "CSV file of the run, whose certified rows must have proofs."),
        ("inputs", pathlib.Path, "Examples (.npz, array x) that the claims must be about."),
        ("output", pathlib.Path, "CSV file to write of verdicts, a line each."),
        ("sample", int, "Number of claims to check, drawn at random; default: all."),
        ("seed", int, "Seed of the sample."),
    ):
        required = flag in ("proofs", "network")
        parser.add_argument(f"--{flag}", type=kind, required=required, help=text)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    """Checks what the options say; returns the exit status.

    Raises:
        CheckError: a file cannot be used.
    """
    started = time.monotonic()
    if options.sample is not None and options.sample < 1:
        raise CheckError(f"--sample must be 1 or more. Received: {options.sample}")
    network, folder = read_network(options.network), ProofFolder.open(options.proofs)
    if folder.header.get("network") != network.fingerprint:
        raise CheckError(f"{options.proofs} is about another network than {options.network}")
    rows = None if options.rows is None else certified_rows(options.rows)
    inputs = None if options.inputs is None else _examples(options.inputs, folder)
    try:
        from keras_curv_check.check import OUT_OF_SCOPE, PROVED, Checker, Verdict, disagreements
    except ImportError as error:
        raise CheckError(
            "it needs python-flint, which is not installed: pip install 'keras_curv[check]'"
        ) from error

    every = [claim.index for claims in folder.claims(network) for claim in claims]
    missing = [] if rows is None else sorted(rows.keys() - set(every))
    chosen = set(every)
    if options.sample is not None and options.sample < len(every):
        chosen = set(random.Random(options.seed or 0).sample(sorted(every), options.sample))
    checker = Checker(network, folder.header)
    verdicts = [Verdict(index, "not proved", "the row has no proof") for index in missing]
    for claims in folder.claims(network):
        some = [claim for claim in claims if claim.index in chosen]
        other = {one.index: one for one in disagreements(some, inputs, rows)}
        verdicts += [other.get(one.index, one) for one in checker.check(some)]
    if options.output is not None:
        with open(options.output, "w", newline="") as file:
            csv.writer(file).writerows([Verdict._fields, *verdicts])
    counts = collections.Counter(one.status for one in verdicts)
    open_ones = [one for one in verdicts if one.status != PROVED]
    for one in open_ones[:_SHOWN]:
        print(f"example {one.index}: {one.status}: {one.detail}")
    if len(open_ones) > _SHOWN:
        print(f"and {len(open_ones) - _SHOWN} more")
    seconds = time.monotonic() - started
    print(
        f"{len(verdicts)} of {len(every)} claims checked: {counts[PROVED]} proved, "
        f"{len(open_ones) - counts[OUT_OF_SCOPE]} not proved, {counts[OUT_OF_SCOPE]} out of scope; "
        f"{seconds:.1f} s"
    )
    return 3 if open_ones or not verdicts else 0


def _examples(path: pathlib.Path, folder: ProofFolder) -> np.ndarray:
    """Returns examples as the network's units have them.

    Raises:
        CheckError: there is no array x of numbers.
    """
    x = read_arrays(path).get("x")
    scale = folder.header.get("input_scale", 1.0)
    if x is None or x.dtype.kind not in "fiu" or not isinstance(scale, float):
        raise CheckError(f"{path} has no array x of numbers")
    exact = x.astype(np.float64)
    return exact if scale == 1.0 else exact * scale
