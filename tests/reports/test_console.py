"""What is told of long work, where nobody watches."""

from __future__ import annotations

import contextlib
import threading

import keras
import numpy as np
import pytest
import rich.console

import keras_curv
from keras_curv import progress
from keras_curv.certificates import certifier


@pytest.fixture
def clock(monkeypatch):
    """The time, to be set; stderr, caught by pytest, is no terminal."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def _told(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_log_is_told_now_and_then(clock, capsys):
    with progress.progress_bar(1200, 200, visible=True) as advance:
        for clock[0] in (10.0, 29.0, 50.0, 60.0, 90.0, 100.0):
            advance(100)
            if clock[0] < 50.0:
                assert _told(capsys) == []
        assert _told(capsys) == [
            "certifying: 500 of 1,200 examples in 0:00:50, about 0:01:57 left",
            "certifying: 700 of 1,200 examples in 0:01:30, about 0:01:30 left",
        ]
        clock[0] = 1000.0
        advance(400)  # the last ones: the table follows
    assert _told(capsys) == []


def test_a_log_has_no_more_than_a_hundred_lines(clock, capsys):
    with progress.progress_bar(10**4, 0, visible=True) as advance:
        for step in range(10**4):
            clock[0] = 60.0 * step
            advance(1)
    lines = _told(capsys)
    assert len(lines) == 99
    assert (
        lines[-1] == "certifying: 9,900 of 10,000 examples in 6 days, 20:59:00, about 1:39:59 left"
    )


def test_a_slow_first_batch_is_told_of(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_FIRST_AFTER", 0.0)
    with progress.progress_bar(40, 0, visible=True):
        for thread in [t for t in threading.enumerate() if isinstance(t, threading.Timer)]:
            thread.join()
    assert _told(capsys) == ["certifying 40 examples"]


def test_a_notebook_is_shown_a_bar_unasked(monkeypatch, capsys):
    bars = []
    monkeypatch.setattr(certifier, "progress_bar", _recorded(bars))
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    known = keras_curv.Certifier(net, method="lipschitz")
    known.certify_all(np.ones((5, 2)), batch_size=2)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    known.certify_all(np.ones((5, 2)), batch_size=2)
    assert bars == [(5, False, [2, 2, 1]), (5, True, [2, 2, 1])]


def test_the_bar_of_a_notebook_is_that_of_keras(monkeypatch, capsys):
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    with progress.progress_bar(5, 1, visible=True) as advance:
        advance(2)
        advance(2)
    out, err = capsys.readouterr()
    assert "1/5" in out and "5/5" in out and err == ""


def _recorded(bars):
    @contextlib.contextmanager
    def progress_bar(total, done, *, visible):
        bars.append((total, visible, []))
        yield bars[-1][2].append

    return progress_bar


def test_nothing_is_told_where_it_is_not_asked_for(clock, capsys):
    with (
        progress.progress_bar(100, 0, visible=False) as advance,
        progress.working("", visible=True),
    ):
        clock[0] = 60.0
        advance(50)
    assert _told(capsys) == []
