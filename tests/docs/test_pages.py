"""What the pages name is there: files, headings and flags."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "saved_models" / "README.md",
]
FOREIGN = {"format", "check", "docformat", "worker_pool", "help"}  # of ruff, pdoc, Beam and absl

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchor(heading):
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pages
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if heading:
            text = linked.read_text(encoding="utf-8")
            assert heading in map(anchor, re.findall(r"^#+ (.*)$", text, re.M)), target


@pages
def test_paths_in_the_text_exist(page):
    rooms = "keras_curv|tests|benchmarks|bin|docs"
    named = re.findall(rf"`((?:{rooms})/[\w./]+)`", page.read_text(encoding="utf-8"))
    made = {"docs/api"}  # by a command of the page
    assert not [path for path in named if path not in made and not (ROOT / path).exists()]


@pages
def test_flags_in_the_text_exist(page):
    sources = [
        *(path for path in (ROOT / "bin").iterdir() if path.is_file()),
        *(ROOT / "keras_curv").rglob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
    ]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = set(re.findall(r"(?<![\w-])--(\w+)", page.read_text(encoding="utf-8"))) - FOREIGN
    assert not [flag for flag in named if not re.search(rf'"{flag}"|\b{flag}:', code)]
