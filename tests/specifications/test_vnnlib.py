"""Files of VNN-LIB are read as they are meant, and refused by name where they are not supported."""

from fractions import Fraction

import numpy as np
import pytest

from keras_curv.errors import InputError
from keras_curv.specifications.counterexamples import conditions_of
from keras_curv.specifications.margins import Boxes, refuted_by, rounded_down, rounded_up
from keras_curv.specifications.vnnlib import Condition, parse_vnnlib, read_vnnlib

DECLARED = "".join(f"(declare-const {v} Real)" for v in ("X_0", "X_1", "Y_0", "Y_1", "Y_2"))
BOX = "(assert (<= X_0 0.1)) (assert (>= X_0 -1)) (assert (and (<= X_1 2) (>= X_1 1e-3)))"


def parsed(text):
    return parse_vnnlib(DECLARED + BOX + text, "file.vnnlib")


def holding(case, y):
    return all(condition.holds(y) for condition in case.conditions)


@pytest.mark.parametrize(
    ("text", "unsafe", "safe"),
    [
        ("(assert (<= Y_0 Y_1))", [[1, 1, 0], [0, 1, 0]], [[1.5, 1, 0]]),
        ("(assert (< Y_0 Y_1))", [[0, 1, 0]], [[1, 1, 0]]),
        ("(assert (>= Y_0 0.1))", [[1, 0, 0]], [[0.1 - 1e-17, 0, 0], [0, 9, 9]]),
        ("(assert (> (+ Y_0 (* -2 Y_1) 1) (- Y_2)))", [[1, 0, 0]], [[1, 1, 0]]),
        ("(assert (<= (- Y_0 Y_1 1) (- 0.5)))", [[1, 1, 0]], [[2, 1, 0]]),
        (
            "(assert (or (<= Y_0 0) (and (>= Y_1 1) (>= Y_2 1))))",
            [[1, 1, 1], [0, 0, 0]],
            [[1, 1, 0]],
        ),
        (
            "(assert (and (>= Y_0 0) (or (>= Y_1 1) (>= Y_2 1))))",
            [[0, 0, 1]],
            [[-1, 1, 1], [0, 0, 0]],
        ),
        ("(assert (or (<= Y_0 0) (<= Y_1 0)))(assert (>= Y_2 1))", [[0, 1, 1]], [[0, 0, 0]]),
        ("; a comment (\n(assert (<= (* (- 2.5) Y_0) -5e0))", [[2, 0, 0]], [[1.9, 0, 0]]),
    ],
)
def test_conditions_mean_what_they_say(text, unsafe, safe):
    cases = parsed(text).cases
    for y in unsafe:
        assert any(holding(case, y) for case in cases)
    for y in safe:
        assert not any(holding(case, y) for case in cases)


