"""Files of flags that are none, lead to one another, or say what no flag takes."""

from __future__ import annotations

import contextlib
import io
import os

from hostile_inputs import threats
from keras_curv.cli import certify
from keras_curv.errors import InputError

CASES = {}
FILE = "flags"


def attempt(folder):
    """Runs the command by them, in this process; its line on stderr is what it refuses."""
    said = io.StringIO()
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            words = ["--limit=3", "--method=lipschitz", f"--flagfile={FILE}"]
            status = certify.COMMAND.call(words)
    finally:
        os.chdir(before)
        certify.FLAGS.unparse_flags()
        for name in certify.FLAGS:
            certify.FLAGS[name].unparse()
    if status == 2:
        lines = said.getvalue().splitlines()
        assert len(lines) == 1 and len(lines[0]) < 20_000, lines[:3]
        raise InputError(lines[0])


def _content(name, content):
    CASES[f"flagfile: {name}"] = lambda folder: (folder / FILE).write_bytes(content)


_content("no UTF-8", b"--method=\xff")
_content("a NUL", b"--inputs=a\0b")
_content("a flag that steers the terminal", b"--\x1b[2J=1")
_content("2^24 bytes", b"#" * 2**24)
_content("a word of 10^5 letters", b"--method=" + b"a" * 10**5)
_content("a number of 400 digits", b"--limit=" + b"9" * 400)
_content("a number of 5000 digits", b"--limit=" + b"9" * 5000)
_content("a batch of 400 digits", b"--batch_size=" + b"9" * 400)
_content("a radius of 400 digits", b"--radius=" + b"9" * 400)
_content("radii of both ends", b"--radius=1e308\n--radius=5e-324")
_content("a scale of 1e308", b"--scale=1e308")
_content("a box of 1e308", b"--box=-1e308,1e308")
_content("weights without end", b"--scale=" + b"1," * 50_000 + b"1")
_content("itself", b"--flagfile=flags")
_content("itself, often", b"--flagfile=flags\n" * 5000)
_content("no name", b"--flagfile")
_content("a file that is not there", b"--flagfile=other")
_content("words that are no flags", b"certify\n" * 10_000)
_content("lines of nothing", b"\n" * 10**5)
_content("an end of flags", b"--\n--flagfile=/dev/zero")


def _doubling(folder):
    """Two lines in each of 30 files are 2^30 in all."""
    for number in range(30):
        following = f"--flagfile=part{number + 1}\n" if number < 29 else "--resume=false\n"
        name = FILE if number == 0 else f"part{number}"
        (folder / name).write_text(following * 2)


CASES["flagfile: files that double"] = _doubling
threats.special(
    lambda name, make: CASES.update({f"flagfile: {name}": lambda folder: make(folder / FILE)})
)
for target in ("/dev/zero", "/dev/stdin", "pipe"):

    def _nested(folder, target=target):
        os.mkfifo(folder / "pipe")
        (folder / FILE).write_text(f"--flagfile={target}\n")

    CASES[f"flagfile: one that names {target}"] = _nested
# Each flag that takes a file is given what is none.
for flag in ("inputs", "threat", "requests", "saved_model", "property", "baseline"):
    for target in ("pipe", "pipe.json", "pipe.npz", "/dev/zero", "folder", "a" * 5000):

        def _given(folder, flag=flag, target=target):
            for name in ("pipe", "pipe.json", "pipe.npz"):
                os.mkfifo(folder / name)
            (folder / "folder").mkdir()
            value = f"harmful:{target}" if flag == "property" else target
            (folder / FILE).write_text(f"--{flag}={value}\n")

        CASES[f"flagfile: --{flag}={target[:12]}"] = _given
