"""A model as a classifier of the Adversarial Robustness Toolbox (ART), with certificates.

ART is in the extra `attacks`, `pip install 'keras_curv[attacks]'`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from art.estimators.classification import TensorFlowV2Classifier

from keras_curv.certificates.certificate import Certificates
from keras_curv.certificates.certifier import Certifier
from keras_curv.errors import InputError


class CertifiedClassifier(TensorFlowV2Classifier):
    """Classifier whose logits ART's attacks can follow, and whose radii they cannot break.

    Args:
        model: as for `Certifier`, with one input and without a cut.
        clip_values: smallest and largest entry that ART's attacks may give to an input.
        **options: of `Certifier`, as method and guarantee. Logits are computed from the weights
            that were read, in the arithmetic of ART's inputs, usually float32.

    Attributes:
        certifier: proves the radii of `certify`.

    Raises:
        InputError: as `Certifier`; or the model has several inputs, is cut, or has a property
            other than argmax.

    Example:
        >>> from keras_curv import data
        >>> x, y = data.load_all("digits")
        >>> classifier = CertifiedClassifier("saved_models/digits", clip_values=(0, 1))
        >>> classifier.predict(x[:4].astype("float32")).argmax(axis=1) == y[:4]
        array([ True, False,  True,  True])
    """

    def __init__(
        self, model: Any, *, clip_values: tuple[float, float] | None = None, **options: Any
    ):
        self.certifier = Certifier(model, **options)
        served, claimed = self.certifier.served, self.certifier.property
        if len(served.inputs.specs) > 1 or served.cut or str(claimed) != "argmax":
            raise InputError(
                "ART's classifiers have one input, and their answer is the largest of all logits. "
                f"Received: {len(served.inputs.specs)} inputs, cut {served.cut!r}, {claimed}"
            )

        def logits(x: tf.Tensor, training: bool = False) -> tf.Tensor:
            return served.network.logits(tf.reshape(x, (-1, served.network.dim)))

        super().__init__(
            model=logits,
            nb_classes=served.network.classes,
            input_shape=served.input_shape,
            loss_object=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            clip_values=clip_values,
        )

    def certify(self, x: np.ndarray, y: np.ndarray | None = None) -> Certificates:
        """Returns proved radii of a batch, in l2 or in the norm of the threat; see `Certifier`."""
        return self.certifier.certify(x, y)
