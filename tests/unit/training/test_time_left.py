"""The time left of a run, with a clock set by hand."""

import pytest

from argbeam.losses import Bso, CrossEntropy
from argbeam.search.successors import Permutation
from argbeam.training import time_left
from argbeam.training.time_left import TimeLeft

BSO = Bso(Permutation(), train_beam=3, open_length=False, start_beam=2, epochs_per_beam=1)


def at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(time_left.time, "perf_counter", lambda: seconds)


def test_the_time_left_is_that_of_all_stages_by_rows_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of 100 tokens with 3 rows each, then BSO with beams 2 and 3, so 5 and 6 rows: 300 + 300 + 500 + 600.
    After half an epoch in 10 s, 150 of 1,700 are done: the rest takes 10 * 1550 / 150 s. In the last stage after 3 s
    less than 100 s, 100 rows are left: 97 * 120 / 1580 s."""
    left = TimeLeft([(CrossEntropy(), 2), (BSO, 2)], tokens=100)
    at(monkeypatch, 5.0)
    assert left.seconds(0, 0, 0.0) is None
    at(monkeypatch, 15.0)
    assert left.seconds(0, 0, 50.0) == pytest.approx(10 * 1550 / 150)
    at(monkeypatch, 102.0)
    assert left.seconds(1, 1, 80.0) == pytest.approx(97 * 120 / 1580)
    assert left.seconds(1, 1, 100.0) == 0.0


def test_an_epoch_by_length_does_not_make_the_time_left_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of 10, 20, ... 100 tokens that take a second for 10 tokens: the end is at 55 s, whenever it is asked."""
    left, done = TimeLeft([(CrossEntropy(), 1)], tokens=550), 0.0
    at(monkeypatch, 0.0)
    left.seconds(0, 0, 0.0)
    for update in range(1, 11):
        done += 10 * update
        at(monkeypatch, done / 10)
        assert left.seconds(0, 0, done) == pytest.approx(55 - done / 10)


def test_a_resumed_run_counts_from_where_it_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 40 of 100 tokens on: 30 more take 6 s, so the last 30 take 6 s."""
    left = TimeLeft([(CrossEntropy(), 1)], tokens=100)
    at(monkeypatch, 1.0)
    assert left.seconds(0, 0, 40.0) is None
    at(monkeypatch, 7.0)
    assert left.seconds(0, 0, 70.0) == pytest.approx(6.0)
