"""ART's attacks on a certified model: within the radius none succeeds, beyond it some do."""

import numpy as np
import pytest

from keras_curv import data
from keras_curv.errors import InputError

pytest.importorskip("art")

from art.attacks.evasion import ProjectedGradientDescentNumpy

from keras_curv.integrations.art_classifier import CertifiedClassifier

MODEL = "saved_models/digits"


def test_attacks_of_art_succeed_only_beyond_the_radius():
    x, y = data.load_all("digits")
    x, y = x[:40].astype(np.float32), y[:40]
    classifier = CertifiedClassifier(MODEL, clip_values=(0.0, 1.0), method="crc")
    result = classifier.certify(x, y)
    right = result.radius > 0.5
    assert right.sum() > 20
    broken = []
    for eps in (0.5, 2.0):
        attack = ProjectedGradientDescentNumpy(
            classifier, norm=2, eps=eps, eps_step=eps / 8, max_iter=16, verbose=False
        )
        points = attack.generate(x[right], y[right])
        moved = np.linalg.norm((points - x[right]).reshape(len(points), -1), axis=1)
        assert moved.max() < eps * 1.001
        broken.append((classifier.predict(points).argmax(axis=1) != y[right]).mean())
    assert broken[0] == 0.0 and broken[1] > 0.5


def test_what_art_has_no_words_for_is_refused():
    with pytest.raises(InputError, match="Received: 1 inputs, cut None, top_2"):
        CertifiedClassifier(MODEL, property="top_2")
