"""`bin/certify` in this process, so that a test need not start one each."""

import functools
import importlib.machinery
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


@functools.cache
def load():
    """The script as a module; once, since its flags are global."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "bin")
        loader = importlib.machinery.SourceFileLoader("certify", str(ROOT / "bin" / "certify"))
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_loader(loader.name, loader)
        )
        loader.exec_module(module)
    return module


def call(script, capfd, *arguments):
    """Exit code, stdout and stderr of the script's own entry."""
    for name in script.FLAGS:
        script.FLAGS[name].unparse()
    shared = script.command_line
    try:
        argv = shared.parse("certify", ["certify", *map(str, arguments)])
        code = shared.call(script.main, "certify", argv)
    except SystemExit as stop:
        code = stop.code
    return code, *capfd.readouterr()
