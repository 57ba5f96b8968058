"""Streams of batches: a rank's rows of an epoch from a step on, while the feeder delivers them.

Runs in: the feeder, in the thread of its loop. The schedule of an epoch is computed by the planner's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import Draft, draft
from feedline.loader.ring.messages import BeginStream
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block, Schedule
from feedline.service.cluster.cluster import Cluster
from feedline.service.dispatch.delivery import Delivery, DeliveryStats
from feedline.service.dispatch.timing import HORIZON_S, TrainerPace
from feedline.service.dispatch.window import Decision, Window
from feedline.service.planner import Planner
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
            batch_rows=schedule.batch_size,
        )
        return cls(epoch, step, schedule, delivery, lanes, window)

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


@dataclass(slots=True, frozen=True)
class _Opening:
    """A stream that waits for its epoch's schedule. begin: the trainer's request; None while it has not asked yet."""

    epoch: int
    step: int
    begin: BeginStream | None
    schedule: Future[Schedule]


class TrainerStreams:
    """The stream that a trainer reads, and the next epoch's, started when that one has ended.

    current: None until the schedule of the epoch that the trainer asked for is there.
    """

    def __init__(
        self, cluster: Cluster, planner: Planner, pace: TrainerPace, stats: DeliveryStats, wake: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._planner = planner
        self._pace = pace
        self._stats = stats
        self._wake = wake
        self._source: tuple[Plan, range, Window] | None = None
        self._opening: _Opening | None = None
        self._ahead: TrainerStream | None = None
        self.current: TrainerStream | None = None

    @property
    def is_opening(self) -> bool:
        """Whether a schedule is being computed."""
        return self._opening is not None

    def running(self) -> list[TrainerStream]:
        """The streams that have not ended."""
        return [stream for stream in (self.current, self._ahead) if stream is not None and not stream.ended]

    def use(self, plan: Plan, lanes: range, window: Window) -> None:
        """Streams from now on are of these lanes of a plan."""
        self._source = plan, lanes, window

    def begin(self, begin: BeginStream) -> None:
        """Begin the stream that the trainer asks for, in place of the current one."""
        ahead, self._ahead = self._ahead, None
        self.end()
        if ahead is not None and (ahead.epoch, ahead.step) != (begin.epoch, begin.step):
            ahead.delivery.close()
            ahead = None
        schedule = self._schedule(begin.epoch) if ahead is None else _done(ahead.schedule)
        self._ahead = ahead
        self._opening = _Opening(begin.epoch, begin.step, begin, schedule)

    def begin_ahead(self, epoch: int) -> None:
        """Compute the first blocks of an epoch that the trainer has not asked for yet."""
        self._opening = _Opening(epoch, 0, None, self._schedule(epoch))

    def open(self) -> BeginStream | None:
        """Open the stream whose schedule is there. The trainer's request, if that is the current one now.

        Raises PlanError for an epoch without a step.
        """
        opening = self._opening
        if opening is None or not opening.schedule.done():
            return None
        self._opening = None
        stream, self._ahead = self._ahead, None
        if stream is None:
            stream = self._open(opening, opening.schedule.result())
        if opening.begin is None:
            self._ahead = stream
            stream.delivery.pump(0, step_s=self._pace.step_s, delay_s=HORIZON_S)
        else:
            self.current = stream
            stream.number, stream.last = opening.begin.stream, opening.begin.last
        return opening.begin

    def end(self) -> None:
        """Drop the streams and their blocks."""
        if self._opening is not None:
            self._opening.schedule.cancel()
        for stream in (self.current, self._ahead):
            if stream is not None:
                stream.delivery.close()
        self.current = self._ahead = self._opening = None

    def _schedule(self, epoch: int) -> Future[Schedule]:
        assert self._source is not None
        plan, lanes, _ = self._source
        return self._planner.schedule(plan, epoch, lanes, self._wake)

    def _open(self, opening: _Opening, schedule: Schedule) -> TrainerStream:
        assert self._source is not None
        plan, lanes, window = self._source
        return TrainerStream.open(
            self._cluster,
            plan,
            schedule,
            lanes,
            epoch=opening.epoch,
            step=max(opening.step, schedule.first_step),
            window=window,
            wake=self._wake,
            stats=self._stats,
        )


def _done(schedule: Schedule) -> Future[Schedule]:
    future: Future[Schedule] = Future()
    future.set_result(schedule)
    return future
