"""Mutants of what proofs rest on: a charge dropped, an inequality turned. Tests must notice each.

    nice python benchmarks/mutants.py
    nice python benchmarks/mutants.py --only rounding

Each mutant is one change of one function: of `FUNCTIONS` every change that `replacements` knows,
and those spelled out in `TEXTS` (`mutant_list.py`). Its code takes the place of the function's own,
in this process, and the stated tests run until one fails. What is `SPARED` cannot be noticed, for
the reason beside it; anything else that no test notices is a proof with a hole, and the exit status
is 1.
"""

import argparse
import ast
import contextlib
import gc
import importlib
import inspect
import io
import os
import pathlib
import signal
import sys
import time
import types
import typing
from collections.abc import Iterable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pytest
from mutant_list import ALL_TESTS, FUNCTIONS, SPARED, TESTS, TEXTS

from keras_curv.network import shared_graph

SECONDS = (
    60.0  # of computing, for the tests of one mutant: one that keeps them waiting is noticed, too
)
LESS = {"maximum": "minimum", "fmax": "fmin", "reduce_max": "reduce_min", "max": "min"}
OPPOSITE = LESS | {less: more for more, less in LESS.items()}
TURNED = {
    ast.Gt: ast.Lt,
    ast.Lt: ast.Gt,
    ast.GtE: ast.LtE,
    ast.LtE: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
# What a name stands for once its charge is dropped.
NOTHING = {"ROUNDING_SLACK": 1.0} | dict.fromkeys(
    ("UNIT", "TINY", "SLOPE_FLOOR", "CURVATURE_FLOOR", "ACTIVATION_TINY"), 0.0
)


class Mutant(typing.NamedTuple):
    """One change of a module."""

    module: str
    line: int
    change: str
    source: ast.Module | str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.line}: {self.change}"


def name_of(node: ast.AST) -> str:
    """The last part of a dotted name; else nothing."""
    return getattr(node, "attr", getattr(node, "id", ""))


def is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node, once a charge is gone or an inequality turned.

    Of a sum each term is left out by itself, but for numbers that are added to counts.
    """
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            if not isinstance(right, ast.Constant):
                yield left
            if not is_sum(left):
                yield right
        case ast.BinOp(left=left, op=ast.Sub()):
            yield left
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
            yield from (left, right)
        case ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=operand):
            yield operand
        case ast.Compare(ops=[op]) if type(op) in TURNED:
            yield ast.Compare(node.left, [TURNED[type(op)]()], node.comparators)
        case ast.Call(func=function, args=[first, *others]):
            called = name_of(function)
            if called in OPPOSITE and isinstance(function, ast.Attribute):
                other = ast.Attribute(function.value, OPPOSITE[called], ast.Load())
                yield ast.Call(other, node.args, node.keywords)
            elif called == "gamma":
                yield ast.Constant(0.0)
            elif called in ("up", "nextafter", "_above", "abs"):
                yield first
            elif called == "where" and len(others) == 2:
                yield from others
        case ast.Name() | ast.Attribute() if isinstance(node.ctx, ast.Load):
            if name_of(node) in NOTHING:
                yield ast.Constant(NOTHING[name_of(node)])
        case ast.AugAssign():
            yield ast.Pass()


def places(node: ast.AST) -> Iterator[tuple[typing.Any, typing.Any, ast.AST]]:
    """Where nodes stand below this one: container, key, node; not in counts of roundings."""
    for field, value in ast.iter_fields(node):
        if field in ("args", "annotation", "returns", "decorator_list") and not isinstance(
            node, ast.Call
        ):
            continue
        for key, child in enumerate(value) if isinstance(value, list) else [(field, value)]:
            if isinstance(child, ast.AST):
                counted = name_of(getattr(node, "func", node)) == "up" and key != 0
                if not counted:
                    yield (value if isinstance(value, list) else node), key, child
                    yield from places(child)


@contextlib.contextmanager
def put(container: typing.Any, key: typing.Any, node: ast.AST) -> Iterator[None]:
    """Puts a node in a place for a while."""
    change = (
        container.__setitem__ if isinstance(key, int) else lambda k, v: setattr(container, k, v)
    )
    before = container[key] if isinstance(key, int) else getattr(container, key)
    change(key, ast.copy_location(node, before))
    yield
    change(key, before)


def changed(before: str, after: str) -> str:
    """Says what becomes of some code, of a sum what it loses."""
    if before.startswith(after):
        return f"… {before.removeprefix(after).strip()} left out"
    if before.endswith(after):
        return f"{before.removesuffix(after).strip()} … left out"
    return f"{before} → {after}"


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions by their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def mutants() -> Iterator[Mutant]:
    """All of them; each is to be used before the next one is asked for."""
    for module, names in FUNCTIONS.items():
        tree = ast.parse(inspect.getsource(imported(module)))
        found = dict(functions(tree))
        for name in names:
            for container, key, node in list(places(found[name])):
                for other in replacements(node):
                    change = f"{name}: {changed(ast.unparse(node), ast.unparse(other))}"
                    with put(container, key, other):
                        yield Mutant(module, node.lineno, change, ast.fix_missing_locations(tree))
    for module, changes in TEXTS.items():
        source = inspect.getsource(imported(module))
        for old, new in changes:
            assert source.count(old) == 1, f"{module}: {source.count(old)} times: {old}"
            line = source[: source.index(old)].count("\n") + 1
            yield Mutant(module, line, f"{old.strip()} → {new}", source.replace(old, new))


def imported(module: str) -> types.ModuleType:
    return importlib.import_module(f"keras_curv.{module}")


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code of functions, of modules and classes alike."""
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield part
            yield from codes(part)


