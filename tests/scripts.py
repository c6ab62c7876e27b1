"""A command of `bin` in this process, so that a test need not start one each."""

import functools
import importlib.machinery
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


@functools.cache
def load(name="certify"):
    """The script as a module; once, and one of them in a process, since flags are global."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "bin")
        loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "bin" / name))
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_loader(loader.name, loader)
        )
        loader.exec_module(module)
    return module


def status(script, *arguments):
    """Exit code of the script's own entry."""
    name, shared = script.__name__, script.command_line
    for flag in script.FLAGS:
        script.FLAGS[flag].unparse()
    try:
        return shared.call(script.main, name, shared.parse(name, [name, *map(str, arguments)]))
    except SystemExit as stop:
        return stop.code


def call(script, capfd, *arguments):
    """Exit code, stdout and stderr of the script's own entry."""
    return status(script, *arguments), *capfd.readouterr()
