"""The first sentence of the live page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from feeder_statuses import START_S, status_at

from feedline.service.page.headline import headline_of
from feedline.service.page.job_view import JobView, view_job
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
    assert headline.sentence == "The trainer waits 41 % of its time: read takes 69 % of computing blocks."


def test_a_trainer_that_does_not_wait_is_the_limit():
    headline = headline_of(view(0.01))
    assert headline.side == "trainer"
    assert headline.sentence.startswith("The trainer is the limit: it waits for data 1 % of its time")


@pytest.mark.parametrize("state", ["waiting", "planning", "ended"])
def test_a_job_that_is_not_fed_has_no_limit(state: str):
    headline = headline_of(replace(view(0.4), state=state))
    assert (headline.side, headline.badge) == ("", state)
