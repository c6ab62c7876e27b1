"""The models that train, as Keras sees them."""
