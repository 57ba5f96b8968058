"""Count the blocks that this process computes: a worker's own metrics.

Runs in: Dask workers, and feeders whose threads compute; in the threads of tasks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksComputed:
    """Sums so far. running: blocks that are computed now. seconds: of each stage. failed: attempts, by the kind of
    their failure."""

    blocks: int
    running: int
    rows: int
    nbytes_read: int
    nbytes_encoded: int
    seconds: Mapping[str, float]
    failed: Mapping[str, int]


class BlockCounts:
    """Sums over blocks. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._seconds = {"read": 0.0, "transform": 0.0, "encode": 0.0}
        self._failed: Counter[str] = Counter()
        self._begun = self._ended = 0

    def begin(self) -> None:
        """Count a block that begins."""
        with self._lock:
            self._begun += 1

    def end(self, *, rows: int, nbytes_read: int, nbytes_encoded: int, seconds: Mapping[str, float]) -> None:
        """Count a block that is computed."""
        with self._lock:
            self._ended += 1
            self._numbers.update(blocks=1, rows=rows, nbytes_read=nbytes_read, nbytes_encoded=nbytes_encoded)
            for stage, duration_s in seconds.items():
                self._seconds[stage] += duration_s

    def fail(self, kind: str) -> None:
        """Count a block that failed."""
        with self._lock:
            self._ended += 1
            self._failed[kind] += 1

    def read(self) -> BlocksComputed:
        """The sums so far."""
        with self._lock:
            numbers = self._numbers
            return BlocksComputed(
                blocks=numbers["blocks"],
                running=self._begun - self._ended,
                rows=numbers["rows"],
                nbytes_read=numbers["nbytes_read"],
                nbytes_encoded=numbers["nbytes_encoded"],
                seconds=dict(self._seconds),
                failed=dict(self._failed),
            )


# Of this process.
BLOCK_COUNTS = BlockCounts()
