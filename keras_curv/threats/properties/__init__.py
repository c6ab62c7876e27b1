"""Properties of outputs, which must hold within a certified radius."""

from keras_curv.threats.properties import scores as _scores  # noqa: F401  so that Property.parse knows them
