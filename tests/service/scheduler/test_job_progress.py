"""How far a job is: its slowest rank, and the time that is left at the pace of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from feeder_statuses import status_of

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.scheduler.job_listing import progress_by_job, states_by_job


def paced(status: FeederStatus, *, step_s: float, wait_s: float = 0.0, epochs: int = 1) -> FeederStatus:
    """The status with the pace of its ranks. wait_s: per step."""
    ranks = tuple(
        replace(rank, step_s=step_s, stats=replace(rank.stats, wait_blocks_s=wait_s * rank.stats.batches))
        for rank in status.ranks
    )
    return replace(status, ranks=ranks, epochs=epochs)


def test_the_rank_that_has_done_least_and_the_last_to_end():
    """Of 10 steps: 2 left at 1 s, 6 left at 0.25 s and 0.25 s of waiting."""
    slow, behind = paced(status_of(step=8), step_s=1.0), paced(status_of(feeder="b", step=4), step_s=0.25, wait_s=0.25)
    found = progress_by_job([replace(slow, lost=2, regained=1), replace(behind, lost=1)])["ctr"]
    assert (found.step, found.steps, found.epoch, found.epochs) == (4, 10, 0, 1)
    assert found.left_s == pytest.approx(3.0)
    assert (found.lost, found.regained) == (3, 1)
    more = progress_by_job([paced(status_of(step=8), step_s=1.0, epochs=3)])["ctr"]
    assert more.left_s == pytest.approx(22.0)


def test_trainers_that_count_epochs_by_themselves_leave_those_of_this_one():
    """Where `epochs` is not known, and where they have gone on beyond it."""
    for epochs, epoch in ((0, 0), (0, 7), (1, 2), (3, 3)):
        status = paced(status_of(step=8), step_s=1.0, epochs=epochs)
        ranks = tuple(replace(rank, stats=replace(rank.stats, epoch=epoch)) for rank in status.ranks)
        found = progress_by_job([replace(status, ranks=ranks)])["ctr"]
        assert (found.epoch, found.epochs, found.step, found.steps) == (epoch, 0, 8, 10)
        assert found.left_s == pytest.approx(2.0)


def test_jobs_without_a_pace_or_without_trainers():
    unknown = progress_by_job([status_of(step=2), paced(status_of(feeder="b", step=4), step_s=0.5)])["ctr"]
    assert (unknown.step, unknown.left_s) == (2, None)
    waiting = status_of()
    idle = replace(waiting, ranks=tuple(replace(rank, state="waiting") for rank in waiting.ranks))
    assert progress_by_job([idle]) == {}


def test_the_state_of_a_job_is_that_which_says_most():
    def state_of(*states: Any) -> str:
        status = status_of(ranks=tuple(range(len(states))))
        ranks = (replace(rank, state=state) for rank, state in zip(status.ranks, states, strict=True))
        return states_by_job([replace(status, ranks=tuple(ranks))])["ctr"]

    assert state_of("ended", "feeding", "waiting for files") == "feeding"
    assert state_of("ended", "planning", "waiting for files") == "waiting for files"
    assert state_of("ended", "waiting", "planning") == "planning"
    assert state_of() == "waiting"


def test_jobs_are_told_apart():
    found = progress_by_job([status_of(step=2), status_of(job="other", step=5)])
    assert {job: each.step for job, each in found.items()} == {"ctr": 2, "other": 5}
