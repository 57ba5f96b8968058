"""Bound the time that writing to a cache takes by a share of the time that it takes to make what is written.

Runs in: every process that fills a cache. Pure; any thread may use a budget. What is not written is made again by the
next reading, which writes some of it, so that the cache fills over the epochs.
"""

from __future__ import annotations

import threading


class WriteBudget:
    """Seconds of threads, waits included: a slow disk counts as a slow processor does. share: None for no bound.
    free_s: of writing, whatever the share is, so that small tables are written at once."""

    def __init__(self, share: float | None, free_s: float = 0.0) -> None:
        self.share, self._free_s = share, free_s
        self._lock = threading.Lock()
        self._made_s = self._written_s = 0.0
        self._writes = 0

    def allows(self) -> bool:
        """Whether another entry may be written: the first, or one that, taking as long as others, keeps the share."""
        if self.share is None:
            return True
        with self._lock:
            if not self._writes:
                return True
            return self._written_s * (1 + 1 / self._writes) <= max(self._free_s, self.share * self._made_s)

    def spend(self, *, made_s: float, written_s: float = 0.0) -> None:
        """Count what making entries took, and writing them if they were written."""
        with self._lock:
            self._made_s, self._written_s = self._made_s + made_s, self._written_s + written_s
            self._writes += written_s > 0
