"""The guarantee float32: what serving may take off a margin, bounded again."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
from proved_again import points_between, random_network, verdicts

from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.float32 import Float32Error
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.network_file import save_network
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv_check.balls import vector
from keras_curv_check.check import NOT_PROVED, OUT_OF_SCOPE, PROVED, Checker
from keras_curv_check.files import Claim, Map, ProofFolder, read_network
from keras_curv_check.network import Network as Checked
from keras_curv_check.rounding import NotProvedError
from keras_curv_check.served import ServedErrors, least
from keras_curv_check.theorems import Asked

RNG = np.random.default_rng(61)


def entries(network):
    """The same network, each weight of the first map off by a part of its own."""
    first, *others = network.affines
    parts = RNG.uniform(1.0, 9.0, first.kernel.shape)
    away = parts * np.asarray(first.served_kernel_error)
    return Network(
        [dataclasses.replace(first, served_kernel_error=away), *others], network.activations
    )


def changed(network, change):
    """The same network with something changed of its maps, by their numbers."""
    maps = [change(number, one) for number, one in enumerate(network.affines)]
    return Network(maps, network.activations)


def tiny(number, one):
    """Maps without biases, the first with weights so small that little but underflow is lost."""
    return Affine((1.0 if number else 1e-36) * one.kernel, 0.0 * one.bias)


def coarse(_, one):
    """A map of which a server has hardly a digit."""
    return dataclasses.replace(one, served_kernel_error=0.3 * np.abs(one.kernel))


NETWORKS = {
    "smooth": random_network((6, 30, 20, 4), ("softplus", "tanh")),
    "several ops": random_network((6, 20, 20, 4), ("gelu", "silu")),
    "kinks": random_network((6, 20, 20, 4), ("relu", "abs")),
    "sin": random_network((6, 20, 4), ("sin",)),
    "folded": random_network((6, 20, 4), ("sigmoid",), kernel_error=1e-6, bias_error=1e-9),
    "folded biases": random_network((6, 20, 4), ("sigmoid",), bias_error=1e-6),
    "hardly known": random_network((1, 1, 1, 2), ("softplus", "softplus"), kernel_error=0.3),
    "coarse": changed(random_network((6, 20, 4), ("softplus",)), coarse),
    "tiny": changed(random_network((6, 4), ()), tiny),
    "tiny at first": changed(random_network((6, 20, 4), ("relu",)), tiny),
    "carried": Network(
        random_network((6, 20, 4), ("tanh",)).affines,
        [unit_wise([(activations.get("tanh"), 10), (IDENTITY, 10)])],
    ),
    "by entries": entries(random_network((6, 20, 4), ("softplus",))),
    "affine": random_network((6, 4), ()),
}


def float32_points(network, count, seed=0):
    return np.float32(points_between(network, count, seed)).astype(float)


def bounds(network, x, radius, folder, head="logits"):
    """E of the checker, `(n, classes − 1)`; rivals of class 0."""
    save_network(network, folder / "net.npz", head)
    checked = Checked(read_network(folder / "net.npz"))
    errors, found = ServedErrors(checked), []
    for row in x:
        claim = Claim(0, 0, radius, row, row, [], {}, {})
        (point,) = [vector(row)]
        pre, _, logits = checked.forward([point])
        asked = Asked(claim, point, [layer[0] for layer in pre], None)
        found.append([float(errors.most(asked, t)) for t in range(1, len(logits[0]))])
    return np.array(found)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("head", ["logits", "softmax"])
def test_two_bounds_agree(kind, head, tmp_path):
    network = NETWORKS[kind]
    x = float32_points(network, 6)
    x[0] = 0.0  # where what moving adds is most of it
    rivals = np.arange(1, network.classes)[None].repeat(len(x), axis=0)
    for radius in (1e-3, 0.5):
        found = bounds(network, x, radius, tmp_path, head)
        args = x, np.zeros(len(x), int), rivals, np.full(rivals.shape, radius)
        ratio = found / Float32Error(network, head)(*args)
        most = 1.05 if kind == "sin" else 1.0  # the checker has the ends of its slope alone
        low = 0.85 if kind == "hardly known" else 0.99  # there it knows better what a is
        assert np.all(ratio < most) and np.all(ratio > low), (kind, radius, ratio)


@pytest.mark.parametrize("kind, limit", [("affine", 2.0**120), ("several ops", 2.0**40)])
def test_where_numbers_are_too_large(kind, limit, tmp_path):
    """Whatever the file says of them: a sum may be as large as those of absolute values."""
    network = changed(NETWORKS[kind], lambda _, one: dataclasses.replace(one, served_gain=0.0))
    largest = limit / np.abs(network.affines[0].kernel).sum(axis=0).max()
    x = np.float32(largest * np.full((1, network.dim), 0.7)).astype(float)
    with pytest.raises(NotProvedError, match="beyond what float32 holds"):
        bounds(network, x, 0.1, tmp_path)
    if kind == "affine":
        assert np.isfinite(bounds(network, 0.5 * x, 0.1, tmp_path)).all()


@pytest.mark.parametrize("kind", ["smooth", "kinks", "affine"])
def test_sums_in_any_order_are_within(kind, tmp_path):
    network = NETWORKS[kind]
    maps = [(np.float32(a.kernel), np.float32(a.bias)) for a in network.affines]
    network = Network.from_weights(*zip(*maps, strict=True), [s.name for s in network.activations])
    x, worst = float32_points(network, 20), 0.0
    charge = bounds(network, x, 0.1, tmp_path)
    for _ in range(20):
        moved = RNG.standard_normal(x.shape)
        moved *= 0.099 / np.linalg.norm(moved, axis=1, keepdims=True)
        value = np.float32(x + moved)
        real = network.logits(value.astype(float)).numpy()
        for index, (kernel, bias) in enumerate(maps):
            total = np.zeros((len(x), len(bias)), np.float32)
            for i in RNG.permutation(len(kernel) + 1):
                total = total + (value[:, i : i + 1] * kernel[i] if i < len(kernel) else bias)
            last = index == len(maps) - 1
            value = total if last else network.activations[index].value(total).numpy()
        off = value - real
        share = np.abs(off[:, :1] - off[:, 1:]) / charge
        worst = max(worst, share.max())
    assert 0.003 < worst <= 1.0


METHODS = {
    "lipschitz": ("relu", "tanh"),
    "crc": ("softplus",),
    "crc_local": ("softplus",),
    "coupled": ("relu",),
    "crown": ("relu",),
}


def shifted(names):
    """A network of logits about a thousand, where float32 loses more than a digit of a radius."""
    network = random_network((6, *(20, 12)[: len(names)], 4), names, 3)
    *maps, last = network.affines
    return Network([*maps, Affine(last.kernel, last.bias + 1e3)], network.activations)


def proofs_of(name, folder, guarantee="float32"):
    """Returns the network of a method, radii, and verdicts of them as radii of the guarantee."""
    network = shifted(METHODS[name])
    error = (Float32Error(network),) if guarantee == "float32" else ()
    method = choose_method(name, network, *error)
    args = method, float32_points(network, 12), folder, network
    result, found = verdicts(*args, guarantee="float32")
    assert (result.radius > 0.0).sum() == len(found) > 8
    return result, [one.status for one in found]


@pytest.mark.parametrize("name", METHODS)
def test_radii_by_every_method(name, tmp_path):
    assert set(proofs_of(name, tmp_path)[1]) == {PROVED}


@pytest.mark.parametrize("name", ["lipschitz", "crc", "crc_local"])
def test_radii_of_real_arithmetic_are_none_of_float32(name, tmp_path):
    assert set(proofs_of(name, tmp_path, "real")[1]) == {NOT_PROVED}


def rewritten(folder, change):
    """The network's file with something changed, and the fingerprint of what it is then."""
    with np.load(folder / "network.npz") as file:
        arrays = dict(file)
    header = json.loads(arrays.pop("header").tobytes())
    header.pop("fingerprint")
    change(header, arrays)

    def text():
        return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()

    digest = hashlib.sha256(text())
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    header["fingerprint"] = digest.hexdigest()
    np.savez(folder / "changed.npz", header=np.frombuffer(text(), np.uint8), **arrays)
    return read_network(folder / "changed.npz")


