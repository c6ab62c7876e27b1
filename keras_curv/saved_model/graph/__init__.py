"""The graph behind a signature: its calls written out, and what it may run."""
