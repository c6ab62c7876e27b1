"""Bounds of the margins' curvature, one theorem a file."""
