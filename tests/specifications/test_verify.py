"""Instances are verified where they hold, and falsified by a point where they do not."""

import functools
import json

import keras
import numpy as np
import pytest
import scripts
from vnnlib_texts import boxed, declared

from keras_curv import verify
from keras_curv.errors import InputError
from keras_curv.specifications.verify import Result, Verifier
from keras_curv.specifications.vnnlib import parse_vnnlib


def network(*kernels, activation="relu"):
    """A live model of these kernels, without biases."""
    layers = [keras.layers.Dense(k.shape[1], activation) for k in kernels[:-1]]
    layers.append(keras.layers.Dense(kernels[-1].shape[1]))
    model = keras.Sequential([keras.Input((len(kernels[0]),)), *layers])
    for layer, kernel in zip(layers, kernels, strict=True):
        layer.set_weights([kernel, np.zeros(kernel.shape[1])])
    return model


@pytest.fixture(scope="module")
def toy():
    """f = relu(x0 − x1) − relu(2 x0 − x1), on the box from −2 to 1: see `range_of_toy`."""
    return Verifier(network(np.array([[1.0, 2.0], [-1.0, -1.0]]), np.array([[1.0], [-1.0]])))


TOY = declared(2, 1) + boxed([-1.0, -2.0], [2.0, 1.0])  # where f is from −2 to 1


@pytest.mark.parametrize(
    ("unsafe", "result"),
    [
        ("(assert (>= Y_0 1.001))", Result.VERIFIED),
        ("(assert (>= Y_0 1.0))", Result.FALSIFIED),  # at a corner only
        ("(assert (or (>= Y_0 1.001) (<= Y_0 -2.001)))", Result.VERIFIED),
        ("(assert (or (>= Y_0 1.001) (<= Y_0 -1.999)))", Result.FALSIFIED),
        ("(assert (and (>= Y_0 0.9) (<= Y_0 -0.9)))", Result.VERIFIED),  # never both
        ("(assert (and (<= Y_0 0.2) (>= Y_0 0.1)))", Result.FALSIFIED),
        ("(assert (or (and (>= X_0 0.5) (>= Y_0 0.001)) (>= Y_0 1.001)))", Result.VERIFIED),
        ("(assert (or (and (<= X_0 -0.5) (>= Y_0 0.501)) (>= Y_0 1.001)))", Result.FALSIFIED),
        ("(assert (and (>= X_0 3) (<= Y_0 9)))", Result.VERIFIED),  # no such input
        ("", Result.FALSIFIED),
    ],
)
def test_the_toy(toy, unsafe, result):
    instance = parse_vnnlib(TOY + unsafe)
    answer = toy.verify(instance, timeout=300)
    assert answer.result is result, answer
    assert (answer.counterexample is not None) == (result is Result.FALSIFIED)
    if answer.counterexample is not None:
        x, y = answer.counterexample
        served = toy.served.call(x[None])
        np.testing.assert_array_equal(served[0], y)
        for case in instance.cases:
            inside = all(a <= float(v) <= b for a, v, b in zip(case.low, x, case.high, strict=True))
            if inside and all(condition.holds(y) for condition in case.conditions):
                return
        pytest.fail("the counterexample is none")


