"""Parts that all commands share: flags in sections, quiet start, errors in one line, exit statuses."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import gc
import logging as python_logging
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags, logging

from keras_curv.cli.flag_file import expanded
from keras_curv.errors import InputError, visible
from keras_curv.files import discard_stdout
from keras_curv.numerics.spelled import parse_number
from keras_curv.options import descriptions

DATA_DIR = (
    "Folder in which tfds finds or puts its data sets; default: TFDS_DATA_DIR, or tfds' own place."
)
DIGITS = pathlib.Path(__file__).with_name("digits").resolve()
HELP = ("--help", "-h", "-help", "help")
# What absl calls the types of options.
_KINDS = {
    "int": "integer",
    "float": "float",
    "float | str | Sequence[float | str]": "multi_string",
    "str": "string",
    "bool": "bool",
    "Property | str": "string",
    "tuple[int, ...]": "list",
    "Sequence[str]": "multi_string",
    "Sequence[float]": "multi_float",
}


class Command:
    """A command with flags of its own.

    Args:
        name: of the command, before its errors.
        text: what it does, for `--help`.
        after_interruption: what a user should do then.

    Attributes:
        name: as given.
        arguments: that it was called with.
        flags: their values, once they are parsed.
    """

    def __init__(self, name: str, text: str, after_interruption: str):
        self.name = name
        self.arguments: list[str] = []
        self.flags = flags.FlagValues()
        self._text, self._after = text, after_interruption
        self._sections: list[Section] = []
        self._flag_of: dict[str, str] = {}  # options by name
        self._main: Callable[[], int] = lambda: 0

    def section(self, title: str) -> Section:
        """Begins a section of flags."""
        self._sections.append(Section(title, self.flags, self._flag_of))
        return self._sections[-1]

    def main(self, function: Callable[[], int]) -> Callable[[], int]:
        """Decorates what the command does once the flags are parsed; it returns the status."""
        self._main = function
        return function

    def run(self, arguments: Sequence[str]) -> None:
        """Parses the flags, runs the command and ends the process."""
        stop_in_one_line(self.name, self._after)
        sys.exit(self.call(arguments))

    def call(self, arguments: Sequence[str]) -> int:
        """Parses the flags and runs the command.

        Returns:
            Its status; 2, after a line on stderr, for bad input.
        """
        self.arguments = [*map(str, arguments)]
        before = ["", *self.arguments]
        if any(a in HELP and not self._takes(b) for b, a in zip(before, arguments, strict=False)):
            show(self.help())
            return 0
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.set_verbosity(logging.ERROR)
        python_logging.getLogger("tensorflow").setLevel("ERROR")
        try:
            _, *rest = self.flags([self.name, *expanded(self.arguments)])
            if rest:
                raise InputError(f"unexpected argument {rest[0]!r}; see --help")
            status = self._main()
            if not status:
                print(end="", flush=True)
            return status
        except flags.IllegalFlagValueError as error:
            plainly = "one number is needed; several are given by the flag again. Received:"
            what = str(error).replace("could not convert string to float:", plainly)
            return fail(self.name, InputError(what))
        except flags.UnrecognizedFlagError as error:
            word = error.flagname
            near = sorted(n for n in self.flags if word in n) or difflib.get_close_matches(
                word, [*self.flags]
            )
            meant = ", ".join(f"--{name}" for name in near)
            advice = f"did you mean {meant}?" if near else "see --help"
            return fail(self.name, InputError(f"unknown flag --{word}; {advice}"))
        except (InputError, flags.Error, OSError) as error:  # OSError: stdout that is closed
            return fail(self.name, InputError(error))

    def _takes(self, word: str) -> bool:
        """Returns whether the next word is the value of this one."""
        name = word.lstrip("-")
        return word != name and name in self.flags and not self.flags[name].boolean

    def values(self, *names: str) -> dict[str, Any]:
        """Returns the values of some flags, by name, for what has arguments of these names."""
        return {name: self.flags[name].value for name in names}

    def chosen(self, of: type) -> dict[str, Any]:
        """Returns the options of a dataclass that flags have a value for."""
        names = [field.name for field in dataclasses.fields(of) if field.name in self._flag_of]
        values = {name: self.flags[self._flag_of[name]].value for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def words(self, *, but: Sequence[str] = ()) -> list[str]:
        """Returns the words that make this run again: the flags that are set, but for some."""
        words = ["keras_curv", self.name]
        for name in (name for section in self._sections for name in section.names):
            flag = self.flags[name]
            if name not in but and flag.value != flag.default:
                values = flag.value if isinstance(flag.value, list) else [flag.value]
                words += [f"--{name}={value}" for value in values]
        return words

    def help(self) -> str:
        """Returns what the command does, and its flags by section."""
        texts = [self.flags.module_help(section.title) for section in self._sections]
        return "\n".join([self._text.rstrip(), "", *texts])


class Section:
    """Flags that belong together.

    Args:
        title: of the section.
        values: of the command.
        flag_of: names of the command's options and of their flags, to be added to.

    Attributes:
        title: as given.
        names: of the flags.
    """

    def __init__(self, title: str, values: flags.FlagValues, flag_of: dict[str, str]):
        self.title, self._flag_of = title, flag_of
        self.names: list[str] = []
        self._values = values

    def define(self, kind: str, name: str, *arguments: Any, **keywords: Any) -> None:
        """Adds a flag, by absl's `DEFINE_<kind>` and what that takes."""
        self.names.append(name)
        keywords |= {"flag_values": self._values, "module_name": self.title}
        if kind.endswith("float"):  # that may be a fraction
            keywords["serializer"] = flags.ArgumentSerializer()
            many = kind == "multi_float"
            (flags.DEFINE_multi if many else flags.DEFINE)(
                parser=_Number(), name=name, default=arguments[0], help=arguments[1], **keywords
            )
            return
        getattr(flags, f"DEFINE_{kind}")(name, *arguments, **keywords)

    def strings(self, texts: Mapping[str, str], **defaults: str) -> Section:
        """Adds flags that take text, by name with what each says; returns itself."""
        for name, text in texts.items():
            self.define("string", name, defaults.get(name), text)
        return self

    def options(self, of: type, names: str = "", **renamed: str) -> Section:
        """Adds flags for fields of a dataclass, with their types, defaults and help; returns itself.

        Args:
            of: the dataclass; annotations are text.
            names: of fields whose flags have the same name, between blanks.
            **renamed: fields by the names of other flags. A flag that may be given several times
                has no default.
        """
        known, texts = {field.name: field for field in dataclasses.fields(of)}, descriptions(of)
        for flag, name in (dict(zip(names.split(), names.split(), strict=True)) | renamed).items():
            field, text = known[name], texts[name]
            kind = _KINDS[field.type.removesuffix(" | None")]
            given = kind.startswith("multi_") or field.default is dataclasses.MISSING
            default = None if given else field.default
            self.define(kind, flag, default, text[:1].upper() + text[1:])
            self._flag_of[name] = flag
        return self

    def alias(self, name: str, of: str) -> None:
        """Adds an older name of a flag."""
        flags.DEFINE_alias(name, of, flag_values=self._values, module_name=self.title)

    def refuse(self, why: str, *, but: Sequence[str] = ()) -> None:
        """Refuses flags that would have no effect.

        Args:
            why: what follows the name of the flag, as "is for --requests".
            but: flags that have one.

        Raises:
            InputError: one of the section is set.
        """
        for name in self.names:
            if name not in but and self._values[name].value != self._values[name].default:
                raise InputError(f"--{name} {why}")


