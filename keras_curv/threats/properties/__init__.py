"""Properties of outputs, which must hold within a certified radius."""

# Property.parse knows the kinds that these define.
from keras_curv.threats.properties import conditions as _conditions  # noqa: F401
from keras_curv.threats.properties import scores as _scores  # noqa: F401
