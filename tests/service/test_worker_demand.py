"""What feeders report that they need of workers, and the cores of a cluster."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.config.cluster_section import ClusterSpec
from feedline.loader.wire.codec import pack
from feedline.loader.wire.job_reports import JobAnswer, WorkerCores
from feedline.service.autoscale import TrainerLoad
from feedline.service.cluster.fair_share import FairShare
from feedline.service.scheduler.job_book import ClusterSize, JobBook
from feedline.service.worker_cores import count_cores
from feedline.service.worker_demand import Demand

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
    assert report.wait_fraction == pytest.approx(0.5, abs=0.01)
    assert "workers needed: trainers wait 50% of the time, and need 2.0 workers by their own pace: 1 → 2" in caplog.text


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


def test_demands_are_rounded_to_workers_once():
    """32 feeders that use half a thread each need two workers of eight threads and a bit, not one worker each."""
    spec = ClusterSpec(scheduler="tcp://127.0.0.1:8786")
    size = ClusterSize(workers=3, threads=24)
    book = JobBook()
    for _ in range(32):
        demand = Demand("ctr", "0123456789", spec)
        for second in range(12):
            calm = replace(START, starved=False, ready=4, steps=second, blocks=second // 2, busy_s=second / 2)
            calm = replace(calm, blocks_per_step=0.5)
            report = demand.look({1: calm}, float(second), size, None)
        book.record(report, 0.0, size)
    assert book.demand_workers(0.0, size) == 3


def test_a_cluster_that_changes_all_the_time_does_not_keep_a_waiting_trainer_from_workers():
    """Workers come and go every 3 s; this feeder's part of their threads stays nearly the same."""
    demand = Demand("ctr", "0123456789", ClusterSpec(scheduler="tcp://127.0.0.1:8786"))
    reports = []
    for second in range(60):
        workers = 100 + second // 3 % 2
        size = ClusterSize(workers=workers, threads=2 * workers)
        answer = JobAnswer(now_s=0.0, virtual_start_s=0.0, threads=2.0 * workers / 100)
        reports.append(demand.look({1: waiting(second)}, float(second), size, answer))
    assert reports[-1].wait_fraction > 0.4
    assert reports[-1].demand_threads >= 4.0


def test_a_trainer_that_waits_all_the_time_for_large_batches_demands_more():
    """A batch every 16 s; the wait is reported while it lasts, twice a second."""
    spec = ClusterSpec.model_validate({"workers": {"min": 1, "max": 8}, "threads": 1})
    demand = Demand("ctr", "0123456789", spec)
    size = ClusterSize(workers=1, threads=1)
    for second in range(120):
        steps = second // 16
        load = replace(START, steps=steps, blocks=steps, busy_s=float(second), stalled_s=float(second), block_s=16.0)
        report = demand.look({1: load}, float(second), size, None)
    assert report.wait_fraction == pytest.approx(1.0)
    assert report.demand_threads > 1.0


WHOLE = range(8)


def worker(host: str, cpus: range = WHOLE, cores: int = 8) -> Any:
    sent = pack(WorkerCores(host=host, cpus=tuple(cpus), cores=cores)).decode()
    return SimpleNamespace(extra={"feedline-cores": sent}, nthreads=3)


def silent(**extra: object) -> Any:
    return SimpleNamespace(extra=extra, nthreads=3)


@pytest.mark.parametrize(
    ("workers", "cores"),
    [
        ([], 0),
        ([worker("a")] * 4, 8),
        ([worker("a"), worker("a"), worker("b")], 16),
        ([worker("a", cores=2)] * 3, 6),  # containers with a quota
        ([worker("a", cores=2)] * 9, 8),
        ([worker("a", cores=2), worker("a")], 8),
        ([worker("a", range(2), 2)] * 2, 2),  # two that share two cores
        ([worker("a", range(2), 2), worker("a", range(2, 4), 2)], 4),
        ([silent(), silent()], 6),
        ([silent(), worker("a")], 11),
        ([silent(**{"feedline-cores": '{"wire": 1}'}), silent(**{"feedline-cores": 5}), worker("a")], 14),
    ],
)
def test_cores_of_hosts(workers: list[Any], cores: int):
    assert count_cores(workers) == cores


@pytest.mark.parametrize(("threads", "all_threads", "cores"), [(8, 8, 16.0), (2, 8, 4.0), (9, 8, 16.0)])
def test_a_job_can_count_on_its_share_of_the_cores(threads: int, all_threads: int, cores: float):
    share = FairShare()
    assert share.cores(threads, all_threads) == 0.0, "unknown"
    share.update(JobAnswer(now_s=0.0, virtual_start_s=0.0, threads=2.0, cores=16), 0.0)
    assert share.cores(threads, all_threads) == cores
