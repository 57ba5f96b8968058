"""The first sentence of the live page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from page_statuses import START_S, status_at

from feedline.service.page.job_view import JobView, SourcedText, view_job
from feedline.service.page.page_parts import _STATES, headline_of
from feedline.service.page.status_history import StatusHistory


def view(wait: float) -> JobView:
    history = StatusHistory()
    for at in (10, 20):
        history.add([status_at(at, wait=wait)], now_s=START_S + at)
    made = view_job(history, "job-a")
    assert made is not None
    return made


def test_a_trainer_that_waits_is_limited_by_data():
    headline = headline_of(view(0.41))
    assert headline.side == "data"
    assert headline.sentence.startswith("Trainer waits 41%: decoding takes ")
    assert headline.detail.startswith("Rank 0, whose trainer waits most. Would help: ")
    assert headline.detail.endswith("feedline explain --attach.")


def test_a_trainer_that_does_not_wait_is_the_limit():
    headline = headline_of(view(0.01))
    assert (headline.side, headline.badge) == ("trainer", "● the trainer is the limit")
    assert headline.sentence.startswith("Nothing: your trainer is the limit. It waits 1.0% of the time")
    assert "Rank" not in headline.detail


@pytest.mark.parametrize("state", ["waiting", "planning", "waiting for files", "ended"])
def test_a_job_that_is_not_fed_has_no_limit(state: str):
    headline = headline_of(replace(view(0.4), state=state, slowest=None))
    assert (headline.side, headline.badge) == ("", state)
    assert headline.sentence == _STATES[state]


def test_an_error_comes_first_whether_or_not_other_ranks_are_fed():
    feeding = replace(
        view(0.4), errors=(SourcedText("rank 1", "DataError: no"), SourcedText("rank 2", "DataError: no"))
    )
    headline = headline_of(feeding)
    assert (headline.side, headline.sentence) == ("error", "Rank 1 ended with an error: DataError: no")
    assert headline.detail.startswith("1 more below. Ranks that train together wait for it. ")
    ended = headline_of(replace(feeding, state="ended", slowest=None, errors=feeding.errors[:1]))
    assert ended.side == "error"
    assert ended.detail.startswith("Its trainer raised the same error")


def test_silent_feeders_are_named_instead_of_a_limit_of_the_past():
    history = StatusHistory()
    for at in (10, 20):
        history.add([status_at(at)], now_s=START_S + at)
    history.add([status_at(20)], now_s=START_S + 33)
    made = view_job(history, "job-a")
    assert made is not None
    headline = headline_of(made)
    assert (headline.side, headline.badge) == ("error", "△ silent")
    assert headline.sentence == "Nothing was heard for 13 s from 2 of 2 ranks."
    assert "node-1" in headline.detail
