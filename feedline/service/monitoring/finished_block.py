"""A block that a feeder has received: what its span says.

Runs in: the feeder. Pure; without OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from feedline.blocks.request import BlockResult
from feedline.dataclass import dataclass
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.planning.schedule import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBlock:
    """A block and its result. submitted_s, arrived_s: of the attempt that computed it, by the clock of
    `time.monotonic`. attempts: submissions in all."""

    name: str
    block: Block
    result: BlockResult
    submitted_s: float
    arrived_s: float
    attempts: int

    def attributes(self) -> dict[str, str | int | float]:
        block, result = self.block, self.result
        cached = result.cached or CacheCounts()
        return {
            "feedline.block.name": self.name,
            "feedline.block.lane": block.lane,
            "feedline.block.index": block.index,
            "feedline.block.first_step": block.first_step,
            "feedline.block.rows": result.rows,
            "feedline.block.read_bytes": result.nbytes_read,
            "feedline.block.encoded_bytes": result.nbytes,
            "feedline.block.attempts": self.attempts,
            **{f"feedline.stage.{stage}_seconds": seconds for stage, seconds in result.times.stages.items()},
            "feedline.cache.found": cached.found,
            "feedline.cache.computed": cached.computed,
        }


ObserveBlock: TypeAlias = Callable[[FinishedBlock], None]
