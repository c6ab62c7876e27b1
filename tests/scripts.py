"""Commands in this process, so that a test need not start one each; code that needs its own."""

import importlib
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def load(name="certify"):
    """The command of that name."""
    return importlib.import_module(f"keras_curv.cli.{name}").COMMAND


def status(command, *arguments):
    """Its exit code."""
    for flag in command.flags:
        command.flags[flag].unparse()
    return command.call(arguments)


def call(command, capfd, *arguments):
    """Its exit code, stdout and stderr."""
    return status(command, *arguments), *capfd.readouterr()


def succeeds_alone(code):
    """Whether Python code ends well in a process of its own, which knows the package."""
    environment = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
