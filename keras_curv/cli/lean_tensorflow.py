"""TensorFlow's start without what only training needs, which is half of its time.

`import tensorflow` imports a module for each part of its API, and through them all that stands
behind, as the Keras of before Keras 3. Here such a part is loaded when something is asked of it.
Nothing else changes: what is asked for is there.
"""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder

_API = "tensorflow._api.v2."
# Which TensorFlow loads, where there is Keras, for SavedModels that know some.
_OPTIMIZERS = "keras.src.optimizers"
_LOADING = threading.RLock()


def load_tensorflow() -> None:
    """Loads TensorFlow, lean where it is not loaded yet; for commands that train nothing."""
    if "tensorflow" in sys.modules:
        return
    finder = _LazyParts()
    sys.meta_path.insert(0, finder)
    without_keras = _OPTIMIZERS not in sys.modules
    if without_keras:
        sys.modules[_OPTIMIZERS] = None  # type: ignore[assignment]  # an import of it fails
    try:
        importlib.import_module("tensorflow")
    finally:
        sys.meta_path.remove(finder)
        if without_keras:
            del sys.modules[_OPTIMIZERS]


class _LazyParts(MetaPathFinder):
    """Finds parts of TensorFlow's API, to be loaded later."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname.startswith(_API) else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)
        return spec


class _Later(Loader):
    """Makes modules that load themselves; as `importlib.util.LazyLoader`, but safe in threads."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__load__"] = lambda: self._loader.exec_module(module)
        module.__class__ = _Lazy


class _Lazy(types.ModuleType):
    """A module that is loaded once it is asked for what it does not have yet."""

    def __getattr__(self, name: str) -> object:
        with _LOADING:  # a thread that loads it finds what there is so far
            load = self.__dict__.pop("__load__", None)
            if load is not None:
                try:
                    load()
                except BaseException:  # it is said again by the next who asks
                    self.__dict__["__load__"] = load
                    raise
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
