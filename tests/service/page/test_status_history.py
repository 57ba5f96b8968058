"""Rates, series and silence of feeders, from their statuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_statuses import START_S, rank_at, status_at

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.page.status_history import POINTS, StatusHistory, ring_fill, workers_of


def history_of(*seconds: float, **options: float) -> StatusHistory:
    history = StatusHistory()
    for second in seconds:
        history.add([status_at(second, **options)], now_s=START_S + second)
    return history


def test_there_are_no_rates_before_the_second_status():
    assert history_of(5).facts("job-a-feeder", rank_at(0, 5)) is None
    assert history_of(5).points("job-a")[-1].rows_per_s is None


@given(wait=st.floats(0, 1), seconds=st.lists(st.integers(1, 200), min_size=2, max_size=8, unique=True))
def test_rates_are_differences_over_the_last_seconds(wait: float, seconds: list[int]):
    history = StatusHistory()
    for second in sorted(seconds):
        history.add([status_at(second, wait=wait)], now_s=START_S + second)
    facts = history.facts("job-a-feeder", rank_at(1, 5))
    assert facts is not None
    assert facts.rows_per_s == pytest.approx(10_000)
    assert facts.steps_per_s == pytest.approx(10)
    assert facts.trainer_wait == pytest.approx(wait, abs=1e-6)
    assert facts.slot_wait == pytest.approx((1 - wait) / 2, abs=1e-6)
    assert history.points("job-a")[-1].rows_per_s == pytest.approx(20_000)  # of two ranks


def test_rates_forget_what_is_older_than_their_window():
    history = StatusHistory()
    for second in range(1, 60):  # a fast start, then slow
        status = status_at(second)
        rank = status.ranks[0]
        stats = replace(rank.stats, rows=1_000_000 + second * 10)
        history.add([replace(status, ranks=(replace(rank, stats=stats),))], now_s=START_S + second)
    facts = history.facts("job-a-feeder", rank_at(0, 5))
    assert facts is not None
    assert facts.rows_per_s == pytest.approx(10)


def test_a_rank_that_has_ended_has_no_rates_and_no_ring():
    ended = replace(rank_at(0, 20), state="ended")
    history = history_of(10, 20, ranks=1)
    history.add([replace(status_at(21), ranks=(ended,))], now_s=START_S + 21)
    assert history.facts("job-a-feeder", ended) is None
    point = history.points("job-a")[-1]
    assert (point.rows_per_s, point.trainer, point.ring) == (None, None, None)


def test_a_new_trainer_starts_the_rates_afresh():
    history = history_of(10, 20)
    status = status_at(21)
    fresh = replace(rank_at(0, 0), trainer=9)
    history.add([replace(status, ranks=(fresh, status.ranks[1]))], now_s=START_S + 21)
    assert history.facts("job-a-feeder", rank_at(0, 5)) is None
    assert history.facts("job-a-feeder", rank_at(1, 5)) is not None


def test_a_status_that_was_seen_counts_once():
    history = StatusHistory()
    for now in (0.0, 1.0, 2.0):
        history.add([status_at(5)], now_s=START_S + now)
    assert history.facts("job-a-feeder", rank_at(0, 5)) is None
    assert len(history.points("job-a")) == 3


def test_a_feeder_without_news_is_silent_by_the_clock_of_the_page():
    history = StatusHistory()
    status = replace(status_at(5), now_s=7.0)  # of a host whose clock is years behind
    for now in range(9):
        history.add([status], now_s=START_S + now)
    assert history.silence_s("job-a-feeder") == 8
    history.add([replace(status, now_s=8.0)], now_s=START_S + 9)
    assert history.silence_s("job-a-feeder") == 0


def test_jobs_that_are_gone_are_forgotten():
    history = StatusHistory()
    history.add([status_at(1), status_at(1, job="job-b")], now_s=START_S)
    assert history.jobs() == ["job-a", "job-b"]
    history.add([status_at(2, job="job-b")], now_s=START_S + 1)
    assert history.jobs() == ["job-b"]
    assert history.points("job-a") == ()
    assert history.statuses("job-a") == []


def test_series_have_an_end():
    history = StatusHistory()
    for second in range(POINTS + 5):
        history.add([status_at(1, ranks=1)], now_s=START_S + second)
    points = history.points("job-a")
    assert len(points) == POINTS
    assert points[-1].at_s - points[0].at_s == POINTS - 1


def test_the_emptiest_ring_is_in_the_series():
    status = status_at(5)
    full = replace(status.ranks[0], ready=8)
    history = StatusHistory()
    history.add([replace(status, ranks=(full, status.ranks[1]))], now_s=START_S)
    assert history.points("job-a")[-1].ring == 0.25
    assert ring_fill(full) == 1.0
    assert ring_fill(rank_at(0, 1)) == 0.25


@pytest.mark.parametrize(("form", "expected"), [("scheduler", (6, 12)), ("processes", (12, 24)), ("threads", (12, 24))])
def test_workers_of_a_scheduler_are_counted_once(form: str, expected: tuple[int, int]):
    feeders: list[FeederStatus] = [replace(status_at(1), form=form, workers=6, threads=12) for _ in range(2)]
    assert workers_of(feeders) == expected
