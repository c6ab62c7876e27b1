"""Many things, a few at a time, so that no array is larger than it need be."""

from __future__ import annotations

ENTRIES = 2**23  # of one array at a time: 64 MB


def batches(count: int, entries: int, at_once: int = ENTRIES) -> list[slice]:
    """Slices of so many things of so many entries; one holds no more than `at_once`, if it can.

    Example:
        >>> batches(5, 10, at_once=25)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, at_once // entries)
    return [slice(start, start + step) for start in range(0, count, step)] or [slice(0, 0)]
