"""Reads VNN-LIB files: a box of inputs X_i, and the outputs Y_j that are unsafe in it.

A file is a list of s-expressions,

    (declare-const X_0 Real)  (declare-const Y_0 Real)
    (assert (<= X_0 0.5))  (assert (>= X_0 -0.5))
    (assert (or (and (<= Y_0 Y_1) (<= Y_0 2.0)) (>= Y_1 4.0)))

and is unsafe where all assertions hold. It is read as a disjunction of cases, each a box and a
conjunction of conditions `Σ w_j y_j ≤ c`. Numbers are kept as fractions, so nothing is rounded.

Refused by name: products of variables, one condition on inputs and outputs or on several inputs,
an input without limits, anything else of SMT-LIB. A file may have 1 MiB and 10,000 cases.

Reference: the VNN-LIB standard 1.0, as the competitions VNN-COMP use it; https://www.vnnlib.org.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from keras_curv.errors import about
from keras_curv.files import read_named
from keras_curv.threats.arrays import LARGEST

MOST_BYTES = 2**20
_CASES = 10_000
_CONDITIONS = 1_000_000  # of all cases together, and limits
_TOO_MANY = f"it has more than {_CASES} cases, or {_CONDITIONS} conditions in them"
_BITS = 4096  # of a factor
_LARGEST = Fraction(LARGEST)
_DEEP = 50  # parentheses in one another
_TOKEN = re.compile(r"[()]|;[^\n]*|[^\s();]+")
_NUMBER = re.compile(r"[+-]?(?=[0-9.])[0-9]{0,40}(\.[0-9]{0,40})?(e[+-]?[0-9]{1,3})?", re.I | re.A)
_NAME = re.compile(r"([XY])_(0|[1-9][0-9]{0,6})", re.ASCII)
_IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
_COMPARISONS = ("<=", ">=", "<", ">")


class Condition(NamedTuple):
    """The condition `Σ w_j y_j ≤ c` on outputs."""

    weights: tuple[tuple[int, Fraction], ...]  # pairs (j, w_j) by rising j, none of them 0
    most: Fraction  # c
    strict: bool  # whether equality is excluded

    def holds(self, y: Iterable[float]) -> bool:
        """Returns whether it holds for these outputs, which count as exact; not if one is NaN."""
        values = [*y]
        with about("an output is not finite", (ValueError, OverflowError)):
            total = sum((w * Fraction(float(values[j])) for j, w in self.weights), Fraction(0))
        return total < self.most or (total == self.most and not self.strict)


class Case(NamedTuple):
    """A box of inputs, and conditions on the outputs that are unsafe if they all hold there."""

    low: tuple[Fraction, ...]  # low, high: limits of each input, in the order of X_0, X_1, …
    high: tuple[Fraction, ...]
    conditions: tuple[Condition, ...]  # none: all outputs are unsafe


class Instance(NamedTuple):
    """What a VNN-LIB file says."""

    name: str  # of the file
    inputs: int  # inputs, outputs: how many it declares
    outputs: int
    # where one of them holds, the model is unsafe; boxes without a point are left out
    cases: tuple[Case, ...]


class _Atom(NamedTuple):
    """`Σ weights · variable ≤ most`, variables of one kind, X or Y."""

    kind: str
    condition: Condition


_Conjunction = tuple[_Atom, ...]


def read_vnnlib(path: str | os.PathLike) -> Instance:
    """Reads an instance from a file; InputError says what cannot be read."""
    with about(f"{os.fspath(path)} cannot be read", (OSError, UnicodeDecodeError)):
        text = read_named(pathlib.Path(path), MOST_BYTES).decode()
    return parse_vnnlib(text, os.fspath(path))


def parse_vnnlib(text: str, name: str = "the instance") -> Instance:
    """Returns the instance that a text of VNN-LIB states.

    Args:
        text: the content of a file.
        name: for messages.

    Raises:
        InputError: it is no VNN-LIB, or has what is not supported; says which.

    Example:
        >>> instance = parse_vnnlib('''
        ...     (declare-const X_0 Real) (declare-const Y_0 Real)
        ...     (assert (and (<= X_0 1) (>= X_0 -0.5)))
        ...     (assert (or (<= Y_0 -2) (>= (* 2.0 Y_0) 3)))''')
        >>> [[str(condition.most) for condition in case.conditions] for case in instance.cases]
        [['-2'], ['-3']]
    """
    with about(name, (ValueError,)):
        declared: set[str] = set()
        asserted: list[list[_Conjunction]] = []
        for command in _expressions(text):
            match command:
                case ["declare-const", str(variable), "Real"]:
                    declared.add(_declared(variable, declared))
                case ["declare-fun", str(variable), [], "Real"]:
                    declared.add(_declared(variable, declared))
                case ["assert", formula]:
                    asserted.append(_cases(formula, declared))
                case [str(word), *_] if word in _IGNORED:
                    continue
                case _:
                    raise ValueError(
                        f"{_shown(command)} is not supported; declare-const … Real and assert are"
                    )
        inputs, outputs = (_count(declared, kind) for kind in "XY")
        return Instance(name, inputs, outputs, tuple(_boxes(*_parted(asserted), inputs)))


def _expressions(text: str) -> Iterator[Any]:
    """Yields the s-expressions of a text: lists of words and of lists."""
    stack: list[list] = []
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token[0] == ";":
            continue
        if token == "(":
            if len(stack) >= _DEEP:
                raise ValueError(f"more than {_DEEP} parentheses in one another")
            stack.append([])
            continue
        if not stack:
            raise ValueError(f"{token[:40]!r} stands outside of parentheses")
        if token != ")":
            stack[-1].append(token)
            continue
        done = stack.pop()
        if stack:
            stack[-1].append(done)
        else:
            yield done
    if stack:
        raise ValueError("a parenthesis is not closed")


def _declared(variable: str, before: set[str]) -> str:
    if _NAME.fullmatch(variable) is None or variable in before:
        raise ValueError(f"{variable[:40]!r} must be X_0, X_1, … or Y_0, Y_1, …, declared once")
    return variable


def _count(declared: set[str], kind: str) -> int:
    """Returns how many variables of a kind there are, if none is left out."""
    count = sum(name[0] == kind for name in declared)
    missing = [i for i in range(count) if f"{kind}_{i}" not in declared]
    if missing or not count:
        raise ValueError(f"{kind}_{missing[0] if missing else 0} is not declared")
    return count


def _cases(formula: Any, declared: set[str]) -> list[_Conjunction]:
    """Returns the disjunction of conjunctions that a formula is."""
    match formula:
        case ["and", *parts]:
            shared, alternatives = _parted([_cases(part, declared) for part in parts])
            return [(*shared, *more) for more in alternatives]
        case ["or", first, *others]:
            found = [*_cases(first, declared)]
            for part in others:
                found += _cases(part, declared)
                if len(found) > _CASES:
                    raise ValueError(_TOO_MANY)
            return found
        case [str(word), left, right] if word in _COMPARISONS:
            return [(_atom(word, left, right, declared),)]
    raise ValueError(
        f"{_shown(formula)} is not supported; conditions are and, or, and <=, >=, <, > of two sums"
    )


def _parted(formulas: Iterable[list[_Conjunction]]) -> tuple[list[_Atom], list[_Conjunction]]:
    """Returns the conjunction of some formulas: what always holds, and in which cases."""
    shared: list[_Atom] = []
    alternatives: list[_Conjunction] = [()]
    for cases in formulas:
        if len(cases) == 1:
            shared += cases[0]
            continue
        counts = len(alternatives), len(cases)
        size = sum(map(len, alternatives)) * counts[1] + sum(map(len, cases)) * counts[0]
        if counts[0] * counts[1] > _CASES or size > _CONDITIONS:
            raise ValueError(_TOO_MANY)
        alternatives = [(*one, *other) for one in alternatives for other in cases]
    if len(shared) * (len(alternatives) - 1) > _CONDITIONS and len(alternatives) > 1:
        raise ValueError(_TOO_MANY)
    return shared, alternatives


def _atom(word: str, left: Any, right: Any, declared: set[str]) -> _Atom:
    """Returns a comparison of two sums as one condition."""
    turn = 1 if word[0] == "<" else -1
    weights: dict[str, Fraction] = {}
    constant = _add(left, Fraction(turn), weights, declared)
    constant += _add(right, Fraction(-turn), weights, declared)
    weights = {variable: weight for variable, weight in weights.items() if weight}
    kinds = {variable[0] for variable in weights}
    wrong = None
    if len(kinds) != 1:
        what = "both inputs and outputs" if kinds else "no variable"
        wrong = f"is about {what}; it must be about inputs or about outputs"
    elif "X" in kinds and len(weights) > 1:
        wrong = "is about several inputs, which must be in a box"
    elif any(abs(number) > _LARGEST for number in (*weights.values(), constant)):
        wrong = f"has a number above {LARGEST:g}"
    if wrong:
        raise ValueError(f"{_shown([word, left, right])} {wrong}")
    kind = kinds.pop()
    numbered = sorted((int(variable[2:]), weight) for variable, weight in weights.items())
    return _Atom(kind, Condition(tuple(numbered), -constant, len(word) == 1))


def _add(term: Any, factor: Fraction, weights: dict[str, Fraction], declared: set[str]) -> Fraction:
    """Adds `factor · term` to the weights of variables, and returns its constant."""
    match term:
        case str() if term in declared:
            weights[term] = weights.get(term, Fraction(0)) + factor
            return Fraction(0)
        case str():
            return factor * _number(term)
        case ["+", *parts] if parts:
            return sum((_add(part, factor, weights, declared) for part in parts), Fraction(0))
        case ["-", only]:
            return _add(only, -factor, weights, declared)
        case ["-", first, *parts] if parts:
            constant = _add(first, factor, weights, declared)
            return sum((_add(part, -factor, weights, declared) for part in parts), constant)
        case ["*", str(number), other] if number not in declared:
            return _add(other, _product(factor, number), weights, declared)
        case ["*", ["-", str(number)], other] if number not in declared:
            return _add(other, -_product(factor, number), weights, declared)
        case ["*", other, str(number)] if number not in declared:
            return _add(other, _product(factor, number), weights, declared)
    raise ValueError(f"{_shown(term)} is not supported; sums are linear, as (+ (* 2.0 Y_0) Y_1 1)")


def _product(factor: Fraction, number: str) -> Fraction:
    product = factor * _number(number)
    if max(product.numerator.bit_length(), product.denominator.bit_length()) > _BITS:
        raise ValueError(f"factors of more than {_BITS} bits")
    return product


def _number(text: str) -> Fraction:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is no number and no declared variable")
    return Fraction(text)


def _boxes(shared: list[_Atom], alternatives: list[_Conjunction], inputs: int) -> Iterator[Case]:
    """Yields the cases whose box has a point; those of the same box share its limits."""
    low, high = _narrowed({}, {}, shared)
    common = tuple(atom.condition for atom in shared if atom.kind == "Y")
    ends = None
    total = 0
    for atoms in alternatives:
        conditions = (*common, *(atom.condition for atom in atoms if atom.kind == "Y"))
        total += len(conditions)
        if any(atom.kind == "X" for atom in atoms):
            limits = _complete(*_narrowed(low, high, atoms), inputs)
            total += inputs
        else:
            limits = ends = ends or _complete(low, high, inputs)
        if total > _CONDITIONS:
            raise ValueError(_TOO_MANY)
        if all(least <= most for least, most in zip(*limits, strict=True)):
            yield Case(*limits, tuple(dict.fromkeys(conditions)))


_Limits = dict[int, Fraction]


def _narrowed(low: _Limits, high: _Limits, atoms: Iterable[_Atom]) -> tuple[_Limits, _Limits]:
    """Returns narrower limits of inputs; a strict limit counts as one that is reached."""
    low, high = dict(low), dict(high)
    for atom in atoms:
        if atom.kind == "X":
            ((index, weight),) = atom.condition.weights
            at = atom.condition.most / weight
            if weight > 0:
                high[index] = min(at, high.get(index, at))
            else:
                low[index] = max(at, low.get(index, at))
    return low, high


def _complete(
    low: _Limits, high: _Limits, inputs: int
) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    """Returns the limits of all inputs; ValueError if one has none."""
    for limits, name in ((low, "lower"), (high, "upper")):
        missing = [index for index in range(inputs) if index not in limits]
        if missing:
            raise ValueError(f"X_{missing[0]} has no {name} limit")
    return tuple(low[i] for i in range(inputs)), tuple(high[i] for i in range(inputs))


def _shown(expression: Any) -> str:
    """Returns the beginning of an expression as it was written."""
    text = str(expression)[:200].replace(",", "").replace("'", "")
    return repr(text.replace("[", "(").replace("]", ")")[:80])