@pytest.fixture(scope="module")
def proofs(tmp_path_factory):
    """The folder of proofs of twelve radii by `crc`, its header and its claims."""
    folder = tmp_path_factory.mktemp("served")
    proofs_of("crc", folder)
    opened = ProofFolder.open(folder / "proofs")
    (claims,) = opened.claims(read_network(folder / "network.npz"))
    return folder, opened.header, claims


def statuses_of(file, header, claims):
    return {one.status for one in Checker(file, header).check(claims)}


@pytest.mark.parametrize("head", ["softmax", "log_softmax"])
def test_another_head(head, proofs):
    folder, header, claims = proofs
    file = rewritten(folder, lambda header, _: header.update(head=head))
    assert file.fingerprint != header["network"]  # by which the command refuses it
    assert statuses_of(file, header, claims) == {NOT_PROVED}


@pytest.mark.parametrize("head", ["sigmoid", "", "argmax"])
def test_a_head_without_a_bound(head, proofs):
    folder, header, claims = proofs
    file = rewritten(folder, lambda header, _: header.update(head=head))
    assert statuses_of(file, header, claims) == {OUT_OF_SCOPE}


@pytest.mark.parametrize("name", ["served_kernel_1", "served_kernel_2", "served_bias_1"])
@pytest.mark.parametrize("part", [0.8, 0.0])
def test_smaller_errors_are_refused(name, part, proofs):
    folder, header, claims = proofs
    file = rewritten(folder, lambda _, arrays: arrays.update({name: part * arrays[name]}))
    found = [*Checker(file, header).check(claims)]
    assert {one.status for one in found} == {OUT_OF_SCOPE}
    assert f"map {name[-1]} is said to lose less" in found[0].detail