def live_functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """Functions of a module by their qualified names, those of classes too."""
    found = {}
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            for attribute in ("__func__", "fget", "func"):
                member = getattr(member, attribute, member)
            member = inspect.unwrap(member) if callable(member) else member
            if isinstance(member, types.FunctionType) and member.__module__ == module.__name__:
                found[member.__qualname__] = member
    return found


@contextlib.contextmanager
def in_place(mutant: Mutant) -> Iterator[None]:
    """Gives the module's functions the mutant's code for a while, wherever they were imported."""
    module = imported(mutant.module)
    code = compile(mutant.source, module.__file__, "exec", dont_inherit=True)
    live = live_functions(module)
    before = {name: function.__code__ for name, function in live.items()}
    changed = 0
    for part in codes(code):
        if part.co_qualname in live:
            changed += part != before[part.co_qualname]
            live[part.co_qualname].__code__ = part
    shared_graph.shared.cache_clear()
    try:
        assert changed, f"{mutant.name} changes nothing"
        yield
    finally:
        for name, function in live.items():
            function.__code__ = before[name]
        shared_graph.shared.cache_clear()
        gc.collect()


def noticed(tests: Iterable[str]) -> str:
    """The first test that fails, with what is now in place; else nothing."""
    report = io.StringIO()
    quiet = [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "addopts=",
        "-x",
        "-q",
        "--no-header",
    ]
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with contextlib.redirect_stdout(report), contextlib.redirect_stderr(report):
            status = pytest.main([*quiet, "--tb=no", "-rfE", *tests])
    except TimeoutError:
        return "time"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    failed = [line for line in report.getvalue().splitlines() if line.startswith(("FAILED", "ERR"))]
    if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return failed[0].split("::", 1)[-1].split(" - ")[0] if status else ""
    sys.exit(f"the tests did not run:\n{report.getvalue()}")


def too_long(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="only mutants with this in their names")
    parser.add_argument("--list", action="store_true", help="names them, without any test")
    args = parser.parse_args()
    os.chdir(ROOT)
    signal.signal(signal.SIGPROF, too_long)
    killed, survivors, spared = 0, [], []
    if not args.list and (failed := noticed(ALL_TESTS)):
        sys.exit(f"without a mutant, {failed} fails")
    for mutant in mutants():
        if args.only not in mutant.name:
            continue
        if args.list:
            print(mutant.name)
            continue
        began = time.monotonic()
        with in_place(mutant):
            test = noticed(TESTS.get(mutant.module, ALL_TESTS[-1:]))
        reason = SPARED.get((mutant.module, mutant.change))
        killed += bool(test)
        if not test:
            (spared if reason else survivors).append(mutant.name)
        said = f"killed by {test}" if test else f"spared: {reason}" if reason else "SURVIVED"
        if test and reason:
            said += " though it is spared"
        print(f"{time.monotonic() - began:5.1f} s  {mutant.name}  {said}", flush=True)
    print(f"{killed} killed, {len(spared)} spared, {len(survivors)} survived")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
