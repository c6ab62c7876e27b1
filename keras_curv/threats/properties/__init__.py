"""What must not change: properties of outputs."""

from keras_curv.threats.properties import scores as _scores  # noqa: F401  so that Property.parse knows them
