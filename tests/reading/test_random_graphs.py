"""Graphs that `benchmarks/fuzz_graphs.py` has found."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hostile_models.models import export

from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError
from keras_curv.reading import served_model

IMAGE = [tf.TensorSpec((None, 4, 4, 2), tf.float32)]
LAST = np.linspace(-1.0, 1.0, 48, dtype=np.float32).reshape(16, 3)


def test_a_product_that_ends_the_process_when_tensorflow_moves_it(tmp_path):
    """Its constant folding asks for a shape with the unknown batch, −1 (graph 1008192)."""

    def body(x, _):
        image = tf.nn.conv2d(x, LAST[:4].reshape(3, 2, 2, 1), 1, "SAME") / 3.0
        return tf.reshape(image * LAST[:, 0].reshape(1, 4, 4, 1), (-1, 16)) @ LAST

    folder = export(tmp_path / "model", body, IMAGE)
    served = served_model.read(folder)
    served.check(np.ones((2, 4, 4, 2), np.float32))


def test_nothing_makes_a_quotient_by_zero_good(tmp_path):
    """x / 0 times 0 is no number, and was read as 0 (graph 1047256)."""
    kernel = tf.constant(np.float32([[0.0], [1.0]]).reshape(1, 1, 2, 1))
    divisor = np.float32([0.0, 1.0])

    def body(x, _):
        return tf.reshape(tf.nn.conv2d(x / divisor, kernel, 1, "SAME"), (-1, 16)) @ LAST

    folder = export(tmp_path / "model", body, IMAGE)
    with pytest.raises(InputError, match="divided by what may be 0"):
        served_model.read(folder)


BEHIND = {
    "a slice of everything": lambda z: z[:, 0:4],
    "a transposition of nothing": lambda z: tf.transpose(z, (0, 1)),
    "padding of no width": lambda z: tf.pad(z, [[0, 0], [0, 0]]),
}


@pytest.mark.parametrize("case", BEHIND)
def test_what_changes_nothing_may_follow_a_sigmoid(case, tmp_path):
    """The logits are what the sigmoid is applied to (graphs 1005342, 1014003, 1015102)."""
    specs = [tf.TensorSpec((None, 4), tf.float32)]
    folder = export(tmp_path / "model", lambda x, _: BEHIND[case](tf.sigmoid(2.0 * x)), specs)
    x = np.array([[0.5, 0.0, -0.5, 0.0]], np.float32)
    proved = Certifier(str(folder), method="lipschitz").certify(x, np.array([0]))
    assert proved.radius[0] == pytest.approx(0.5 / np.sqrt(2.0), rel=1e-6)
