"""A block that a feeder has received: what its span says.

Runs in: the feeder. Pure; without OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBlock:
    """A block, its times and its sizes. submitted_s, arrived_s: of the attempt that computed it, by the clock of
    `time.monotonic`. attempts: submissions in all. cached, missed: features x row groups that the cache had, or not."""

    name: str
    lane: int
    index: int
    first_step: int
    rows: int
    nbytes_read: int
    nbytes_encoded: int
    submitted_s: float
    arrived_s: float
    read_s: float
    transform_s: float
    encode_s: float
    attempts: int
    cached: int = 0
    missed: int = 0

    def attributes(self) -> dict[str, str | int | float]:
        """The attributes of its span."""
        return {
            "feedline.block.name": self.name,
            "feedline.block.lane": self.lane,
            "feedline.block.index": self.index,
            "feedline.block.first_step": self.first_step,
            "feedline.block.rows": self.rows,
            "feedline.block.read_bytes": self.nbytes_read,
            "feedline.block.encoded_bytes": self.nbytes_encoded,
            "feedline.block.attempts": self.attempts,
            "feedline.stage.read_seconds": self.read_s,
            "feedline.stage.transform_seconds": self.transform_s,
            "feedline.stage.encode_seconds": self.encode_s,
            "feedline.cache.found": self.cached,
            "feedline.cache.computed": self.missed,
        }


ObserveBlock: TypeAlias = Callable[[FinishedBlock], None]
