"""Malicious SavedModels, for the tests and for `benchmarks/hostile.py`.

`CASES[name](folder, canary)` builds one, as `folder`; if any of it ran as its author wants, a file
`canary` would be there. What is hostile in `HARMLESS` lies where nobody looks: these are read as if
without it.
"""

from hostile_models import (
    calls,
    constants,
    files,
    index,
    lists,
    loaders,
    loading,
    messages,
    names,
    ops,
    products,
    restoring,
    shapes,
    signatures,
    variants,
    work,
)

KINDS = (
    *(ops, files, index, shapes, constants, loading),
    *(lists, calls, messages, restoring, signatures, names, loaders, variants, work, products),
)
CASES = {name: build for kind in KINDS for name, build in kind.CASES.items()}
HARMLESS = {name: build for kind in KINDS for name, build in getattr(kind, "HARMLESS", {}).items()}
