"""Decide how many blocks are in flight.

Runs in: the feeder. Pure. Evaluated for every block, since workers come and go, and the size of blocks is unknown until
some have finished.
"""

from __future__ import annotations

from dataclasses import dataclass

# Blocks beyond one per lane, until the first result shows how large blocks are.
_FIRST_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window of one stream. lanes: of the rank. fixed_blocks: `cluster.window` (None: by worker threads)."""

    lanes: int
    memory_bytes: int
    fixed_blocks: int | None = None

    def has_room(self, blocks: int, *, threads: int, largest_bytes: int) -> bool:
        """Whether one more block fits. largest_bytes: of the largest block so far, 0 before the first."""
        if not largest_bytes:
            return blocks < min(self.blocks(threads), max(self.lanes, min(threads, self.lanes + _FIRST_FEW)))
        return blocks < self.blocks(threads) and (blocks + 1) * largest_bytes <= self.memory_bytes

    def blocks(self, threads: int) -> int:
        """The limit: two per thread, so that none runs idle, and one per lane, from which steps are cut."""
        return self.fixed_blocks or 2 * threads + self.lanes
