"""What a process has been through does not change a certificate, nor make it hang."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from scripts import succeeds_alone

from keras_curv import Certifier, InputError, certify, curvature_bounds, data, read

SETTINGS = [
    ("auto", "float32", {}),
    ("crc_local", "real", {}),
    ("crown", "real", {"scale": 0.5}),
    ("crc", "float32", {"low": 0.0, "high": 16.0}),
    ("lipschitz", "real", {"basis": np.eye(64, 3)}),
]


@pytest.mark.parametrize("method, guarantee, threat", SETTINGS)
def test_no_setting_of_numpy_raises_or_changes_a_radius(method, guarantee, threat):
    x, y = data.load_all("digits")
    options = {"method": method, "guarantee": guarantee, "threat": threat}
    expected = certify("saved_models/digits", x[:5], y[:5], **options)
    with np.errstate(all="raise"):
        found = certify("saved_models/digits", x[:5], y[:5], **options)
        assert np.geterr()["under"] == "raise"
    np.testing.assert_array_equal(found.radius, expected.radius)
    assert np.any(found.radius > 0.0)


def test_nor_does_one_where_models_are_read_and_bounded():
    with np.errstate(all="raise"):
        network = read("saved_models/digits").network
        bounds = curvature_bounds(network)
    expected = curvature_bounds(network)
    for one, other in zip(bounds, expected, strict=True):
        np.testing.assert_array_equal(one, other)


FORKED = """
import os, signal
import numpy as np
import keras_curv
import tensorflow as tf
from keras_curv.network.network import Network
from keras_curv.certificates.crc.crc import CurvatureCertificate

x, _ = keras_curv.data.load_all("digits")
model = "saved_models/digits"

def certify():
    return keras_curv.certify(model, x[:2], method="crc")

def status_of(call):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            call()
        except keras_curv.InputError as error:
            os._exit(2 if "forked" in str(error) and "spawn" in str(error) else 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
FORKS = {
    "after an op": """
assert status_of(certify) == 0
tf.constant(1.0)
assert status_of(certify) == 2
assert status_of(lambda: keras_curv.certify_examples(model, "digits")) == 2
""",
    "after a model was read": """
keras_curv.read(model)
assert status_of(certify) == 2
before = keras_curv.Certifier(model)
assert status_of(lambda: before.certify(x[:2])) == 2
""",
}


@pytest.mark.parametrize("case", FORKS)
@pytest.mark.slow
def test_a_fork_that_would_hang_is_refused(case):
    """Where TensorFlow ran before, whoever ran it; and no other."""
    assert succeeds_alone(FORKED + FORKS[case])


def test_this_process_was_not_forked():
    certify("saved_models/digits", data.load_all("digits")[0][:1], method="crc")


def test_a_refusal_is_one_of_the_input(monkeypatch):
    monkeypatch.setattr("keras_curv.process.Runtime.lost", True)
    with pytest.raises(InputError, match="spawn"):
        certify("saved_models/digits", np.zeros((1, 8, 8, 1)))


def in_bfloat16(matmul):
    """Products of float32 as a setting of oneDNN has them."""

    def rounded(a, b, **options):
        if a.dtype == tf.float32:
            a, b = (tf.cast(tf.cast(x, tf.bfloat16), tf.float32) for x in (a, b))
        return matmul(a, b, **options)

    return rounded


def test_factors_that_are_rounded_further_are_told_of(monkeypatch):
    """Of any setting: radii are valid then, and smaller, and nobody would know why."""
    x, y = data.load_all("digits")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = Certifier("saved_models/digits", method="crc").certify(x[:20], y[:20])
    monkeypatch.setattr(tf, "matmul", in_bfloat16(tf.matmul))
    with pytest.warns(RuntimeWarning, match="rounds the factors of float32 products") as told:
        found = Certifier("saved_models/digits", method="crc").certify(x[:20], y[:20])
    assert len(told) == 1 and "\n" not in str(told[0].message)
    assert np.all(found.radius <= expected.radius * 1.001)
