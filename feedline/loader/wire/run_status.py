"""The status of a feeder: one value that holds all that pages, metrics and explanations show of it.

Runs in: the feeder, which builds it about once a second; the scheduler, which keeps the last one of each feeder; the
processes that show it. Pure; no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal

from feedline.dataclass import dataclass
from feedline.loader.wire.facts import FeederStats
from feedline.progress import Progress

FILES_PHASE: Literal["waiting for files"] = "waiting for files"  # of the progress of a plan, while it waits


def planning_state(progress: Progress | None) -> Literal["planning", "waiting for files"]:
    """The state of a rank whose plan is not there yet, with this progress."""
    return FILES_PHASE if progress is not None and progress.phase == FILES_PHASE else "planning"


def state_of_ranks(states: Iterable[str]) -> str:
    """The state that says most of the ranks of a job: "feeding" if any is fed."""
    order = ("feeding", FILES_PHASE, "planning", "waiting", "ended")
    return min(states, key=order.index, default="waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPart:
    """A part of a table that a plan reads or prunes. what: "partitions", "row groups by statistics", ...; total, kept:
    of files or row groups; nbytes: compressed bytes of the kept ones' columns (None: unknown)."""

    what: str
    total: int
    kept: int
    nbytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus:
    """The plan of a rank: its fingerprint and snapshot, rows and steps of an epoch, and what is pruned."""

    plan: str
    snapshot: str
    rows: int
    rows_dropped: int
    steps: int
    batch_size: int
    pruning: tuple[ReadPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """What a feeder does for one rank.

    state: a rank waits for its trainer, or for the files of a followed table that its next epoch reads. stats: its
    counts so far. stalled_s: seconds for which the trainer says it has waited for batches, beyond a stream's first.
    step_s: median seconds per step that the trainer takes without waiting (0: unknown). starved: its next step waits
    for a block. ready: batches in the ring. held_bytes: of finished blocks. trainer: its process id (0: unknown).
    trainers: that have come so far. problems: values of delivered blocks that are null, not finite or unknown, and
    expectations that were broken, by kind. findings: warnings of the quality of features, the last ones last. error:
    that ended the last trainer. Neither quotes a value of a row.
    """

    rank: int
    state: Literal["waiting", "planning", "waiting for files", "feeding", "ended"]
    stats: FeederStats
    stalled_s: float = 0.0
    step_s: float = 0.0
    starved: bool = False
    ready: int = 0
    held_bytes: int = 0
    trainer: int = 0
    trainers: int = 0
    plan: PlanStatus | None = None
    problems: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    error: str = ""

    @property
    def awaits_plan(self) -> bool:
        """Whether the plan of the epoch that its trainer asks for is not there yet."""
        return self.state in ("planning", FILES_PHASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederDecision:
    """A decision that a feeder took, and why: about its window, workers or cache. at_s: unix time."""

    at_s: float
    topic: Literal["window", "workers", "cache", "cluster"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederStatus:
    """A feeder as of `now_s`, unix time, as `started_s`.

    job: the same for all feeders of a job; feeder: unique per process. pipeline: the path of pipeline.yaml. epochs: of
    the run; 0 where its trainers decide (`epochs_known`). form: of `cluster`. cores: that the feeder may use. cpu_s:
    CPU seconds that the feeder's process has used. workers, threads: that compute its blocks. restarts: feeders of its
    ranks that died before it. lost, regained: connections to the scheduler. decisions: the last ones. kernels: the
    compiled ones of its process.
    """

    job: str
    feeder: str
    name: str
    pipeline: str
    host: str
    pid: int
    version: str
    started_s: float
    now_s: float
    epochs: int
    form: str
    cores: float
    cpu_s: float
    workers: int
    threads: int
    ranks: tuple[RankStatus, ...]
    restarts: int = 0
    lost: int = 0
    regained: int = 0
    decisions: tuple[FeederDecision, ...] = ()
    dashboard: str | None = None
    kernels: tuple[str, ...] = ()

    def epochs_known(self, epoch: int) -> int:
        """The epochs of a run that is in an epoch, counted from 0; 0 where they are not known: its trainers decide, or
        have gone on beyond them."""
        return self.epochs if epoch < self.epochs else 0
