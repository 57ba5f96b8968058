"""One stream of batches: a rank's rows of an epoch from a step on, while the feeder delivers them.

Runs in: the feeder, in the thread of its loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import Draft, draft
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block, Schedule
from feedline.service.cluster.cluster import Cluster
from feedline.service.dispatch.delivery import Delivery, DeliveryStats
from feedline.service.dispatch.window import Decision, Window
from feedline.service.steps import segments_of


@dataclass(slots=True)
class TrainerStream:
    """A rank's batches of one epoch from a step on."""

    number: int
    epoch: int
    step: int  # to be written next
    schedule: Schedule
    delivery: Delivery
    lanes: range
    window: Window
    draft: Draft | None = None  # the measured batch of `step`, until a slot is free
    ended: bool = False
    last: bool = False  # no other epoch follows

    @classmethod
    def open(
        cls,
        cluster: Cluster,
        plan: Plan,
        schedule: Schedule,
        lanes: range,
        *,
        number: int,
        epoch: int,
        step: int,
        window: Window,
        wake: Callable[[], None],
        stats: DeliveryStats,
    ) -> TrainerStream:
        """The stream of a rank's lanes from `step` on; see `Delivery`."""
        window.limits = replace(window.limits, open_blocks=schedule.open_blocks(lanes))
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
        return cls(number, epoch, step, schedule, delivery, lanes, window)

    @property
    def blocks_per_step(self) -> float:
        """The blocks that a step uses up, on average."""
        return sum(len(self.schedule.lane(lane).borders) - 1 for lane in self.lanes) / max(1, self.schedule.steps)

    def observe(self, threads: int, step_s: float, available_bytes: int) -> Decision | None:
        """Measure the load; see `Window.observe`."""
        return self.window.observe(
            threads=threads,
            step_s=step_s,
            blocks_per_step=self.blocks_per_step,
            held_bytes=self.delivery.held_bytes,
            available_bytes=available_bytes,
        )

    def measure(self, layout: SlotLayout) -> Draft | None:
        """The batch of the step, measured; None while one of its blocks is missing."""
        segments = segments_of(self.schedule, self.lanes, self.step, self.delivery.get)
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
