"""The metrics of a scheduler: its workers, and what `feedline jobs` lists of its jobs.

Runs in: the scheduler. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from feedline.dataclass import dataclass
from feedline.loader.wire.job_reports import FeederShare
from feedline.native.kernels import kernels_text
from feedline.service.monitoring.metric import Metric, Sample, information, single
from feedline.version import VERSION

# --------------------------------------------------------------------------------------------------------------------
# Sum the reports of feeders by job: the rows of `feedline jobs`, and the metrics of a scheduler.

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


# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """A scheduler at a moment. wanted: workers that all jobs together need (None: unknown, soon after a start).
    joined, left, lost: workers so far; the lost ones did not say that they leave."""

    workers: int
    threads: int
    wanted: int | None
    joined: int
    left: int
    lost: int
    jobs: Sequence[JobRow]


def _cluster(name: str, meaning: str, value: Callable[[SchedulerState], float | None]) -> Metric[SchedulerState]:
    return single(f"feedline_cluster_{name}", meaning, value, {})


def _job(name: str, meaning: str, value: Callable[[JobRow], float]) -> Metric[SchedulerState]:
    def samples(state: SchedulerState) -> Iterator[Sample]:
        return (((row.job,), value(row)) for row in state.jobs)

    return Metric(name=f"feedline_job_{name}", meaning=meaning, labels=("pipeline",), samples=samples)


SCHEDULER_METRICS: tuple[Metric[SchedulerState], ...] = (
    information(
        "feedline_build_info",
        "The release of Feedline that the process runs, and its compiled kernels.",
        {"version": lambda state: VERSION, "role": lambda state: "scheduler", "kernels": lambda state: kernels_text()},
    ),
    _cluster("workers", "Workers of the scheduler.", lambda state: state.workers),
    _cluster("threads", "Threads of all workers.", lambda state: state.threads),
    _cluster(
        "wanted_workers",
        "Workers that all jobs together need; none for half a minute after a start.",
        lambda state: state.wanted,
    ),
    _cluster("workers_joined_total", "Workers that have joined.", lambda state: state.joined),
    _cluster("workers_left_total", "Workers that have left in order.", lambda state: state.left),
    _cluster("workers_lost_total", "Workers whose connection was lost.", lambda state: state.lost),
    _cluster("jobs", "Jobs that report.", lambda state: len(state.jobs)),
    _job("feeders", "Feeders of the job.", lambda row: row.feeders),
    _job("hosts", "Hosts of those feeders.", lambda row: row.hosts),
    _job("ranks", "Trainers that are served.", lambda row: row.ranks),
    _job("share", "The job's weight, `cluster.share`.", lambda row: row.share),
    _job("blocks_per_second", "Blocks finished per second, of late.", lambda row: row.blocks_per_s),
    _job("used_threads", "Threads of workers that the job uses.", lambda row: row.threads),
    _job("fair_threads", "The job's fair part of the threads.", lambda row: row.fair_threads),
    _job("wanted_threads", "Threads that its trainers need to wait for no block.", lambda row: row.demand_threads),
    _job("route_workers", "Workers that compute the blocks of one feeder.", lambda row: row.route_workers),
    _job("connections", "Connections between feeders and workers, at most.", lambda row: row.connections),
    _job("blocks_in_flight", "Blocks submitted and not yet used up.", lambda row: row.blocks_in_flight),
    _job("wait_ratio", "Share of its time that the trainer that waits most waits.", lambda row: row.wait_fraction),
    _job("starved", "1 while a trainer waits 5 % of its time or more.", lambda row: float(row.starved)),
)
