"""Sums of what a run used over a stretch of time, and the capacities that it used them of.

Runs in: whatever explains a run: the trainer, `feedline explain`, the dashboard. Pure; no torch. Two statuses of a
feeder some seconds apart make a sample; samples add up, and their variation gives the intervals of all rates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import astuple, field, fields, replace
from functools import lru_cache
from operator import attrgetter
from statistics import median
from typing import Self

from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.wire.facts import BlockStats, FeederStats

_RESAMPLES = 200
_LEAST_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The limits between which a value lies with about 95 % probability, as far as its samples tell."""

    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        """The interval of the value times a factor."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(low=low, high=high)


# Of `cluster`, where workers share the trainer's host.
LOCAL_FORMS = ("pool", "threads", "processes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a run may use. cores: that compute blocks; threads: of all workers, for this trainer; workers: processes.

    form: of `cluster`: "pool", "threads", "processes", "provider" or "scheduler". own_cores: whether blocks, feeder and
    trainer share `cores`. store_bytes_per_s: that its store delivers at most (None: unknown). window: blocks in flight
    (0: undecided), with its reason. epochs: of the run. cached: whether it has a cache of features. copiers: threads
    that copy batches into slots. lock_share: of the CPU time of a block thread, for which it holds the interpreter's
    lock (None: unknown).
    """

    cores: float
    threads: int
    workers: int = 1
    form: str = "threads"
    own_cores: bool = True
    store_bytes_per_s: float | None = None
    window: int = 0
    window_reason: str = ""
    epochs: int = 1
    cached: bool = False
    copiers: int = 2
    lock_share: float | None = None


def capacity_of(
    spec: PipelineSpec,
    stats: FeederStats,
    *,
    cores: float,
    workers: int = 0,
    store_bytes_per_s: float | None = None,
) -> Capacity:
    """The capacities of one trainer's blocks. cores: of this host; workers: of a cluster (0: as pipeline.yaml says)."""
    limits = spec.cluster.workers
    least = 1 if limits is None else limits.min
    return replace(
        capacity_in_form(spec.cluster.kind, stats, cores=cores, workers=workers or least),
        epochs=spec.epochs,
        cached=spec.cache is not None and not spec.cache.is_off,
        store_bytes_per_s=store_bytes_per_s,
    )


