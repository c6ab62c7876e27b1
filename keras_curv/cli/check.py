"""Proves the radii of a run again, from its proofs and the network as numbers, by other code.

    keras_curv certify --saved_model DIR --inputs FILE.npz --output rows.csv --proofs proofs
    keras_curv read --saved_model DIR --network network.npz
    keras_curv check --proofs proofs --network network.npz --rows rows.csv --inputs FILE.npz

All of it is in the package `keras_curv_check`, which needs no TensorFlow and imports nothing of
`keras_curv`; `python -m keras_curv_check` does the same. `docs/auditor.md` says what it proves.
Exit status: 0 all are proved, 2 bad input, 3 something is not proved.
"""

from __future__ import annotations

from keras_curv.cli.command import Command
from keras_curv.errors import InputError

COMMAND = Command("check", __doc__, "start it again")
FLAGS = COMMAND.flags

FILES = COMMAND.section("What to check")
FILES.strings(
    {
        "proofs": "Folder of the proofs, as keras_curv certify --proofs wrote it.",
        "network": "File of the network as numbers (.npz), as keras_curv read --network wrote it.",
        "rows": "CSV file of the run, whose certified rows must all have a proof of their radius.",
        "inputs": "Examples (.npz, array x) that the claims must be about, in their order.",
        "output": "CSV file to write of verdicts, a line for each claim.",
    }
)
FILES.define("integer", "sample", None, "Number of claims to check, drawn at random; default: all.")
FILES.define("integer", "seed", 0, "Seed of the sample.")


@COMMAND.main
def main() -> int:
    """Checks proofs; returns the exit status."""
    from keras_curv_check import cli
    from keras_curv_check.files import CheckError

    for name in ("proofs", "network"):
        if not FLAGS[name].value:
            raise InputError(f"--{name} is required; see --help")
    try:
        return cli.run(cli.parse(COMMAND.words()[2:]))
    except CheckError as error:
        raise InputError(error) from error
