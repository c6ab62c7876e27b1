"""The version, where setuptools can read it without importing TensorFlow.

It is raised with every mend of a radius that was too large, as no run goes on with rows of another.
"""

__version__ = "0.2.0.dev11"
