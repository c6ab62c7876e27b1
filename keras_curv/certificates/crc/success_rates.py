"""How often primal = dual: of the certificate, and of the attack that training uses."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from keras_curv.attacks.crt import curvature_attack
from keras_curv.certificates.certificate import choose_rivals
from keras_curv.certificates.crc.crc import CurvatureCertificate
from keras_curv.errors import InputError
from keras_curv.network.clip import split_clip
from keras_curv.process import certifying

_ATTACK_STEPS = 40
_ATTACK_TOLERANCE = 1e-3  # of its gap, relative to 1 + |f(x)|


@certifying
def success_rates(
    certificate: CurvatureCertificate, x: np.ndarray, label: np.ndarray, *, radius: float
) -> tuple[float, float]:
    """Counts how often primal = dual, for certificate and attack, against the runner-up.

    Args:
        certificate: of the network.
        x: `(n, dim)`.
        label: `(n,)`.
        radius: of the attack.

    Returns:
        Fractions of all examples: those whose closest adversarial point was found and proved
        closest, and those whose worst point in the ball was found and proved worst.

    Raises:
        InputError: the network begins with a clip.

    Example:
        >>> from keras_curv import Certifier, data
        >>> x, y = data.load_all("digits")
        >>> certificate = Certifier("saved_models/digits", method="crc").method
        >>> closest, worst = success_rates(certificate, x[:50].reshape(50, -1), y[:50], radius=0.3)
        >>> 0.2 < closest < worst == 1.0
        True

    Reference: Singla & Feizi (2020), table 2, "certificate success" and "attack success".
    """
    network = certificate.network
    if split_clip(network) is not None:
        raise InputError("success rates are of a model that does not clip its input")
    label = np.asarray(label)
    logits = certificate.logits(x)
    found = certificate.certify(x, label, rivals="runner_up").primal_equals_dual
    rival = choose_rivals(logits, label, "runner_up", np.zeros(len(label), int))[:, 0]
    kappa = -certificate.curvature.lower[label, rival]
    worst = curvature_attack(
        network,
        tf.constant(x, tf.float64),
        tf.constant(label),
        tf.constant(rival),
        radius=radius,
        curvature=tf.constant(kappa),
        steps=_ATTACK_STEPS,
        tolerance=_ATTACK_TOLERANCE,
    ).primal_equals_dual
    return float(np.mean(found)), float(np.mean(worst))
