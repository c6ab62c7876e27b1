"""Two hundred or so forged proofs of each kind that is checked: none is proved.

Those of `crc` without more, and of `coupled`, have files of their own, as have rows exchanged.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from proved_again import points_between, random_network, verdicts

from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.float32 import Float32Error
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv_check.check import OUT_OF_SCOPE, PROVED, Checker
from keras_curv_check.files import Claim, NetworkFile, ProofFolder, read_network

COUNT = 24  # examples
SHIFT = 1.0  # of a logit
LOW, HIGH = -1.5, 1.5
BOX = {"threat": "l2 in a box", "box": {"low": [LOW], "high": [HIGH]}}


class Kind(NamedTuple):
    """A kind of proof: a method, hidden layers of so many units, and what is around them.

    `more` is by how much radii are made longer: by more than this kind of search leaves open.
    """

    method: str
    names: tuple[str, ...]
    seed: int
    more: float = 0.1
    units: int = 5
    boxed: bool = False
    clipped: bool = False
    served: bool = False
    count: int = 25  # of a forger


KINDS = {
    "lipschitz": Kind("lipschitz", ("relu", "tanh"), 0, 1e-6),
    "crc, float32": Kind("crc", ("softplus", "tanh"), 1, 1e-3, served=True),
    "crc in a box": Kind("crc", ("softplus",), 0, 1e-3, boxed=True),
    "crc behind a clip": Kind("crc", ("softplus",), 2, 1e-3, clipped=True),
    "crc_local": Kind("crc_local", ("softplus",), 0, 1e-3),
    "crc_local, deep": Kind("crc_local", ("tanh", "softplus"), 9, units=3),
    "quadratic": Kind("quadratic", ("relu",), 0),
    "coupled in a box": Kind("coupled", ("relu", "relu"), 4, boxed=True),
    "crown": Kind("crown", ("relu", "relu"), 4),
    "crown, smooth": Kind("crown", ("tanh", "gelu"), 2, units=2, count=10),
    "two_stage": Kind("two_stage", ("relu", "softplus"), 4),
}


class Forgeable(NamedTuple):
    """A kind, the numbers of its network, the header of its proofs, and claims that are proved."""

    kind: Kind
    file: NetworkFile
    header: dict
    claims: list[Claim]

    def __call__(self, claims, **header):
        return {one.status for one in Checker(self.file, self.header | header).check(claims)}


def steep_network(kind):
    """A network of three inputs and classes, whose boundaries are near."""
    network = random_network((3, *[kind.units] * len(kind.names), 3), kind.names, kind.seed)
    maps = [Affine(3.0 * one.kernel, one.bias) for one in network.affines]
    sigmas = [*network.activations]
    if kind.clipped:
        maps = [Affine(np.diag([1.0, -1.2, 1.1]), np.full(3, 0.1)), *maps]
        sigmas = [activations.get("clip(-1.6,1.6)"), *sigmas]
    return Network(maps, sigmas)


@pytest.fixture(scope="module", params=KINDS)
def forgeable(request, tmp_path_factory):
    kind, folder = KINDS[request.param], tmp_path_factory.mktemp("proofs")
    network = inside = steep_network(kind)
    x = np.clip(points_between(network, COUNT), LOW, HIGH)
    if kind.boxed:
        limits = np.full(3, LOW), np.full(3, HIGH)
        inside = PinnedNetwork(network.affines, network.activations, None, limits=limits)
    x = np.float32(x).astype(float) if kind.served else x
    error = (Float32Error(network),) if kind.served else ()
    header = {"guarantee": "float32"} if kind.served else BOX if kind.boxed else {}
    method = choose_method(kind.method, inside, *error)
    _, found = verdicts(method, x, folder, network, **header)
    assert {one.status for one in found} == {PROVED}
    opened, file = ProofFolder.open(folder / "proofs"), read_network(folder / "network.npz")
    claims = next(opened.claims(file))
    assert len(claims) > 15 and len({claim.label for claim in claims}) > 1
    return Forgeable(kind, file, opened.header, claims)


def longer(claim, rng, more):
    """A radius that no search has left open."""
    return dataclasses.replace(claim, radius=claim.radius * (1.0 + more + rng.uniform()))


def other_point(claim, rng, more):
    """The points of a longer radius, or slopes and multipliers, are anywhere."""

    def near(array):
        return array + rng.normal(size=array.shape) * (0.1 + np.abs(array).max())

    points = {rival: near(point) for rival, point in claim.points.items()}
    witnesses = {
        rival: one._replace(slopes=[*map(near, one.slopes)], multipliers=abs(near(one.multipliers)))
        for rival, one in claim.witnesses.items()
    }
    return dataclasses.replace(longer(claim, rng, more), points=points, witnesses=witnesses)


def rival_left_out(claim, rng, more):
    """Nobody is said to have proved a longer radius against one rival, or against any."""
    methods = [name if rng.random() < 0.3 else "" for name in claim.methods]
    return dataclasses.replace(longer(claim, rng, more), methods=methods)


def other_label(claim, rng, more):
    rivals = [rival for rival in range(len(claim.methods)) if rival != claim.label]
    methods = [max(claim.methods)] * len(claim.methods)
    return dataclasses.replace(claim, label=int(rng.choice(rivals)), methods=methods)


FORGERS = [longer, other_point, rival_left_out, other_label]


@pytest.mark.parametrize("forge", FORGERS, ids=lambda forge: forge.__name__)
def test_claims(forge, forgeable):
    rng, claims = np.random.default_rng(61), forgeable.claims
    drawn = [claims[i] for i in rng.integers(len(claims), size=forgeable.kind.count)]
    assert PROVED not in forgeable([forge(claim, rng, forgeable.kind.more) for claim in drawn])


def test_of_another_example(forgeable):
    """Of one that has another label: what it is, what is served, or both."""
    rng, forged = np.random.default_rng(61), []
    while len(forged) < forgeable.kind.count:
        claim, other = (forgeable.claims[i] for i in rng.integers(len(forgeable.claims), size=2))
        both = {"x": other.x, "served": other.served}
        kept = [["x"], ["served"], ["x", "served"]][len(forged) % 3]
        if claim.label != other.label:
            forged.append(dataclasses.replace(claim, **{name: both[name] for name in kept}))
    assert PROVED not in forgeable(forged)


def test_of_another_model(forgeable):
    """Its logit of a class is lower by as much as no search has left open."""
    *maps, last = forgeable.file.maps
    for label in {claim.label for claim in forgeable.claims}:
        lower = dataclasses.replace(last, bias=last.bias - SHIFT * np.eye(3)[label])
        other = forgeable._replace(file=dataclasses.replace(forgeable.file, maps=[*maps, lower]))
        some = [claim for claim in forgeable.claims if claim.label == label]
        assert PROVED not in other(some[: forgeable.kind.count])


@pytest.mark.parametrize("change", [{"threat": "linf"}, {"property": "top_2"}, {"rivals": "one"}])
def test_of_another_claim(change, forgeable):
    assert forgeable(forgeable.claims, **change) == {OUT_OF_SCOPE}
