"""One trainer's session: its channel, its ring, its stream of batches, and what is counted of them.

Runs in: the feeder, in the thread of its loop (`feeder.py`), which calls `receive` when the trainer has sent something,
`advance` while the session is `runnable`, and `look` once a second. Nothing here waits. States of a stream:
none -> active (epoch, step) -> ... -> ended (END was sent) -> none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import field, fields, replace

from feedline.dataclass import dataclass
from feedline.errors import StateError
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.slot import Draft
from feedline.loader.ring.channel import Channel, ChannelClosedError
from feedline.loader.ring.reports import EpochCounts, report_packet
from feedline.loader.ring.slots import RingWriter
from feedline.loader.wire import ring_messages
from feedline.loader.wire.facts import FeederFacts, FeederStats, Hello
from feedline.planning.plan import Plan
from feedline.planning.schedule import rank_lanes
from feedline.progress import Progress
from feedline.resources.cgroups import available_memory_bytes
from feedline.service.autoscale import TrainerLoad
from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder.planner import Agreement, Planner
from feedline.service.feeder.quality_monitor import QualityMonitor
from feedline.service.feeder.slot_writers import SlotWriters
from feedline.service.feeder.timing import TrainerPace
from feedline.service.feeder.trainer_stream import TrainerStream
from feedline.service.feeder.trainer_streams import TrainerStreams
from feedline.version import VERSION

logger = logging.getLogger(__name__)
_window_logger = logging.getLogger("feedline.window")
_cache_logger = logging.getLogger("feedline.cache")

# How often the feeder reports to the trainer (or `feedline run`).
_REPORT_S = 0.5
# A trainer that has waited longer for blocks is said to have caught up, once it has its batch.
_NOTABLE_S = 10.0
# The ring's share of a feeder's memory; the rest is for blocks in flight.
_RING_SHARE = 0.25


@dataclass(slots=True)
class FeederCounters(FeederStats):
    """The stats while they are counted."""

    stalled_s: float = 0.0  # the trainer's own count of its waits
    starved_s: float | None = None  # since when its next step waits for a block, after the first batch
    slept_s: float = 0.0  # of the loop, as far as it is counted
    requested_s: float | None = None  # when a plan was requested that is not answered
    first_s: float = 0.0  # when the first batch was announced
    began_cpu_s: float = field(default_factory=time.thread_time)  # of the loop's thread

    def stats(self) -> FeederStats:
        """The counts so far; called by the loop."""
        self.loop_cpu_s = time.thread_time() - self.began_cpu_s
        numbers = {each.name: getattr(self, each.name) for each in fields(FeederStats)}
        return FeederStats(**numbers | {"delivery": replace(self.delivery)})

    def load(self, stream: TrainerStream | None, *, starved: bool) -> TrainerLoad:
        """What the trainer uses and waits for."""
        delivery = self.delivery
        return TrainerLoad(
            steps=self.batches,
            blocks=delivery.blocks,
            busy_s=delivery.times.thread_s,
            stalled_s=self.stalled_s,
            starved=starved,
            blocks_per_step=0.0 if stream is None else stream.blocks_per_step,
            block_s=0.0 if stream is None else stream.window.block_s,
            ready=self.ring_slots - self.ring_free,
            in_flight=0 if stream is None or stream.ended else stream.window.in_flight,
        )

    def begin(self, stream: ring_messages.BeginStream, steps: int, threads: int) -> None:
        self.epoch, self.step, self.steps, self.threads = stream.epoch, stream.step, steps, threads

    def count_wait(self, slept_s: float, stream: TrainerStream | None) -> None:
        """Count the time in which the loop has slept since the last call as waiting for a slot or for blocks of the
        stream; called before something is done for the trainer. slept_s: its sleep in all."""
        seconds, self.slept_s = slept_s - self.slept_s, slept_s
        if stream is None or stream.ended:
            return
        if stream.measured:
            self.wait_slots_s += seconds
        else:
            self.wait_blocks_s += seconds

    def log_cached(self, rank: int | None) -> None:
        if self.delivery.cached is not None:
            _cache_logger.info("rank %s: after epoch %d, %s", rank, self.epoch, self.delivery.cached.describe())

    def log_caught_up(self, rank: int | None) -> None:
        since_s, self.starved_s = self.starved_s, None
        if since_s is not None and (waited_s := time.monotonic() - since_s) > _NOTABLE_S:
            logger.warning("rank %s caught up: its next batch had waited %.0f s for blocks", rank, waited_s)

    def count_flight(self, blocks: int, cluster: Cluster) -> None:
        self.blocks_in_flight = blocks
        self.threads, self.cores = cluster.threads_per_trainer(), cluster.cores_per_trainer()

    def count_planning(self) -> None:
        """The plan that was requested is there."""
        if self.requested_s is not None:
            self.planning_s += time.monotonic() - self.requested_s
            self.requested_s = None

    def add(self, batches: Sequence[Draft], ring: RingWriter, writers: SlotWriters) -> None:
        for batch in batches:
            self.batches += 1
            self.rows += batch.header.rows
            self.nbytes += batch.placement.nbytes
            self.step = batch.header.step + 1
        self.ring_slots, self.ring_free = ring.slots, ring.free_slots
        self.copy_s, self.copy_cpu_s = writers.copy_s, writers.copy_cpu_s
        now_s = time.perf_counter()
        self.first_s = self.first_s or now_s
        self.fed_s = now_s - self.first_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetup:
    """What all sessions of a feeder share. memory_bytes: for the blocks in flight and the ring of one. about: answers
    each trainer's hello."""

    cluster: Cluster
    planner: Planner
    world_size: int
    memory_bytes: int
    about: FeederFacts


