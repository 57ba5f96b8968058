"""Who gives the trainer its next slot, whatever happens to the feeder?

Runs in: the trainer, and `feedline run --sink null`. A `Feed` is a conversation with a feeder: it attaches to one that
`feedline run` keeps, or starts one of its own, says where the stream begins, and receives slots. When the feeder dies
it finds or starts another and goes on from the step after the last one it handed out. No torch here.

States: new -> open (hello answered with facts) -> streaming (begin sent) -> open ... -> closed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from feedline.errors import FeederError, RingError, from_wire
from feedline.loader.channel import END, READY, Channel, ChannelClosedError
from feedline.loader.launch import FeederCommand, FeederProcess
from feedline.loader.rendezvous import connect
from feedline.loader.ring import Lease, Ready, RingReader

logger = logging.getLogger(__name__)

PROTOCOL = 1
# A feeder that dies this often without one batch in between will not get better by itself.
_FUTILE_DEATHS = 3
# `feedline run` needs a few seconds to start another feeder in a dead one's place.
_REATTACH_S = 15.0
_REATTACH_PAUSE_S = 0.2
_QUIET_S = 30.0


@dataclass(slots=True)
class FeedStats:
    """Counts since the feed began: rows (padding included), batches, bytes, seconds spent waiting and overall."""

    rows: int = 0
    batches: int = 0
    nbytes: int = 0
    wait_s: float = 0.0
    started_s: float = field(default_factory=time.perf_counter)
    feeders: int = 0


class Feed:
    """The trainer's conversation with its feeder."""

    def __init__(
        self,
        command: FeederCommand,
        *,
        pin: Callable[[int, int], bool] = lambda _address, _nbytes: False,
        unpin: Callable[[int], None] = lambda _address: None,
    ) -> None:
        self._command = command
        self._pin = pin
        self._unpin = unpin
        self._process: FeederProcess | None = None
        self._channel: Channel | None = None
        self._reader: RingReader | None = None
        self._poll = select.poll()
        self._feeder_pidfd: int | None = None
        self._queue: deque[Ready | tuple[int, int]] = deque()
        self._hello: dict[str, Any] | None = None
        self._stream = 0
        self._place: tuple[int, int] | None = None
        self._full: dict[str, Any] | None = None
        self._growing = False
        self._warned_growth = False
        self._progress_since_death = False
        self._futile_deaths = 0
        self.facts: dict[str, Any] = {}
        self.feeder_stats: dict[str, Any] = {}
        self.stats = FeedStats()
        self.attached = False

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Attach to a waiting feeder or start one; returns at once, the feeder gets ready meanwhile."""
        channel = connect(self._command.attach_path) if self._command.attach_path else None
        self.attached = channel is not None
        if channel is None:
            self._process = FeederProcess(self._command)
            channel = self._process.channel
        self._channel = channel
        self._reader = RingReader(self._channel, pin=self._pin, unpin=self._unpin)
        self._poll = select.poll()
        self._poll.register(self._channel.fileno(), select.POLLIN)
        pid = self._process.pid if self._process is not None else self._channel.peer_pid()
        with contextlib.suppress(OSError, AttributeError):
            self._feeder_pidfd = os.pidfd_open(pid)
            self._poll.register(self._feeder_pidfd, select.POLLIN)
        self.stats.feeders += 1

    def open(self, hello: dict[str, Any]) -> dict[str, Any]:
        """Say who asks and for which plan; returns the plan's facts. Raises what the feeder could not do."""
        self._hello = {"type": "hello", "protocol": PROTOCOL, **hello}
        while True:
            try:
                if self._channel is None:
                    self.start()
                return self._exchange_hello()
            except ChannelClosedError:
                self._bury()

    def begin(self, epoch: int, step: int) -> None:
        """Start the stream of an epoch at a step; slots of an earlier stream are given back unread."""
        self._stream += 1
        self._place = (epoch, step)
        self._full = None
        self._growing = False
        with contextlib.suppress(ChannelClosedError):  # `next` meets the closed channel, and recovers
            if self._channel is not None:
                self._channel.send_json({"type": "begin", "stream": self._stream, "epoch": epoch, "step": step})

    def next(self) -> tuple[Ready, Lease] | None:
        """The next slot of the stream, or None at the end of its epoch."""
        if self._place is None:
            raise AssertionError("begin() comes before next()")
        while True:
            try:
                return self._next()
            except ChannelClosedError:
                self._recover()

    def close(self) -> None:
        """Say goodbye; a feeder of our own ends. Batches that are still held stay readable."""
        channel, self._channel = self._channel, None
        if self._reader is not None:
            self._reader.close()
        self._queue.clear()
        if channel is not None:
            channel.close()
        if self._feeder_pidfd is not None:
            os.close(self._feeder_pidfd)
            self._feeder_pidfd = None
        process, self._process = self._process, None
        if process is not None:
            process.end()

    @property
    def ring_fill(self) -> float:
        """Share of the ring's slots that hold a batch not yet handed out."""
        slots = self._reader.slots if self._reader is not None else 0
        return sum(isinstance(item, Ready) for item in self._queue) / slots if slots else 0.0

    @property
    def ring_bytes(self) -> int:
        return self._reader.nbytes if self._reader is not None else 0

    @property
    def feeder_pid(self) -> int | None:
        if self._process is not None:
            return self._process.pid
        return self._channel.peer_pid() if self._channel is not None else None

    # -- receiving ------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[Ready, Lease] | None:
        reader = self._reader
        if self._channel is None or reader is None:
            raise ChannelClosedError("not connected")
        reader.settle()
        while True:
            self._drain()
            if self._queue:
                item = self._queue.popleft()
                if isinstance(item, tuple):
                    if item[0] == self._stream:
                        return None
                    continue
                if item.stream != self._stream:
                    reader.discard(item)
                    continue
                lease = reader.lease(item)
                self._count(item)
                return item, lease
            if self._full is not None:
                self._raise_full(reader)
            if reader.fenced:
                self._timed(lambda: reader.settle(wait=True))
            elif reader.slots and not self._growing and reader.held >= reader.slots:
                self._make_room(reader)
            else:
                self._wait()

    def _count(self, ready: Ready) -> None:
        self._place = (ready.epoch, ready.step + 1)
        self._progress_since_death = True
        self.stats.batches += 1
        self.stats.nbytes += ready.nbytes

    def _drain(self) -> None:
        channel, reader = self._channel, self._reader
        assert channel is not None
        assert reader is not None
        while (received := channel.receive(wait=False)) is not None:
            packet, message, fd = received
            kind = packet[:1]
            if kind == b"R":
                _, stream, generation, slot, epoch, step, nbytes = READY.unpack(packet)
                ready = Ready(stream=stream, generation=generation, slot=slot, epoch=epoch, step=step, nbytes=nbytes)
                self._queue.append(ready)
            elif kind == b"E":
                _, stream, epoch = END.unpack(packet)
                self._queue.append((stream, epoch))
            else:
                self._on_message(message, fd, reader)

    def _on_message(self, message: dict[str, Any], fd: int | None, reader: RingReader) -> None:
        kind = message["type"]
        if kind == "map":
            assert fd is not None
            reader.on_map(message, fd)
            self._growing = False
        elif kind == "retire":
            reader.on_retire(message)
        elif kind == "full":
            self._growing = False
            self._full = message
        elif kind == "error":
            raise from_wire(message["name"], message["message"])
        elif kind == "facts":
            self.facts = message["facts"]
        elif kind == "stats":
            self.feeder_stats = message["stats"]

    def _wait(self) -> None:
        """Wait for the feeder to say something or to die; says every half minute that it does."""
        began = time.perf_counter()
        while not (events := self._poll.poll(_QUIET_S * 1000)):
            place = f"step {self._place[1]} of epoch {self._place[0]}" if self._place else "the plan"
            waited = time.perf_counter() - began
            logger.warning("waited %.0f s for %s; the feeder (process %s) is alive", waited, place, self.feeder_pid)
        if self._place is not None:  # planning is not waiting for a batch
            self.stats.wait_s += time.perf_counter() - began
        if self._feeder_pidfd is not None and events == [(self._feeder_pidfd, select.POLLIN)]:
            raise ChannelClosedError("the feeder's process ended")

    def _timed(self, action: Callable[[], None]) -> None:
        began = time.perf_counter()
        action()
        self.stats.wait_s += time.perf_counter() - began

    def _make_room(self, reader: RingReader) -> None:
        """Every slot is held by the user: collect cycles, else ask the feeder for more slots."""
        gc.collect()
        if reader.held < reader.slots or self._channel is None:
            return
        if not self._warned_growth:
            self._warned_growth = True
            logger.warning(
                "the trainer holds all %s batches of the ring: adding slots. Keep batch.clone() where a batch shall "
                "outlive a few steps",
                reader.slots,
            )
        self._growing = True
        self._channel.send_json({"type": "grow"})

    def _raise_full(self, reader: RingReader) -> None:
        full = self._full
        assert full is not None
        self._full = None
        if reader.held < reader.slots:
            return
        why = f" ({full['why']})" if "why" in full else ""
        raise RingError(
            f"the ring has no room for another batch: got {reader.held} batches held by the trainer in "
            f"{full['nbytes']:,} bytes, expected at most {full['limit']:,} bytes{why}. Let batches go, keep "
            f"batch.clone(), or raise memory in pipeline.yaml"
        )

    # -- starting and recovering ----------------------------------------------------------------------------------

    def _exchange_hello(self) -> dict[str, Any]:
        assert self._channel is not None
        assert self._hello is not None
        self.facts = {}
        self._channel.send_json(self._hello)
        while not self.facts:
            self._drain()
            if not self.facts:
                self._wait()
        return self.facts

    def _recover(self) -> None:
        """The feeder is gone: go on with another one from the step after the last that was handed out."""
        self._bury()
        assert self._hello is not None
        assert self._place is not None
        again = {**self._hello, "snapshot": self.facts["snapshot"], "lanes": self.facts["lanes"]}
        again.update({"plan": self.facts["plan"], "features": self.facts["features"], "again": True})
        place = self._place
        self.open({key: value for key, value in again.items() if key not in ("type", "protocol")})
        self.begin(*place)

    def _bury(self) -> None:
        """Take leave of a dead feeder: count it, keep its last words, look for a successor to attach to."""
        words = self._process.last_words() if self._process else "(it was started by feedline run: see there)"
        was_attached = self.attached
        self.close()
        self._futile_deaths = 1 if self._progress_since_death else self._futile_deaths + 1
        self._progress_since_death = False
        if self._futile_deaths >= _FUTILE_DEATHS:
            raise FeederError(
                f"the feeder died {self._futile_deaths} times without delivering a batch. Its last words:\n{words}"
            )
        logger.warning("the feeder died; starting another. Its last words:\n%s", words)
        if was_attached and self._command.attach_path is not None:
            deadline = time.monotonic() + _REATTACH_S
            while not self._command.attach_path.exists() and time.monotonic() < deadline:
                time.sleep(_REATTACH_PAUSE_S)
