"""Requirements of a gate: their spelling, intervals, slices, and what fails."""

import math

import numpy as np
import pytest

from keras_curv.data.slices import Slice
from keras_curv.errors import InputError
from keras_curv.reports.wording import describe
from keras_curv.rows.requirement import Requirement, parse_requirements
from keras_curv.rows.row import Row
from keras_curv.rows.slices import class_of, confidence_interval
from keras_curv.rows.tally import Tally
from keras_curv.rows.verdict import verdict

SPELLED = {
    "0.9": Requirement(0.9),
    "0.25=0.95": Requirement(0.95, 0.25),
    "8/255=1": Requirement(1.0, 8 / 255),
    "lower:0.9": Requirement(0.9, lower=True),
    "0.5=lower:0.9": Requirement(0.9, 0.5, True),
    "class:0.8": Requirement(0.8, slice="class"),
    "class:lower:0.8": Requirement(0.8, lower=True, slice="class"),
    "a:b:0.5=lower:0.8": Requirement(0.8, 0.5, True, "a:b"),
    "2020:0.5=0.8": Requirement(0.8, 0.5, False, "2020"),
}


@pytest.mark.parametrize("text", SPELLED)
def test_a_requirement_is_read(text):
    assert Requirement.parse(text) == SPELLED[text]
    assert Requirement.parse(SPELLED[text].spelling) == SPELLED[text]


@pytest.mark.parametrize(
    "text",
    ["", "=", "0.5=", "=0.9", "0.5=0.9=1", ":0.9", "lower:0.5=0.9", "x", "1/0", "0.5:0.9", "nan"],
)
def test_what_is_no_requirement_is_refused(text):
    with pytest.raises(InputError, match="the requirement"):
        Requirement.parse(text)


@pytest.mark.parametrize("text", ["1.5", "0.5=-0.1", "-1=0.5", "inf=0.5", "nan=0.5", "0=0.5"])
def test_numbers_out_of_range_are_refused(text):
    with pytest.raises(InputError, match="must be"):
        Requirement.parse(text)


def test_one_or_several_may_be_given():
    assert parse_requirements(None) == ()
    assert parse_requirements(0.5) == parse_requirements("0.5") == (Requirement(0.5),)
    assert parse_requirements([0.5, "1=0.5"]) == (Requirement(0.5), Requirement(0.5, 1.0))


def binomial(k, n, p):
    """P(X ≤ k), by hand."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def test_the_interval_leaves_half_of_the_rest_on_either_side():
    """The definition of Clopper and Pearson, with the binomial distribution summed by hand."""
    for wins, count, confidence in ((3, 10, 0.95), (99, 100, 0.99), (1, 7, 0.5)):
        ((low, high),) = confidence_interval([wins], count, confidence)
        rest = (1 - confidence) / 2
        assert 1 - binomial(wins - 1, count, low) == pytest.approx(rest, rel=1e-6)
        assert binomial(wins, count, high) == pytest.approx(rest, rel=1e-6)
    assert confidence_interval([0, 5], 5, 0.95)[0][0] == 0.0
    assert confidence_interval([0, 5], 5, 0.95)[1][1] == 1.0
    assert confidence_interval([0], 0, 0.95) == [[0.0, 1.0]]


def row(index, radius, label=0):
    status = "CERTIFIED" if radius else "MISCLASSIFIED"
    return Row(index, label, label if radius else 1 - label, 1, radius, status, 1, method="crc")


RADII = [0.3, 0.3, 0.3, 0.0, 0.8, 0.8]  # 5 of 6 above 0.2, 2 above 0.5


def summary(parts=None, **options):
    slices = {"class": class_of} if parts is None else {"site": lambda row: parts[row.index]}
    tally = Tally((0.2, 0.5), slices=slices, **options)
    tally.add(row(i, radius, label=int(i > 3)) for i, radius in enumerate(RADII))
    return tally.summary()


def checks(*required, **known):
    return verdict(summary(**known), required=parse_requirements(required))["checks"]


def test_each_requirement_is_held_at_its_radius():
    found = checks("0.2=0.8", "0.5=0.3", "0.2=0.9", 0.3, 0.4)
    assert [check["passed"] for check in found] == [True, True, False, True, False]
    assert [check["radius"] for check in found] == ["0.2", "0.5", "0.2", "0.5", "0.5"]
    assert found[2]["failed"] == [
        {"radius": "0.2", "part": "", "examples": 6, "found": pytest.approx(5 / 6)}
    ]
    assert describe(found[2]) == "FAILED: certified 83.33 % at radius 0.2, required 90 %"


def test_the_fraction_itself_passes():
    share = 5 / 6
    assert checks(f"0.2={share!r}")[0]["passed"]
    assert not checks(f"0.2={math.nextafter(share, 1.0)!r}")[0]["passed"]


def test_the_lower_end_is_stricter_than_the_figure():
    low = confidence_interval([5], 6, 0.95)[0][0]
    found = checks("0.2=0.8", "0.2=lower:0.8", f"0.2=lower:{low!r}")
    assert [check["passed"] for check in found] == [True, False, True]
    assert found[1]["found"] == low
    assert checks(f"0.2=lower:{low!r}", confidence=0.99)[0]["passed"] is False
    assert describe(found[1]).endswith("(lower end of the 95 % interval), required 80 %")


def test_every_part_of_a_slice_must_pass_and_each_that_fails_is_named():
    found = checks("0.2=0.8", "class:0.2=0.75", "class:0.2=0.8", "class:0.1")
    assert [check["passed"] for check in found] == [True, True, False, False]
    assert found[2]["failed"] == [{"radius": "0.2", "part": "0", "examples": 4, "found": 0.75}]
    assert found[3]["failed"] == [{"radius": "0.5", "part": "0", "examples": 4, "found": 0.0}]
    assert "75.00 % at radius 0.2 in class 0 (4 examples)" in describe(found[2])


def test_a_slice_without_examples_fails():
    empty = Tally((0.2,), slices={"class": class_of}).summary()
    (check,) = verdict(empty, required=parse_requirements("class:0.2=0"))["checks"]
    assert not check["passed"] and "no examples" in describe(check)


def test_counts_of_parts_are_those_of_their_examples():
    parts = summary(parts=["b", "a", "b", "b", "a", "10"])["slices"]["site"]
    assert [*parts] == ["10", "a", "b"]
    assert {name: part["examples"] for name, part in parts.items()} == {"10": 1, "a": 2, "b": 3}
    assert {name: part["correct"] for name, part in parts.items()} == {"10": 1, "a": 2, "b": 2}
    assert parts["a"]["certified"] == {"0.2": 1.0, "0.5": 0.5}
    assert parts["b"]["interval"]["0.2"] == confidence_interval([2], 3, 0.95)[0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(1001), "1001 different values"),
        (np.zeros((4, 2)), "one for each of 1001 examples"),
        (np.zeros(3), "one for each of 1001 examples"),
        (np.array([{}] * 1001), "Received: object"),
        (np.array(["a" * 101] * 1001), "more than 100 characters"),
    ],
)
def test_arrays_that_slice_nothing_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        Slice.by("site", values, 1001)


def test_values_of_a_slice_are_names_that_steer_no_terminal():
    assert Slice.by("s", np.array(["a\x1b[1m", ""]), 2).parts == ("(empty)", r"a\x1b[1m")
    assert Slice.by("s", np.array([[True], [False]]), 2).parts == ("False", "True")
    assert Slice.by("s", np.array([b"\xff"]), 1).parts == (r"\xff",)
