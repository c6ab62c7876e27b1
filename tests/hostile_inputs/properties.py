"""Tables and spellings of properties that no model has."""

from __future__ import annotations

import json

import numpy as np
from hostile_models import models

from hostile_inputs import threats
from keras_curv.certificates.certifier import Certifier

CASES = {}
X = np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(5, 4)
TABLE, SPELLING = "table.json", "spelling"


def attempt(folder):
    """Certifies the property of a table, or of a spelling."""
    models.export(folder / "model")
    spelling = f"harmful:{folder / TABLE}"
    if (folder / SPELLING).exists():
        spelling = (folder / SPELLING).read_text()
    Certifier(str(folder / "model"), method="lipschitz", property=spelling).certify(X)


def _table(name, content):
    made = content if callable(content) else lambda: content
    CASES[f"property: {name}"] = lambda folder: (folder / TABLE).write_bytes(made())


for text in (
    *(b"{", b"[1]", b"3", b"null", b'"a"', b'{"a": [1]}', b'{"1": 2}', b'{"1": [2.5]}', b"{}"),
    *(b'{"1": [2], "1": [3]}', b'{"1": [2], "01": [0]}', b'{"1": [true]}', b'{"1": [NaN]}'),
    *(b'{"1": ["2"]}', b'{"-1": [2]}', b'{"1_0": [2]}', b'{"1": [[2]]}', b'{"1": [1e308]}'),
    *(b'[["1", [2]]]', '{"２": [1]}'.encode(), b'{"\\ud800": [1]}', b'{"1": [2]}\xff'),
):
    _table(f"a table {text!r}", text)
for digits in (30, 400, 5000):
    _table(f"a class of {digits} digits", b'{"1": [%s]}' % (b"9" * digits))
    _table(f"a label of {digits} digits", b'{"%s": [1]}' % (b"9" * digits))
_table("a table of 10^6 labels", lambda: json.dumps({i: [i + 1] for i in range(10**6)}).encode())
_table("ten thousand labels", lambda: json.dumps({i: [i + 1] for i in range(10**4)}).encode())
_table("a row of 10^5 classes", lambda: json.dumps({1: [*range(10**5)]}).encode())
_table("brackets of depth 2^19", b"[" * 2**19)
_table("a table of 2^24 bytes", lambda: b'{"1": [2]}' + b" " * 2**24)
threats.special(
    lambda name, make: CASES.update(
        {f"property: a table, {name}": lambda folder: make(folder / TABLE)}
    )
)


def _spelling(text):
    shown = f"{text[:24]!r} ({len(text)})"
    CASES[f"property: spelled {shown}"] = lambda folder: (folder / SPELLING).write_text(text)


for value in ("1e308", "-1e308", "5e-324", "1e999", "nan", "9" * 400, "9" * 5000, "1_0", "", "\0"):
    for kind in ("threshold", "interval", "harmful", "top_"):
        _spelling(f"{kind}{'' if kind == 'top_' else ':'}{value}")
        _spelling(f"{kind}:0={value},1=0.5")
_spelling("harmful:" + "1," * 10**5 + "1")
_spelling("harmful:" + ";".join(f"{i}>{i + 1}" for i in range(10**5)))
_spelling("threshold:" + ",".join(f"{i}=0.5" for i in range(10**5)))
_spelling("harmful:1\n2.json")
