"""Examples from an .npz file."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib

import numpy as np

from keras_curv.data.examples import Examples
from keras_curv.errors import InputError


def load_npz(path: str) -> Examples:
    """Reads the arrays `x`, and `y` if there are labels, of an `.npz` file.

    Raises:
        InputError: there is no such file, it is no npz file, it has no array `x`, or `y` has
            another length.
    """
    try:
        if not pathlib.Path(path).is_file():
            what = "is no file" if pathlib.Path(path).exists() else "does not exist"
            raise InputError(f"{path} {what}; give an .npz file with an array x")
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is not an .npz file; write one with np.savez(path, x=x, y=y)")
        with archive:
            arrays = {key: archive[key] for key in archive.files if key in ("x", "y")}
            names = archive.files
    except InputError:
        raise
    except Exception as error:  # zipfile, OSError, ValueError: whatever a broken file raises
        raise InputError(f"{path} cannot be read as an .npz file: {error}") from error
    if "x" not in arrays:
        raise InputError(f"{path} has no array 'x'; it has: {', '.join(names) or 'none'}")
    examples = Examples.from_arrays(path, arrays["x"], arrays.get("y"))
    name, origin = pathlib.Path(path).name, functools.partial(load_npz, os.path.abspath(path))
    return dataclasses.replace(examples, name=name, path=path, origin=origin)
