"""A stream of batches: a rank's rows of an epoch from a step on, while the feeder delivers them.

Runs in: the feeder, in the thread of its loop. `trainer_streams.py` opens streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field

from feedline.dataclass import dataclass
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import Draft
from feedline.planning.epoch_schedule import EpochSchedule
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block
from feedline.service.feeder.block_work import MissingBlocks
from feedline.service.feeder.delivery import Delivery
from feedline.service.feeder.slot_writers import SlotWriters
from feedline.service.feeder.steps import drafts, rows_ahead, segments_of
from feedline.service.feeder.window import Window

# Batches that a trainer's turn writes: as many small ones, which have fewer bytes together, or so many others.
_MOST_SMALL, _SMALL_BYTES, _MOST_AT_ONCE = 16, 64 * 1024, 4


@dataclass(slots=True)
class TrainerStream:
    plan: Plan
    epoch: int
    step: int  # to be written next
    schedule: EpochSchedule
    layout: SlotLayout
    delivery: Delivery
    lanes: range
    window: Window
    number: int = 0  # the trainer's, once it has begun
    measured: deque[Draft] = field(default_factory=deque)  # from `step` on, until their slots are free
    ended: bool = False
    last: bool = False  # no other epoch follows
    starved: bool = False  # the step waits for a block
    asked: tuple[int, MissingBlocks] | None = None  # what the scheduler was asked last, and for which step

    @property
    def blocks_per_step(self) -> float:
        """The blocks that a step uses up, on average."""
        return self.schedule.blocks_per_step(self.lanes)

    def measure(self) -> bool:
        """Measure the batch of the step, with others from the same blocks; False while a block is missing."""
        segments = segments_of(self.schedule, self.lanes, self.step, self.delivery.get)
        if segments is None:
            return False
        ahead = rows_ahead(self.schedule, self.lanes, self.step, segments, _MOST_SMALL)
        self.measured.extend(drafts(self.layout, segments, ahead, epoch=self.epoch, step=self.step))
        return True

    def write(self, writers: SlotWriters, step_s: float, ready: Callable[[], None]) -> bool:
        """Begin to write batches, as far as there are blocks and slots; True if there may be more of both. step_s: of
        the trainer. ready: called for each whose blocks are there."""
        nbytes = 0
        if self.delivery.is_due:
            self.delivery.pump(self.step, step_s=step_s)
        for count in range(min(_MOST_SMALL, self.schedule.steps - self.step)):
            if not self.measured:
                if self.delivery.lacks(self.step):
                    self.delivery.pump(self.step, step_s=step_s)
                self.starved = not self.measure()
                if self.starved:
                    self.delivery.pump(self.step, step_s=step_s)  # it is this step that waits
                    return False
                ready()
            batch = self.measured[0]
            nbytes += batch.placement.nbytes
            if count >= _MOST_AT_ONCE and nbytes > _SMALL_BYTES:
                break
            if not writers.add(self.layout, batch, self.number):
                return False
            self.measured.popleft()
            self.step += 1
        return True

    def drop_blocks(self, step: int) -> list[tuple[Block, Quality]]:
        """Drop the blocks whose last step is this one; returns their quality counts."""
        return [item for item in self.delivery.drop(step) if self.schedule.has_rows(item[0].lane)]

    def ask_missing(self) -> MissingBlocks | None:
        """The blocks that the step waits for, and where they are, which the scheduler is asked for; once until it has
        answered, however often a trainer asks. None if the step waits for none."""
        if self.ended or self.measured:
            return None
        if self.asked is None or self.asked[0] != self.step or self.asked[1].places.done():
            self.asked = self.step, self.delivery.missing(self.step)
        return self.asked[1]

    def diagnose(self, slots: int, missing: MissingBlocks | None) -> str:
        """Why the step is not delivered yet. slots: of the ring. missing: the blocks that it lacks."""
        if self.measured:
            return f"step {self.step} is ready, but the trainer holds all {slots} slots of the ring"
        words = "" if missing is None else missing.describe()
        return words or f"all blocks of step {self.step} are there: the feeder is about to deliver it"
