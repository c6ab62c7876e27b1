"""Convolutional networks are certified soundly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from convolutions import SEEDS, flat
from keras_oracle import eagerly

from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.curvature.bounds import curvature_bounds


@pytest.mark.parametrize("seed", SEEDS)
def test_no_hessian_leaves_the_curvature_bounds(seed, read):
    _, x, served = read(seed)
    network, rng = served.network, np.random.default_rng(seed)
    bounds = curvature_bounds(network)
    points = np.concatenate([flat(x), 3.0 * rng.standard_normal((8, network.dim))])
    for y, t in itertools.permutations(range(3), 2):
        label, rival = np.full(len(points), y), np.full(len(points), t)
        values = np.linalg.eigvalsh(network.hessian(points, label, rival).numpy())
        slack = 1e-9 * (1.0 + np.abs(values).max())  # eigvalsh
        assert bounds.lower[y, t] <= values.min() + slack
        assert values.max() - slack <= bounds.upper[y, t]


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_certificates_survive_attack(seed, read):
    _, x, served = read(seed)
    points = np.concatenate([flat(x), 1.0 - 2.0 * flat(x)])
    with eagerly():
        result = CurvatureCertificate(served.network, max_steps=8).certify(points)
    assert np.all(result.radius > 0.0)
    margin, _ = pgd_attack(
        served.network, tf.constant(points), tf.constant(result.prediction),
        radius=tf.constant(result.radius * (1.0 - 1e-9)), steps=40, restarts=2,
    )  # fmt: skip
    assert np.all(margin.numpy() > 0.0)
