"""The rate of a store by its number of concurrent readers, when more readers gain nothing, and what a run may take.

Runs in: the process of `feedline explain`. Pure: from when reads began and ended, and their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from feedline.explain.explanation import Explanation
from feedline.loader.limits.run_facts import Interval, sum_samples

MOST_READERS = 32  # pyarrow keeps some 25 connections to a store
_GROWTH = 1.1  # of the rate, that twice the readers must gain
_SLICES = 8  # of a level, for its interval
_T_95 = 2.36  # the 97.5 % quantile of Student's t with `_SLICES` - 1 degrees of freedom


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRead:
    """A read of `nbytes`, from `began_s` to `ended_s` of one clock."""

    began_s: float
    ended_s: float
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLevel:
    """The bytes per second that so many concurrent readers got, with the 95 % interval."""

    readers: int
    bytes_per_s: float
    interval: Interval


def reader_level(readers: int, reads: Sequence[TimedRead], began_s: float, ended_s: float) -> ReaderLevel:
    """The rate within [began_s, ended_s], which is not empty. A read that reaches beyond counts with its part inside:
    the last ones end when fewer readers are left."""
    edges = np.linspace(began_s, ended_s, _SLICES + 1)
    starts = np.array([read.began_s for read in reads])[:, None]
    stops = np.array([read.ended_s for read in reads])[:, None]
    nbytes = np.array([read.nbytes for read in reads], np.float64)
    inside_s = np.clip(np.minimum(stops, edges[1:]) - np.maximum(starts, edges[:-1]), 0.0, None)
    rates = nbytes / np.maximum(stops - starts, 1e-9)[:, 0] @ inside_s / (edges[1] - edges[0])
    mean, half = float(rates.mean()), _T_95 * float(rates.std(ddof=1)) / math.sqrt(_SLICES)
    return ReaderLevel(
        readers=readers, bytes_per_s=mean, interval=Interval(low=max(0.0, mean - half), high=mean + half)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRate:
    """The rate of a store at ascending numbers of readers, at least one. nbytes: that were read in all."""

    levels: tuple[ReaderLevel, ...]
    nbytes: int

    @property
    def best(self) -> ReaderLevel:
        """The level with the highest rate."""
        return max(self.levels, key=lambda level: level.bytes_per_s)

    @property
    def is_growing(self) -> bool:
        """Whether the last readers gained: the store delivers at least the best rate, and perhaps more."""
        if len(self.levels) == 1:
            return True
        *before, last = (level.bytes_per_s for level in self.levels)
        return last >= _GROWTH * max(before)

    @property
    def next_readers(self) -> int | None:
        """The readers of the next level; None if more gain nothing."""
        readers = 2 * self.levels[-1].readers
        return readers if self.is_growing and readers <= MOST_READERS else None

    def facts(self) -> dict[str, Any]:
        """Plain values, of the best level and of all."""
        return {
            **asdict(self.best),
            "is_growing": self.is_growing,
            "nbytes": self.nbytes,
            "levels": [asdict(level) for level in self.levels],
        }


def explained_with_store(explanation: Explanation, rate: StoreRate | None, skipped: str = "") -> Explanation:
    """The explanation with the rate as the capacity of its store. skipped: why there is none.

    Where the run read more per second, its bytes did not all come from the store, which is no limit of it then.
    """
    if rate is None:
        return replace(explanation, store={"skipped": skipped})
    facts = sum_samples(explanation.slowest.samples)
    run_bytes_per_s = facts.nbytes_read / facts.wall_s if facts.wall_s > 0 else 0.0
    if run_bytes_per_s > _GROWTH * rate.best.bytes_per_s:
        skipped = f"no limit of this run, which read {run_bytes_per_s / 1e6:,.0f} MB/s, from memory or a cache, too"
        return replace(explanation, store={**rate.facts(), "skipped": skipped})
    ranks = (
        replace(each, capacity=replace(each.capacity, store_bytes_per_s=rate.best.bytes_per_s))
        for each in explanation.ranks
    )
    return replace(explanation, ranks=tuple(ranks), store={**rate.facts(), "skipped": ""})
