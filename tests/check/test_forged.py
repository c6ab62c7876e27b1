"""Two hundred proofs that were changed in their favour, drawn by a seed: none is proved."""

import dataclasses
import decimal
import json

import numpy as np
import pytest

from keras_curv_check import cli
from keras_curv_check.check import OUT_OF_SCOPE, PROVED, Checker, disagreements
from keras_curv_check.files import CheckError, ProofFolder, certified_rows, read_network

OF_A_KIND = 25


@pytest.fixture(scope="module")
def checker(checked_network, run_of_digits):
    return Checker(checked_network, ProofFolder.open(run_of_digits / "proofs").header)


@pytest.fixture(scope="module")
def nearest(run_of_digits):
    """Index → the nearest rival of a certified row."""
    lines = (run_of_digits / "rows.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    return {int(row["index"]): int(row["nearest_rival"]) for row in rows}


def one_digit_more(claim, *_):
    """The next radius of nine digits."""
    number = decimal.Decimal(repr(claim.radius))
    digit = decimal.Decimal(1).scaleb(number.adjusted() - 8)
    return dataclasses.replace(claim, radius=float(number + digit))


def another_radius(claim, rng, *_):
    return dataclasses.replace(claim, radius=claim.radius * (1.0 + rng.uniform(1e-6, 1.0)))


def another_point(claim, rng, near, _):
    """Against the nearest rival: the example, or the point moved by a thousandth of the radius."""
    point = claim.points[near]
    moved = rng.standard_normal(point.shape)
    moved *= 0.03 * claim.radius / np.linalg.norm(moved)
    place = claim.served if rng.random() < 0.3 else point + moved
    return dataclasses.replace(claim, points=claim.points | {near: place})


def a_rival_left_out(claim, _, near, __):
    methods = [name if rival != near else "" for rival, name in enumerate(claim.methods)]
    points = {rival: point for rival, point in claim.points.items() if rival != near}
    return dataclasses.replace(claim, methods=methods, points=points)


def another_label(claim, rng, near, _):
    return dataclasses.replace(claim, label=near)


def another_example(claim, rng, near, claims):
    """The example, or what is served, of another claim."""
    other = claims[rng.integers(len(claims))]
    while np.array_equal(other.x, claim.x):
        other = claims[rng.integers(len(claims))]
    both = {"x": other.x, "served": other.served}
    kept = [["x"], ["served"], ["x", "served"]][rng.integers(3)]
    return dataclasses.replace(claim, **{name: both[name] for name in kept})


FORGERS = [
    one_digit_more,
    another_radius,
    another_point,
    a_rival_left_out,
    another_label,
    another_example,
]


@pytest.mark.parametrize("forge", FORGERS, ids=lambda forge: forge.__name__)
def test_forged_claims(forge, claims, checker, nearest):
    rng = np.random.default_rng(61)
    able = [claim for claim in claims if nearest[claim.index] in claim.points]
    assert len(able) > 20
    for _ in range(OF_A_KIND):
        claim = able[rng.integers(len(able))]
        forged = forge(claim, rng, nearest[claim.index], claims)
        (verdict,) = checker.check([forged])
        assert verdict.status != PROVED, (forge.__name__, claim.index)


def test_rows_exchanged(claims, run_of_digits):
    """Each proof holds, but it is not about this example; nor do the rows say so."""
    rng = np.random.default_rng(61)
    inputs = np.load(run_of_digits / "inputs.npz")["x"]
    rows = certified_rows(run_of_digits / "rows.csv")
    assert [*disagreements(claims, inputs, rows)] == []
    for _ in range(OF_A_KIND):
        one, other = rng.choice(len(claims), 2, replace=False)
        forged = dataclasses.replace(claims[one], index=claims[other].index)
        assert len([*disagreements([forged], inputs, None)]) == 1
        less = dataclasses.replace(claims[one], radius=np.nextafter(claims[one].radius, 0.0))
        assert len([*disagreements([less], None, rows)]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"threat": "linf"},
        {"threat": "low 0; high 1"},
        {"property": "top_2"},
        {"guarantee": "float16"},
        {"rivals": "runner_up"},
    ],
)
def test_claims_swapped(change, claims, checked_network, run_of_digits):
    header = ProofFolder.open(run_of_digits / "proofs").header | change
    found = [*Checker(checked_network, header).check(claims[:5])]
    assert {one.status for one in found} == {OUT_OF_SCOPE}


def test_another_model(run_of_digits, tmp_path):
    """Any number of the network changed, with its old fingerprint or with one of its own."""
    rng = np.random.default_rng(61)
    with np.load(run_of_digits / "network.npz") as file:
        stored = dict(file)
    path = tmp_path / "network.npz"
    for turn in range(OF_A_KIND):
        arrays = {name: array.copy() for name, array in stored.items()}
        if turn % 2:
            name = rng.choice([name for name in arrays if name != "header"])
            place = tuple(rng.integers(size) for size in arrays[name].shape)
            arrays[name][place] = np.nextafter(arrays[name][place], 0.0) or 1e-9
        else:
            header = json.loads(stored["header"].tobytes())
            header["activations"][0][0]["name"] = "sparse_plus"
            text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
            arrays["header"] = np.frombuffer(text, np.uint8)
        np.savez(path, **arrays)
        with pytest.raises(CheckError, match="fingerprint"):
            read_network(path)


def test_proofs_of_another_network_are_refused(run_of_digits, tmp_path, capsys):
    from keras_curv import Network, save_network

    save_network(Network.from_weights([np.eye(64, 10)], [np.zeros(10)], []), tmp_path / "net.npz")
    arguments = ["--proofs", str(run_of_digits / "proofs"), "--network", str(tmp_path / "net.npz")]
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    captured = capsys.readouterr()
    assert stop.value.code == 2 and "another network" in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
