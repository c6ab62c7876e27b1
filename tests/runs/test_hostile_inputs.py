"""Malicious files are refused in a line or taken for what they are; nothing beside them changes."""

from __future__ import annotations

import pytest
from hostile_inputs import KINDS, OUTSIDE

from keras_curv.errors import InputError

_SLOW = (
    "GiB",
    "MiB",
    "bomb",
    "stored by columns",
    "a million",
    "10^6 labels",
    "a hundred thousand",
    "fifty thousand",
    "2^2",
    "of a TiB",
)
CASES = [
    (kind, name)
    for kind, module in KINDS.items()
    for name in module.CASES
    if not any(word in name for word in _SLOW)  # these are in benchmarks/hostile.py
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_nothing_but_a_refusal_comes_of_it(kind, name, tmp_path):
    outside = tmp_path / OUTSIDE
    outside.write_bytes(b"kept")
    KINDS[kind].CASES[name](tmp_path)
    try:
        KINDS[kind].attempt(tmp_path)
    except InputError as error:
        assert str(error).isprintable()
    assert outside.read_bytes() == b"kept" and not outside.is_symlink()
