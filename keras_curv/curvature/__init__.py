"""Bounds on the curvature of margins, one theorem in each file."""
