"""Bounds of the margins' curvature, one theorem a file, and the estimate that training uses."""