def test_what_cannot_be_less():
    """Each of k products of a column, and a bias that is first, passes through k roundings."""
    kernel = np.array([[1.0, 1.0, 0.5, 0.0], [2.0, 0.0, 0.0, 0.0]])
    one = Map(kernel, np.array([0.0, 0.0, 3.0, 0.0]), 0.0, 0.0)
    unit = 2.0**-24
    weights, bias = least(one)
    np.testing.assert_allclose(weights, [2 * unit, 0.0, 2 * unit, 0.0], rtol=1e-6)
    np.testing.assert_allclose(bias, [0.0, 0.0, 3 * unit, 0.0], rtol=1e-6)
    weights, bias = least(dataclasses.replace(one, kernel_error=1e-9))
    np.testing.assert_allclose(weights, [unit, 0.0, unit, unit], rtol=1e-6)


def test_errors_without_a_bound(proofs):
    folder, header, claims = proofs
    for name in ("served_kernel_1", "served_bias_2", "served_gain"):
        file = rewritten(folder, lambda _, arrays: arrays.update({name: np.inf + arrays[name]}))  # noqa: B023
        assert statuses_of(file, header, claims) == {OUT_OF_SCOPE}


def test_a_file_of_version_1_does_not_say_what_is_served(proofs):
    folder, header, claims = proofs

    def older(header, arrays):
        header.pop("head")
        header["version"] = 1
        for name in [name for name in arrays if name.startswith("served")]:
            arrays.pop(name)

    file = rewritten(folder, older)
    assert statuses_of(file, header, claims) == {OUT_OF_SCOPE}
    assert statuses_of(file, header | {"guarantee": "real"}, claims) == {PROVED}


def test_numbers_that_float32_does_not_hold(proofs):
    folder, header, claims = proofs
    file = read_network(folder / "network.npz")
    finer = [dataclasses.replace(one, served=one.served + 1e-12) for one in claims]
    assert statuses_of(file, header, finer) == {NOT_PROVED}
    file = rewritten(folder, lambda _, arrays: arrays["served_gain"].fill(2.0**120))
    assert statuses_of(file, header, claims) == {NOT_PROVED}


def test_larger_radii(proofs):
    folder, header, claims = proofs
    file = read_network(folder / "network.npz")
    for share in RNG.uniform(1.01, 2.0, 3):
        more = [dataclasses.replace(one, radius=one.radius * share) for one in claims]
        assert statuses_of(file, header, more) == {NOT_PROVED}
