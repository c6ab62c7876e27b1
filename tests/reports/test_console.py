"""What is told of long work, where nobody watches."""

from __future__ import annotations

import threading

import pytest

from keras_curv.reports import console


@pytest.fixture
def clock(monkeypatch):
    """The time, to be set; stderr, caught by pytest, is no terminal."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def _told(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_log_is_told_now_and_then(clock, capsys):
    with console.progress_bar(1200, 200, visible=True) as advance:
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
    with console.progress_bar(10**4, 0, visible=True) as advance:
        for step in range(10**4):
            clock[0] = 60.0 * step
            advance(1)
    lines = _told(capsys)
    assert len(lines) == 99
    assert (
        lines[-1] == "certifying: 9,900 of 10,000 examples in 6 days, 20:59:00, about 1:39:59 left"
    )


def test_a_slow_first_batch_is_told_of(monkeypatch, capsys):
    monkeypatch.setattr(console, "_LINE_AFTER", 0.0)
    with console.progress_bar(40, 0, visible=True):
        for thread in [t for t in threading.enumerate() if isinstance(t, threading.Timer)]:
            thread.join()
    assert _told(capsys) == ["certifying 40 examples"]


def test_nothing_is_told_where_it_is_not_asked_for(clock, capsys):
    with console.progress_bar(100, 0, visible=False) as advance, console.working("", visible=True):
        clock[0] = 60.0
        advance(50)
    assert _told(capsys) == []
