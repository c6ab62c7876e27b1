"""Beside TF Serving: its logs certified offline, and models that certify what they serve."""
