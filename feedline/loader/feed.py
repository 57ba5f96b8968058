"""Who gives the trainer its next slot, whatever happens to the feeder?

Runs in: the trainer, and `feedline run --sink null`. A `Feed` is a conversation with a feeder: it attaches to one that
`feedline run` keeps, or starts one of its own, says where the stream begins, and receives slots. When the feeder dies
it finds or starts another and goes on from the step after the last one it handed out. No torch here.

States: new -> open (hello answered with facts) -> streaming (begin sent) -> open ... -> closed.

An interrupt (Ctrl-C in a notebook) may come between any two instructions. While the feed waits it changes nothing.
Elsewhere it comes in a step that was begun and not ended, which nothing can be known of: the conversation counts as
torn, and the next call goes on with another feeder. What the trainer agreed to is said again to a feeder that was
asked for something else meanwhile.
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
from types import TracebackType
from typing import Any, Literal

from feedline.errors import FeederError, FeedlineError, from_wire
from feedline.loader.channel import END, Channel, ChannelClosedError, Descriptor
from feedline.loader.launch import FeederCommand, FeederProcess
from feedline.loader.rendezvous import await_successor, connect
from feedline.loader.ring import Lease, Ready, RingReader
from feedline.loader.room import Room
from feedline.loader.state import steps_of
from feedline.loader.told import Told

logger = logging.getLogger(__name__)

PROTOCOL = 2
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A plan's facts, as a feeder answered a hello, and the hello that asks any feeder for that plan again."""

    hello: dict[str, Any]
    facts: dict[str, Any]


