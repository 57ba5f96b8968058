"""Metrics of a scheduler: what `feedline jobs` lists, by job."""

from __future__ import annotations

from dataclasses import replace

from job_reports import REPORT

from feedline.loader.wire.job_reports import FeederShare
from feedline.service.scheduler.job_rows import job_rows
from feedline.service.scheduler.scheduler_metrics import SCHEDULER_METRICS, SchedulerState

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
