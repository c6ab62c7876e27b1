"""The network as numbers, read again by NumPy alone."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
import scipy.sparse

from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.network_file import fingerprint, save_network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.network.sparse_affine import SparseAffine, as_array
from keras_curv.network.unitwise import IDENTITY, unit_wise

RNG = np.random.default_rng(0)
FUNCTIONS = {"softplus": lambda z: np.logaddexp(z, 0.0), "identity": lambda z: z}


def small_network(scale=1.0, kernel_error=0.0):
    first = scipy.sparse.random_array((6, 5), density=0.5, rng=np.random.default_rng(1))
    mixed = unit_wise([(activations.get("softplus"), 3), (IDENTITY, 1)])
    maps = [
        SparseAffine(first, np.arange(5.0)),
        Affine(np.ones((5, 4)) * scale, np.ones(4), kernel_error=kernel_error),
        Affine(np.arange(12.0).reshape(4, 3), np.zeros(3)),
    ]
    return Network(maps, [activations.get("softplus"), mixed])


def read_again(path):
    """Reads the file as its page describes it."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    return json.loads(arrays.pop("header").tobytes()), arrays


def logits(header, arrays, x):
    for number, described in enumerate(header["maps"], 1):
        shape = described["in"], described["out"]
        if described["sparse"]:
            parts = (arrays[f"{part}_{number}"] for part in ("data", "indices", "indptr"))
            kernel = scipy.sparse.csr_array(tuple(parts), shape=shape).toarray()
        else:
            kernel = arrays[f"kernel_{number}"]
        assert kernel.shape == shape
        x = x @ kernel + arrays[f"bias_{number}"]
        if number < len(header["maps"]):
            runs = header["activations"][number - 1]
            ends = np.cumsum([run["units"] for run in runs])
            parts = np.split(x, ends[:-1], axis=1)
            named = zip(runs, parts, strict=True)
            x = np.concatenate([FUNCTIONS[run["name"]](part) for run, part in named], axis=1)
    return x


def test_another_reader_computes_the_same_logits(tmp_path):
    network = small_network(kernel_error=1e-12)
    digest = save_network(network, tmp_path / "net.npz")
    header, arrays = read_again(tmp_path / "net.npz")
    x = RNG.standard_normal((7, 6))
    np.testing.assert_allclose(logits(header, arrays, x), network.logits(x).numpy(), rtol=1e-13)
    assert [described["kernel_error"] for described in header["maps"]] == [0.0, 1e-12, 0.0]
    assert header["fingerprint"] == digest == fingerprint(network)


def test_the_fingerprint_is_what_the_page_says(tmp_path):
    save_network(small_network(), tmp_path / "net.npz")
    header, arrays = read_again(tmp_path / "net.npz")
    said = header.pop("fingerprint")
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    assert said == digest.hexdigest()


def test_what_is_served(tmp_path):
    """By columns where these say as much, and never less than the network has."""
    network = small_network(kernel_error=1e-12)
    first, second, last = network.affines
    uneven = RNG.uniform(1.0, 2.0, last.kernel.shape) * last.served_kernel_error
    uneven[0, 0] = 1e-9  # where the kernel is 0
    maps = [first, second, dataclasses.replace(last, served_kernel_error=uneven)]
    network = Network(maps, network.activations)
    save_network(network, tmp_path / "net.npz", "softmax")
    header, arrays = read_again(tmp_path / "net.npz")
    assert header["head"] == "softmax" and list(arrays["served_gain"]) == [
        affine.served_gain for affine in network.affines
    ]
    for number, (affine, axes) in enumerate(zip(maps, (1, 1, 2), strict=True), 1):
        found = arrays[f"served_kernel_{number}"]
        kernel, known = map(as_array, (affine.kernel, affine.served_kernel_error))
        whole = found if axes == 2 else found * np.abs(kernel)
        assert found.ndim == axes and np.all(whole >= known * (1.0 - 2.0**-50))
        np.testing.assert_allclose(whole, known, rtol=1e-8)
        np.testing.assert_array_equal(arrays[f"served_bias_{number}"], affine.served_bias_error)


def test_a_sparse_map_whose_errors_are_elsewhere(tmp_path):
    kernel = scipy.sparse.csr_array(np.diag([1.0, 2.0]))
    away = scipy.sparse.csr_array(np.array([[0.1, 0.3], [0.0, 0.4]]))
    for errors, found in ((away, np.inf), (scipy.sparse.csr_array(np.diag([0.1, 0.0])), [0.1, 0])):
        one = SparseAffine(kernel, np.zeros(2), served_kernel_error=errors)
        last = Affine(np.eye(2), np.zeros(2))
        save_network(Network([one, last], [IDENTITY]), tmp_path / "net.npz")
        assert read_again(tmp_path / "net.npz")[1]["served_kernel_1"] == pytest.approx(found)


def test_any_other_number_has_another_fingerprint():
    networks = small_network(), small_network(1.0 + 2.0**-52), small_network(kernel_error=1e-300)
    assert len({fingerprint(network) for network in networks}) == 3
    assert fingerprint(networks[0]) != fingerprint(networks[0], "softmax")


def test_a_restricted_network_is_refused(tmp_path):
    maps, limits = [Affine(np.eye(2), np.zeros(2))], (np.zeros(2), np.ones(2))
    network = PinnedNetwork(maps, [], None, limits=limits)
    with pytest.raises(InputError, match="limits"):
        save_network(network, tmp_path / "net.npz")
    assert not (tmp_path / "net.npz").exists()
