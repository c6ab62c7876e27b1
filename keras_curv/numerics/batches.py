"""Many things, a few at a time, so that no array is larger than it need be; side by side, where
that is quicker.

The threads of NumPy's library work on one product at a time, and most products here are too small
for that: they wait for each other longer than they work, above all on a busy machine. A process
that starts with `OPENBLAS_NUM_THREADS=1`, as the command line does, has a thread for each batch
instead. NumPy reads that when it is imported, so not here, where the command has its name from.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar

ENTRIES = 2**23  # of one array: 64 MB
NEAR = 2**18  # of arrays that stay near the processor: 2 MB
_AT_WORK = 2 * ENTRIES  # of the arrays of all batches: larger ones hand on Python's lock less often
_IN_FLIGHT = 2  # of what comes in turn
THREADS_OF_PRODUCTS = "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"

_beside: ContextVar[int] = ContextVar("beside", default=1)  # batches at work, this one included

Found = TypeVar("Found")


def batches(count: int, entries: int, at_once: int = ENTRIES) -> list[slice]:
    """Slices of so many things of so many entries; one holds no more than `at_once`, if it can.

    Example:
        >>> batches(5, 10, at_once=25)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, at_once // entries)
    return [slice(start, start + step) for start in range(0, count, step)] or [slice(0, 0)]


def in_batches(
    function: Callable[[slice], Found], count: int, entries: int, at_once: int = _AT_WORK
) -> Iterator[tuple[slice, Found]]:
    """Yields slices and what the function makes of them; those at work hold that many entries.

    Within a batch that others work beside, the function may do the same: its batches come one
    after the other, in this one's share of the room.

    Example:
        >>> parts = in_batches(lambda rows: "abcde"[rows], 5, 10, at_once=25)
        >>> "".join(part for _, part in parts)
        'abcde'
    """
    beside = _beside.get()
    room = max(1, at_once // beside // entries)
    threads = max(1, min(_processors() // beside, room, count))
    rounds = -(-count // (threads * (room // threads)))
    slices = batches(count, 1, -(-count // max(1, threads * rounds)))  # as many for each thread
    if threads == 1:
        yield from ((rows, function(rows)) for rows in slices)
        return

    def work(rows: slice) -> Found:
        _beside.set(threads * beside)
        return function(rows)

    pool = ThreadPoolExecutor(threads)
    try:
        # Each in a copy of this context: what NumPy is to ignore is part of it.
        runs = [copy_context().run for _ in slices]
        found = pool.map(lambda run, rows: run(work, rows), runs, slices)
        yield from zip(slices, found, strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def in_turn(calls: Iterable[Callable[[], Found]]) -> Iterator[Found]:
    """Yields what calls return, in their order; the next one is at work while one is waited for.

    Not beside the first: what that makes once for all is there for the others. An error, of a call
    or of the iterable, comes after what was returned before it.

    Example:
        >>> list(in_turn([lambda: "a", lambda: "b", lambda: "c"]))
        ['a', 'b', 'c']
    """
    calls = iter(calls)
    for call in calls:
        yield call()
        break
    if _processors() == 1:
        yield from (call() for call in calls)
        return

    def work(call: Callable[[], Found]) -> Found:
        _beside.set(_IN_FLIGHT)
        return call()

    pool, begun, error = ThreadPoolExecutor(_IN_FLIGHT), deque[Future[Found]](), None
    try:
        while error is None:
            try:
                begun.append(pool.submit(copy_context().run, work, next(calls)))
            except Exception as ended:  # StopIteration, or another: a log may end in one
                error = ended
            if len(begun) == _IN_FLIGHT:
                yield begun.popleft().result()
        yield from (future.result() for future in begun)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if not isinstance(error, StopIteration):
        raise error


def _processors() -> int:
    """How many batches may be at work: all processors, where a product has only one of them."""
    if os.environ.get(THREADS_OF_PRODUCTS[0]) != "1":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
