"""The one file that Keras saves a model to, `.keras` or `.h5`, read as data."""