def test_no_grid_point_contradicts_what_is_verified():
    """Random nets and thresholds near the extremes that a grid finds."""
    random = np.random.default_rng(0)
    axis = np.linspace(-1.0, 1.0, 101, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    results = set()
    for _ in range(3):
        model = network(random.normal(size=(2, 4)), random.normal(size=(4, 2)))
        verifier = Verifier(model)
        margin = np.array(model(grid))[:, 0] - np.array(model(grid))[:, 1]
        for share in (1.05, 0.95):
            limit = margin.min() * share if margin.min() < 0 else margin.min() / share
            text = declared(2, 2) + boxed([-1.0] * 2, [1.0] * 2)
            text += f"(assert (<= (- Y_0 Y_1) {float(limit)!r}))"
            result = verifier.verify(parse_vnnlib(text), timeout=300).result
            results.add(result)
            assert result is not Result.VERIFIED or margin.min() > limit
            assert result is not Result.FALSIFIED or limit > 1.001 * margin.min()
    assert results == {Result.VERIFIED, Result.FALSIFIED}


def test_inputs_of_no_width_and_of_many_classes():
    """A ball of the digits in l∞: all classes may be the rival; some pixels are fixed."""
    from keras_curv import data

    x, _ = data.load_all("digits")
    verifier = Verifier("saved_models/digits", method="crown")
    point = x[0].reshape(-1).astype(float)
    half = np.where(np.arange(64) % 2, 0.02, 0.0)
    label = int(np.argmax(verifier.served.call(x[:1])))
    rivals = "".join(f"(and (>= Y_{j} Y_{label}))" for j in range(10) if j != label)
    for scale, result in ((1.0, Result.VERIFIED), (40.0, Result.FALSIFIED)):
        box = boxed((point - scale * half).tolist(), (point + scale * half).tolist())
        instance = parse_vnnlib(f"{declared(64, 10)}{box}(assert (or {rivals}))")
        answer = verifier.verify(instance)
        assert answer.result is result, answer
    changed = answer.counterexample.x != x[0].reshape(-1).astype(np.float32)
    assert changed.any() and not changed[half == 0.0].any()


def test_what_time_leaves_open_is_unknown():
    """The largest output of a smooth network is hardly below what is unsafe."""
    kernels = np.random.default_rng(1).normal(size=(2, 8)), np.ones((8, 1))
    model = network(*kernels, activation="tanh")
    axis = np.linspace(-1.0, 1.0, 201)
    most = float(np.max(model(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2))))
    text = declared(2, 1) + boxed([-1.0] * 2, [1.0] * 2) + f"(assert (>= Y_0 {most + 1e-4!r}))"
    answer = verify(model, parse_vnnlib(text), timeout=1e-9)
    assert answer.result is Result.UNKNOWN and "the time is over" in answer.reason


def test_whole_numbers_are_tried_where_a_model_takes_them():
    """Between 2 and 3 there is an unsafe real number, and no integer."""
    layer = keras.layers.Dense(1)
    inputs = keras.Input((1,), dtype="uint8")
    model = keras.Model(inputs, layer(keras.ops.cast(inputs, "float32")))
    layer.set_weights([np.array([[1.0]]), np.array([0.0])])
    text = declared(1, 1) + boxed([1.5], [3.5]) + "(assert (>= Y_0 {}))"
    assert verify(model, parse_vnnlib(text.format(3.0))).counterexample.x.tolist() == [3]
    assert verify(model, parse_vnnlib(text.format(3.2)), timeout=1.0).result is Result.UNKNOWN


def test_what_does_not_fit_is_refused(toy):
    with pytest.raises(InputError, match="has 3 inputs and 1 outputs, but .* has 2 and 1"):
        toy.verify(parse_vnnlib(declared(3, 1) + boxed([0.0] * 3, [1.0] * 3)))
    with pytest.raises(InputError, match="timeout must be a positive number"):
        toy.verify(parse_vnnlib(TOY), timeout=0)
    soft = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "softmax")])
    with pytest.raises(InputError, match="conditions on outputs are on logits, but .* softmax"):
        verify(soft, parse_vnnlib(declared(2, 3) + boxed([0.0] * 2, [1.0] * 2)))


def test_the_command_answers_each_file(tmp_path, capfd):
    certify = scripts.load("certify")
    model = network(np.array([[1.0, 2.0], [-1.0, -1.0]]), np.array([[1.0], [-1.0]]))
    model.export(str(tmp_path / "toy"), verbose=False)
    safe, unsafe = tmp_path / "safe.vnnlib", tmp_path / "unsafe.vnnlib"
    safe.write_text(TOY + "(assert (>= Y_0 3.0))")
    unsafe.write_text(TOY + "(assert (>= Y_0 0.9))")
    command = functools.partial(scripts.call, certify, capfd, f"--saved_model={tmp_path / 'toy'}")
    summary = tmp_path / "summary.json"
    assert command(f"--vnnlib={safe}")[0] == 0
    status, out, _ = command(f"--vnnlib={safe}", f"--vnnlib={unsafe}", f"--summary={summary}")
    assert status == 3
    assert "safe.vnnlib: verified (" in out and "unsafe.vnnlib: falsified (" in out
    assert "at [-1.0, -2.0], where the model returns [1.0]" in out
    found = json.loads(summary.read_text())["instances"]
    assert [one["result"] for one in found] == ["verified", "falsified"]
    assert found[1]["counterexample"] == {"x": [-1.0, -2.0], "y": [1.0]}
    for flag in ("--radius=1", "--inputs=a.npz", "--output=a.csv", "--property=top_3"):
        status, _, err = command(f"--vnnlib={safe}", flag)
        assert status == 2 and "is not for --vnnlib" in err
    status, _, err = command("--timeout=5")
    assert status == 2 and "--timeout is for --vnnlib" in err
