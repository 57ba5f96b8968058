"""A stream of batches: a rank's rows of an epoch from a step on, while the feeder delivers them.

Runs in: the feeder, in the thread of its loop. `trainer_streams.py` opens streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import Draft, draft
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block, Schedule
from feedline.service.cluster.cluster import Cluster
from feedline.service.dispatch.delivery import Delivery, DeliveryStats
from feedline.service.dispatch.window import Decision, Window
from feedline.service.slot_writers import SlotWriters
from feedline.service.steps import segments_of

_MOST_AT_ONCE = 4  # batches that are handed to a thread together


@dataclass(slots=True)
class TrainerStream:
    """A rank's batches of one epoch from a step on."""

    epoch: int
    step: int  # to be written next
    schedule: Schedule
    delivery: Delivery
    lanes: range
    window: Window
    number: int = 0  # the trainer's, once it has begun
    draft: Draft | None = None  # the measured batch of `step`, until a slot is free
    ended: bool = False
    last: bool = False  # no other epoch follows
    starved: bool = False  # the step waits for a block

    @classmethod
    def open(
        cls,
        cluster: Cluster,
        plan: Plan,
        schedule: Schedule,
        lanes: range,
        *,
        epoch: int,
        step: int,
        window: Window,
        wake: Callable[[], None],
        stats: DeliveryStats,
    ) -> TrainerStream:
        """The stream of a rank's lanes from `step` on; see `Delivery`."""
        delivery = Delivery(
            cluster,
            plan.job,
            plan.layout,
            name=f"{plan.name}-e{epoch}",
            blocks=schedule.blocks_of(lanes, first_step=step),
            request=lambda block: plan.request(block, epoch),
            window=window,
            wake=wake,
            stats=stats,
        )
        return cls(epoch, step, schedule, delivery, lanes, window)

    @property
    def blocks_per_step(self) -> float:
        """The blocks that a step uses up, on average."""
        return sum(len(self.schedule.lane(lane).borders) - 1 for lane in self.lanes) / max(1, self.schedule.steps)

    def observe(self, threads: int, step_s: float, held_bytes: int, available_bytes: int) -> Decision | None:
        """Measure the load; see `Window.observe`."""
        return self.window.observe(
            threads=threads,
            step_s=step_s,
            blocks_per_step=self.blocks_per_step,
            held_bytes=held_bytes,
            available_bytes=available_bytes,
        )

    def measure(self, layout: SlotLayout) -> Draft | None:
        """The batch of the step, measured; None while one of its blocks is missing."""
        segments = segments_of(self.schedule, self.lanes, self.step, self.delivery.get)
        return None if segments is None else draft(layout, segments, epoch=self.epoch, step=self.step)

    def write(self, layout: SlotLayout, writers: SlotWriters, step_s: float, ready: Callable[[], None]) -> bool:
        """Begin to write batches, as far as there are blocks and slots; True if there may be more of both.

        step_s: of the trainer. ready: called for each whose blocks are there.
        """
        most = 1 if writers.is_waited_for else _MOST_AT_ONCE
        try:
            for _ in range(min(most, self.schedule.steps - self.step)):
                if self.draft is None:
                    self.delivery.pump(self.step, step_s=step_s)
                    self.draft = self.measure(layout)
                self.starved = self.draft is None
                if self.draft is None:
                    return False
                ready()
                if not writers.add(layout, self.draft):
                    return False
                self.draft = None
                self.step += 1
        finally:
            writers.begin()
        return True

    def drop_blocks(self, step: int) -> list[tuple[Block, Quality]]:
        """Drop the blocks whose last step is this one; returns their quality counts."""
        return [item for item in self.delivery.drop(step) if self.schedule.has_rows(item[0].lane)]

    def diagnose(self, slots: int) -> str:
        """Why the step is not delivered yet. slots: of the ring."""
        if self.draft is not None:
            return f"step {self.step} is ready, but the trainer holds all {slots} slots of the ring"
        missing = self.delivery.describe_missing(self.step)
        return missing or f"all blocks of step {self.step} are there: the feeder is about to deliver it"