class TrainerSession:
    """Serves one trainer over one channel.

    rank: of the trainer (None: its hello says so). wake: ends the loop's sleep; blocks that finish call it from other
    threads. admit: called with the first hello; False if the feeder serves that trainer's rank already. on_plan: called
    with the plan of a hello.
    """

    def __init__(
        self,
        channel: Channel,
        setup: SessionSetup,
        *,
        rank: int | None,
        wake: Callable[[], None],
        admit: Callable[[Hello], bool] = lambda hello: True,
        on_plan: Callable[[Plan], None] = lambda plan: None,
    ) -> None:
        self.channel = channel
        self._setup, self._cluster, self._planner = setup, setup.cluster, setup.planner
        self.rank = rank
        self.global_rank: int | None = None  # among all trainers, of which several may read the same rows
        self._world_size = setup.world_size
        self._blocks_bytes = int(setup.memory_bytes * (1 - _RING_SHARE))
        self._wake_loop = wake
        self._admit = admit
        self._on_plan = on_plan
        self._ring = RingWriter(channel, limit_bytes=int(setup.memory_bytes * _RING_SHARE))
        self._writers = SlotWriters(self._ring, channel)
        self._request: ring_messages.PlanRequest | None = None  # the last one
        self._planning: Future[Plan] | None = None
        self._agreement: Agreement | None = None
        self.pace = TrainerPace()
        self._report_s = 0.0
        self.runnable = False  # something has happened since `advance` had nothing to do
        self.starved = False  # the trainer's next step waits for a block
        self.counters = FeederCounters()
        self.streams = TrainerStreams(setup.cluster, setup.planner, self.pace, self.counters.delivery, self._wake)
        self.running = self.streams.running  # the streams that have not ended
        self.monitor = QualityMonitor(BatchSchema(()), (), "warn")
        self.trainer = _pidfd(channel)

    @property
    def written(self) -> int:
        """A descriptor that a poll finds when the batches that were begun are written."""
        return self._writers.wake

    @property
    def planning(self) -> Progress | None:
        """The progress of the plan that was requested; None once it is there, or where nothing is known."""
        return None if self._planning is None else self._planner.progress

    def load(self) -> TrainerLoad:
        return self.counters.load(self.streams.current, starved=self.starved)

    def look(self) -> None:
        """Check the blocks in flight, and what ranks agreed on. Called about once a second."""
        self.runnable = True
        if self._request is not None and self._request.watched and (progress := self.planning) is not None:
            self.channel.post_message(progress)
        if self._agreement is not None:
            self._agreement.look(time.monotonic())
        streams = self.streams.running()
        for stream in streams:
            stream.delivery.look(starved=self.starved and stream is self.streams.current)
        if streams:
            self._adjust_window(streams[0])

    def _adjust_window(self, stream: TrainerStream) -> None:
        decision = stream.window.observe(
            threads=self._cluster.threads_per_trainer(),
            step_s=self.pace.known_step_s,
            blocks_per_step=stream.blocks_per_step,
            held_bytes=self.streams.held_bytes,
            available_bytes=available_memory_bytes(),
        )
        if decision is not None:
            _window_logger.info("rank %s: %s", self.rank, decision.describe(self._ring.provide(decision.slots)))
            self.counters.window, self.counters.window_reason = decision.blocks, decision.reason
        self.counters.count_flight(stream.window.in_flight, self._cluster)

    def send_error(self, name: str, message: str) -> None:
        """Send the error that ends the session, after the batches before it."""
        stream = self.streams.current
        if stream is not None and not stream.ended:
            with contextlib.suppress(Exception):  # the first error is the one to send
                self._writers.finish()
        with contextlib.suppress(ChannelClosedError):
            number = 0 if self._request is None else self._request.number
            self.channel.post_message(ring_messages.FeederFailure(name=name, message=message, number=number))

    def close(self) -> None:
        """Drop the blocks in flight and the ring. The channel stays open for its last messages."""
        trainer, self.trainer = self.trainer, None
        if trainer is not None:
            os.close(trainer)
        self._end_stream()
        self._writers.close()
        self._ring.close()

    def _wake(self) -> None:
        self.runnable = True
        self._wake_loop()

    # -- receiving --------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Handle the trainer's messages. Raises ChannelClosedError if it has left."""
        self.runnable = True
        while True:
            arrival = self.channel.receive_other()
            self._ring.release_all(self.channel.queue)
            if arrival is None:
                return
            match arrival[1]:
                case ring_messages.PlanRequest() as request:
                    self._on_request(request)
                case ring_messages.BeginStream() as begin:
                    self._on_begin(begin)
                case ring_messages.GrowRing():
                    self._ring.grow()
                case ring_messages.Diagnose():
                    self.streams.ask_missing()
                    self._answer_questions()
                case ring_messages.StallReport(seconds=seconds):
                    self.counters.stalled_s += seconds
                case ring_messages.EpochDone(epoch=epoch):
                    self.counters.epochs = max(self.counters.epochs, epoch + 1)

    def _on_request(self, request: ring_messages.PlanRequest) -> None:
        hello, is_first, self._request = request.hello, self._request is None, request
        _refuse_other_installations(request)
        _refuse_other_rank(hello, hello.rank if self.rank is None else self.rank, self._world_size)
        if self.global_rank != hello.global_rank and not self._admit(hello):
            self.channel.post_message(ring_messages.FeederBusy())
            raise ChannelClosedError("another trainer of this rank is served")
        self.rank, self.global_rank = hello.rank, hello.global_rank
        self.counters.requested_s = time.monotonic()
        planning, agreement = self._planner.plan(hello, self._wake)
        if hello.epoch is None or is_first:
            self._end_stream()
            self._agreement = agreement
        else:  # the next epoch of a followed table, whose blocks may be computed already
            self.streams.stop_opening(self._planning)
        self._planning = planning

    def _answer_hello(self, planning: Future[Plan]) -> None:
        if not planning.done():
            return
        self._planning = None
        plan = planning.result()
        self.counters.count_planning()
        assert self.rank is not None and self._request is not None  # noqa: PT018
        lanes = rank_lanes(plan.lanes, self.rank, self._world_size)
        if self.streams.use(plan, lanes, self._blocks_bytes, self._request.hello):
            self._writers.drop()
            self.monitor = QualityMonitor(plan.layout.schema, plan.feature_specs, plan.on_expect)
        self._on_plan(plan)
        feeder = replace(self._setup.about, dashboard=self._cluster.dashboard)
        answer = ring_messages.PlanAnswer(number=self._request.number, plan=plan.facts(), feeder=feeder)
        self.channel.post_message(answer)

    def _answer_questions(self) -> None:
        for text in self.streams.answers(self._ring.slots, planning=self._planning is not None):
            self.channel.post_message(ring_messages.Diagnosis(text=text))

    def _on_begin(self, begin: ring_messages.BeginStream) -> None:
        self._writers.drop()
        self.streams.begin(begin)
        if self._agreement is not None:
            self._agreement.begin()
            self._agreement.look(time.monotonic())

    def _open_stream(self) -> None:
        begin, stream = self.streams.open(), self.streams.current
        if begin is not None and stream is not None:
            self._ring.node = begin.node
            self.monitor.begin(begin.epoch, None if begin.seen is None else EpochCounts.from_bytes(begin.seen))
            self.counters.begin(begin, stream.schedule.steps, self._cluster.threads_per_trainer())

    def _end_stream(self) -> None:
        if self._planning is not None:
            self._planning.cancel()
        self._writers.drop()
        self.streams.end()

    # -- filling --------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Answer a hello, announce or write a batch, or end the stream; sets `runnable` if there may be more."""
        self.runnable = False
        self._answer_questions()
        if self._planning is not None:
            self._answer_hello(self._planning)
            return
        self._open_stream()
        if self._fill():
            self.runnable = True
        self.streams.compute_ahead()

    def _fill(self) -> bool:
        """Announce batches and begin to write more, or end the stream; False if nothing is to do before an event."""
        stream, self.starved = self.streams.current, False
        if stream is None or stream.ended:
            return False
        self._announce(stream)
        if stream.step < stream.schedule.steps:
            return self._write(stream)
        if self._writers.busy:
            return False
        self._report(warnings=self.monitor.end())
        self._ring.announce_end(stream=stream.number, epoch=stream.epoch)
        stream.ended = True
        stream.delivery.close()
        self.counters.log_cached(self.rank)
        return True

    def _announce(self, stream: TrainerStream) -> None:
        while written := self._writers.announce():
            self.pace.step(time.perf_counter(), self.counters.wait_blocks_s, len(written))
            self.counters.add(written, self._ring, self._writers)
            self._report(every_s=_REPORT_S)
            last_step = written[-1].header.step
            self.monitor.add(last_step, stream.drop_blocks(last_step))

    def _write(self, stream: TrainerStream) -> bool:
        """Begin to write batches, as far as there are blocks and slots; True if there may be more of both."""
        if not stream.window.knows_pace and self.pace.known_step_s:
            self._adjust_window(stream)
        more = stream.write(self._writers, self.pace.step_s, ready=lambda: self.counters.log_caught_up(self.rank))
        self.starved = stream.starved
        if self.starved and self.counters.starved_s is None and self.counters.batches:
            self.counters.starved_s = time.monotonic()
        self._announce(stream)  # what this thread has written
        return more

    def _report(self, warnings: Sequence[str] = (), *, every_s: float = 0.0) -> None:
        stream = self.streams.current
        if stream is None or time.monotonic() - self._report_s < every_s:
            return
        if every_s and self.channel.has_posted:
            return  # a trainer that reads nothing gets the next one: reports must not pile up
        self._report_s = time.monotonic()
        counts = self.monitor.due_counts() if every_s else self.monitor.epoch_counts()
        self.channel.post(report_packet(stream.number, self.counters.stats(), counts))
        if warnings:
            self.channel.post_message(ring_messages.DataWarnings(texts=tuple(warnings)))


def _pidfd(channel: Channel) -> int | None:
    """A descriptor of the process at the other end."""
    try:
        return os.pidfd_open(channel.peer_pid())
    except OSError:  # already dead, or in another container: then the connection ends
        return None


def show_window_changes() -> None:
    """Write a line to standard error (or the feeder's log) whenever a window, or the demand for workers, changes, and
    after each epoch with a cache."""
    for decisions in (_window_logger, _cache_logger, logging.getLogger("feedline.scaling")):
        decisions.setLevel(logging.INFO)


def _refuse_other_installations(request: ring_messages.PlanRequest) -> None:
    if request.feedline != VERSION:
        raise StateError(
            f"trainer and feeder differ in their feedline version: got {request.feedline}, expected {VERSION}. Start "
            "both from one installation"
        )


def _refuse_other_rank(hello: Hello, rank: int, world_size: int) -> None:
    if (hello.rank, hello.world_size) != (rank, world_size):
        raise StateError(
            f"the trainer is another rank: got rank {hello.rank} of {hello.world_size}, expected {rank} of {world_size}"
        )
