"""A trainer's request for a plan, the facts that answer it, a rank's outcome, and the counts of a feeder's work.

Runs in: the trainer, the feeder, the process of `feedline run`. Pure; no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

from feedline.dataclass import dataclass
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.layout import BatchSchema
from feedline.progress import Progress

# A feeder's events are lines on its standard output that begin so; the other lines are the libraries'.
EVENT_PREFIX = '{"wire": '


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A trainer's request for a plan: its rank and, on resume, the names and numbers in its state that must match.

    A `snapshot` of None lets the feeder take one; `features` of None accepts any. `trainer`, `trainers`: its rank among
    all trainers and their number, if several of them read the same rank's rows. `connected`: torch.distributed connects
    the ranks, and rank 0 plans first. `column_group`: the names of the features to read, in the pipeline's order; empty
    for all. `epoch`: of a followed table, the epoch whose plan it requests; `snapshot` and `plan` may then be those of
    an earlier one. `window_rows`, `window_blocks`: as of `PlanFacts`, of the run that is continued. `rebase`: the state
    whose epoch continues on the current table.
    """

    rank: int
    world_size: int
    trainer: int | None = None
    trainers: int | None = None
    snapshot: str | None = None
    lanes: int | None = None
    plan: str | None = None
    features: str | None = None
    seed: int | None = None
    batch_size: int | None = None
    window_rows: int | None = None
    window_blocks: int | None = None
    rebase: Mapping[str, Any] | None = None
    connected: bool = False
    column_group: tuple[str, ...] = ()
    epoch: int | None = None

    @property
    def global_rank(self) -> int:
        """The rank among all trainers."""
        return self.rank if self.trainer is None else self.trainer

    @property
    def global_size(self) -> int:
        """The number of all trainers."""
        return self.world_size if self.trainers is None else self.trainers

    def for_plan(self, facts: PlanFacts) -> Hello:
        """The same trainer's request for the plan of these facts."""
        keys = ("snapshot", "lanes", "plan", "features", "window_rows", "window_blocks", "epoch")
        return replace(self, rebase=None, **{key: getattr(facts, key) for key in keys})


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFileFacts:
    """A bad file that a plan leaves out: path, reason, and rows (None if the footer is unreadable)."""

    path: str
    reason: str
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebaseChanges:
    """The changes of a table as a rebase records them: from one snapshot to another, before a step; counts of files and
    rows."""

    from_: str
    to: str
    epoch: int
    step: int
    rewritten: str
    files: Mapping[str, int]
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestFacts:
    """The epoch that a rebase shortened: its steps (including those before `first_step`), the remaining rows, and how
    the table has changed."""

    epoch: int
    first_step: int
    steps: int
    rows: int
    rows_dropped: int
    changes: RebaseChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """One of several sources: rows of it in a lane's share of a step, its selected rows, the steps of a pass through
    them, and how many passes an epoch makes."""

    name: str
    batch_rows: int
    rows: int
    pass_steps: int
    passes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    """A bucket of `batch.buckets`: the greatest length of its rows, the rows of a lane and step, and its steps in an
    epoch."""

    bound: int
    batch_size: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnGroup:
    """A column group: its name, after its features, and the digest of everything that decides what a row becomes in
    them."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """The facts of a plan that a trainer needs: `steps` and rows count a whole epoch.

    `snapshot`, `plan` and `features` are the fingerprints in a state; `environment` lists the versions that compute
    features. `nulls` are warnings, `absent` notes about the table. `rest` is the epoch that a rebase shortened.
    `sources`: of a plan of several; `rows` are those of all, `rows_dropped` those that an epoch does not deliver.
    `column_group` has the features of the schema, if these are not all. `epoch`: the only one that the plan is of,
    where the table is followed. With `buckets`, `batch_size` is that of the largest. `window_rows`: that a lane mixes,
    of at least `window_blocks` blocks; both 0 with `shuffle: off`.
    """

    snapshot: str
    plan: str
    features: str
    environment: str
    seed: int
    lanes: int
    batch_size: int
    window_rows: int
    window_blocks: int
    steps: int
    rows: int
    rows_dropped: int
    bad_files: tuple[BadFileFacts, ...]
    nulls: tuple[str, ...]
    absent: tuple[str, ...]
    schema: BatchSchema
    rest: RestFacts | None = None
    sources: tuple[SourceFacts, ...] = ()
    column_group: ColumnGroup | None = None
    epoch: int | None = None
    buckets: tuple[BucketFacts, ...] = ()

    def bounds(self, world_size: int) -> dict[int, int]:
        """The bound of each bucket by the rows of its batches on a rank; empty without buckets."""
        return {bucket.batch_size * (self.lanes // world_size): bucket.bound for bucket in self.buckets}

    def steps_of(self, epoch: int) -> int:
        """Steps of an epoch, equal on all ranks; for a rebased epoch, including those before the rebase."""
        return self.rest.steps if self.rest is not None and self.rest.epoch == epoch else self.steps

    def first_step_of(self, epoch: int) -> int:
        """The first step that an epoch can deliver: 0, or the step of the rebase."""
        return self.rest.first_step if self.rest is not None and self.rest.epoch == epoch else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederFacts:
    """The feeder: its process id, seconds from its start to the end of its imports, log file, addresses of Dask's
    dashboard and of the live page."""

    imports_s: float
    log: str | None
    dashboard: str | None
    live_page: str | None
    feeder: int


@dataclass(slots=True, kw_only=True)
class BlockStats:
    """Sums over the blocks that a feeder received; `resubmitted` counts second attempts, `cached` is None without a
    cache."""

    blocks: int = 0
    rows: int = 0
    nbytes_read: int = 0
    nbytes_encoded: int = 0
    times: BlockTimes = field(default_factory=BlockTimes)
    resubmitted: int = 0
    cached: CacheCounts | None = None


@dataclass(slots=True, kw_only=True)
class FeederStats:
    """A feeder's work for one trainer: batches and rows announced, bytes written, seconds waiting for blocks and slots.

    `epochs`: one more than the last epoch that the trainer took to its end. `step`: the next of the `steps` of `epoch`.
    `window`: the limit of `blocks_in_flight` (0 before it is decided), and what decided it. threads: that compute
    blocks for this trainer (0 before the first); cores: of workers' hosts, its part of them (0: unknown, or blocks are
    computed by the feeder). planning_s: from a request for a plan to its answer. loop_cpu_s: of the feeder's loop since
    the trainer connected, for all of the feeder's trainers. copy_s: of the threads that write slots, with their CPU
    seconds. fed_s: from the trainer's first batch to its last one so far.
    """

    batches: int = 0
    rows: int = 0
    nbytes: int = 0
    wait_blocks_s: float = 0.0
    wait_slots_s: float = 0.0
    epoch: int = 0
    step: int = 0
    steps: int = 0
    epochs: int = 0
    ring_slots: int = 0
    ring_free: int = 0
    blocks_in_flight: int = 0
    window: int = 0
    window_reason: str = ""
    threads: int = 0
    cores: float = 0.0
    planning_s: float = 0.0
    loop_cpu_s: float = 0.0
    copy_s: float = 0.0
    copy_cpu_s: float = 0.0
    fed_s: float = 0.0
    delivery: BlockStats = field(default_factory=BlockStats)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """The fingerprints of a rank's plan and its state, or an error. The verdict of rank 0 is an error or empty."""

    snapshot: str | None = None
    lanes: int | None = None
    window_rows: int | None = None
    window_blocks: int | None = None
    plan: str | None = None
    features: str | None = None
    state: Mapping[str, Any] | None = None
    data_rank: int | None = None
    data_world_size: int | None = None
    column_group: ColumnGroup | None = None
    error: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederEvent:
    """An event of a rank of a feeder of `feedline run`, or the feeder's death, which the supervisor detects.

    ready: it waits for a trainer (dashboard, live_page, pid). refused: another feeder serves the rank (error).
    trainer: one attached (pid). plan: the plan is ready. stats: progress; planning: of a plan that is not ready. left:
    the trainer left (error, stats, quality, as bytes). died: the feeder of these ranks died (status).
    """

    type: Literal["ready", "refused", "trainer", "plan", "stats", "left", "died"]
    rank: int | None
    dashboard: str | None = None
    live_page: str | None = None
    pid: int | None = None
    plan: PlanFacts | None = None
    stats: FeederStats | None = None
    planning: Progress | None = None
    quality: bytes | None = None
    error: str | None = None
    status: int | None = None
