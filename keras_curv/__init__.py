"""Keras classifiers whose l2 robustness can be proved: training, attacks and certificates.

    model = keras_curv.CRTModel(base, radius=0.5)    trains a Keras model, `base`, as any model
    model.compile("adam", metrics=["accuracy"])      is: `fit`, `evaluate`, callbacks
    model.fit(x, y, epochs=40)
    base.export("saved_models/mine")
    result = keras_curv.certify("saved_models/mine", x_test, y_test)
    result.radius                                    within which no prediction can change

`Certifier` does so batch by batch, `certify_examples` as a run with rows, summary and report;
`CurvatureRegularizer` trains with a penalty, `CertifiedAccuracy` watches a training,
`certified_serving` puts radii into the model that is served, and `Threat` says what an attacker may
change. `dir(keras_curv)` has all names.
"""

import pathlib
import sys

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Keras loads a saved model by the names of classes that it has met, so they are imported with the
# package. The command line need not wait for that, and for TensorFlow, to refuse a flag.
_COMMANDS = {"-m", "keras_curv", "certify", "train", "reproduce"}  # "-m": `python -m keras_curv`
if "keras" in sys.modules or pathlib.PurePath((sys.argv or [""])[0]).name not in _COMMANDS:
    from keras_curv.training.run import recipe as _recipe  # noqa: F401
