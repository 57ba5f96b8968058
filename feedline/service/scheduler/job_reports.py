"""What a feeder reports to its scheduler, and what the scheduler answers.

Runs in: the feeder, and the scheduler, which loads neither torch, Polars nor pyarrow for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, TypeVar

# The scheduler publishes the address of each worker that it loses under this topic; feeders subscribe to it.
LOST_TOPIC = "feedline-lost"

T = TypeVar("T", bound="JobReport | JobAnswer")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The load of one feeder. job: the same for all feeders of a job; feeder: unique per process.

    ranks: trainers that it serves. share: `cluster.share`. demand_threads: threads of workers that its trainers need to
    wait for no block. least_workers, most_workers: limits of `cluster.workers` (None: no limit).
    wait_fraction: of the last seconds, in which a trainer's next step waited for a block; starved: it does now.
    steps_ready: finished batches that wait in the rings. block_s: median computing time of a block. blocks_per_s:
    blocks that were finished for this feeder, per second of late. busy_s_total: seconds of computing of all blocks.
    route: digest of the route that the feeder has; see `routes.py`. client: the id of its Dask client.
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
    steps_ready: int
    blocks_in_flight: int
    block_s: float
    blocks_per_s: float
    busy_s_total: float
    route: str = ""
    client: str = ""

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JobReport:
        """The report of these values, of which those of a later release are ignored."""
        return _from_json(cls, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """The scheduler's answer to a report.

    now_s: the scheduler's clock. virtual_start_s: of this job, in seconds of that clock. threads: this feeder's fair
    part of the cluster's threads. workers, jobs: of the cluster. route: the workers that may compute this feeder's
    blocks (empty: all); None: those that it has by its report.
    """

    now_s: float
    virtual_start_s: float
    threads: float
    workers: int
    jobs: int
    route: Sequence[str] | None = ()

    def to_json(self) -> dict[str, Any]:
        """The answer as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JobAnswer:
        """The answer of these values, of which those of a later release are ignored."""
        return _from_json(cls, values)


def _from_json(cls: type[T], values: Mapping[str, Any]) -> T:
    names = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in names})


# Equal in releases that understand each other's reports and answers: it follows from the values that both must have.
REPORT_FORMAT = zlib.crc32(
    repr([[each.name for each in fields(cls) if each.default is MISSING] for cls in (JobReport, JobAnswer)]).encode()
)
