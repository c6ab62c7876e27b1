"""Two versions on the same labelled examples: what was lost and gained, example by example."""

import csv
import json
import math

import keras
import numpy as np
import pytest
from scripts import call

import keras_curv
from keras_curv import data
from keras_curv.rows.comparison import paired_p_value
from keras_curv.runs.certify_examples import certify_examples

RADII = (0.1, 0.3)
COUNT = 80


def saved(path, noise):
    """The nearest centroid, as a network of one layer; noise makes it worse here and there."""
    x, y = data.load_all("digits")
    means = np.stack([x[y == k].mean(axis=0).ravel() for k in range(10)])
    kernel = 2.0 * means.T + noise * np.random.default_rng(0).normal(size=(64, 10))
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.set_weights([kernel.astype("f"), -np.sum(means**2, axis=1).astype("f")])
    model.save(path)
    return str(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    x, y = data.load_all("digits")
    np.savez(folder / "x.npz", x=x[:COUNT], y=y[:COUNT])
    return saved(folder / "old.keras", 0.0), saved(folder / "new.keras", 0.25), folder / "x.npz"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_what_was_lost_and_gained_is_what_each_model_certifies(pair, tmp_path):
    old, new, inputs = pair
    files = {name: str(tmp_path / f"{name}.csv") for name in ("output", "lost", "gained")}
    examples = data.load_npz(str(inputs))
    found = certify_examples(
        new, examples, baseline=old, radii=RADII, max_lost=0.0, batch_size=32, **files
    )
    x, y = examples.arrays()
    before, now = (keras_curv.certify(model, x, y).radius for model in (old, new))
    for radius in RADII:
        entry = found["baseline"]["radii"][str(radius)]
        lost, gained = ((before > radius) & (now <= radius)), ((now > radius) & (before <= radius))
        assert entry["baseline"] == np.sum(before > radius)
        assert (entry["lost"], entry["gained"]) == (lost.sum(), gained.sum())
        assert entry["lost"] > 0
    assert found["baseline"]["compared"] == COUNT
    assert found["verdict"]["passed"] is False
    assert [row["index"] for row in read(files["lost"])] == [
        str(i) for i in range(COUNT) if any(before[i] > r >= now[i] for r in RADII)
    ]
    assert [row["index"] for row in read(files["gained"])] == [
        str(i) for i in range(COUNT) if any(now[i] > r >= before[i] for r in RADII)
    ]
    rows = read(files["output"])
    written = np.array([float(row["baseline_radius"]) for row in rows])
    assert np.all(written <= before) and written == pytest.approx(before, rel=1e-6)


def test_a_resumed_comparison_is_the_same(pair, tmp_path, script, capfd):
    old, new, inputs = pair
    rows = tmp_path / "rows.csv"
    run = ["--saved_model", new, "--baseline", old, "--inputs", inputs, "--radius", "0.1"]
    run += ["--max_lost", "1", "--output", rows, "--batch_size", "20", "--summary"]
    assert call(script, capfd, *run, tmp_path / "1.json")[0] == 0
    whole = rows.read_bytes()
    rows.write_bytes(whole[: len(whole) // 2])
    code, out, _ = call(script, capfd, *run, tmp_path / "2.json", "--resume")
    assert code == 0 and rows.read_bytes() == whole
    assert out.startswith("PASSED: 1 requirement met\npassed: lost ") and "paired p" in out
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("1.json", "2.json"))
    assert one["baseline"] == two["baseline"] and one["verdict"] == two["verdict"]
    others = [*run[:2], *run[4:6], *run[10:-1], "--resume"]
    code, _, err = call(script, capfd, *others)
    assert code == 2 and "was made with another baseline" in err


def test_the_report_names_examples(pair, tmp_path):
    old, new, inputs = pair
    page = tmp_path / "r.html"
    examples = data.load_npz(str(inputs))
    certify_examples(new, examples, baseline=old, radii=RADII, report=str(page))
    text = page.read_text()
    assert "Against the baseline" in text and "whose certificate was lost" in text


def test_the_same_model_loses_nothing(pair):
    old, _, inputs = pair
    found = certify_examples(
        old, data.load_npz(str(inputs)), baseline=old, radii=RADII, max_lost=0.0
    )
    assert found["verdict"]["passed"]
    assert {entry["p_value"] for entry in found["baseline"]["radii"].values()} == {1.0}


@pytest.mark.parametrize("changed", [(0, 0), (1, 0), (3, 9), (9, 3), (200, 150)])
def test_the_p_value_is_a_sum_of_binomials(changed):
    """By hand: each changed example is a throw of a fair coin."""
    lost, gained = changed
    n, k = lost + gained, min(changed)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    assert paired_p_value(lost, gained) == pytest.approx(min(1.0, 2.0 * tail), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(rivals="runner_up"), "with rivals all"),
        (dict(smoothing=keras_curv.Smoothing(0.5)), "without smoothing"),
        (dict(baseline=None, gained="g.csv"), "name one"),
        (dict(baseline="/nowhere"), "/nowhere does not exist"),
    ],
)
def test_what_cannot_be_compared_is_refused(pair, options, message):
    old, new, inputs = pair
    with pytest.raises(keras_curv.InputError, match=message):
        certify_examples(new, data.load_npz(str(inputs)), **{"baseline": old} | options)
