"""Rows of jobs: sums over the feeders of each."""

from __future__ import annotations

from dataclasses import replace

from job_reports import REPORT

from feedline.loader.wire.job_reports import FeederShare
from feedline.service.scheduler.job_rows import job_rows


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
