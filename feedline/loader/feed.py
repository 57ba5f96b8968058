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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from feedline.errors import FeederError, RingError, from_wire
from feedline.loader.channel import END, Channel, ChannelClosedError
from feedline.loader.launch import FeederCommand, FeederProcess
from feedline.loader.rendezvous import await_successor, connect
from feedline.loader.ring import Lease, Ready, RingReader
from feedline.loader.state import steps_of
from feedline.loader.told import Told

logger = logging.getLogger(__name__)

PROTOCOL = 1
# A feeder that dies this often without one batch in between will not get better by itself.
_FUTILE_DEATHS = 3
_QUIET_S = 30.0


@dataclass(slots=True)
class FeedStats:
    """Since the feed began: batches, their bytes, seconds spent waiting for them, feeders that there have been."""

    batches: int = 0
    nbytes: int = 0
    wait_s: float = 0.0
    feeders: int = 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in a `with` block as waiting."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.wait_s += time.perf_counter() - began


class _Room:
    """What to do when the trainer holds every slot: collect its cycles, ask the feeder for more slots, or give up."""

    def __init__(self) -> None:
        self._asked = False
        self._refused: dict[str, Any] | None = None
        self._warned = False
        self._warned_cycles = False

    def forget(self) -> None:
        """Another stream begins: what was asked for the last one does not count."""
        self._asked, self._refused = False, None

    def granted(self) -> None:
        """The feeder added slots."""
        self._asked = False

    def refused(self, message: dict[str, Any]) -> None:
        """The feeder has no memory for more slots."""
        self._asked, self._refused = False, message

    def is_wanted(self, reader: RingReader) -> bool:
        """Whether only the trainer can go on, by letting a batch go or by asking for slots.

        Raises RingError where the feeder could not add any.
        """
        full, self._refused = self._refused, None
        if not reader.slots or reader.held < reader.slots:
            return False
        if full is not None:
            why = f" ({full['why']})" if "why" in full else ""
            raise RingError(
                f"the ring has no room for another batch: got {reader.held} batches held by the trainer in "
                f"{full['nbytes']:,} bytes, expected at most {full['limit']:,} bytes{why}. Let batches go, keep "
                f"batch.clone(), or raise memory in pipeline.yaml"
            )
        return not self._asked

    def make(self, reader: RingReader, say: Callable[[dict[str, Any]], None]) -> None:
        """Free slots that cycles hold; where there are none, ask for more slots."""
        gc.collect()
        if reader.held < reader.slots:
            if not self._warned_cycles:
                self._warned_cycles = True
                logger.warning(
                    "batches were held by reference cycles until a garbage collection, which costs tenths of a second: "
                    "see what refers to a batch and to itself in the training loop"
                )
            return
        if not self._warned:
            self._warned = True
            logger.warning(
                "the trainer holds all %s batches of the ring: adding slots. Keep batch.clone() where a batch shall "
                "outlive a few steps",
                reader.slots,
            )
        self._asked = True
        say({"type": "grow"})


