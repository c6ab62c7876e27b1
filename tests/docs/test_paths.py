"""What the documents name is there: files and tests in code font, flags, and targets of links."""

import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "saved_models" / "README.md",
]
MADE = {"keras_curv/methods", "keras_curv/baselines"}  # by a command, or long ago
# of ruff, Beam, Dask, absl
FOREIGN = {"format", "strict", "check", "worker_pool", "help", "nworkers", "nthreads"}
ROOMS = "keras_curv", "tests", "benchmarks", "docs", "bin", "saved_models"

_FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^|(?<=\n\n))(?: {4}[^\n]*\n|\n)+", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(ROOMS)})/[\w./-]*\w")
_TEST = re.compile(r"(?<![\w./-])test_\w+(?![\w.])")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def named(pattern, text):
    """What is named in code font within sentences; commands may name what they will write."""
    prose = _INDENTED.sub("\n", _FENCE.sub("", text))
    return {name for code in _CODE.findall(prose) for name in pattern.findall(code)}


@functools.cache
def known_flags():
    """All that stands in quotes in the code, or before a colon or an equals sign."""
    sources = [
        *(path for path in (ROOT / "bin").iterdir() if path.is_file()),
        *(ROOT / "keras_curv").rglob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
    ]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    return set(re.findall(r'(?<=")\w+(?=")|\b\w+(?=[:=])', code))


@functools.cache
def known_tests():
    """Names of all test functions."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.M)}


def links(text):
    """Relative targets of links and pictures, code left out."""
    prose = _CODE.sub("", _INDENTED.sub("\n", _FENCE.sub("", text)))
    return {link for link in _LINK.findall(prose) if not re.match(r"[a-z]+:", link)}


def anchors(text):
    """What GitHub calls the headings: lower case, no punctuation, hyphens for spaces."""
    words = (re.sub(r"[^\w\- ]", "", title).lower() for title in _HEADING.findall(text))
    return {title.replace(" ", "-") for title in words}


def missing(document):
    """All that a document names and that is not there."""
    text = document.read_text(encoding="utf-8")
    absent = [
        path for path in named(_PATH, text) if not (ROOT / path).exists() and path not in MADE
    ]
    absent += [name for name in named(_TEST, text) if name not in known_tests()]
    for link in links(text):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists():
            absent.append(link)
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            absent.append(link)
    return sorted(absent)


documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))


@documents
def test_all_that_is_named_is_there(document):
    assert missing(document) == []


@documents
def test_flags_in_the_text_exist(document):
    named = set(re.findall(r"(?<![\w-])--(\w+)", document.read_text(encoding="utf-8"))) - FOREIGN
    assert not named - known_flags()


def test_the_test_would_notice(tmp_path):
    document = tmp_path / "some.md"
    document.write_text(
        "# A title, or two\n\n"
        "`keras_curv/dual.py`, `keras_curv/no_such.py` and `python tests/no_such.py --flag`;\n"
        "`test_no_such`, `test_the_test_would_notice`;\n"
        "[a](some.md#a-title-or-two) [b](#no-such) [c](no_such.md) [d](https://example.org/x)\n\n"
        "    bin/train --output saved_models/to_be_written `keras_curv/neither.py`\n",
        encoding="utf-8",
    )
    assert missing(document) == [
        "#no-such",
        "keras_curv/no_such.py",
        "no_such.md",
        "test_no_such",
        "tests/no_such.py",
    ]
