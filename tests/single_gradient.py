"""One gradient of a search, by hand."""

import numpy as np
import tensorflow as tf

from keras_curv.certificates.crc.proved_radius import charged, proved_radius


def radius_at(certificate, x0, point, label, rival):
    """The radius of x0 that one gradient at any point whatever proves, `(n,)`."""
    network, label, rivals = certificate.network, np.asarray(label), np.asarray(rival)[:, None]
    x0, point = tf.constant(x0, tf.float64), tf.constant(point, tf.float64)
    found = charged(network.layer_norms, network.evaluate(point, label, rivals))
    kappa = tf.constant(certificate.kappa(label, rivals))
    return proved_radius(found, point - x0, kappa, tf.zeros_like(kappa)).numpy()[:, 0]
