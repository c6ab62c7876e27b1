"""The files of a SavedModel → one flat graph, without trusting them."""
