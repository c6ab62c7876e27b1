"""An option that there is not is told of by name, with what would work."""

import numpy as np
import pytest

import keras_curv

CALLS = {
    "certify": lambda **given: keras_curv.certify("model", np.ones((1, 1)), **given),
    "examples": lambda **given: keras_curv.certify_examples("model", None, **given),
    "requests": lambda **given: keras_curv.certify_requests("model", [], **given),
}


@pytest.mark.parametrize("call", CALLS)
def test_unknown_options_are_named(call):
    with pytest.raises(keras_curv.InputError, match="no option 'tolerence'.*mean 'tolerance'"):
        CALLS[call](tolerence=0.1)
    with pytest.raises(keras_curv.InputError, match="no option 'radius'"):
        CALLS[call](radius=[0.5])
    with pytest.raises(keras_curv.InputError, match="no option 'colour' here; there are: method,"):
        CALLS[call](colour=3)
