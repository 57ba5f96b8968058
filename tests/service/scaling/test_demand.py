"""A feeder's demand: its log, its reports, and the limits of its job; pure but for the process's name."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from feedline.service.scaling.demand import Demand
from feedline.service.scaling.load import TrainerLoad
from feedline.service.scheduler.job_book import ClusterSize, JobBook
from feedline.spec.cluster_section import ClusterSpec

START = TrainerLoad(
    steps=0,
    blocks=0,
    busy_s=0.0,
    stalled_s=0.0,
    starved=True,
    blocks_per_step=1.0,
    block_s=1.0,
    ready=0,
    in_flight=2,
)


def waiting(second: int) -> TrainerLoad:
    """A trainer of 0.25 s per step that gets two blocks a second, from one worker of two threads."""
    return replace(START, steps=2 * second, blocks=2 * second, busy_s=2.0 * second, stalled_s=0.5 * second)


def test_a_waiting_trainer_demands_threads_and_says_why(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "feedline.scaling")
    spec = ClusterSpec.model_validate({"workers": {"min": 1, "max": 8}, "threads": 2})
    demand = Demand("ctr", "0123456789", spec)
    size = ClusterSize(workers=1, threads=2)
    reports = [demand.look({1: waiting(second)}, float(second), size, None) for second in range(12)]
    assert (reports[0].demand_threads, reports[-1].demand_threads) == (2.0, 4.0)
    report = reports[-1]
    assert (report.job, report.ranks, report.least_workers, report.most_workers) == ("ctr-01234567", 1, 1, 8)
    assert report.busy_s_total == 22.0
    assert report.wait_fraction == pytest.approx(0.45, abs=0.01)
    assert "workers needed: trainers wait 40% of the time, and need 2.0 workers by their own pace: 1 → 2" in caplog.text


def test_nothing_is_said_where_nobody_follows(caplog: pytest.LogCaptureFixture):
    """A scheduler without the extension."""
    caplog.set_level(logging.INFO, "feedline.scaling")
    demand = Demand("ctr", "0123456789", ClusterSpec(scheduler="tcp://127.0.0.1:8786"))
    size = ClusterSize(workers=1, threads=2)
    reports = [demand.look({1: waiting(second)}, float(second), size, None) for second in range(12)]
    assert reports[-1].demand_threads == 4.0
    assert not caplog.text


def test_feeders_of_one_job_share_its_limits_and_other_jobs_have_their_own():
    spec = ClusterSpec.model_validate({"scheduler": "tcp://127.0.0.1:8786", "workers": {"min": 1, "max": 3}})
    size = ClusterSize(workers=4, threads=8)
    book = JobBook()
    for name in ("ctr", "ctr", "cvr"):
        report = Demand(name, "0123456789", spec).look({}, 0.0, size, None)
        book.record(replace(report, demand_threads=20.0), 0.0, size)
    assert book.demand_workers(0.0, size) == 3 + 3
