"""`--cut` as a user types it, and what is written says that only a part was certified."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from scripts import call

from keras_curv import certify_examples
from keras_curv.errors import InputError
from keras_curv.runs.options import ExampleOptions
from keras_curv.serving.options import RequestOptions

L = keras.layers


@pytest.fixture(scope="module")
def model():
    x = keras.Input((4, 4, 1))
    h = L.Activation(keras.ops.cosh, name="curve")(L.Conv2D(3, 3)(x))
    h = L.GlobalAveragePooling2D(name="avg_pool")(h)
    return keras.Model(x, L.Dense(3)(L.Dense(6, "tanh")(h)))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    model.export(str(folder / "model"), verbose=False)
    x = np.random.default_rng(0).normal(size=(6, 4, 4, 1)).astype(np.float32)
    z = keras.Model(model.input, model.get_layer("avg_pool").output)(x).numpy()
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "z.npz", x=z)
    return folder


def test_a_refused_backbone_says_how_and_its_head_is_certified(folder, script, capfd):
    def typed(*more, x="z.npz"):
        common = "--saved_model", folder / "model", "--inputs", folder / x, "--method", "crc"
        return call(script, capfd, *common, *more)

    code, out, err = typed(x="x.npz")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "cut at 'curve' to certify the part behind it" in err
    files = {name: folder / name for name in ("rows.csv", "s.json", "r.html", "p.svg")}
    flags = ("--output", "--summary", "--report", "--plot")
    written = [word for pair in zip(flags, files.values(), strict=True) for word in pair]
    code, out, err = typed("--cut", "avg_pool", "--radius", "0.01", *written)
    assert (code, err) == (0, "")
    assert "model behind avg_pool on z.npz" in out
    assert "units  what flows behind avg_pool" in out
    assert "NOT a certificate for the model's input" in out and "avg_pool_1/Mean" in out
    summary = json.loads(files["s.json"].read_text())
    assert summary["cut"] == "avg_pool" and summary["input_shape"] == [3]
    assert summary["claim"]["changes"] == "changes with ‖δ‖₂ < r, of what flows behind avg_pool"
    assert json.loads((folder / "rows.csv.settings.json").read_text())["cut"] == "avg_pool"
    page = files["r.html"].read_text()
    assert "<title>Certified robustness of model behind avg_pool on z.npz" in page
    assert page.count("behind avg_pool") >= 5 and "--cut=avg_pool" in page
    code, _, err = typed("--output", files["rows.csv"], "--resume", "--radius", "0.01")
    assert code == 2
    code, out, err = typed("--cut", "avg_pool", x="x.npz")
    assert code == 2 and "takes (3,)" in err


def test_another_cut_does_not_resume(folder, model, tmp_path):
    x = np.load(folder / "z.npz")["x"]
    head = keras.Sequential(
        [keras.Input((3,)), L.Dense(3, name="a"), L.Dense(3, name="b"), L.Dense(2)]
    )
    head.export(str(tmp_path / "head"), verbose=False)
    options = dict(method="lipschitz", radii=[0.1], output=str(tmp_path / "rows.csv"))
    certify_examples(tmp_path / "head", (x, None), cut="b", **options)
    for other, named in ((None, "None"), ("a", "'a'")):
        with pytest.raises(InputError, match=f"made with cut 'b', not {named}"):
            certify_examples(tmp_path / "head", (x, None), cut=other, resume=True, **options)


def test_a_live_model_takes_images_and_shows_what_flows(folder, model, tmp_path):
    x = np.load(folder / "x.npz")["x"]
    report = tmp_path / "r.html"
    options = dict(cut="avg_pool", method="crc", radii=[0.01], report=str(report))
    summary = certify_examples(model, (x, None), **options)
    given = np.load(folder / "z.npz")["x"]
    behind = certify_examples(folder / "model", (given, None), **options | dict(report=None))
    assert summary["mean_radius"] == pytest.approx(behind["mean_radius"], rel=1e-4)
    assert "behind avg_pool" in report.read_text()


def test_where_a_cut_means_nothing_it_is_refused(folder, script, capfd):
    with pytest.raises(InputError, match="smoothing is of whole models"):
        from keras_curv import Smoothing

        ExampleOptions(smoothing=Smoothing(0.1), cut="avg_pool")
    with pytest.raises(InputError, match="logged requests hold what the model takes"):
        RequestOptions(cut="avg_pool")
    code, _, err = call(script, capfd, "--method=smoothing", "--deviation=1", "--cut=head")
    assert code == 2 and "--cut is not for --method smoothing" in err
