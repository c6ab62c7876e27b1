"""Proofs of units that are bounded together, changed in their favour by a seed: none is proved."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from proved_again import points_between, random_network, verdicts

from keras_curv.certificates.auto import choose_method
from keras_curv_check.check import PROVED, Checker
from keras_curv_check.files import Claim, ProofFolder, read_network

OF_A_KIND = 34  # six kinds are two hundred


class Forgeable(NamedTuple):
    """A checker, and claims that it proves."""

    checker: Checker
    claims: list[Claim]


@pytest.fixture(scope="module")
def forgeable(tmp_path_factory):
    """Claims that need their witness."""
    folder = tmp_path_factory.mktemp("proofs")
    network = random_network((6, 20, 20, 20, 4), ("relu", "relu", "relu"))
    x = np.clip(points_between(network, 30), -3.0, 3.0)
    _, found = verdicts(choose_method("coupled", network), x, folder, network)
    assert {one.status for one in found} == {PROVED}
    opened, file = ProofFolder.open(folder / "proofs"), read_network(folder / "network.npz")
    checker, claims = Checker(file, opened.header), next(opened.claims(file))
    bare = [dataclasses.replace(claim, witnesses={}) for claim in claims]
    needed = zip(claims, checker.check(bare), strict=True)
    claims = [claim for claim, verdict in needed if verdict.status != PROVED]
    return Forgeable(checker, claims)


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
    for _ in range(OF_A_KIND):
        claim = forgeable.claims[rng.integers(len(forgeable.claims))]
        (verdict,) = forgeable.checker.check([forge(claim, rng, forgeable.claims)])
        assert verdict.status != PROVED, (forge.__name__, claim.index)
