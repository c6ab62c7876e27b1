"""Networks with sparse maps: matrices as blocks, numbers of wide layers, proofs and forged ones."""

import dataclasses
import functools

import numpy as np
import pytest
import scipy.sparse
from flint import arb, arb_mat
from proved_again import HEADER, points_between, random_network, verdicts

from keras_curv.certificates.auto import choose_method
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.network_file import _digest, as_bytes, network_arrays
from keras_curv.network.sparse_affine import SparseAffine
from keras_curv_check.activations import sigma_of
from keras_curv_check.balls import ZERO, up, vector
from keras_curv_check.blocks import Blocks, lengths
from keras_curv_check.check import PROVED, Checker
from keras_curv_check.files import CheckError, Map, NetworkFile, ProofFolder, read_network
from keras_curv_check.network import Network as Checked
from keras_curv_check.norms import Matrix


def masked(height, width, rng):
    """A matrix like a convolution's: three units at each place see the same four inputs."""
    kernel = rng.standard_normal((height, width))
    seen = (np.arange(height)[:, None] - 2 * (np.arange(width) // 3)) % height < 4
    return np.where(seen, kernel, 0.0)


def as_blocks(dense):
    rows, columns = np.nonzero(dense)
    return Blocks.of(dense.shape, rows, columns, dense[rows, columns])


@pytest.fixture(params=["wide", "long", "scattered", "empty"])
def both(request, rng):
    """A matrix, dense and as blocks."""
    dense = {
        "wide": masked(8, 30, rng),
        "long": masked(8, 30, rng).T.copy(),
        "scattered": rng.standard_normal((12, 12)) * (rng.random((12, 12)) < 0.2),
        "empty": np.zeros((3, 5)),
    }[request.param]
    return dense, as_blocks(dense)


def test_blocks_are_the_matrix(both, rng):
    dense, blocks = both
    close = {"rtol": 1e-13, "atol": 1e-13}
    one, other = rng.standard_normal((2, dense.shape[0])), rng.standard_normal(dense.shape[1])
    np.testing.assert_allclose(one @ blocks, one @ dense, **close)
    np.testing.assert_allclose(blocks @ other[:, None], dense @ other[:, None], **close)
    np.testing.assert_allclose(other @ abs(blocks).T, other @ abs(dense).T, **close)
    assert blocks.shape == dense.shape and blocks.size == np.count_nonzero(dense)
    for matrix, wanted in ((blocks, dense), (blocks.T, dense.T)):
        exact = np.linalg.norm(wanted, axis=1)
        assert np.all(exact <= lengths(matrix)) and np.all(lengths(matrix) <= exact * 1.001 + 1e-99)


def test_few_blocks_hold_a_convolution(rng):
    """So that a sum over units is made of few and short ones."""
    blocks = as_blocks(masked(8, 30, rng))
    assert blocks.terms == 4 and blocks.T.terms < 24


def test_norms_of_blocks_are_close_and_never_below(both, rng):
    dense, blocks = both
    weights = rng.uniform(0.0, 2.0, dense.shape[1])
    weights[::3] = 0.0
    bound = Matrix(blocks, arb(1e-3)).norm(weights)
    exact = np.linalg.norm(dense * np.sqrt(weights), 2)
    assert exact <= up(bound) <= exact * (1.0 + 1e-12) + 1e-3 * np.sqrt(2.0) + 1e-99


@pytest.mark.parametrize("kind", ["drawn", "identity", "one larger", "rank one"])
def test_a_large_side_is_searched_by_lanczos(kind, rng, monkeypatch):
    monkeypatch.setattr("keras_curv_check.norms._LARGE", 100)
    dense = {
        "drawn": masked(300, 450, rng),
        "identity": np.eye(120),
        "one larger": np.diag([*np.ones(120), 2.0]),
        "rank one": np.ones((120, 130)),
    }[kind]
    exact = np.linalg.norm(dense, 2)
    for matrix in (dense, as_blocks(dense)):
        assert exact <= up(Matrix(matrix, ZERO).norm()) <= exact * 1.001


def sparse_file(names, rng, **errors):
    """Numbers of a network of sparse maps, and its kernels."""
    sizes = (8, *(12, 30)[: len(names)], 4)
    kernels = [masked(*pair, rng) for pair in zip(sizes[:-1], sizes[1:], strict=True)]
    off = errors.get("kernel_error", 0.0), errors.get("bias_error", 0.0)
    maps = [Map(as_blocks(k), rng.standard_normal(k.shape[1]), *off) for k in kernels]
    layers = [[(name, size)] for name, size in zip(names, sizes[1:], strict=False)]
    return NetworkFile(maps, layers, sizes[0], ""), kernels


def unit(shape, rng):
    """A random vector, or matrix of rank one, of norm 1 but for a thousandth."""
    parts = [rng.standard_normal(size) for size in shape]
    return 0.999 * functools.reduce(np.multiply.outer, [v / np.linalg.norm(v) for v in parts])


def exactly(file, kernels, point, label, rival):
    """z of the first layer, the logits, and the gradient of a margin, in balls all the way."""
    a, pre, slopes = arb_mat([point]), [], []
    for number, (one, kernel) in enumerate(zip(file.maps, kernels, strict=True)):
        pre.append((a * arb_mat(kernel.tolist()) + arb_mat([one.bias.tolist()])).entries())
        if number < len(file.activations):
            sigma = sigma_of(file.activations[number][0][0])
            slopes.append([sigma.first(z) for z in pre[-1]])
            a = arb_mat([[sigma.value(z) for z in pre[-1]]])
    v = arb_mat([(kernels[-1][:, [label]] - kernels[-1][:, [rival]]).ravel().tolist()])
    for kernel, slope in zip(kernels[-2::-1], slopes[::-1], strict=True):
        turned = [s * e for s, e in zip(slope, v.entries(), strict=True)]
        v = arb_mat([turned]) * arb_mat(kernel.T.tolist())
    return pre[0], pre[-1], v.entries()


@pytest.mark.parametrize("names", [("sparse_plus",), ("softplus", "sparse_plus"), ("identity",)])
@pytest.mark.parametrize("errors", [{}, {"kernel_error": 1e-5}, {"bias_error": 1e-5}])
def test_wide_numbers_hold_the_exact_ones(names, errors, rng):
    """Those of maps that are off by their folding errors; and are close to them."""
    file, kernels = sparse_file(names, rng, **errors)
    real = [
        kernel + one.kernel_error * unit(kernel.shape, rng)
        for one, kernel in zip(file.maps, kernels, strict=True)
    ]
    moved = [
        dataclasses.replace(one, bias=one.bias + one.bias_error * unit(one.bias.shape, rng))
        for one in file.maps
    ]
    network, pairs = Checked(file), [(0, 1), (2, 3)]
    points = [vector(x) for x in rng.standard_normal((2, 8))]
    pre, slopes, logits = network.forward(points)
    gradients = network.gradients(slopes, [0, 1], pairs)
    width = 1e-2 if errors else 1e-11
    for row, (point, pair) in enumerate(zip(points, pairs, strict=True)):
        wanted = exactly(dataclasses.replace(file, maps=moved), real, point, *pair)
        for ours, theirs in zip((pre[0][row], logits[row], gradients[row]), wanted, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert a.contains(b) and float(a.rad()) < width


def test_numbers_that_overflow_have_no_bound(rng):
    wide = Checked(sparse_file(("sparse_plus",), rng)[0])
    with np.errstate(all="raise"):
        _, slopes, (logits,) = wide.forward([[arb(1e308)] * 8])
        (gradient,) = wide.gradients(slopes, [0], [(0, 1)])
    assert not any(logit > 0 or logit < 0 for logit in logits)
    assert not any(entry.is_finite() and up(abs(entry)) < 1e100 for entry in gradient[:1])


def sparse_network(names, at, seed=3):
    """A random network, one of whose maps is sparse, and the last off by a folding error."""
    network = random_network((8, *(12, 30)[: len(names)], 4), names, seed)
    maps = [*network.affines]
    kernel = masked(*maps[at].kernel.shape, np.random.default_rng(seed)) / 2.0
    norm = np.linalg.norm(kernel, 2) * (1.0 + 1e-9)
    maps[at] = SparseAffine(scipy.sparse.csr_array(kernel), maps[at].bias, proved_norm=norm)
    maps[-1] = dataclasses.replace(maps[-1], kernel_error=1e-13, bias_error=1e-13)
    return Network(maps, network.activations)


# Activations, the sparse map, and by what a radius grows that is not proved: of the curvature
# behind a first layer the certifier takes the norm, and the checker a smaller bound.
KINDS = {
    "two_stage": (("abs", "sparse_plus"), 1, 1.02),
    "crc": (("softplus", "sparse_plus"), 1, 1.5),
    "lipschitz": (("relu", "tanh"), 1, 1.02),
}


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory):
    """A network's numbers, the checker of its claims, these, and how much too large one is."""
    *parts, growth = KINDS[request.param]
    network, folder = sparse_network(*parts), tmp_path_factory.mktemp("proofs")
    method = choose_method(request.param, network)
    result, found = verdicts(method, points_between(network, 16), folder)
    assert (result.radius > 0.0).sum() == len(found) > 8
    assert {one.status for one in found} == {PROVED}, found
    file, opened = read_network(folder / "network.npz"), ProofFolder.open(folder / "proofs")
    return file, Checker(file, opened.header), [*next(opened.claims(file))], growth


def test_radii_are_proved_again(run):
    _, checker, claims, _ = run
    assert {one.status for one in checker.check(claims)} == {PROVED}


def another_radius(claim, rng, claims, growth):
    return dataclasses.replace(claim, radius=claim.radius * (growth + rng.random()))


def another_label(claim, rng, claims, growth):
    rivals = [rival for rival in range(len(claim.methods)) if rival != claim.label]
    methods = [max(claim.methods)] * len(claim.methods)
    return dataclasses.replace(claim, label=int(rng.choice(rivals)), methods=methods)


def another_example(claim, rng, claims, growth):
    other = claims[rng.integers(len(claims))]
    while other is claim:
        other = claims[rng.integers(len(claims))]
    return dataclasses.replace(claim, x=other.x, radius=max(claim.radius, other.radius))


@pytest.mark.parametrize("forge", [another_radius, another_label, another_example])
def test_forged_claims(forge, run):
    _, checker, claims, growth = run
    rng = np.random.default_rng(61)
    for _ in range(5):
        claim = claims[rng.integers(len(claims))]
        (verdict,) = checker.check([forge(claim, rng, claims, growth)])
        assert verdict.status != PROVED, (forge.__name__, claim.index)


def test_claims_about_a_steeper_map(run):
    """Entries of the sparse map that are all larger."""
    file, _, claims, growth = run
    maps = [
        dataclasses.replace(one, kernel=one.kernel.each(lambda part: growth**2 * part))
        if isinstance(one.kernel, Blocks)
        else one
        for one in file.maps
    ]
    other = Checker(dataclasses.replace(file, maps=maps), HEADER)
    assert any(one.status != PROVED for one in other.check(claims))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(indices_1=a["indices_1"][::-1].copy()),
        lambda a: a.update(indices_1=a["indices_1"] * 0),
        lambda a: a.update(indices_1=a["indices_1"] + 1),
        lambda a: a.update(indices_1=a["indices_1"] - 1),
        lambda a: a.update(indices_1=a["indices_1"].astype(np.int32)),
        lambda a: a.update(indptr_1=a["indptr_1"][:-1]),
        lambda a: a.update(indptr_1=a["indptr_1"] + 1),
        lambda a: a.update(indptr_1=np.array([0, 6, 3, 8])),
        lambda a: a.update(indptr_1=np.array([0, 1, -(2**63), 8])),
        lambda a: a.update(data_1=a["data_1"][:-1]),
        lambda a: a.update(data_1=a["data_1"] * np.nan),
        lambda a: a.pop("data_1"),
    ],
)
def test_sparse_maps_that_do_not_fit(change, tmp_path):
    kernel = scipy.sparse.csr_array(np.array([[1.0, 0, 2, 3], [0, 4, 5, 6], [7, 8, 0, 0]]))
    maps = [SparseAffine(kernel, np.zeros(4)), Affine(np.ones((4, 2)), np.zeros(2))]
    network = Network(maps, [activations.get("relu")])
    header, arrays = network_arrays(network)
    change(arrays)
    arrays["header"] = as_bytes(header | {"fingerprint": _digest(header, arrays)})
    np.savez(tmp_path / "network.npz", **arrays)
    with pytest.raises(CheckError, match="lacks or misuses"):
        read_network(tmp_path / "network.npz")