def test_boxes_are_exact_and_may_differ_by_case():
    (case,) = parsed("").cases
    assert case.low == (-1, Fraction(1, 1000)) and case.high == (Fraction(1, 10), 2)
    assert not case.conditions
    halves = "(assert (or (and (<= X_0 0) (<= Y_0 0)) (and (>= X_0 0.05) (<= Y_1 0))))"
    first, second = parsed(halves).cases
    assert (
        first.high[0] == 0 and second.low[0] == Fraction(1, 20) and second.high[0] == case.high[0]
    )
    nothing = "(assert (or (and (>= X_0 0.2) (<= Y_0 0)) (<= Y_1 0)))"  # above the limit of X_0
    assert len(parsed(nothing).cases) == 1
    scaled = parsed("(assert (<= (* -4 X_0) 2))").cases[0]
    assert scaled.low[0] == Fraction(-1, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(assert (<= (* Y_0 Y_1) 1))", r"\(\* Y_0 Y_1\).* is not supported; sums are linear"),
        ("(assert (<= (+ X_0 X_1) 1))", "is about several inputs, which must be in a box"),
        ("(assert (<= X_0 Y_1))", "is about both inputs and outputs"),
        ("(assert (<= 1 2))", "is about no variable"),
        ("(assert (not (<= Y_0 1)))", r"\(not .* is not supported; conditions are and, or"),
        ("(assert (<= Y_0))", "is not supported"),
        ("(assert (<= Y_3 1))", "'Y_3' is no number and no declared variable"),
        ("(assert (<= Y_0 nan))", "'nan' is no number"),
        ("(assert (<= Y_0 1e999))", "has a number above 1e[+]150"),
        ("(assert (<= Y_0 1)", "a parenthesis is not closed"),
        ("(assert (<= Y_0 1)))", "stands outside of parentheses"),
        ("(declare-const Y_0 Real)", "declared once"),
        ("(declare-const Z Real)", "must be X_0, X_1"),
        ("(declare-const X_3 Real)", "X_2 is not declared"),
        ("(declare-const X_2 Real)", "X_2 has no lower limit"),
        ("(declare-const X_2 Real)(assert (>= X_2 0))", "X_2 has no upper limit"),
        ("(declare-fun f (Real) Real)", "is not supported; declare-const"),
        ("(assert " + "(or " * 60 + ")" * 61, "more than 50 parentheses"),
        ("(assert (or " + "(<= Y_0 1)" * 101 + "))" + "(assert (or " + "(<= Y_0 1)" * 100 + "))",
         "more than 10000 cases"),
        ("(assert (<= " + "(* 1e99 " * 20 + "Y_0" + ")" * 20 + " 1))", "more than 4096 bits"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(text, said):
    with pytest.raises(InputError, match=said):
        parsed(text)


def test_files_are_read_up_to_a_limit(tmp_path):
    path = tmp_path / "a.vnnlib"
    path.write_text(DECLARED + BOX)
    assert read_vnnlib(path).outputs == 3
    path.write_text(DECLARED + BOX + " " * 2**20)
    with pytest.raises(InputError, match=r"a\.vnnlib cannot be read: .*more than 1048576 bytes"):
        read_vnnlib(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        read_vnnlib(path)


def test_ends_are_rounded_outward():
    tenth = Fraction(1, 10)
    assert Fraction(rounded_down(tenth)) < tenth < Fraction(rounded_up(tenth))
    assert rounded_down(-tenth) == -rounded_up(tenth) and rounded_up(Fraction(1, 4)) == 0.25


def test_weights_that_float64_cannot_hold_are_multiplied_up():
    third = Condition(((0, Fraction(1, 3)), (2, Fraction(-2))), Fraction(1, 3), False)
    assert refuted_by([third]).spelling == "linear:y0-6.0*y2>1.0"
    with pytest.raises(InputError, match="53 bits"):
        refuted_by([Condition(((0, Fraction(2**60 + 1, 2**61)),), Fraction(0), False)])


def test_conditions_that_cases_share_are_numbered_once():
    instance = parsed("(assert (or (<= Y_0 0) (and (<= Y_0 0) (<= Y_1 0))))")
    conditions, of = conditions_of(instance.cases)
    assert len(conditions) == 2 and [some.tolist() for some in of] == [[0], [0, 1]]


@pytest.mark.parametrize("seed", range(5))
def test_balls_cover_boxes(seed):
    """Corners are within the radius in exact arithmetic, and hardly more is covered."""
    random = np.random.default_rng(seed)
    low = random.normal(size=(1, 6)) * 10.0 ** random.integers(-8, 8, 6)
    width = np.abs(low) * 10.0 ** random.integers(-6, 3, 6) * random.integers(0, 3, 6)
    width[0, 0], width[0, 1] = 0.0, np.spacing(abs(low[0, 1]))  # no width, and hardly any
    boxes = Boxes(low, low + width)
    factor, frozen = boxes.threat.factors(6)
    assert boxes.radius[0] < 1.0001
    for entry in np.flatnonzero(~frozen):
        for end in (boxes.low[0, entry], boxes.high[0, entry]):
            u = Fraction(end) / Fraction(factor[entry])
            away = abs(u - Fraction(boxes.points[0, entry]))
            assert away <= Fraction(boxes.radius[0])
    assert (boxes.low[0, frozen] == boxes.high[0, frozen]).all()
