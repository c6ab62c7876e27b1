"""Keras classifiers whose l2 robustness can be proved: training, attacks and certificates.

What there is stands in `__init__.pyi`; it is imported when it is first used, so that the command
line need not wait for TensorFlow to refuse a flag.
"""

import sys

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if "keras" in sys.modules:  # which loads a saved model by the names of classes that it has met
    from keras_curv.training import recipe as _recipe  # noqa: F401
