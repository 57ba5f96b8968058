"""The feeder: runs a trainer's plan, blocks in, slots out.

Runs in: the feeder. One thread with one loop over events: a message of the trainer, a finished block (an eventfd), the
death of the trainer. Each round fills as many slots as there are rows and room for, then sleeps until the next event.
States of a stream: none -> begun (epoch, step) -> ... -> ended (END was sent) -> none.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from feedline.errors import FeedlineError, StateError
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import Draft, draft, write
from feedline.loader.facts import FeederFacts, FeederStats, Hello
from feedline.loader.ring.channel import FREE, Channel, ChannelClosedError
from feedline.loader.ring.feeder_connection import PROTOCOL
from feedline.loader.ring.reports import report_packet
from feedline.loader.ring.slots import RingWriter
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block, Schedule, rank_lanes
from feedline.service.cluster.cluster import Cluster
from feedline.service.dispatch.delivery import Delivery, DeliveryStats
from feedline.service.dispatch.timing import HORIZON_S, TrainerPace
from feedline.service.dispatch.window import Window
from feedline.service.quality_monitor import QualityMonitor
from feedline.service.steps import segments_of
from feedline.version import VERSION

# Dask's pages cost 0.3 s of imports: they are loaded when the trainer is behind, or this long after the first batch.
_DASHBOARD_S = 5.0
# How often a feeder checks its cluster.
_TICK_S = 1.0
# How often the feeder reports to the trainer (or `feedline run`).
_REPORT_S = 0.5
# Of a feeder's memory: the ring may take this share, blocks in flight the rest.
_RING_SHARE = 0.25


@dataclass(slots=True)
class FeederCounters:
    """What `FeederStats` says, while it is counted."""

    batches: int = 0
    rows: int = 0
    nbytes: int = 0
    wait_blocks_s: float = 0.0
    wait_slots_s: float = 0.0
    epoch: int = 0
    step: int = 0
    steps: int = 0
    epochs: int = 0
    ring_slots: int = 0
    ring_free: int = 0
    delivery: DeliveryStats = field(default_factory=DeliveryStats)

    def stats(self) -> FeederStats:
        """The counts so far."""
        return FeederStats.from_json(asdict(self))


class TrainerGoneError(Exception):
    """The trainer closed its end or died."""


@dataclass(slots=True)
class _Stream:
    number: int
    epoch: int
    step: int
    schedule: Schedule
    delivery: Delivery
    borders: dict[int, Any]
    measured: Draft | None = None
    ended: bool = False
    last: bool = False  # no other epoch follows

    def finished(self) -> list[tuple[Block, Quality]]:
        """What was counted of the blocks whose last step this is; they are forgotten."""
        return [done for done in self.delivery.drop(self.step) if self.schedule.has_rows(done[0].lane)]


class Feeder:
    """Serves one trainer over one channel."""

    def __init__(
        self,
        channel: Channel,
        cluster: Cluster,
        resolve: Callable[[Hello], Plan],
        *,
        rank: int,
        world_size: int,
        memory_bytes: int,
        counters: FeederCounters,
        about: FeederFacts,
    ) -> None:
        self._channel = channel
        self._cluster = cluster
        self._resolve = resolve
        self._rank = rank
        self._world_size = world_size
        self._memory_bytes = memory_bytes
        self._ring = RingWriter(channel, limit_bytes=int(memory_bytes * _RING_SHARE))
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._hello_number = 0  # of the hello that is being answered, or was
        self._plan: Plan | None = None
        self._stream: _Stream | None = None
        self._ahead: _Stream | None = None  # the next epoch's, begun when this one ended
        self._starved = False  # the trainer's next step waits for a block
        self._pace = TrainerPace()
        self._look_due_s = self._reported_s = self._dashboard_due_s = 0.0
        self._dashboard_asked = False
        self.counters = counters
        self.monitor = QualityMonitor(BatchSchema(()), (), "warn")
        self._about = about

    def serve(self) -> None:
        """Serve until the trainer goes. Raises FeedlineError, after it was sent to the trainer."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        trainer: int | None = None
        with contextlib.suppress(OSError):  # dead already, or in another container: the connection ends as well
            trainer = os.pidfd_open(self._channel.peer_pid())
            poll.register(trainer, select.POLLIN)
        try:
            while True:
                self._receive()
                self._look_after_cluster()
                if self._advance():
                    continue
                self._sleep(poll, trainer)
        except (ChannelClosedError, TrainerGoneError):
            return
        except FeedlineError as error:
            self._send_error(type(error).__name__, str(error))
            raise
        except Exception as error:
            self._send_error("FeederError", f"the feeder failed: {type(error).__name__}: {error}")
            raise
        finally:
            if trainer is not None:
                os.close(trainer)
            self._end_stream()
            self._ring.close()
            os.close(self._wake_fd)

    # -- waiting --------------------------------------------------------------------------------------------------

    def _sleep(self, poll: select.poll, trainer: int | None) -> None:
        began = time.perf_counter()
        events = dict(poll.poll(_TICK_S * 1000))
        waited = time.perf_counter() - began
        if self._stream is not None and not self._stream.ended:
            if self._stream.measured is None:
                self.counters.wait_blocks_s += waited
            else:
                self.counters.wait_slots_s += waited
                self._load_dashboard()  # there is time now
        if self._wake_fd in events:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        if trainer in events:
            raise TrainerGoneError
        if not events:
            self._load_dashboard()

    def _look_after_cluster(self) -> None:
        """Every second: check that everything is there that the blocks in flight depend on."""
        now_s = time.monotonic()
        if now_s < self._look_due_s:
            return
        self._look_due_s = now_s + _TICK_S
        self._cluster.look(waiting=self._starved)
        for stream in (self._stream, self._ahead):
            if stream is not None and not stream.ended:
                stream.delivery.look(starved=self._starved and stream is self._stream)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a last block may finish after the trainer went
            os.eventfd_write(self._wake_fd, 1)

    def _send_error(self, name: str, message: str) -> None:
        with contextlib.suppress(ChannelClosedError):
            self._channel.send_json({"type": "error", "number": self._hello_number, "name": name, "message": message})

    # -- receiving --------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        while (received := self._channel.receive(wait=False)) is not None:
            packet, message, _ = received
            if packet[:1] == b"F":
                _, generation, slot = FREE.unpack(packet)
                self._ring.release(generation, slot)
            elif message["type"] == "hello":
                self._on_hello(message)
            elif message["type"] == "begin":
                self._on_begin(message)
            elif message["type"] == "grow":
                self._ring.grow()
            elif message["type"] == "epoch_done":
                self.counters.epochs = max(self.counters.epochs, int(message["epoch"]) + 1)

    def _on_hello(self, message: dict[str, Any]) -> None:
        self._hello_number = int(message.get("number", 0))
        _refuse_other_installations(message)
        hello = Hello.from_json(message)
        if (hello.rank, hello.world_size) != (self._rank, self._world_size):
            raise StateError(
                f"the trainer is another rank: got rank {hello.rank} of {hello.world_size}, expected {self._rank} of "
                f"{self._world_size}"
            )
        self._end_stream()
        self._plan = plan = self._resolve(hello)
        self.monitor = QualityMonitor(plan.layout.schema, plan.job.features, plan.on_expect)
        facts = {**plan.facts().to_json(), **replace(self._about, dashboard=self._cluster.dashboard).to_json()}
        self._channel.send_json({"type": "facts", "number": self._hello_number, "facts": facts})

    def _on_begin(self, message: dict[str, Any]) -> None:
        number, epoch, step = int(message["stream"]), int(message["epoch"]), int(message["step"])
        ahead, self._ahead = self._ahead, None
        self._end_stream()
        if ahead is not None and (ahead.epoch, ahead.step) == (epoch, step):
            self._stream = ahead
            ahead.number = number
        else:
            if ahead is not None:
                ahead.delivery.close()
            self._stream = self._open(number, epoch, step)
        self._stream.last = bool(message["last"])
        self.monitor.begin(epoch, message["seen"])
        self.counters.epoch, self.counters.step, self.counters.steps = epoch, step, self._stream.schedule.steps

    def _open(self, number: int, epoch: int, step: int) -> _Stream:
        assert self._plan is not None
        plan = self._plan
        schedule = plan.schedule(epoch)
        step = max(step, schedule.first_step)
        lanes = rank_lanes(schedule.lanes, self._rank, self._world_size)
        delivery = Delivery(
            self._cluster,
            plan.job,
            plan.layout,
            name=f"{plan.name}-e{epoch}",
            blocks=schedule.blocks_of(lanes, first_step=step),
            request=lambda block: plan.request(block, epoch),
            window=_window(len(lanes), self._memory_bytes, self._cluster.fixed_window),
            wake=self._wake,
            stats=self.counters.delivery,
        )
        borders = {lane: schedule.block_starts(lane) for lane in lanes}
        return _Stream(number, epoch, step, schedule, delivery, borders)

    def _end_stream(self) -> None:
        for stream in (self._stream, self._ahead):
            if stream is not None:
                stream.delivery.close()
        self._stream = self._ahead = None

    # -- filling --------------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Fill one slot, or announce the end; False where there is nothing to do until the next event."""
        stream = self._stream
        self._starved = False
        if stream is None or stream.ended:
            return False
        if stream.step >= stream.schedule.steps:
            self._report(warnings=self.monitor.end())
            self._ring.announce_end(stream=stream.number, epoch=stream.epoch)
            stream.ended = True
            stream.delivery.close()
            # Most trainers continue with the next epoch: its first blocks are computed while they evaluate and save.
            if not stream.last:
                self._ahead = self._open(0, stream.epoch + 1, 0)
                self._ahead.delivery.pump(0, step_s=self._pace.step_s, delay_s=HORIZON_S)
            return True
        if stream.measured is None:
            stream.delivery.pump(stream.step, step_s=self._pace.step_s)
            stream.measured = self._measure(stream)
        if stream.measured is None:
            self._starved = True
            return False
        assert self._plan is not None
        nbytes = stream.measured.placement.nbytes
        room = self._ring.acquire(nbytes)
        if room is None:
            return False
        segment, slot = room
        write(self._plan.layout, stream.measured, segment.slot(slot))
        self._ring.announce(segment, slot, stream=stream.number, epoch=stream.epoch, step=stream.step, nbytes=nbytes)
        self._count(stream, stream.measured)
        stream.measured = None
        self.monitor.add(stream.step, stream.finished())
        stream.step += 1
        return True

    def _measure(self, stream: _Stream) -> Draft | None:
        """The step's rows from its blocks, or None while one of them is missing."""
        assert self._plan is not None
        segments = segments_of(stream.schedule, stream.borders, stream.step, stream.delivery.get)
        if segments is None:
            return None
        return draft(self._plan.layout, segments, epoch=stream.epoch, step=stream.step)

    def _count(self, stream: _Stream, measured: Draft) -> None:
        stats = self.counters
        self._pace.step(time.perf_counter(), stats.wait_blocks_s)
        stats.batches += 1
        stats.rows += measured.header.rows
        stats.nbytes += measured.placement.nbytes
        stats.step = stream.step + 1
        stats.ring_slots, stats.ring_free = self._ring.slots, self._ring.free_slots
        if not self._dashboard_due_s:
            self._dashboard_due_s = time.monotonic() + _DASHBOARD_S
        elif time.monotonic() > self._dashboard_due_s:
            self._load_dashboard()
        if time.monotonic() - self._reported_s > _REPORT_S:
            self._report()

    def _load_dashboard(self) -> None:
        if not self._dashboard_asked:
            self._dashboard_asked = True
            threading.Thread(target=self._cluster.load_dashboard, name="feedline-dashboard", daemon=True).start()

    def _report(self, warnings: Sequence[str] = ()) -> None:
        assert self._stream is not None
        self._reported_s = time.monotonic()
        self._channel.send_long(report_packet(self._stream.number, self.counters.stats(), self.monitor.seen()))
        if warnings:
            self._channel.send_json({"type": "warnings", "texts": list(warnings)})


def _window(lanes: int, memory_bytes: int, fixed_blocks: int | None) -> Window:
    return Window(lanes=lanes, memory_bytes=int(memory_bytes * (1 - _RING_SHARE)), fixed_blocks=fixed_blocks)


def _refuse_other_installations(message: Mapping[str, Any]) -> None:
    for key, mine in (("protocol", PROTOCOL), ("feedline", VERSION)):
        if message.get(key) != mine:
            raise StateError(
                f"trainer and feeder have another {key}: got {message.get(key)}, expected {mine}. Start both from one "
                "installation"
            )
