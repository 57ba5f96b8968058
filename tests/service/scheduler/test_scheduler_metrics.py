"""What a scheduler lists of its jobs, and shows as metrics."""

from __future__ import annotations

from dataclasses import replace

from job_reports import REPORT

from feedline.loader.wire.job_reports import FeederShare
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
