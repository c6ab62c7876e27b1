"""The version, where setuptools can read it without importing TensorFlow."""

__version__ = "0.1.0"
