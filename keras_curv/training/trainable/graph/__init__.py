"""The graph of a Keras model in training, read as a chain of maps and activations."""
