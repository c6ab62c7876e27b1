"""Options are described once: flags, arguments and docstrings say the same."""

import inspect

import pytest
from scripts import load

import keras_curv
from keras_curv.cli.main import COMMANDS
from keras_curv.errors import InputError
from keras_curv.options import accepts, descriptions

OPTIONS = keras_curv.ExampleOptions, keras_curv.RequestOptions, keras_curv.Recipe


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_is_described(options):
    assert [name for name, text in descriptions(options).items() if not text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_has_a_help_that_is_a_sentence(name):
    command = load(name)
    texts = {flag: command.flags[flag].help.partition(";\n")[0] for flag in command.flags}
    assert len(texts) > 4
    assert [flag for flag, text in texts.items() if not (text[:1].isupper() and "." in text)] == []


@pytest.mark.parametrize("taker", [keras_curv.certify, keras_curv.Certifier])
def test_options_are_shown_where_they_are_taken_by_name(taker):
    taken = inspect.signature(taker).parameters
    assert (
        taken["method"].default == "auto" and taken["threat"].kind == inspect.Parameter.KEYWORD_ONLY
    )
    assert "options" not in taken and "{options}" not in taker.__doc__
    assert "certified; of logged requests" in taker.__doc__  # from the docstring of the options


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(InputError, match=r"no option 'metod' here; did you mean 'method'\?"):
        keras_curv.Certifier("saved_models/digits", metod="crc")


def test_a_function_without_named_options_keeps_its_signature():
    @accepts(keras_curv.Smoothing)
    def vote(x, deviation):
        """Votes.

        Args:
        {options}
        """

    assert list(inspect.signature(vote).parameters) == ["x", "deviation"]
    assert "failure_probability: probability α" in vote.__doc__
