"""Hooks of `mkdocs build`: the first page, pages from beside `docs`, and the API by pdoc."""

import pathlib
import re
import warnings

import pdoc
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
_OVERVIEW = "overview.md"  # as README.md would be a second first page
BESIDE = ["*.md", "benchmarks/**/*.md", "benchmarks/**/*.png", "saved_models/*.md"]
BESIDE += ["saved_models/*/CARD.md", "saved_models/*.json", "saved_models/*.npz"]
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^()\s]+)(?=\))")


def on_files(files, config):
    """Adds the pages beside `docs` under their own names, and a first page from the tutorial."""
    for path in [path for pattern in BESIDE for path in sorted(ROOT.glob(pattern))]:
        name = _OVERVIEW if path == ROOT / "README.md" else str(path.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(path)))
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    table = re.search(r"^## \d+\. Your model.*?(?=^## )", tutorial, re.DOTALL | re.MULTILINE)
    first = re.sub(r"^## \d+\.", "#", table[0])
    files.append(File.generated(config, "index.md", content=first + _NEXT))
    return files


_NEXT = """
The [five stories](gallery.md) show one whole use each. The [tutorial](tutorial.md) takes
ten minutes.
The [overview](overview.md) says how to install the library, and what it has reached.
"""


def on_page_markdown(markdown, page, config, files):
    """Makes links between `docs` and what lies beside it links within the site."""
    name = page.file.src_uri
    source = ROOT / ("README.md" if name == _OVERVIEW else name)
    source = source if source.exists() else ROOT / "docs" / name
    steps = [".."] * (len(pathlib.PurePath(name).parts) - 1)

    def within(link):
        path, mark, anchor = link[0].partition("#")
        target = (source.parent / path).resolve()
        if target == ROOT / "README.md":
            target = ROOT / _OVERVIEW
        base = ROOT / "docs" if target.is_relative_to(ROOT / "docs") else ROOT
        parts = target.relative_to(base).parts if target.is_relative_to(ROOT) else (path,)
        return "/".join([*steps, *parts]) + mark + anchor

    return _LINK.sub(within, markdown)


def on_post_build(config):
    """Writes the pages of the API, from docstrings."""
    pdoc.render.configure(docformat="google")
    # It evaluates annotations of records where they are named again, without their imports.
    warnings.filterwarnings("ignore", "Error parsing type annotation", UserWarning)
    pdoc.pdoc("keras_curv", output_directory=pathlib.Path(config.site_dir, "api"))
