"""Count blocks: those that a feeder receives, and those that this process computes, a worker's own metrics.

Runs in: feeders; Dask workers, in the threads of tasks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from feedline.blocks.request import BlockResult
from feedline.dataclass import dataclass
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.facts import BlockStats


def count_block(sums: BlockStats, result: BlockResult, turnaround_s: float = 0.0) -> None:
    """Add a block to sums. turnaround_s: from its submission to its result."""
    sums.blocks += 1
    sums.rows += result.rows
    sums.nbytes_read += result.nbytes_read
    sums.nbytes_encoded += result.nbytes
    queued = BlockTimes(queued_s=max(0.0, turnaround_s - result.times.thread_s))
    sums.times = BlockTimes.total((sums.times, result.times, queued))
    if result.cached is not None:
        sums.cached = (sums.cached or CacheCounts()) + result.cached


# Those of `cluster.blame`, and a task that was killed. Each is counted from 0 on: of a counter that begins with its
# first failure, a rate would not see that one.
FAILURES = ("data", "unfit", "unknown", "transient", "other", "killed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksComputed:
    """Counts so far. running: blocks that are computed now. failed: attempts, by the kind of their failure (all of
    `FAILURES`)."""

    sums: BlockStats
    running: int
    failed: Mapping[str, int]


class BlockCounts:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums = BlockStats()
        self._failed: Counter[str] = Counter(dict.fromkeys(FAILURES, 0))
        self._running = 0

    def begin(self) -> None:
        with self._lock:
            self._running += 1

    def end(self, result: BlockResult) -> None:
        with self._lock:
            self._running -= 1
            count_block(self._sums, result)

    def fail(self, kind: str) -> None:
        with self._lock:
            self._running -= 1
            self._failed[kind] += 1

    def read(self) -> BlocksComputed:
        with self._lock:
            return BlocksComputed(sums=replace(self._sums), running=self._running, failed=dict(self._failed))


# Of this process.
BLOCK_COUNTS = BlockCounts()
