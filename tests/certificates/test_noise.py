"""Noise that is drawn stands for normal numbers nearby, and a win for a win at all of them."""

import mpmath
import numpy as np
import pytest

from keras_curv.certificates.smoothing.votes import NoiseVotes
from keras_curv.network.network import Network


@pytest.mark.parametrize("bits", [30, 50])
def test_what_tells_the_bits_of_a_draw_apart_wins_nothing(bits):
    """A sine that is 1 at all numbers of so many bits, and has the mean 0 over normal ones."""
    steep = 2.0 * np.pi * 2.0**bits
    weights = [[[steep]], [[1.0, 0.0]]], [[np.pi / 2.0], [0.0, 0.0]]
    draws = NoiseVotes(Network.from_weights(*weights, "sin"), 1.0)
    options = {"first_index": 0, "seed": 0, "samples": 2000, "shared": True}
    wins = draws.wins(np.zeros((1, 1)), np.array([0]), np.array([[False, True]]), **options)
    assert wins < 1000 + 5 * np.sqrt(500)


@pytest.mark.parametrize("dim", [1, 2, 7])
def test_the_normal_number_that_a_draw_stands_for_is_near(dim):
    """Of pairs as they are drawn, moved by less than a bit of both uniform numbers."""
    draws = NoiseVotes(Network.from_weights([np.eye(dim, 2)], [np.zeros(2)], []), 1.0)
    noise, gap = (part.numpy() for part in draws.noise(4000, np.array([1, 2], np.int32)))
    assert noise.shape == (4000, dim) and gap.shape == (4000,)
    if dim == 2:
        for (sine, cosine), most in zip(noise[:200], gap, strict=False):
            sine, cosine = mpmath.mpf(float(sine)), mpmath.mpf(float(cosine))
            u = mpmath.exp(-(sine**2 + cosine**2) / 2) + mpmath.mpf(2) ** -52
            r, v = mpmath.sqrt(-2 * mpmath.log(u)), mpmath.atan2(sine, cosine)
            v += 2 * mpmath.pi * mpmath.mpf(2) ** -52
            moved = mpmath.hypot(r * mpmath.sin(v) - sine, r * mpmath.cos(v) - cosine)
            assert 0 < moved < most < 100 * moved
