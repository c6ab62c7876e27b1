"""Malicious files other than models, for the tests and for `benchmarks/hostile.py`.

`KINDS[kind].CASES[name](folder)` puts one into a folder that has a file `outside` beside it, and
`KINDS[kind].attempt(folder)` takes it. It must be refused by an InputError, or be taken for what it
is; nothing may happen to the file outside.
"""

from hostile_inputs import (
    archives,
    flags,
    folders,
    keras_files,
    keras_weights,
    logs,
    properties,
    rows,
    shards,
    threats,
    trainings,
)

KINDS = {
    "npz": archives,
    "keras": keras_files,
    "keras weights": keras_weights,
    "threat": threats,
    "property": properties,
    "flagfile": flags,
    "log": logs,
    "rows": rows,
    "shards": shards,
    "training": trainings,
    "folder": folders,
}
OUTSIDE = "outside"
