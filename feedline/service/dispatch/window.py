"""Decide how many blocks are in flight.

Runs in: the feeder. Pure, and asked anew for every block: workers come and go, and how large blocks are is known only
once some are finished.
"""

from __future__ import annotations

from dataclasses import dataclass

# Beyond one block per lane, until the first has said how large blocks are.
_FIRST_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Of one stream. `lanes`: that steps are cut from; `fixed_blocks`: of `cluster.window`, None for by workers."""

    lanes: int
    memory_bytes: int
    fixed_blocks: int | None = None

    def has_room(self, blocks: int, *, threads: int, largest_bytes: int) -> bool:
        """Whether one more fits beside `blocks`. largest_bytes: of the largest block so far, 0 before the first."""
        if not largest_bytes:
            return blocks < min(self.blocks(threads), max(self.lanes, min(threads, self.lanes + _FIRST_FEW)))
        return blocks < self.blocks(threads) and (blocks + 1) * largest_bytes <= self.memory_bytes

    def blocks(self, threads: int) -> int:
        """At most: each thread has one and finds the next, and each lane has one that steps are cut from."""
        return self.fixed_blocks or 2 * threads + self.lanes
