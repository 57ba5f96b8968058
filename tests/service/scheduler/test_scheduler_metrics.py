"""What a scheduler lists of its jobs, how far they are, and what it shows as metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from feeder_statuses import status_of
from job_reports import REPORT

from feedline.loader.wire.job_reports import FeederShare
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.scheduler.job_listing import progress_by_job, states_by_job
from feedline.service.scheduler.scheduler_metrics import SCHEDULER_METRICS, SchedulerState, job_rows


def test_feeders_of_a_job_are_a_row():
    second = replace(REPORT, feeder="b", host="i", ranks=2, wait_fraction=0.5, blocks_per_s=1.0)
    members = [FeederShare(report=REPORT, threads=1.5, workers=16), FeederShare(report=second, threads=1.5, workers=20)]
    [row] = job_rows(members)
    assert (row.feeders, row.hosts, row.ranks, row.threads, row.fair_threads) == (2, 2, 3, 2.5, 3.0)
    assert (row.demand_threads, row.wait_fraction, row.starved) == (6.0, 0.5, True)
    assert (row.route_workers, row.connections) == (20, 36)


def test_jobs_whose_trainers_wait_most_come_first():
    shares = [
        FeederShare(report=replace(REPORT, job=job, wait_fraction=waits), threads=1.0, workers=1)
        for job, waits in (("b", 0.0), ("a", 0.0), ("c", 0.3))
    ]
    assert [row.job for row in job_rows(shares)] == ["c", "a", "b"]
    assert job_rows([]) == []


SHARES = [
    FeederShare(report=REPORT, threads=1.5, workers=16),
    FeederShare(report=replace(REPORT, job="calm", wait_fraction=0.0), threads=2.5, workers=16),
]
STATE = SchedulerState(workers=16, threads=64, wanted=3, joined=20, left=3, lost=1, jobs=job_rows(SHARES))


def test_jobs_are_samples_and_the_cluster_is_one():
    samples = {metric.name: dict(metric.samples(STATE)) for metric in SCHEDULER_METRICS}
    assert samples["feedline_job_fair_threads"] == {("ctr",): 1.5, ("calm",): 2.5}
    assert samples["feedline_job_wait_ratio"] == {("ctr",): REPORT.wait_fraction, ("calm",): 0.0}
    assert samples["feedline_job_starved"] == {("ctr",): 1.0, ("calm",): 0.0}
    assert samples["feedline_cluster_wanted_workers"] == {(): 3}
    assert samples["feedline_cluster_workers_lost_total"] == {(): 1}
    assert samples["feedline_cluster_jobs"] == {(): 2}


def test_an_unknown_demand_has_no_sample():
    samples = {metric.name: list(metric.samples(replace(STATE, wanted=None, jobs=[]))) for metric in SCHEDULER_METRICS}
    assert samples["feedline_cluster_wanted_workers"] == []
    assert samples["feedline_job_ranks"] == []
    assert samples["feedline_cluster_jobs"] == [((), 0)]


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
