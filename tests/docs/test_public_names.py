"""Every public name is documented: a sentence, its parameters, and an example that runs.

The examples themselves are run as doctests of the modules; here it is held that they are there.
"""

import doctest
import enum
import inspect
import re

import pytest

import keras_curv

NAMES = sorted(set(keras_curv.__all__) - {"__version__", "data"})
RETURNED_BY = {  # records that a user does not make: the function that does shows one
    "AttackResult": "curvature_attack",
    "CurvatureBounds": "curvature_bounds",
    "ServedModel": "read",
}
NOT_BY_ITSELF = {
    "certify_requests": "needs a log and the models that served it",
    "InputError": "an error is raised, not called",
}
SELF_EXPLAINING = {"network"}  # its type says it

names = pytest.mark.parametrize("name", NAMES)


def is_record(value):
    """A tuple, an enumeration or an error: its attributes are documented, it refuses nothing."""
    return inspect.isclass(value) and issubclass(value, (tuple, enum.Enum, Exception))


def parameters(value):
    """Names of what a caller gives."""
    if is_record(value):
        return []
    taken = inspect.signature(value).parameters.values()
    named = [p.name for p in taken if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return [name for name in named if name not in SELF_EXPLAINING]


def section(text, *titles):
    """The text under one of the titles, up to the next; "" where there is none."""
    found = re.search(rf"^(?:{'|'.join(titles)}):[ \n](.*?)(?=^[A-Z]\w+:|\Z)", text, re.M | re.S)
    return found.group(1) if found else ""


def examples(name):
    """Those of a docstring that a doctest runs."""
    found = doctest.DocTestFinder().find(getattr(keras_curv, name), name, globs={})
    every = [example for test in found for example in test.examples]
    return [example for example in every if not example.options.get(doctest.SKIP)]


@names
def test_the_docstring_begins_with_a_summary_that_ends(name):
    first = inspect.getdoc(getattr(keras_curv, name)).split("\n\n")[0]
    assert re.search(r"[.:]$", first), first


@names
def test_there_is_an_example_that_a_doctest_runs(name):
    if name in NOT_BY_ITSELF:
        pytest.skip(NOT_BY_ITSELF[name])
    assert examples(RETURNED_BY.get(name, name))


@names
def test_every_parameter_is_described(name):
    value = getattr(keras_curv, name)
    text = inspect.getdoc(value)
    if re.search(r"; see `\w+`", text.split("\n\n")[0]):
        pytest.skip("described where it is used")
    texts = [text]  # a parameter may be described where it is inherited from
    if inspect.isclass(value):
        texts = [inspect.getdoc(kind) or "" for kind in value.__mro__[:-1]]
    described = "".join(section(one, "Args", "Attributes") for one in texts)
    every = parameters(value)
    assert not [one for one in every if not re.search(rf"\b{one}\b", described)]


@names
def test_what_refuses_says_so(name):
    value = getattr(keras_curv, name)
    if is_record(value):
        pytest.skip("a record refuses nothing")
    refusal = r"raise InputError|\brequire_\w+\("
    if re.search(refusal, inspect.getsource(value).partition("    def ")[0]) or (
        inspect.isclass(value)
        and inspect.isfunction(value.__init__)
        and value.__init__.__code__.co_filename == inspect.getfile(value)
        and re.search(refusal, inspect.getsource(value.__init__))
    ):
        assert section(inspect.getdoc(value), "Raises")


def test_every_public_name_is_there_once():
    assert len(keras_curv.__all__) == len(set(keras_curv.__all__))
    assert all(hasattr(keras_curv, name) for name in keras_curv.__all__)
