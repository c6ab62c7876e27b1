"""Work in batches that bound the size of arrays; batches run in parallel where that is faster.

The threads of NumPy's library work on one product at a time, and most products here are too small
for that: the threads wait for each other longer than they work, above all on a busy machine. A
process that starts with `OPENBLAS_NUM_THREADS=1`, as the command line does, has a thread for each
batch instead. NumPy reads that variable at its import, so the command line sets it, by the names in
`THREADS_OF_PRODUCTS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar

ENTRIES = 2**23  # of one array: 64 MB
NEAR = 2**18  # of arrays that stay near the processor: 2 MB
_AT_WORK = 2 * ENTRIES  # of all batches together: large arrays pass on Python's lock less often
THREADS_OF_PRODUCTS = "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"

in_parallel: ContextVar[int] = ContextVar("beside", default=1)  # batches in parallel, with this one

Found = TypeVar("Found")


def batches(count: int, entries: int, at_once: int = ENTRIES) -> list[slice]:
    """Splits `count` things of `entries` numbers each into slices of `at_once` numbers at most.

    A slice holds at least one thing, even a larger one.

    Example:
        >>> batches(5, 10, at_once=25)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, at_once // entries)
    return [slice(start, start + step) for start in range(0, count, step)] or [slice(0, 0)]


def in_batches(
    function: Callable[[slice], Found], count: int, entries: int, at_once: int = _AT_WORK
) -> Iterator[tuple[slice, Found]]:
    """Yields slices and the function's results; parallel batches hold `at_once` numbers together.

    The function may call `in_batches` itself. In a batch that runs in parallel with others, its
    inner batches share this batch's part of the threads and of `at_once`.

    Example:
        >>> parts = in_batches(lambda rows: "abcde"[rows], 5, 10, at_once=25)
        >>> "".join(part for _, part in parts)
        'abcde'
    """
    beside = in_parallel.get()
    room = max(1, at_once // beside // entries)
    threads = max(1, min(processors() // beside, room, count))
    rounds = -(-count // (threads * (room // threads)))
    slices = batches(count, 1, -(-count // max(1, threads * rounds)))  # as many for each thread
    if threads == 1:
        yield from ((rows, function(rows)) for rows in slices)
        return

    def work(rows: slice) -> Found:
        in_parallel.set(threads * beside)
        return function(rows)

    pool = ThreadPoolExecutor(threads)
    try:
        # Each in a copy of this context, because NumPy's error state is part of it.
        runs = [copy_context().run for _ in slices]
        found = pool.map(lambda run, rows: run(work, rows), runs, slices)
        yield from zip(slices, found, strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def processors() -> int:
    """Returns how many batches may run in parallel: 1 unless products use a single thread each."""
    if os.environ.get(THREADS_OF_PRODUCTS[0]) != "1":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
