"""A whole certification run, from a model and a stream of examples to its outputs."""
