"""Randomized smoothing, a baseline."""
