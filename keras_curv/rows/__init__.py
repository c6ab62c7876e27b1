"""Rows of a run: written, resumed, shared among workers, summed up, and judged."""
