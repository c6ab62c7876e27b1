"""What `benchmarks/freeze.py` writes is the same again, and its comparison finds what is not."""

import importlib
import pathlib
import shutil
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = "methods/relu2/crown.csv"
WORDS = "methods/relu2/cr", "methods/relu2/lip", "certificates/relu2-crown", "reports/relu2"
FEW = "--quick", "--processes=1", *(f"--only={word}" for word in WORDS)


@pytest.fixture(scope="module")
def freeze():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("freeze")
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def frozen(freeze, tmp_path_factory):
    """What a small network's cases come to; a run from the root of the checkout."""
    folder = tmp_path_factory.mktemp("freeze") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert freeze.main(["write", str(folder), *FEW]) == 0
    return folder


@pytest.fixture
def copy(frozen, tmp_path):
    return shutil.copytree(frozen, tmp_path / "copy")


def compared(freeze, capsys, *arguments):
    """The exit status, and what was printed."""
    capsys.readouterr()
    return freeze.main(["compare", *map(str, arguments)]), capsys.readouterr().out


def test_the_same_code_writes_the_same_again(freeze, frozen, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert freeze.main(["write", str(tmp_path / "two"), *FEW]) == 0
    status, out = compared(freeze, capsys, frozen, tmp_path / "two")
    count = sum(path.is_file() for path in frozen.rglob("*"))
    assert status == 0 and f"{count} identical, 0 within" in out
    kinds = {path.suffix for path in frozen.rglob("*.*")}
    assert kinds == {".csv", ".npz", ".refused", ".txt"}


def test_a_folder_that_holds_something_is_left_alone(freeze, frozen):
    before = (frozen / ROWS).read_bytes()
    with pytest.raises(SystemExit, match="not empty"):
        freeze.main(["write", str(frozen), "--only=nothing"])
    assert (frozen / ROWS).read_bytes() == before


def edited(path, column, change):
    """Changes a cell of the second row."""
    names, first, second, *others = path.read_text().splitlines()
    cells = second.split(",")
    place = names.split(",").index(column)
    cells[place] = str(change(float(cells[place])))
    path.write_text("\n".join([names, first, ",".join(cells), *others, ""]))


@pytest.mark.parametrize("factor, words", [(1.001, "+0.0e+00 +1.0e-03"), (0.5, "-5.0e-01 +0.0")])
def test_a_radius_that_changes_is_found(freeze, frozen, copy, capsys, factor, words):
    edited(copy / ROWS, "radius", lambda radius: factor * radius)
    status, out = compared(freeze, capsys, frozen, copy)
    assert status == 1 and f"DIFFERENT        methods/relu2/crown {words}" in out
    assert "radius in 1 rows" in out and "1 DIFFERENT, 0 MISSING" in out
    status, out = compared(freeze, capsys, frozen, copy, "--tolerance=0.6")
    assert status == 0 and "within tolerance methods/relu2/crown" in out


def test_another_column_has_no_tolerance(freeze, frozen, copy, capsys):
    edited(copy / ROWS, "gradient_evaluations", lambda count: int(count) + 1)
    status, out = compared(freeze, capsys, frozen, copy, "--tolerance=1e9")
    assert status == 1 and "gradient_evaluations in 1 rows" in out


def test_a_case_that_is_not_there_or_is_refused_now_is_found(freeze, frozen, copy, capsys):
    (copy / ROWS).unlink()
    (copy / "methods/relu2/crc.refused").rename(copy / "methods/relu2/crc.csv")
    status, out = compared(freeze, capsys, frozen, copy)
    assert status == 1 and "1 DIFFERENT, 1 MISSING" in out
    assert "MISSING          methods/relu2/crown in the new folder" in out
    assert "was .refused, is .csv: activation 'relu' is not differentiable" in out
    assert compared(freeze, capsys, frozen, copy, "--only=lipschitz")[0] == 0
    assert compared(freeze, capsys, frozen, copy, "--only=no such case")[0] == 1


def test_arrays_and_messages_are_compared(freeze, frozen, copy, capsys):
    path, message = copy / "certificates/relu2-crown.npz", copy / "methods/relu2/crc.refused"
    with np.load(path) as arrays:
        changed = {**arrays, "radius": arrays["radius"] * (1.0 - 1e-6)}
    np.savez(path, **changed)
    message.write_text(message.read_text().replace("crown", "crowns"))
    status, out = compared(freeze, capsys, frozen, copy)
    assert status == 1 and "certificates/relu2-crown -1.0e-06 +0.0e+00 radius" in out
    assert "DIFFERENT        methods/relu2/crc 1 lines: 1" in out
    changed["status"] = changed["status"] + 1
    np.savez(path, **changed)
    assert compared(freeze, capsys, frozen, copy, "--only=certificates", "--tolerance=1")[0] == 1


def test_numbers_within_a_text_have_the_tolerance(freeze, frozen, copy, capsys):
    path = copy / "reports/relu2_in_float32.txt"
    text = path.read_text()
    (line,) = [one for one in text.splitlines() if '"mean_radius"' in one]
    number = float(line.partition(": ")[2].rstrip(","))
    path.write_text(text.replace(line, line.replace(str(number), str(number * (1.0 + 1e-7)))))
    for tolerance, expected in ((1e-6, 0), (1e-8, 1)):
        options = "--only=reports", f"--tolerance={tolerance}"
        assert compared(freeze, capsys, frozen, copy, *options)[0] == expected