def capacity_in_form(form: str, stats: FeederStats, *, cores: float, workers: int) -> Capacity:
    """The capacities with a form of `cluster`. cores: of the feeder's host, which workers share in two of the forms; in
    the others they are those of the workers' hosts, or as many as threads where these are unknown."""
    threads = max(stats.threads, 1)
    is_local = form in LOCAL_FORMS
    return Capacity(
        cores=cores if is_local else stats.cores or float(threads),
        threads=threads,
        workers=threads if form == "pool" else workers,
        form=form,
        own_cores=is_local,
        window=stats.window,
        window_reason=stats.window_reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Sums over `wall_s` seconds of a run for one trainer. Seconds of block stages are those of all block threads.

    rows, batches: delivered. trainer_wait_s: of the trainer for batches (None: there is no trainer). trainer_cpu_s: of
    its process, where it shares the cores (0: unknown). blocks, block_rows, nbytes_read, nbytes_encoded: of computed
    blocks, with their times. loop_cpu_s: of the feeder's loop. copy_s: of writing slots, copy_cpu_s its CPU.
    other_cpu_s: of all other threads of the feeder and of the workers that share its cores: of Dask, of a store's
    client (0: unknown). planning_s: until the plan was there. found, computed: columns that a cache had and had not.
    """

    wall_s: float = 0.0
    rows: int = 0
    batches: int = 0
    trainer_wait_s: float | None = None
    trainer_cpu_s: float = 0.0
    blocks: int = 0
    block_rows: int = 0
    nbytes_read: int = 0
    nbytes_encoded: int = 0
    times: BlockTimes = field(default_factory=BlockTimes)
    loop_cpu_s: float = 0.0
    copy_s: float = 0.0
    copy_cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    wait_slots_s: float = 0.0
    planning_s: float = 0.0
    found: int = 0
    computed: int = 0

    @classmethod
    def between(
        cls,
        new: FeederStats,
        old: FeederStats,
        *,
        wall_s: float,
        trainer_wait_s: float | None,
        trainer_cpu_s: float = 0,
    ) -> Self:
        """What was used between two counts of one trainer; since its start, where counts have begun again."""
        if new.batches < old.batches or new.delivery.blocks < old.delivery.blocks:
            old = FeederStats()
        of_loop = {name: getattr(new, name) - getattr(old, name) for name in _OF_FEEDER}
        of_blocks = {name: getattr(new.delivery, name) - getattr(old.delivery, name) for name in _OF_BLOCKS}
        found, computed = (
            sum(sign * getattr(each.delivery.cached, name, 0) for sign, each in ((1, new), (-1, old)))
            for name in ("found", "computed")
        )
        return cls(
            wall_s=wall_s,
            trainer_wait_s=trainer_wait_s,
            trainer_cpu_s=trainer_cpu_s,
            found=found,
            computed=computed,
            block_rows=new.delivery.rows - old.delivery.rows,
            times=new.delivery.times - old.delivery.times,
            **of_loop,
            **of_blocks,
        )

    @property
    def is_sound(self) -> bool:
        """Whether all counts are those of something that happened: finite, and not negative."""
        values = (*_SUMMED(self), *astuple(self.times), self.trainer_wait_s or 0.0)
        return all(math.isfinite(value) and value >= 0 for value in values)

    @property
    def rows_per_s(self) -> float:
        """Delivered rows per second."""
        return self.rows / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def trainer_wait(self) -> float | None:
        """The share of time that the trainer waited."""
        if self.trainer_wait_s is None or self.wall_s <= 0:
            return None
        return min(1.0, max(0.0, self.trainer_wait_s / self.wall_s))

    @property
    def steps_per_s(self) -> float:
        """Delivered batches per second."""
        return self.batches / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def slot_wait(self) -> float:
        """The share of time that finished batches waited for a free slot."""
        return min(1.0, max(0.0, self.wait_slots_s / self.wall_s)) if self.wall_s > 0 else 0.0

    @property
    def block_cpu_s(self) -> float:
        """CPU seconds of computing blocks."""
        return self.times.cpu_s

    @property
    def cores_used(self) -> float:
        """CPU seconds per second, as far as they are counted."""
        used_s = self.block_cpu_s + self.loop_cpu_s + self.copy_cpu_s + self.other_cpu_s + self.trainer_cpu_s
        return used_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def block_busy_s(self) -> float:
        """Seconds in which block threads computed or waited for something else than a CPU."""
        return max(0.0, self.times.thread_s - self.times.contended_s)

    @property
    def lock_wait_s(self) -> float:
        """Seconds in which block threads waited for each other, mostly for the interpreter's lock: an estimate.

        In decoding and encoding nothing sleeps: what is neither CPU nor the store's is such waiting. Of the waiting
        within ops, as much per CPU second as there is the same; what is left is sleep, or a service that is called.
        """
        times = self.times
        wall_s = times.read_s - times.fetch_s + times.encode_s
        computing_s = wall_s + times.transform_s
        kept = max(0.0, 1 - times.contended_s / computing_s) if computing_s > 0 else 1.0
        cpu_s = times.read_cpu_s + times.encode_cpu_s
        surely_s = max(0.0, wall_s * kept - cpu_s)
        within_ops_s = max(0.0, times.transform_s * kept - times.transform_cpu_s)
        return surely_s + min(within_ops_s, surely_s / cpu_s * times.transform_cpu_s if cpu_s > 0 else 0.0)


_SUMMED_NAMES = tuple(each.name for each in fields(RunFacts) if each.name not in ("trainer_wait_s", "times"))
_SUMMED = attrgetter(*_SUMMED_NAMES)
_OF_FEEDER = sorted({each.name for each in fields(RunFacts)} & {each.name for each in fields(FeederStats)})
_OF_BLOCKS = sorted(
    {each.name for each in fields(RunFacts)} & {each.name for each in fields(BlockStats)} - {*_OF_FEEDER, "times"}
)


def sum_samples(samples: Sequence[RunFacts]) -> RunFacts:
    """The samples of one trainer as one."""
    if not samples:
        return RunFacts()
    sums = map(sum, zip(*map(_SUMMED, samples), strict=True))
    waits = [each.trainer_wait_s for each in samples if each.trainer_wait_s is not None]
    return RunFacts(
        trainer_wait_s=sum(waits) if waits else None,
        times=BlockTimes.total(each.times for each in samples),
        **dict(zip(_SUMMED_NAMES, sums, strict=True)),
    )


def with_other_cpu(samples: Sequence[RunFacts], feeder_cpu_s: Sequence[float]) -> list[RunFacts]:
    """The samples with the CPU time of the feeder's other threads. feeder_cpu_s: of its processes, in each sample.

    It is taken for steady, as the median of all samples: in the first of them Dask starts, which no row causes.
    """
    if not samples:
        return []
    cores = median(
        (cpu_s - each.block_cpu_s - each.loop_cpu_s - each.copy_cpu_s) / each.wall_s if each.wall_s > 0 else 0.0
        for each, cpu_s in zip(samples, feeder_cpu_s, strict=True)
    )
    return [replace(each, other_cpu_s=max(0.0, cores) * each.wall_s) for each in samples]


def interval_of(samples: Sequence[RunFacts], value: Callable[[RunFacts], float]) -> Interval | None:
    """The 95 % interval of a value by bootstrap over the samples; None of fewer than three, which say nothing.

    Samples of a second each are drawn with replacement: what varies within a second averages out, what drifts does not.
    """
    busy = tuple(sample for sample in samples if sample.wall_s > 0)
    if len(busy) < _LEAST_SAMPLES:
        return None
    values = sorted(map(value, _resampled(busy)))
    return Interval(low=values[_RESAMPLES // 40], high=values[-1 - _RESAMPLES // 40])


@lru_cache(maxsize=4)
def _resampled(samples: tuple[RunFacts, ...]) -> tuple[RunFacts, ...]:
    """Sums of samples that are drawn with replacement: the same for all values, and at every call."""
    draw = random.Random(0)
    return tuple(sum_samples(draw.choices(samples, k=len(samples))) for _ in range(_RESAMPLES))
