"""What an attacker may do, and what must not change: threats and properties."""

from keras_curv.threats import scores as _scores  # noqa: F401  so that Property.parse knows them
