"""Lists of instances as VNN-COMP writes them."""

import csv
import functools
import json

import keras
import numpy as np
import pytest
import scripts
from vnnlib_texts import boxed, declared

from keras_curv.errors import InputError
from keras_curv.specifications.instances import answer_all, read_instances


@pytest.fixture
def folder(tmp_path):
    """A model, 2 x + 1, and a list of four instances in 0 ≤ x ≤ 1, one of two inputs."""
    layer = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((1,)), layer])
    layer.set_weights([np.array([[2.0]]), np.array([1.0])])
    model.save(tmp_path / "line.keras")
    (tmp_path / "specs").mkdir()
    for name, least in (("safe", 3.1), ("unsafe", 2.9), ("safer", 4.0)):
        text = declared(1, 1) + boxed([0.0], [1.0]) + f"(assert (>= Y_0 {least}))"
        (tmp_path / "specs" / f"{name}.vnnlib").write_text(text)
    other = declared(2, 1) + boxed([0.0] * 2, [1.0] * 2) + "(assert (>= Y_0 3.1))"
    (tmp_path / "specs" / "other.vnnlib").write_text(other)
    names = "safe", "unsafe", "other", "safer"
    lines = [f"line.keras,specs/{name}.vnnlib,20\n" for name in names]
    (tmp_path / "instances.csv").write_text("".join(lines))
    return tmp_path


def results(path):
    with open(path, newline="") as file:
        return [*csv.DictReader(file)]


def test_the_command_answers_a_list_and_goes_on_with_it(folder, capfd):
    certify, output = scripts.load("certify"), folder / "results.csv"
    command = functools.partial(scripts.call, certify, capfd)
    given = f"--vnnlib={folder / 'instances.csv'}", f"--output={output}"
    status, out, _ = command(*given)
    assert status == 3 and "specs/safe.vnnlib: verified (" in out
    found = results(output)
    expected = ["verified", "falsified", "refused", "verified"]
    assert [one["result"] for one in found] == expected
    assert "has 2 inputs and 1 outputs" in found[2]["reason"]
    point, value = json.loads(found[1]["counterexample"])
    assert 0.95 <= point[0] <= 1.0 and value[0] >= 2.9
    status, _, err = command(*given)
    assert status == 2 and "--resume goes on with it" in err
    before = output.read_text()
    status, out, _ = command(*given, "--resume")
    assert status == 3 and f"specs/safer.vnnlib: verified, as {output} has it" in out
    assert output.read_text() == before
    for flag in ("--saved_model=a", "--timeout=5", "--summary=a.json", "--vnnlib=b.vnnlib"):
        assert command(*given, flag)[0] == 2


def test_long_counterexamples_are_read_again(folder):
    output = folder / "results.csv"
    assert len([*answer_all(folder / "instances.csv", str(output))]) == 4
    longer = json.dumps([[0.123456789] * 20_000, [3.0]])
    found = results(output)
    text = output.read_text().replace(found[1]["counterexample"].replace('"', '""'), longer)
    output.write_text(text)
    again = [said for _, said in answer_all(folder / "instances.csv", str(output), resume=True)]
    assert "as " in again[1] and longer in output.read_text()


def test_what_has_changed_is_answered_again_and_the_rest_kept(folder):
    output = str(folder / "results.csv")
    first = answer_all(folder / "instances.csv", output)
    assert [next(first)[0] for _ in range(2)] == ["verified", "falsified"]
    first.close()
    path = folder / "specs" / "safe.vnnlib"
    path.write_text(path.read_text().replace("3.1", "2.5"))
    again = answer_all(folder / "instances.csv", output, resume=True)
    assert next(again)[0] == "falsified"
    assert [one["result"] for one in results(output)] == ["falsified", "falsified"]
    assert "as " in next(again)[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net.onnx,a.vnnlib,3", "line 1: net.onnx is an ONNX model"),
        ("net.keras,a.vnnlib", "line 1: model,file,seconds was expected"),
        ("a,b,3\na,b,soon", "line 2: could not convert"),
        ("a,b,-1", "line 1: seconds must be a positive number"),
        ("\n", "lists no instance"),
    ],
)
def test_a_list_that_is_none_is_refused(text, message, tmp_path):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_instances(tmp_path / "list.csv")