class _Number(flags.FloatParser):
    """Parses a number, or a fraction as 2/255."""

    syntactic_help = "a number, or a fraction as 2/255"

    def convert(self, argument: Any) -> float:
        return parse_number(argument) if isinstance(argument, str) else super().convert(argument)


def stop_in_one_line(name: str, after: str) -> None:
    """Makes SIGINT and SIGTERM end the process at once, after a line, with status 130 and 143.

    As nothing is cleaned up, nothing can go wrong while it is; what is written survives a kill.
    """
    try:
        stderr = os.dup(2)  # which `loading` leaves alone
    except OSError:
        stderr = os.open(os.devnull, os.O_WRONLY)
    words = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

    def stop(number: int, frame: object) -> None:
        line = f"{name}: {words[signal.Signals(number)]}; {after}\n"
        with contextlib.suppress(OSError):
            os.write(stderr, line.encode())
        os._exit(128 + number)

    for number in words:
        signal.signal(number, stop)


def show(text: str) -> None:
    """Prints text to a reader who may stop at any time, as `… --help | head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # nor is there to be another one when the process ends
        discard_stdout()


def fail(name: str, error: object) -> int:
    """Writes one line on stderr, and returns the exit status of bad input."""
    with contextlib.suppress(OSError):  # where nobody can be told, the status says it
        print(f"{name}: {visible(' '.join(str(error).split()))}", file=sys.stderr)
    return 2


def at_terminal() -> bool:
    """Returns whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Loads libraries in the block sooner, and silently.

    On file descriptor 2 TensorFlow's libraries greet. And the hundreds of thousands of objects that
    they make all stay: to look for garbage among them takes a fifth of the time of loading, and
    more than that again when the process ends. So nothing is collected meanwhile, and these objects
    are frozen: left out of every collection afterwards.
    """
    collecting, known = gc.isenabled(), set(sys.modules)
    gc.disable()
    try:
        with _quiet_stderr():
            yield
    finally:
        if "tensorflow" in sys.modules.keys() - known:  # once, as garbage is frozen too
            gc.freeze()
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