class _Step:
    """A change that is made whole (`with step:`) or, where an interrupt ends it, marks the conversation as torn."""

    def __init__(self) -> None:
        self.torn = False

    def __enter__(self) -> None:
        self.torn = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.torn = kind is not None and not issubclass(kind, (FeedlineError, ChannelClosedError))


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
        self._step = _Step()
        self._asked = 0  # the number of the last hello
        self._heard: dict[str, Any] | None = None  # the facts that answered it
        self._stands: Answer | None = None  # the plan that the feeder works on, where we know
        self._answer: Answer | None = None  # the plan of the stream
        self._stream = 0
        self._begun = False  # the feeder was told of the stream
        self._goes_on = False  # the stream was begun before, and is counted on
        self._last = False
        self._place: tuple[int, int] | None = None
        self._room = Room()
        self._deaths = _Deaths()
        self.told = Told()
        self.stats = FeedStats()
        self.attached = False

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Attach to a waiting feeder or start one; returns at once, the feeder gets ready meanwhile."""
        self._refuse_closed()
        with self._step:
            self._stands = None
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

    def open(self, hello: dict[str, Any]) -> Answer:
        """Say who asks and for which plan. Raises what the feeder could not do; the stream's plan stays as it is."""
        while True:
            try:
                self._connect()
                facts = self._exchange_hello(hello)
            except ChannelClosedError:
                self._bury()
            else:
                # The plan that was made is named by its facts.
                named = {key: facts[key] for key in ("snapshot", "lanes", "plan", "features")}
                self._stands = Answer(hello={**hello, "rebase": None, **named}, facts=facts)
                return self._stands

    def begin(self, answer: Answer, epoch: int, step: int, *, last: bool = False) -> None:
        """Start an epoch's stream at a step (the `last` epoch, or not); an earlier stream's slots go back unread."""
        self._begun = self._goes_on = False
        if self._answer is not None and self._answer.facts["schema"] != answer.facts["schema"]:
            self.told = Told()  # of other features; there is nothing that both could be summed up to
        self._answer, self._place, self._last = answer, (epoch, step), last
        with contextlib.suppress(ChannelClosedError):  # `next` meets the closed channel, and recovers
            self._connect()
            self._begin()

    def next(self, at: tuple[int, int] | None = None) -> tuple[Ready, Lease] | None:
        """The next slot of the stream, or None at the end of its epoch.

        at: the (epoch, step) that the trainer has not had. An interrupt may have lost one that was given out.
        """
        assert self._answer is not None, "begin() comes before next()"
        if at is not None and at != self._place:
            self._begun = False
            self._place = at
        while True:
            try:
                self._refuse_torn()
                if not self._begun:
                    self._begin()
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
        """Let go of the feeder. An interrupt may end this anywhere: then it is done again."""
        try:
            if self._reader is not None:
                self._reader.close()
            self._queue.clear()
        finally:
            if self._channel is not None:
                self._channel.close()
            pidfd, self._feeder_pidfd = self._feeder_pidfd, None
            if pidfd is not None:
                os.close(pidfd)
            if self._process is not None:
                self._process.end()
            self._channel = self._process = self._reader = None

    @property
    def ring_fill(self) -> float:
        return self._reader.fill if self._reader is not None else 0.0

    @property
    def ring_bytes(self) -> int:
        return self._reader.nbytes if self._reader is not None else 0

    # -- receiving ------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[Ready, Lease] | None:
        while True:
            with self._step:
                found = self._take()
            if found == "end":
                return None
            if found is not None:
                return found
            reader = self._reader
            assert reader is not None
            if reader.fenced:
                with self.stats.waiting():
                    reader.wait()
                continue
            with self._step:
                wanted = self._room.is_wanted(reader)
            if not wanted:
                self._wait()
                continue
            with self.stats.waiting():
                gc.collect()
                with self._step:
                    self._room.make(reader, self._say)

    def _take(self) -> tuple[Ready, Lease] | Literal["end"] | None:
        """What is there: a slot of the stream, its end, or nothing."""
        reader = self._drain()
        reader.settle()
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, tuple):
                if item[0] == self._stream:
                    self._refuse_gap(item[1], steps_of(self._facts, item[1]))
                    self._begun = False  # whoever asks once more is answered once more
                    return "end"
            elif item.stream != self._stream:
                reader.discard(item)
            else:
                lease = reader.lease(item)
                self._count(item)
                return item, lease
        return None

    @property
    def _facts(self) -> dict[str, Any]:
        assert self._answer is not None
        return self._answer.facts

    def _count(self, ready: Ready) -> None:
        self._refuse_gap(ready.epoch, ready.step)
        self._place = (ready.epoch, ready.step + 1)
        self._deaths.outlive()
        self.stats.batches += 1
        self.stats.nbytes += ready.nbytes
        if ready.step + 1 == steps_of(self._facts, ready.epoch):
            with contextlib.suppress(ChannelClosedError):  # the batch is here all the same
                self._say({"type": "had", "epoch": ready.epoch})

    def _refuse_gap(self, epoch: int, step: int) -> None:
        if (epoch, step) != self._place:
            raise ChannelClosedError("a message was lost")

    def _refuse_torn(self) -> None:
        if self._is_torn:
            raise ChannelClosedError("interrupted")

    @property
    def _is_torn(self) -> bool:
        return self._step.torn or (self._reader is not None and self._reader.torn)

    def _say(self, message: dict[str, Any]) -> None:
        """Send a message; where there is no room for it, listen meanwhile: the feeder may be waiting for just that."""
        if self._channel is None:
            raise ChannelClosedError("not connected")
        while not self._channel.send_json(message, wait=False):
            self._drain()
            self._channel.await_room_or_news()

    def _drain(self) -> RingReader:
        """Hear whatever was said; returns the ring that the feeder fills."""
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
            elif kind == b"S":
                self.told.hear(packet)
            else:
                self._on_message(message, fd, reader)
        return reader

    def _on_message(self, message: dict[str, Any], fd: Descriptor | None, reader: RingReader) -> None:
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
            if message.get("number") not in (None, 0, self._asked):
                raise ChannelClosedError("it could not do what is not asked any more")
            raise from_wire(message["name"], message["message"])
        elif kind == "facts":
            if message["number"] == self._asked:
                self._heard = message["facts"]
        elif kind == "warnings":
            self.told.warn(message["texts"])

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

    def _connect(self) -> None:
        self._refuse_torn()
        if self._channel is None:
            self.start()

    def _exchange_hello(self, hello: dict[str, Any]) -> dict[str, Any]:
        """The facts that answer this hello: one that was interrupted may be answered first."""
        with self._step:
            self._stands = self._heard = None
            self._asked += 1
            self._say({"type": "hello", "protocol": PROTOCOL, "number": self._asked, **hello})
        while True:
            with self._step:
                self._drain()
            if self._heard is not None:
                return self._heard
            self._wait()

    def _begin(self) -> None:
        """Tell the feeder of the stream, and before that of its plan where it works on another."""
        assert self._answer is not None
        assert self._place is not None
        if self._stands is not self._answer:
            self._exchange_hello(self._answer.hello)
            self._stands = self._answer
        with self._step:
            number = self._stream + 1
            seen = self.told.hand_over(self._stream, number) if self._goes_on else None
            self._stream = number
            self._room.forget()
            stream = {"stream": number, "epoch": self._place[0], "step": self._place[1]}
            self._say({"type": "begin", **stream, "last": self._last, "seen": seen})
            self._begun = self._goes_on = True

    def _recover(self) -> None:
        """The feeder is gone: go on with another one from the step after the last that was handed out."""
        while True:
            self._bury()
            try:
                self._connect()
                self._begin()
            except ChannelClosedError:
                continue
            return

    def _bury(self) -> None:
        """Take leave of a feeder that is dead, or that an interrupt tore us from; look for one to attach to."""
        self._refuse_closed()
        torn = self._is_torn
        if self._channel is None and not torn:
            return  # it was buried already
        words = ""
        with self._step:
            if self._channel is not None and not torn:
                with contextlib.suppress(ChannelClosedError):
                    self._drain()  # it may have said why it ended
                if self._channel is not None:
                    self._channel.shut_down()  # it may live: then it ends now
                words = self._process.last_words() if self._process else "(it was started by feedline run: see there)"
            self._leave()
        if torn:
            logger.warning("an interrupt came while the feeder was spoken to: another one goes on in its place")
        else:
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
