"""What a feeder reports to its scheduler, and what the scheduler answers.

Runs in: the feeder, and the scheduler, which loads neither torch, Polars nor pyarrow for it.
"""

from __future__ import annotations

from feedline.dataclass import dataclass

# The scheduler publishes the address of each worker that it loses under this topic; feeders subscribe to it.
LOST_TOPIC = "feedline-lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The load of one feeder. job: the same for all feeders of a job; feeder: unique per process.

    ranks: trainers that it serves. share: `cluster.share`. demand_threads: threads of workers that its trainers need to
    wait for no block. least_workers, most_workers: limits of `cluster.workers` (None: no limit). wait_fraction: of the
    last seconds, in which a trainer's next step waited for a block; starved: it does now. block_s: median computing
    time of a block. blocks_per_s: blocks that were finished for this feeder, per second of late. busy_s_total: seconds
    of computing of all blocks. route: digest of the route that the feeder has; see `routes.py`. client: the id of its
    Dask client.
    """

    job: str
    feeder: str
    host: str
    ranks: int
    share: float
    demand_threads: float
    least_workers: int
    most_workers: int | None
    wait_fraction: float
    starved: bool
    blocks_in_flight: int
    block_s: float
    blocks_per_s: float
    busy_s_total: float
    route: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """The scheduler's answer to a report.

    now_s: the scheduler's clock. virtual_start_s: of this job, in seconds of that clock. threads: this feeder's fair
    part of the cluster's threads. cores: of the cluster's hosts, each counted once. route: the
    workers that may compute this feeder's blocks (empty: all); None: those that it has by its report.
    """

    now_s: float
    virtual_start_s: float
    threads: float
    cores: int = 0
    route: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCores:
    """The cores of a worker. host: the same for all of its containers; cpus: numbers of those that the worker may run
    on; cores: how many of them at a time, by the limits of its cgroup."""

    host: str
    cpus: tuple[int, ...]
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederShare:
    """A feeder's last report, and its fair part of the cluster's threads. workers: of its route, or all."""

    report: JobReport
    threads: float
    workers: int
