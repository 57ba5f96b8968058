"""Count what a cache did for this process.

Runs in: every process that computes or reads with a cache.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class CacheCounters:
    """Counts since the folder was opened; any thread may add to them.

    Attributes:
        hits, misses: columns that were found, and that were not.
        bytes_read, bytes_written: bytes of the arrays found, and of the files written.
        damaged: files that were not as written, and were removed.
        evicted: files removed to make room.
        skipped: columns computed but not written: no space, no permission, or no room below the bound.
        duplicates: computations that may have been done twice: no lock could be had, or its holder took too long.
        waited_s: seconds of waiting for another holder.
    """

    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    damaged: int = 0
    evicted: int = 0
    skipped: int = 0
    duplicates: int = 0
    waited_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **changes: float) -> None:
        """Add to counters, by name."""
        with self._lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)
