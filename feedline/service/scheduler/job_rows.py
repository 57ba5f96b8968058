"""Sum the reports of feeders by job: the rows of `feedline jobs`, and the metrics of a scheduler.

Runs in: the scheduler, and processes that ask one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedline.loader.wire.job_reports import FeederShare

# A trainer that waits as much as this share of its time is starved, also between two waits.
_STARVED = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job: sums over its feeders. threads: of workers that it uses; fair_threads: its part of the cluster;
    demand_threads: that it needs. route_workers: that compute the blocks of one feeder, of the feeder with most; all,
    without routes. connections: between feeders and workers, at most. wait_fraction: of the trainer that waits most."""

    job: str
    feeders: int
    hosts: int
    ranks: int
    share: float
    blocks_per_s: float
    threads: float
    fair_threads: float
    demand_threads: float
    route_workers: int
    connections: int
    blocks_in_flight: int
    wait_fraction: float
    starved: bool


def job_rows(feeders: Sequence[FeederShare]) -> list[JobRow]:
    """A row per job, those that wait most first."""
    by_job: dict[str, list[FeederShare]] = {}
    for feeder in feeders:
        by_job.setdefault(feeder.report.job, []).append(feeder)
    rows = [_row(job, members) for job, members in by_job.items()]
    return sorted(rows, key=lambda row: (-row.wait_fraction, row.job))


def _row(job: str, members: Sequence[FeederShare]) -> JobRow:
    reports = [member.report for member in members]
    waits = max(report.wait_fraction for report in reports)
    return JobRow(
        job=job,
        feeders=len(members),
        hosts=len({report.host for report in reports}),
        ranks=sum(report.ranks for report in reports),
        share=max(report.share for report in reports),
        blocks_per_s=sum(report.blocks_per_s for report in reports),
        threads=sum(report.blocks_per_s * report.block_s for report in reports),
        fair_threads=sum(member.threads for member in members),
        demand_threads=sum(report.demand_threads for report in reports),
        route_workers=max(member.workers for member in members),
        connections=sum(member.workers for member in members),
        blocks_in_flight=sum(report.blocks_in_flight for report in reports),
        wait_fraction=waits,
        starved=waits >= _STARVED,
    )
