"""`keras_curv read`: what is read of a model."""

import numpy as np

from keras_curv.cli.read import COMMAND


def test_layers_of_the_model_of_the_package(capsys, tmp_path):
    path = tmp_path / "net.npz"
    assert COMMAND.call(["--network", str(path)]) == 0
    out = capsys.readouterr().out
    assert "map 1: 64 → 256, dense, norm ≤ 27.66" in out and "activation 1: softplus" in out
    assert "numbers: 19,210" in out and "fingerprint: " in out
    with np.load(path, allow_pickle=False) as file:
        assert file["kernel_2"].shape == (256, 10)


def test_what_is_folded_is_said(capsys):
    assert COMMAND.call(["--saved_model", "saved_models/mnist_clip"]) == 0
    out = capsys.readouterr().out
    assert "folded, kernel to within" in out and "activation 1: capped_relu(1.0)" in out


def test_bad_input_is_one_line(capsys, tmp_path):
    for arguments in (
        ["--saved_model", str(tmp_path)],
        ["--network", ""],
        ["--network", str(tmp_path / "none" / "net.npz")],
    ):
        assert COMMAND.call(arguments) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("read: ") and captured.err.count("\n") == 1
