"""Proofs by linear bounds that were changed in their favour, drawn by a seed: none is proved."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from proved_again import points_between, random_network, verdicts

from keras_curv.certificates.auto import choose_method
from keras_curv.network.pinned import PinnedNetwork
from keras_curv_check.check import PROVED, Checker
from keras_curv_check.files import Claim, ProofFolder, read_network

# Method, network, whether in a box, and how many of a kind: smooth units take longer.
KINDS = {
    "coupled": ("coupled", (6, 20, 20, 20, 4), ("relu", "relu", "relu"), False, 20),
    "crown": ("crown", (6, 20, 20, 20, 4), ("relu", "relu", "relu"), False, 20),
    "smooth": ("crown", (5, 7, 6, 4), ("tanh", "gelu"), False, 5),
    "box": ("coupled", (6, 9, 8, 4), ("relu", "relu"), True, 5),
    "stages": ("two_stage", (6, 9, 8, 4), ("relu", "softplus"), False, 5),
}


class Forgeable(NamedTuple):
    """A checker, claims that it proves, and how many to forge of a kind."""

    checker: Checker
    claims: list[Claim]
    count: int


@pytest.fixture(scope="module", params=KINDS)
def forgeable(request, tmp_path_factory):
    """Of `coupled`, claims that need their witness."""
    name, sizes, names, boxed, count = KINDS[request.param]
    folder, network = tmp_path_factory.mktemp("proofs"), random_network(sizes, names)
    limits = np.full(sizes[0], -3.0), np.full(sizes[0], 3.0)
    inside = PinnedNetwork(network.affines, network.activations, None, limits=limits)
    box = {"threat": "l2 in a box", "box": {"low": [-3.0], "high": [3.0]}} if boxed else {}
    x = np.clip(points_between(network, 30 if count > 5 else 12), -3.0, 3.0)
    method = choose_method(name, inside if boxed else network)
    _, found = verdicts(method, x, folder, network, **box)
    assert {one.status for one in found} == {PROVED}
    opened, file = ProofFolder.open(folder / "proofs"), read_network(folder / "network.npz")
    checker, claims = Checker(file, opened.header), next(opened.claims(file))
    bare = [dataclasses.replace(claim, witnesses={}) for claim in claims]
    if request.param == "coupled":
        needed = zip(claims, checker.check(bare), strict=True)
        claims = [claim for claim, verdict in needed if verdict.status != PROVED]
    return Forgeable(checker, claims, count)


def another_radius(claim, rng, claims):
    """By a third at least, which no search has left."""
    return dataclasses.replace(claim, radius=claim.radius * (1.0 + rng.uniform(0.3, 1.0)))


def other_slopes(claim, rng, claims):
    """Of one rival, moved by a tenth, by random numbers, or the multipliers by a factor."""

    def forged(witness):
        factor = [10.0, 0.1][rng.integers(2)]
        if rng.random() < 0.5:
            multipliers = [factor * each for each in witness.multipliers]
            return witness._replace(multipliers=multipliers)
        size = [0.3 * np.abs(part).max() for part in witness.slopes]
        moved = [
            part + most * rng.standard_normal(part.shape)
            for part, most in zip(witness.slopes, size, strict=True)
        ]
        return witness._replace(slopes=moved)

    witnesses = {rival: forged(witness) for rival, witness in claim.witnesses.items()}
    return dataclasses.replace(claim, witnesses=witnesses, radius=claim.radius * 1.3)


def slopes_of_another_claim(claim, rng, claims):
    other = claims[rng.integers(len(claims))]
    while other is claim:
        other = claims[rng.integers(len(claims))]
    return dataclasses.replace(claim, witnesses=other.witnesses, radius=claim.radius * 1.3)


def a_rival_left_out(claim, rng, claims):
    """A rival that needs linear bounds is said to be far by itself."""
    return dataclasses.replace(claim, methods=["" for _ in claim.methods])


def another_label(claim, rng, claims):
    rivals = [rival for rival in range(len(claim.methods)) if rival != claim.label]
    methods = [max(claim.methods)] * len(claim.methods)
    return dataclasses.replace(claim, label=int(rng.choice(rivals)), methods=methods)


def another_example(claim, rng, claims):
    other = claims[rng.integers(len(claims))]
    while other is claim:
        other = claims[rng.integers(len(claims))]
    return dataclasses.replace(claim, x=other.x)


FORGERS = [
    another_radius,
    other_slopes,
    slopes_of_another_claim,
    a_rival_left_out,
    another_label,
    another_example,
]


@pytest.mark.parametrize("forge", FORGERS, ids=lambda forge: forge.__name__)
def test_forged_linear_bounds(forge, forgeable):
    rng = np.random.default_rng(61)
    assert len(forgeable.claims) > 4
    for _ in range(forgeable.count):
        claim = forgeable.claims[rng.integers(len(forgeable.claims))]
        (verdict,) = forgeable.checker.check([forge(claim, rng, forgeable.claims)])
        assert verdict.status != PROVED, (forge.__name__, claim.index)
