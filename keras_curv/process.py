"""What of the process a certificate must not depend on: NumPy's settings, and a fork's remains."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from keras_curv.errors import InputError

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class Runtime:
    """Whether TensorFlow has run here, and whether that was before this process was forked."""

    used = False
    lost = False

    @classmethod
    def forked(cls) -> None:
        """Takes note, in a child, of what its parent had: the child has none of its threads."""
        eager = sys.modules.get("tensorflow.python.eager.context")
        context = eager and getattr(eager, "context_safe", lambda: None)()
        cls.lost |= cls.used or bool(getattr(context, "_initialized", False))


os.register_at_fork(after_in_child=Runtime.forked)


def usual_floats(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Has a function of the library computed under NumPy's default settings, whatever is set.

    Example:
        >>> with np.errstate(all="raise"):
        ...     float(usual_floats(np.exp)(-1000.0))
        0.0
    """

    @functools.wraps(function)
    def called(*args: _Args.args, **options: _Args.kwargs) -> _Result:
        Runtime.used = True
        # NumPy's own defaults. Some bounds overflow, and mean that nothing is proved.
        with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
            return function(*args, **options)

    return called


def certifying(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Has a function that certifies refuse to wait for ever; and see `usual_floats`.

    Raises:
        InputError: TensorFlow ran before this process was forked off. It would wait for threads
            that are the parent's.
    """

    @functools.wraps(function)
    def called(*args: _Args.args, **options: _Args.kwargs) -> _Result:
        if Runtime.lost:
            raise InputError(
                "TensorFlow was used before this process was forked, and hangs in it; start "
                "processes by 'spawn', as multiprocessing.get_context('spawn') does, or fork first"
            )
        return usual_floats(function)(*args, **options)

    return called
