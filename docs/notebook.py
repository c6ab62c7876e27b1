"""Writes `gallery.ipynb`, the five stories as a notebook: `python docs/notebook.py`.

`gallery.md` is where they are written; a test holds that the notebook says the same.
"""

import json
import pathlib
import re
from typing import Any

DOCS = pathlib.Path(__file__).resolve().parent
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_START = "%cd -q .."  # to the checkout's folder, where the stories run


def notebook_of(page: str) -> dict[str, Any]:
    """Returns the notebook of a page: its text, and a cell to run for each of its blocks.

    Example:
        >>> notebook = notebook_of("How?\\n\\n```sh\\nkeras_curv read --help\\n```\\n")
        >>> [cell["source"] for cell in notebook["cells"]]
        ['%cd -q ..', 'How?', '!keras_curv read --help']
    """
    cells, place = [("code", _START)], 0
    for block in _BLOCK.finditer(page):
        cells.append(("markdown", page[place : block.start()].strip()))
        cells.append(("code", _code(*block.groups())))
        place = block.end()
    cells.append(("markdown", page[place:].strip()))
    return {
        "cells": [_cell(number, *cell) for number, cell in enumerate(cells) if cell[1]],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _code(language: str, block: str) -> str:
    """Returns what a cell runs: a command by the shell, whose status a notebook does not show."""
    if language == "python":
        return block.strip()
    return "!" + re.sub(r"\n# status \d+\n$", "", block).strip()


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    run = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source, **run}


def main() -> None:
    """Writes the notebook beside the page."""
    notebook = notebook_of((DOCS / "gallery.md").read_text(encoding="utf-8"))
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (DOCS / "gallery.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
