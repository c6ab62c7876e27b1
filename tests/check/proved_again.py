"""A network of `keras_curv` and its certificates as the checker reads them."""

import numpy as np

from keras_curv.certificates.witnesses import Witnesses
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.network_file import fingerprint, save_network
from keras_curv.rows.proof_folder import ProofFolder as Written
from keras_curv_check.check import Checker
from keras_curv_check.files import ProofFolder, read_network

HEADER = {"property": "argmax", "threat": "l2", "guarantee": "real", "rivals": "all"}


def verdicts(method, x, folder, network=None, head="logits", **header):
    """Certifies x, and returns the certificates and what the checker says of their proofs.

    The numbers that it checks are those of `network`, if they are not the method's own; its logits
    are served behind `head`.
    """
    network = network or method.network
    kept = Witnesses(x, x, network)
    result = method.certify(x, noted=kept.note)
    written = Written(folder / "proofs", HEADER | header | {"network": fingerprint(network, head)})
    written.prepare()
    written.write(0, result, kept)
    save_network(network, folder / "network.npz", head)
    file = read_network(folder / "network.npz")
    opened = ProofFolder.open(folder / "proofs")
    checker = Checker(file, opened.header)
    return result, [one for claims in opened.claims(file) for one in checker.check(claims)]


def points_between(network, count, seed=0, scale=1.0):
    """Returns random examples."""
    return scale * np.random.default_rng(seed).standard_normal((count, network.dim))


def random_network(sizes, names, seed=0, **errors):
    """Returns a network of these widths and activations, with folding errors if there are any."""
    rng = np.random.default_rng(seed)
    maps = [
        Affine(rng.standard_normal(pair) / np.sqrt(pair[0]), rng.standard_normal(pair[1]), **errors)
        for pair in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    return Network(maps, [activations.get(name) for name in names])
