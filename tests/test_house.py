"""The rooms of the house: no two import each other in a circle, and no file is too long to read."""

import ast
import collections
import functools
import graphlib
import importlib
import importlib.util
import io
import pathlib
import statistics
import sys
import tokenize

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "keras_curv"
FRONT_DOOR = {"__init__", "__main__"}  # they import from everywhere, and no room from them


def room_of(path: pathlib.PurePath) -> str:
    """The folder below the package, or the module's own name where it stands alone."""
    return path.parts[0].removesuffix(".py")


ROOMS = {room_of(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")} - FRONT_DOOR


def imported_rooms(source: str) -> set[str]:
    """Rooms that are imported anywhere in `source`, in functions too."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == PACKAGE.name and part[1:]} & ROOMS


@functools.cache
def arrows(package: pathlib.Path) -> dict[str, set[str]]:
    """For each room, the others that it imports."""
    graph = {room: set() for room in ROOMS}
    for path in package.rglob("*.py"):
        room = room_of(path.relative_to(package))
        if room in ROOMS:
            graph[room] |= imported_rooms(path.read_text()) - {room}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Rooms that import each other in a circle; none if there is no such circle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def module_of(path: pathlib.Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(source: str, modules: set[str]) -> set[str]:
    """Modules that are imported anywhere in `source`: in functions, and for types alone, too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            found |= inside or {node.module} & modules
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & modules
    return found


def test_modules_import_each_other_in_no_circle():
    """Packages aside, which import what is in them."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.stem not in FRONT_DOOR]
    modules = {module_of(path) for path in paths}
    graph = {module_of(path): imported_modules(path.read_text(), modules) for path in paths}
    assert len(graph) > 200 and sum(map(len, graph.values())) > 1000
    assert circle(graph) == []


def test_a_circle_for_types_alone_would_be_found():
    hidden = "if TYPE_CHECKING:\n    from keras_curv.dual import minorant\n"
    lazy = "def f():\n    from keras_curv import dual\n"
    for source in (hidden, lazy):
        assert imported_modules(source, {"keras_curv.dual"}) == {"keras_curv.dual"}


def test_rooms_import_each_other_in_no_circle():
    assert circle(arrows(PACKAGE)) == []


def test_the_imports_are_seen():
    """What the test above would miss if it read nothing."""
    graph = arrows(PACKAGE)
    assert {"numerics", "network", "curvature", "certificates", "errors", "dual"} <= ROOMS
    assert "network" in graph["curvature"] and "certificates" in graph["rows"]


def test_threats_know_networks_and_no_certificate():
    files = {"files", "npz_file"}  # of a threat, which say no more than its arguments
    assert arrows(PACKAGE)["threats"] <= {"network", "numerics", "dual", "errors"} | files


def test_a_circle_would_be_found():
    lazy = "def f():\n    from keras_curv.certificates.certifier import Certifier\n"
    assert imported_rooms(lazy) == {"certificates"}
    assert imported_rooms("import keras_curv.rows.row, keras_curv") == {"rows"}
    assert imported_rooms("from keras_curv import dual, certify") == {"dual"}
    graph = arrows(PACKAGE)
    graph = {**graph, "numerics": graph["numerics"] | imported_rooms(lazy)}
    assert {"numerics", "certificates"} <= set(circle(graph))


def code_lines(path: pathlib.Path) -> int:
    """Lines with code: docstrings, comments and blanks aside."""
    source = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    beside = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    beside.add(tokenize.ENDMARKER)
    lines = {n for t in tokens if t.type not in beside for n in range(t.start[0], t.end[0] + 1)}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines -= {*range(text.lineno, text.end_lineno + 1)}
    return len(lines)


def test_the_checker_is_short_and_stands_alone():
    paths = sorted((ROOT / "keras_curv_check").glob("*.py"))
    assert len(paths) > 5 and 500 < sum(map(code_lines, paths)) <= 2592
    known = {"keras_curv_check", "flint", "numpy", *sys.stdlib_module_names}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {name.partition(".")[0] for name in names} <= known, path


@pytest.mark.parametrize("folder", ["keras_curv", "keras_curv_check", "tests"])
def test_files_are_short(folder):
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert {str(path): count for path, count in lines.items() if count > 400} == {}
    assert statistics.median(lines.values()) < 150


def test_rooms_are_small():
    rooms = collections.Counter(path.parent for path in (ROOT / "keras_curv").rglob("*.py"))
    assert {str(room): count for room, count in rooms.items() if count > 16} == {}


def test_benchmarks_import_what_is_there():
    """They are run by hand: a name that has moved would be found then."""
    missing = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras_curv"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    inside = f"{node.module}.{alias.name}"
                    if not hasattr(module, alias.name) and not importlib.util.find_spec(inside):
                        missing.append(f"{path.name}: {inside}")
    assert missing == []


def test_no_two_files_of_tests_have_one_name():
    """Pytest imports them by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
