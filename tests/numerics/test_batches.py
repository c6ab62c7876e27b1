"""Batches are the same, one after the other or side by side."""

import threading
import time
import warnings

import numpy as np
import pytest

from keras_curv.numerics import batches
from keras_curv.numerics.batches import in_batches


@pytest.fixture(params=[1, 2, 5])
def processors(request, monkeypatch):
    monkeypatch.setattr(batches, "processors", lambda: request.param)
    return request.param


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("entries", [1, 3, 1000])
def test_each_is_in_one_batch_and_none_is_too_large(count, entries, processors):
    at_work, most, lock = [0], [0], threading.Lock()

    def total(rows):
        mine = len(numbers[rows]) * entries
        with lock:
            at_work[0] += mine
            most[0] = max(most[0], at_work[0])
        found = numbers[rows].sum()
        with lock:
            at_work[0] -= mine
        return found

    numbers = np.arange(count)
    found = list(in_batches(total, count, entries, at_once=20))
    assert [i for rows, _ in found for i in numbers[rows]] == list(numbers)  # in order
    assert sum(value for _, value in found) == numbers.sum()
    assert most[0] <= max(20, entries)


def test_all_processors_are_at_work(processors):
    gate = threading.Barrier(processors)  # which opens once so many have come
    assert len(list(in_batches(lambda rows: gate.wait(60.0), processors, 1))) == processors


def test_batches_within_a_batch_share_its_room(processors):
    at_work, most, lock = [0], [0], threading.Lock()

    def inner(rows):
        mine = rows.stop - rows.start
        with lock:
            at_work[0] += mine
            most[0] = max(most[0], at_work[0])
        time.sleep(0.001)
        with lock:
            at_work[0] -= mine
        return threading.get_ident()

    def outer(rows):
        idents = {found for _, found in in_batches(inner, 20, 1, at_once=20)}
        return len(idents), idents == {threading.get_ident()}

    found = [value for _, value in in_batches(outer, 40, 1, at_once=20)]
    assert most[0] <= 20
    assert processors == 1 or all(one == (1, True) for one in found)


def test_an_error_is_raised_and_what_is_ignored_stays_ignored(processors):
    def fail(rows):
        if rows.start:
            raise ValueError("the second batch")
        return np.log(np.zeros(1))

    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="the second batch"):
            list(in_batches(fail, 8, 5, at_once=20))


def test_what_is_not_waited_for_is_not_begun(processors):
    begun = []
    found = in_batches(lambda rows: begun.append(rows) or time.sleep(0.01), 60, 20, at_once=20)
    next(found)
    found.close()
    assert len(begun) < 30


def test_threads_only_where_products_have_none(monkeypatch):
    name = batches.THREADS_OF_PRODUCTS[0]
    for value, alone in (("1", False), ("2", True), ("", True)):
        monkeypatch.setenv(name, value)
        assert (batches.processors.__wrapped__() == 1) >= alone
    monkeypatch.delenv(name)
    assert batches.processors.__wrapped__() == 1
