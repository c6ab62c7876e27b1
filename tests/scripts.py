"""A command in this process, so that a test need not start one each."""

import importlib


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
