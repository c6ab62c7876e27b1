"""A SavedModel, or a live Keras model, read as a network: without trusting it, op by op."""
