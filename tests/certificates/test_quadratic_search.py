"""The ball that a quadratic certificate chooses, where estimates are of no help."""

import numpy as np

from keras_curv.certificates.linear.quadratic import QuadraticCertificate
from keras_curv.network.network import Network


def test_a_bracket_is_closed_where_an_estimate_jumps():
    """r(ρ) falls from thousands to 3 where a lower parabola changes; alone and among others."""
    found = []
    for seed in (74, 171, 328):
        rng = np.random.default_rng(seed)
        inputs, units, classes = (int(rng.integers(*ends)) for ends in ((1, 5), (1, 7), (2, 4)))
        kernels = [rng.standard_normal((inputs, units)), rng.standard_normal((units, classes))]
        biases = [rng.standard_normal(units), 0.3 * rng.standard_normal(classes)]
        x = rng.standard_normal((4, inputs))
        certificate = QuadraticCertificate(Network.from_weights(kernels, biases, "relu"))
        together = certificate.certify(x).radius
        alone = [certificate.certify(x[k : k + 1]).radius[0] for k in range(4)]
        found.append(np.abs(together / alone - 1.0).max())
    assert max(found) < 3e-4
