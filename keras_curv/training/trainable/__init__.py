"""A Keras model in training as a network, and layers to train with."""
