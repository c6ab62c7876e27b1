"""The Keras models that train."""
