"""The search of `crc` by itself: without a certificate, in any geometry."""

import contextlib
import functools

import numpy as np
import tensorflow as tf

from keras_curv import CurvatureCertificate
from keras_curv.certificates.crc.crc import ChargedGradients
from keras_curv.certificates.crc.geometries import geometry_of
from keras_curv.certificates.crc.rival_search import RivalSearch
from keras_curv.network import shared_graph


@contextlib.contextmanager
def graphs_of_its_own():
    """Graphs are traced anew, as with what a test has patched, and no other test meets them."""
    kept = shared_graph.shared
    shared_graph.shared = functools.lru_cache(kept.__wrapped__)
    try:
        yield
    finally:
        shared_graph.shared = kept


@graphs_of_its_own()
def searched(network, x, *, geometry=None, tolerance=1e-4, max_steps=40, as_graph=False):
    """Smallest radii, gradients and labels, without a graph that another test may have traced.

    A graph of its own is for searches of many steps: tracing takes as long as twenty of them.

    Args:
        geometry: a class that takes the place of the network's own.
    """
    certificate = CurvatureCertificate(network, tolerance=tolerance, max_steps=max_steps)
    kind = type(certificate.geometry) if geometry is None else geometry
    search = RivalSearch(network, kind, tolerance, max_steps, False)
    label = certificate.logits(x).argmax(axis=1).astype(np.int32)
    rivals = np.stack([np.delete(np.arange(network.classes), one) for one in label])
    kappa = tf.constant(certificate.kappa(label, rivals))
    none = tf.zeros_like(kappa)
    start = geometry_of(network).start(x)
    first = ChargedGradients(network)(start.value, tf.constant(label), tf.constant(rivals))
    pairs = tf.constant(label), tf.constant(rivals, tf.int32)
    nothing = tf.zeros(0, tf.float64)
    given = start.value, *pairs, kappa, none, none[:, 0], first, start.room, nothing
    if as_graph:
        search = tf.function(search, autograph=False)
    found = search(*given)
    return found.radius.numpy().min(axis=1), found.evaluations.numpy(), label
