"""Offline checks beside TF Serving: what it logged, certified for the versions that served it."""
