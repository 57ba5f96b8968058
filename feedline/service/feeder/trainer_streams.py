"""The streams of one trainer: the one that it reads, and those of the next epochs, whose blocks are computed ahead.

Runs in: the feeder's loop. When all blocks of an epoch have been submitted and the window has room, the next epoch's
stream is opened, and its blocks follow in the same window. When the trainer begins elsewhere, the streams up to the one
that it asks for are dropped, with their errors, and nothing is computed ahead until it continues to a next epoch:
docs/decisions/0092-blocks-in-forked-workers.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

from feedline.blocks.jobs import keep_job
from feedline.dataclass import dataclass
from feedline.loader.wire.facts import BlockStats, Hello
from feedline.loader.wire.ring_messages import BeginStream
from feedline.planning.epoch_schedule import EpochSchedule
from feedline.planning.plan import Plan
from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder.block_work import MissingBlocks
from feedline.service.feeder.delivery import Delivery, StreamBlocks
from feedline.service.feeder.planner import EpochPlan, Planner
from feedline.service.feeder.timing import HORIZON_S, TrainerPace
from feedline.service.feeder.trainer_stream import TrainerStream
from feedline.service.feeder.window import Window, WindowLimits


@dataclass(slots=True, frozen=True)
class _Opening:
    """An epoch whose schedule is being computed, with its plan where the table is followed."""

    epoch: int
    plan: Plan | None
    future: Future[EpochSchedule] | Future[EpochPlan]

    def result(self) -> EpochPlan:
        found = self.future.result()
        if isinstance(found, EpochPlan):
            return found
        assert self.plan is not None
        return EpochPlan(self.plan, found)


class TrainerStreams:
    """The stream that a trainer reads, and those of the epochs after it. current: None until the schedule of the epoch
    that the trainer asked for is there."""

    def __init__(
        self, cluster: Cluster, planner: Planner, pace: TrainerPace, stats: BlockStats, wake: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._planner = planner
        self._pace = pace
        self._stats = stats
        self._wake = wake
        self._source: tuple[Plan, range, Window] | None = None
        self._hello: Hello | None = None  # that asked for the plan
        self._begin: BeginStream | None = None  # the trainer's request, until its stream is open
        self._opening: _Opening | None = None
        self._ahead: deque[TrainerStream] = deque()  # of epochs that follow each other
        self._continues = True  # whether the trainer has gone on to the epoch that was expected
        self.current: TrainerStream | None = None
        self._asked: deque[MissingBlocks | None] = deque()  # for questions why there is no batch

    @property
    def plan(self) -> Plan | None:
        """The plan that streams are opened of; None before the first."""
        return None if self._source is None else self._source[0]

    @property
    def is_opening(self) -> bool:
        return self._begin is not None

    @property
    def held_bytes(self) -> int:
        return sum(stream.delivery.held_bytes for stream in self.running())

    def running(self) -> list[TrainerStream]:
        """The streams that have not ended, in the order of their epochs."""
        current = [] if self.current is None or self.current.ended else [self.current]
        return [*current, *self._ahead]

    def use(self, plan: Plan, lanes: range, memory_bytes: int, hello: Hello) -> bool:
        """Streams from now on are of these lanes of a plan, which a hello asked for. Open ones end, unless it asked for
        another epoch of a followed table; returns whether they do. memory_bytes: for blocks."""
        last, self._hello = self._source, hello
        if hello.epoch is not None and last is not None and last[0].layout.schema == plan.layout.schema:
            self._source = (plan, lanes, last[2])
            return False
        self.end()
        limits = WindowLimits(open_blocks=1, memory_bytes=memory_bytes, fixed_blocks=self._cluster.fixed_window)
        self._source, self._continues = (plan, lanes, Window(limits)), True  # one window for all epochs
        return True

    def stop_opening(self, planning: Future[Plan] | None) -> None:
        """Give up an epoch whose schedule is not there yet, and a plan that the trainer has asked for: it asks for
        another."""
        if planning is not None:
            planning.cancel()
        if self._begin is None:
            self._cancel_opening()

    def begin(self, begin: BeginStream) -> None:
        """Begin the stream that the trainer asks for, in place of the current one."""
        last, self.current = self.current, None
        if last is not None:
            last.delivery.close()
            self._continues = begin.epoch == last.epoch + 1 or (begin.epoch == last.epoch and begin.step > 0)
        self._begin = begin
        assert self._source is not None
        plan, asked = self._source[0], (begin.epoch, begin.step)
        while self._ahead and not (
            self._ahead[0].plan is plan and (self._ahead[0].epoch, self._ahead[0].step) == asked
        ):
            self._ahead.popleft().delivery.close()
        opening = self._opening
        if self._ahead:
            self.current = self._ahead.popleft()
        elif opening is None or opening.epoch != begin.epoch or opening.plan is not self._source[0]:
            self._cancel_opening()
            self._open_schedule(begin.epoch)

    def open(self) -> BeginStream | None:
        """Open the stream that the trainer asked for, once its schedule is there; returns the request then. Raises
        PlanError for an epoch without a step."""
        begin = self._begin
        if begin is None:
            return None
        if self.current is None:
            opening = self._opening
            assert opening is not None
            if not opening.future.done():
                return None
            self._opening = None
            self.current = self._open(begin.epoch, begin.step, opening.result())
        self._begin = None
        stream = self.current
        stream.number, stream.last = begin.stream, begin.last
        stream.window.limits = replace(stream.window.limits, open_blocks=stream.schedule.open_blocks(stream.lanes))
        return begin

    def compute_ahead(self) -> None:
        """Submit blocks of the next epochs, if those of the current one are all submitted, as far as there is room."""
        current = self.current
        if current is None or current.delivery.next_block or current.last or not self._continues:
            return
        window, threads = current.window, self._cluster.threads_per_trainer()
        while True:
            last = self._ahead[-1] if self._ahead else current
            delivery = last.delivery
            if delivery.next_block and (current.ended or window.has_room(window.in_flight, threads=threads)):
                self._pump(last)
            if delivery.next_block or not self._open_ahead(last.epoch + 1):
                return

    def ask_missing(self) -> None:
        """Ask where the blocks are that the trainer's next batch lacks; `answers` has what is known of it."""
        missing = None if self.current is None else self.current.ask_missing()
        if missing is not None:
            missing.places.add_done_callback(lambda _: self._wake())
        self._asked.append(missing)

    def answers(self, slots: int, *, planning: bool) -> Iterator[str]:
        """What the trainer's next batch waits for, for each question that can be answered, in their order. slots: of
        the ring. planning: whether its plan is not there yet."""
        while self._asked and ((missing := self._asked[0]) is None or missing.places.done()):
            yield self._diagnose(slots, self._asked.popleft(), planning=planning)

    def _diagnose(self, slots: int, missing: MissingBlocks | None, *, planning: bool) -> str:
        stream = self.current
        if planning or (stream is None and self.is_opening):
            return self._planner.describe()
        if stream is None or stream.ended:
            return "the feeder has nothing to deliver"
        return stream.diagnose(slots, missing)

    def end(self) -> None:
        self._cancel_opening()
        for stream in (self.current, *self._ahead):
            if stream is not None:
                stream.delivery.close()
        self.current = self._begin = None
        self._ahead.clear()

    def _open_ahead(self, epoch: int) -> bool:
        """Open the stream of an epoch that the trainer has not asked for, if its schedule is there."""
        assert self._source is not None
        if self._ahead and self._source[0].epoch is not None:
            return False  # what a later epoch of a followed table reads is decided later
        opening = self._opening
        if opening is None:
            self._open_schedule(epoch)
            return False
        # The error of a schedule is raised if the trainer asks for its epoch.
        if not opening.future.done() or opening.future.exception() is not None:
            return False
        self._opening = None
        self._ahead.append(self._open(epoch, 0, opening.result()))
        return True

    def _pump(self, stream: TrainerStream) -> None:
        """Submit blocks of a stream ahead. When the current one has ended, memory is the next one's, and holds at
        least what its first step needs."""
        assert self.current is not None
        is_next = self.current.ended and stream is self._ahead[0]
        if self.current.ended:  # the trainer may save and evaluate
            delay_s = HORIZON_S
        else:
            before = [self.current, *self._ahead]
            delay_s = self._pace.step_s * sum(each.schedule.steps - each.step for each in before if each is not stream)
        stream.delivery.pump(stream.step if is_next else stream.step - 1, step_s=self._pace.step_s, delay_s=delay_s)

    def _open_schedule(self, epoch: int) -> None:
        assert self._source is not None
        plan, lanes, _ = self._source
        if plan.epoch in (None, epoch):
            self._opening = _Opening(epoch, plan, self._planner.schedule(plan, epoch, lanes, self._wake))
            return
        assert self._hello is not None
        hello = replace(self._hello.for_plan(plan.facts()), epoch=epoch)
        self._opening = _Opening(epoch, None, self._planner.next_epoch(hello, lanes, self._wake))

    def _cancel_opening(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.future.cancel()

    def _open(self, epoch: int, step: int, opened: EpochPlan) -> TrainerStream:
        assert self._source is not None
        _, lanes, window = self._source
        plan, schedule = opened.plan, opened.schedule
        step = max(step, schedule.first_step)
        for job in plan.jobs:
            keep_job(job)  # for threads of this process
        blocks = StreamBlocks.of(plan, epoch, lanes, schedule=schedule, first_step=step)
        delivery = Delivery(self._cluster, blocks, window=window, wake=self._wake, stats=self._stats)
        return TrainerStream(plan, epoch, step, schedule, plan.layout, delivery, lanes, window)
