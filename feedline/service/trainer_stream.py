"""One stream of batches: a rank's rows of an epoch from a step on, while the feeder delivers them.

Runs in: the feeder, in the thread of its loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import Draft, draft
from feedline.planning.schedule import Block, Schedule
from feedline.service.dispatch.delivery import Delivery
from feedline.service.steps import segments_of


@dataclass(slots=True)
class TrainerStream:
    """A rank's batches of one epoch from a step on."""

    number: int
    epoch: int
    step: int  # to be written next
    schedule: Schedule
    delivery: Delivery
    borders: dict[int, Any]
    draft: Draft | None = None  # the measured batch of `step`, until a slot is free
    ended: bool = False
    last: bool = False  # no other epoch follows

    @property
    def blocks_per_step(self) -> float:
        """On average over the epoch."""
        return sum(len(starts) - 1 for starts in self.borders.values()) / max(1, self.schedule.steps)

    def measure(self, layout: SlotLayout) -> Draft | None:
        """The batch of the step, measured; None while one of its blocks is missing."""
        segments = segments_of(self.schedule, self.borders, self.step, self.delivery.get)
        return None if segments is None else draft(layout, segments, epoch=self.epoch, step=self.step)

    def drop_blocks(self, step: int) -> list[tuple[Block, Quality]]:
        """Drop the blocks whose last step is this one; returns their quality counts."""
        return [item for item in self.delivery.drop(step) if self.schedule.has_rows(item[0].lane)]

    def diagnose(self, slots: int) -> str:
        """Why the step is not delivered yet. slots: of the ring."""
        if self.draft is not None:
            return f"step {self.step} is ready, but the trainer holds all {slots} slots of the ring"
        missing = self.delivery.describe_missing(self.step)
        return missing or f"all blocks of step {self.step} are there: the feeder is about to deliver it"