class _Deaths:
    """Counts feeders that died without one batch in between."""

    def __init__(self) -> None:
        self._futile = 0
        self._progress = False

    def outlive(self) -> None:
        """A batch came: what died before does not count."""
        self._progress = True

    def count(self, words: str) -> None:
        """One more. Raises FeederError where that makes too many; whoever asks again gets as many again."""
        self._futile = 1 if self._progress else self._futile + 1
        self._progress = False
        if self._futile >= _FUTILE_DEATHS:
            self._futile = 0
            raise FeederError(
                f"the feeder died {_FUTILE_DEATHS} times without delivering a batch. Its last words:\n{words}"
            )
        logger.warning("the feeder died; starting another. Its last words:\n%s", words)


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
        self._feeder_pid = 0
        self._feeder_pidfd: int | None = None
        self._queue: deque[Ready | tuple[int, int]] = deque()
        self._pid = os.getpid()
        self._closed = False
        self._hello: dict[str, Any] = {}
        self._answer: dict[str, Any] = {}
        self._stream = 0
        self._place: tuple[int, int] | None = None
        self._room = _Room()
        self._deaths = _Deaths()
        self.facts: dict[str, Any] = {}
        self.told = Told()
        self.stats = FeedStats()
        self.attached = False

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Attach to a waiting feeder or start one; returns at once, the feeder gets ready meanwhile."""
        self._refuse_closed()
        self._channel = connect(self._command.attach_path) if self._command.attach_path else None
        self.attached = self._channel is not None
        if self._channel is None:
            self._process = FeederProcess(self._command)
            self._channel = self._process.channel
        self._reader = RingReader(self._channel, pin=self._pin, unpin=self._unpin)
        self._feeder_pid = self._process.pid if self._process is not None else self._channel.peer_pid()
        self._poll, self._feeder_pidfd = _watched(self._channel, self._feeder_pid)
        self.stats.feeders += 1
        self._refuse_closed()  # `interrupt` may have come too early to see this channel

    def open(self, hello: dict[str, Any]) -> dict[str, Any]:
        """Say who asks and for which plan; returns the plan's facts. Raises what the feeder could not do."""
        asked = {"type": "hello", "protocol": PROTOCOL, **hello}
        while True:
            try:
                if self._channel is None:
                    self.start()
                self.facts = self._exchange_hello(asked)
            except ChannelClosedError:
                self._bury()
            else:
                self._hello = {**asked, "rebase": None}  # the plan that was made is named by its facts
                return self.facts

    def begin(self, epoch: int, step: int, *, last: bool = False, seen: dict[str, Any] | None = None) -> None:
        """Start an epoch's stream at a step (the `last` epoch, or not); an earlier stream's slots go back unread."""
        self._stream += 1
        self._place = (epoch, step)
        self._room.forget()
        with contextlib.suppress(ChannelClosedError):  # `next` meets the closed channel, and recovers
            stream = {"stream": self._stream, "epoch": epoch, "step": step, "last": last, "seen": seen}
            self._say({"type": "begin", **stream})

    def next(self) -> tuple[Ready, Lease] | None:
        """The next slot of the stream, or None at the end of its epoch."""
        assert self._place is not None, "begin() comes before next()"
        while True:
            try:
                return self._next()
            except ChannelClosedError:
                self._recover()

    def close(self) -> None:
        """Say goodbye for good; a feeder of our own ends. Batches that are still held stay readable."""
        if os.getpid() == self._pid:  # a forked child owns neither the feeder nor what is pinned
            self.interrupt()
            self._leave()

    def interrupt(self) -> None:
        """From any thread: who waits for this feed's next slot gets a FeederError instead, now and ever after."""
        self._closed = True
        if (channel := self._channel) is not None:
            channel.shut_down()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FeederError("this feed is closed: expected an open one")

    def _leave(self) -> None:
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
        return self._reader.fill if self._reader is not None else 0.0

    @property
    def ring_bytes(self) -> int:
        return self._reader.nbytes if self._reader is not None else 0

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
                        self._refuse_gap(item[1], steps_of(self.facts, item[1]))
                        return None
                    continue
                if item.stream != self._stream:
                    reader.discard(item)
                    continue
                lease = reader.lease(item)
                self._count(item)
                return item, lease
            if reader.fenced:
                with self.stats.waiting():
                    reader.settle(wait=True)
            elif self._room.is_wanted(reader):
                with self.stats.waiting():
                    self._room.make(reader, self._say)
            else:
                self._wait()

    def _count(self, ready: Ready) -> None:
        self._refuse_gap(ready.epoch, ready.step)
        self._place = (ready.epoch, ready.step + 1)
        self._deaths.outlive()
        self.stats.batches += 1
        self.stats.nbytes += ready.nbytes
        if ready.step + 1 == steps_of(self.facts, ready.epoch):
            with contextlib.suppress(ChannelClosedError):  # the batch is here all the same
                self._say({"type": "had", "epoch": ready.epoch})

    def _refuse_gap(self, epoch: int, step: int) -> None:
        if (epoch, step) != self._place:  # Ctrl-C in a notebook may come between the socket and the queue
            raise ChannelClosedError("a message was lost")

    def _say(self, message: dict[str, Any]) -> None:
        """Send a message; where there is no room for it, listen meanwhile: the feeder may be waiting for just that."""
        while self._channel is not None and not self._channel.send_json(message, wait=False):
            self._drain()
            self._channel.await_room_or_news()

    def _drain(self) -> None:
        channel, reader = self._channel, self._reader
        if channel is None or reader is None:
            raise ChannelClosedError("not connected")
        while (received := channel.receive(wait=False)) is not None:
            packet, message, fd = received
            kind = packet[:1]
            if kind == b"R":
                ready = Ready.unpack(packet)
                reader.expect(ready)
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
            self._room.granted()
        elif kind == "retire":
            reader.on_retire(message)
        elif kind == "full":
            self._room.refused(message)
        elif kind == "error":
            self._leave()  # it ends, having said why: that is no death to recover from
            raise from_wire(message["name"], message["message"])
        elif kind == "facts":
            self._answer = message["facts"]
        elif kind == "stats":
            self.told.hear(message)

    def _wait(self) -> None:
        """Wait for the feeder to say something or to die; says every half minute that it does."""
        began = time.perf_counter()
        while not (events := self._poll.poll(_QUIET_S * 1000)):
            place = f"step {self._place[1]} of epoch {self._place[0]}" if self._place else "the plan"
            waited = time.perf_counter() - began
            logger.warning("waited %.0f s for %s; the feeder (process %s) is alive", waited, place, self._feeder_pid)
        if self._place is not None:  # planning is not waiting for a batch
            self.stats.wait_s += time.perf_counter() - began
        if self._feeder_pidfd is not None and events == [(self._feeder_pidfd, select.POLLIN)]:
            raise ChannelClosedError("the feeder's process ended")

    # -- starting and recovering ----------------------------------------------------------------------------------

    def _exchange_hello(self, hello: dict[str, Any]) -> dict[str, Any]:
        self._answer = {}
        self._say(hello)
        while not self._answer:
            self._wait()
            self._drain()
        return self._answer

    def _recover(self) -> None:
        """The feeder is gone: go on with another one from the step after the last that was handed out."""
        self._bury()
        assert self._place is not None
        place = self._place
        self.open({**self._hello, **{key: self.facts[key] for key in ("snapshot", "lanes", "plan", "features")}})
        self.begin(*place, seen=self.told.hand_over(self._stream))

    def _bury(self) -> None:
        """Take leave of a dead feeder: count it, keep its last words, look for a successor to attach to."""
        self._refuse_closed()
        if self._channel is None:
            return  # it was buried already
        with contextlib.suppress(ChannelClosedError):
            self._drain()  # it may have said why it ended
        self._channel.shut_down()  # it may live: then it ends now
        words = self._process.last_words() if self._process else "(it was started by feedline run: see there)"
        self._leave()
        self._deaths.count(words)
        if self.attached and self._command.attach_path is not None:
            await_successor(self._command.attach_path, unless=lambda: self._closed)


def _watched(channel: Channel, feeder: int) -> tuple[select.poll, int | None]:
    """What says that the feeder said something or died; the second without a pidfd where there is none."""
    poll, pidfd = select.poll(), None
    poll.register(channel.fileno(), select.POLLIN)
    with contextlib.suppress(OSError, AttributeError):
        pidfd = os.pidfd_open(feeder)
        poll.register(pidfd, select.POLLIN)
    return poll, pidfd
