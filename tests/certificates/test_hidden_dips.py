"""Networks with a dip that descents do not see: no method proves beyond it.

margin = 1 − 3 relu(1 − 20 Σ |x_i − c_i|) is 1 almost everywhere, and negative where
Σ |x_i − c_i| < 1/30. From a point that is 0.5 from c along one input, the nearest such point is at
0.5 − 1/30 in every norm.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.certificates.auto import METHODS, choose_method
from keras_curv.certificates.linear.branched import BranchedCertificate
from keras_curv.certificates.other_norms import NormCertificate
from keras_curv.certificates.question import Question
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.threats.norms import NORMS

EXACT = 0.5 - 1.0 / 30.0


def dip(centre):
    """The network of logits (1, 3 relu(1 − 20 Σ |x_i − c_i|)); |z| is relu(z) + relu(−z)."""
    dim = len(centre)
    eye = np.eye(dim)
    kernels = [np.hstack([eye, -eye]), np.full((2 * dim, 1), -20.0), np.array([[0.0, 3.0]])]
    biases = [np.concatenate([-centre, centre]), np.ones(1), np.array([1.0, 0.0])]
    return Network.from_weights(kernels, biases, "relu")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", [*METHODS, "branched"])
@pytest.mark.parametrize("dim", [2, 8])
def test_no_method_proves_more_than_there_is(method, norm, dim):
    centre = np.random.default_rng(dim).uniform(-1.0, 1.0, dim)
    network = dip(centre)
    x = np.stack([centre + 0.5 * sign * np.eye(dim)[0] for sign in (-1.0, 1.0)])
    question = Question.of(x, np.zeros(2, np.int64), np.ones((2, 1), np.int64))
    try:
        if method == "branched":
            one = BranchedCertificate(network, norm=NORMS[norm])
        else:
            one = choose_method(method, network)
            one = one if norm == "l2" else NormCertificate(one, NORMS[norm])
    except InputError:  # no theory for such a network, or not in this norm
        return
    radius = one.prove(question).radius
    assert (radius <= EXACT * (1.0 + 1e-12)).all() and (radius > 0.0).all()
    if (method, norm) == ("branched", "linf"):
        assert (radius > 0.99 * EXACT).all() or dim > 2


def test_the_dip_is_where_it_is_said_to_be():
    """Just beyond the radius the class is the other one, and descents do not find it."""
    from keras_curv import pgd_attack

    centre = np.full(8, 0.25)
    network, x = dip(centre), centre[None] + 0.5 * np.eye(8)[:1]
    point = x - (EXACT + 1e-6) * np.eye(8)[:1]
    assert network.logits(tf.constant(point)).numpy().argmax() == 1
    lowest, _ = pgd_attack(network, tf.constant(x), tf.constant([0]), radius=0.49)
    assert lowest.numpy().item() == 1.0  # flat: nothing pulls toward the dip
