"""The connection to a feeder: attach to one or start it, send and receive messages, close or abandon it.

Runs in: the trainer, and `feedline run --sink null`. Announced slots wait in a queue until the client takes them. If an
interrupt tears a change (see `client.py`), the connection is marked, and abandoned at its next use.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from feedline.dataclass import dataclass
from feedline.errors import BatchTimeoutError, FeederError, FeedlineError, RingError, from_wire
from feedline.loader.ring.channel import Channel, ChannelClosedError
from feedline.loader.ring.feeder_source import Feeder, FeederSource, HostFeeder, RunFeeder
from feedline.loader.ring.launch import FeederAccess
from feedline.loader.ring.reports import FeederReports
from feedline.loader.ring.slots import RingReader
from feedline.loader.wire import ring_messages
from feedline.loader.wire.facts import FeederFacts, Hello, PlanFacts
from feedline.loader.wire.ring_messages import GrowRing, RingFull
from feedline.native.ring import Arrival
from feedline.progress import Progress

logger = logging.getLogger(__name__)


class Room:
    """The pending request for more slots, and the feeder's refusal."""

    def __init__(self) -> None:
        self._pending = False
        self._refusal: RingFull | None = None
        self._warned = False
        self._warned_cycles = False

    def reset(self) -> None:
        """Forget the last stream's request and refusal."""
        self._pending, self._refusal = False, None

    def record_growth(self) -> None:
        """The feeder added slots."""
        self._pending = False

    def record_refusal(self, refusal: RingFull) -> None:
        """The feeder has no memory for more slots."""
        self._pending, self._refusal = False, refusal

    def is_exhausted(self, reader: RingReader) -> bool:
        """Whether the trainer holds every slot and no request for more is pending.

        Raises RingError if the feeder refused to add slots.
        """
        refusal, self._refusal = self._refusal, None
        if not reader.slots or reader.held_slots < reader.slots:
            return False
        if refusal is not None:
            why = f" ({refusal.why})" if refusal.why else ""
            raise RingError(
                f"the ring has no room for another batch: got {reader.held_slots} batches held by the trainer in "
                f"{refusal.nbytes:,} bytes, expected at most {refusal.limit:,} bytes{why}. Drop "
                f"batches, keep batch.clone(), or raise memory in pipeline.yaml"
            )
        return not self._pending

    def request_slots(self, reader: RingReader, send: Callable[[object], None]) -> None:
        """Request more slots if a garbage collection, which the caller just ran, freed none."""
        if reader.held_slots < reader.slots:
            if not self._warned_cycles:
                self._warned_cycles = True
                logger.warning(
                    "reference cycles held batches until a garbage collection, which takes tenths of a second: look "
                    "for objects of the training loop that refer to a batch and to each other"
                )
            return
        if not self._warned:
            self._warned = True
            logger.warning(
                "the trainer holds all %s batches of the ring: adding slots. Keep batch.clone() of batches that "
                "outlive a few steps",
                reader.slots,
            )
        self._pending = True
        send(GrowRing())


_QUIET_S = 30.0
_TICK_S = 0.5
# A busy feeder answers a question after this long at most.
_ANSWER_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A feeder's answer to a hello: its plan, itself, and the hello that asks any other feeder for the same plan."""

    hello: Hello
    facts: PlanFacts
    feeder: FeederFacts

    @classmethod
    def of(cls, hello: Hello, plan: PlanFacts, feeder: FeederFacts) -> Answer:
        """The answer to a hello."""
        return cls(hello=hello.for_plan(plan), facts=plan, feeder=feeder)


class Transaction:
    """A change that must be complete (`with transaction:`); an interrupt in the middle marks it as torn."""

    def __init__(self) -> None:
        self.torn = False

    def __enter__(self) -> None:
        self.torn = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.torn = kind is not None and not issubclass(kind, (FeedlineError, ChannelClosedError))


class Watch:
    """A poll for messages and the feeder's death. pid: 0 or less for a feeder that has not greeted yet."""

    def __init__(self, channel: Channel, pid: int) -> None:
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        self._pidfd: int | None = None
        if pid > 0:
            with contextlib.suppress(OSError, AttributeError):  # the kernel has no pidfds
                self._pidfd = os.pidfd_open(pid)
                self._poll.register(self._pidfd, select.POLLIN)

    def wait(self, seconds: float, tick: Callable[[], None] = lambda: None) -> bool:
        """Whether a message comes in time. tick: called about twice a second meanwhile.

        Raises ChannelClosedError if the feeder's process ends instead.
        """
        end_s = time.perf_counter() + seconds
        while True:
            left_s = max(0.0, end_s - time.perf_counter())
            events = self._poll.poll(min(_TICK_S, left_s) * 1000)
            if self._pidfd is not None and events == [(self._pidfd, select.POLLIN)]:
                raise ChannelClosedError("the feeder's process ended")
            if events or left_s <= _TICK_S:
                return bool(events)
            tick()

    def close(self) -> None:
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)


class FeederConnection:
    """The trainer's end of the connection, to one feeder after the other."""

    def __init__(self, access: FeederAccess, *, pin: Callable[[int, int], bool], unpin: Callable[[int], None]) -> None:
        self._source = FeederSource(access, unless=lambda: self._closed)
        self._pin, self._unpin = pin, unpin
        self._feeder: Feeder | None = None
        self._channel: Channel | None = None
        self._watch: Watch | None = None
        self._closed = False
        self._is_dismissed = False  # the feeder asks to look for another one
        self.attached = False  # whether the feeder belongs to `feedline run`
        self._hello_number = 0  # of the last hello
        self._diagnosis: str | None = None  # the answer to the last question
        self._last_message_s = time.perf_counter()
        self._facts: ring_messages.PlanAnswer | None = None  # that it got
        self._failure: ring_messages.FeederFailure | None = None  # the feeder's last message: the error that ended it
        self.current: Answer | None = None  # the plan that the feeder works on; set by the caller of `ask`
        self.reader: RingReader | None = None
        self.queue: deque[Arrival] = deque()  # READY and END, not taken yet: the channel's
        self._receiving_thread = 0
        self.transaction = Transaction()
        self.has_delivered = False  # whether a batch has come from this feeder
        self.tick: Callable[[], None] = lambda: None  # called about twice a second while it waits
        self.feeders = 0
        self.room = Room()
        self.reports = FeederReports()

    def start(self) -> None:
        """Attach to a waiting feeder or start one. Returns at once, before the feeder is ready."""
        self._refuse_closed()
        with self.transaction:
            self.current = None
            self._is_dismissed = self.has_delivered = False
            self._feeder = feeder = self._source.find()
            self._channel = feeder.channel
            self.attached = isinstance(feeder, RunFeeder)
            self.queue = self._channel.queue
            self.reader = RingReader(self._channel, pin=self._pin, unpin=self._unpin)
            self._watch = Watch(self._channel, feeder.pid)
            self.feeders += 1
        self._refuse_closed()  # `interrupt` may have been called before there was this channel

    def connect(self) -> None:
        """Attach to a feeder or start one, if there is none. Raises ChannelClosedError if the connection is torn."""
        self.refuse_torn()
        if self._channel is None:
            self.start()

    def interrupt(self) -> None:
        """Make waiting for the feeder raise FeederError, now and in all later calls. Any thread may call this."""
        self._closed = True
        if (channel := self._channel) is not None:
            channel.shut_down()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FeederError("this feed is closed: expected an open one")

    def leave(self) -> None:
        """Close the connection, and end a feeder of our own. After an interrupt anywhere in it, call it again."""
        try:
            if self.reader is not None:
                self.reader.close()
            self.queue.clear()
            self._failure = None
        finally:
            if self._channel is not None:
                self._channel.close()
            if self._watch is not None:
                self._watch.close()
            if self._feeder is not None:
                self._feeder.end()
            self._channel = self._feeder = self.reader = self._watch = None
            if self._closed:
                self._source.close()

    def refuse_torn(self) -> None:
        """Raise ChannelClosedError if an interrupt tore the connection."""
        if self.is_torn:
            raise ChannelClosedError("interrupted")

    @property
    def is_torn(self) -> bool:
        """Whether an interrupt came in the middle of a change."""
        return self.transaction.torn or (self.reader is not None and self.reader.torn)

    def send(self, message: object) -> None:
        """Send a message. While the buffer is full, receive: the feeder may be waiting for that."""
        if self._channel is None:
            raise ChannelClosedError("not connected")
        while not self._channel.send_message(message, wait=False):
            self.receive()
            self._channel.await_readiness()

    def next_slot(self) -> Arrival | None:
        """The next READY or END; None if none has arrived.

        If none is in the queue, files all that the feeder has sent: a call for each batch would cost more. Its error
        or its death is raised after the slots before it.
        """
        if not self.queue:
            try:
                self.receive()
            except ChannelClosedError:
                if not self.queue:
                    raise
        return self.queue.popleft() if self.queue else None

    def receive(self) -> RingReader:
        """File what the feeder sent; returns the ring. Raises its error once the queue is empty: batches come first."""
        channel, reader = self._channel, self.reader
        if channel is None or reader is None:
            raise ChannelClosedError("not connected")
        self._receiving_thread = threading.get_ident()
        self._last_message_s = time.perf_counter()
        channel.flush()
        self._file_messages(channel, reader)
        if not self.queue:
            self.raise_failure()
        return reader

    def refresh(self) -> None:
        """File what the feeder sent, if this is the thread that receives batches: for facts about the ring."""
        channel, reader = self._channel, self.reader
        if channel is None or reader is None or self.is_torn or threading.get_ident() != self._receiving_thread:
            return
        with contextlib.suppress(ChannelClosedError), self.transaction:  # `receive` will raise it again
            self._file_messages(channel, reader)

    def _file_messages(self, channel: Channel, reader: RingReader) -> None:
        while self._failure is None and (arrival := channel.receive_other()) is not None:
            if arrival[0] == b"E":
                self.queue.append(arrival)
            elif arrival[0] == b"S":
                self.reports.receive(arrival[1])
            else:
                self._file(arrival, reader)

    def raise_failure(self) -> None:
        """Raise the error that ended the feeder, if any; ChannelClosedError if it belongs to an earlier hello.

        Call it only when the slots in the queue are not needed: the connection is closed.
        """
        failure = self._failure
        if failure is None:
            return
        self.leave()  # the feeder ended with an error: not a death to recover from
        if failure.number not in (0, self._hello_number):
            raise ChannelClosedError("the error belongs to an earlier hello")
        raise from_wire(failure.name, failure.message)

    def _file(self, arrival: Arrival, reader: RingReader) -> None:
        """Handle a message."""
        _, message, fd = arrival
        match message:
            case ring_messages.NewGeneration():
                assert fd is not None
                reader.on_map(message, fd)
                self.room.record_growth()
            case ring_messages.RetiredGeneration():
                reader.on_retire(message.generation)
            case ring_messages.RingFull():
                self.room.record_refusal(message)
            case ring_messages.FeederFailure():
                self._failure = message
            case ring_messages.PlanAnswer() if message.number == self._hello_number:
                self._facts, self.reports.feeder = message, message.feeder
            case Progress():
                self.reports.planning = message
            case ring_messages.Diagnosis():
                self._diagnosis = message.text
            case ring_messages.DataWarnings():
                self.reports.warnings += message.texts
            case ring_messages.Welcome() if isinstance(self._feeder, HostFeeder):
                self._feeder.pid = message.pid
                self._watch = Watch(self._feeder.channel, self._feeder.pid)
            case ring_messages.FeederLeaving() | ring_messages.FeederBusy():
                self._is_dismissed = True
                if isinstance(message, ring_messages.FeederBusy):
                    self._source.leave_host()
                raise ChannelClosedError("the host's feeder serves another trainer of this rank, or ends")

    def wait(self, what: str, *, since_s: float | None = None, timeout_s: float | None = None) -> None:
        """Wait for a message or the feeder's death; logs `what` it waits for, and why, every half minute.

        Raises BatchTimeoutError with the same diagnosis `timeout_s` after `since_s` (default: the call).
        """
        assert self._watch is not None
        self._last_message_s = time.perf_counter()  # none is left unread
        start_s = self._last_message_s if since_s is None else since_s
        while True:
            left_s = math.inf if timeout_s is None else start_s + timeout_s - time.perf_counter()
            if self._watch.wait(min(_QUIET_S, left_s), self.tick):
                return
            diagnosis = self._diagnose(self._watch)
            if self.queue or (self.current is None and self._facts is not None):
                return
            text = f"waited {time.perf_counter() - start_s:.0f} s for {what}: {diagnosis}"
            if left_s <= _QUIET_S:
                raise BatchTimeoutError(f"{text}\nRaise `timeout`, or see what keeps the feeder from delivering")
            logger.warning("%s", text)

    def ask(
        self, hello: Hello, *, since_s: float | None = None, timeout_s: float | None = None, watched: bool = False
    ) -> Answer:
        """Send a hello and wait for its answer, as `wait`; the answer to an earlier, interrupted hello is skipped.
        watched: `reports` have the progress meanwhile."""
        since_s = time.perf_counter() if since_s is None else since_s
        with self.transaction:
            self.current = self._facts = self.reports.planning = None
            self._hello_number += 1
            self.raise_failure()
            self.send(ring_messages.PlanRequest(number=self._hello_number, hello=hello, watched=watched))
        while True:
            with self.transaction:
                self.receive()
                self.raise_failure()
            if self._facts is not None:
                return Answer.of(hello, self._facts.plan, self._facts.feeder)
            self.wait("the plan", since_s=since_s, timeout_s=timeout_s)

    def abandon(self) -> None:
        """Close a torn connection or one to a dead feeder; wait for `feedline run` to restart a feeder it had."""
        self._refuse_closed()
        torn = self.is_torn
        if self._channel is None and not torn:
            return  # already abandoned
        feeder = self._feeder
        words = ""
        with self.transaction:
            if self._channel is not None and not torn:
                with contextlib.suppress(ChannelClosedError):
                    self.receive()
                    self.raise_failure()  # it may have sent the reason
                if self._channel is None:
                    return  # it ended with the error of an earlier hello, and was left: no death
                self._channel.shut_down()  # ends it, should it be alive
                words = feeder.last_words() if feeder is not None and not self._is_dismissed else ""
            self.leave()
        if torn:
            logger.warning("an interrupt tore the connection to the feeder: another feeder continues in its place")
            self._source.await_successor(feeder)
        elif not self._is_dismissed:
            self._source.record_death(feeder, words)

    def record_progress(self) -> None:
        """Note the feeder's first batch, so that earlier deaths do not count."""
        if not self.has_delivered:
            self._source.record_progress(self._feeder)
            self.has_delivered = True

    def _diagnose(self, watch: Watch) -> str:
        """What the feeder says that the trainer waits for; that it does not answer, if it does not."""
        self._diagnosis = None
        is_asked = False
        with contextlib.suppress(ChannelClosedError):  # its end is read after the batches before it
            is_asked = self._channel is not None and self._channel.send_message(ring_messages.Diagnose(), wait=False)
        if is_asked:
            deadline_s = time.perf_counter() + _ANSWER_S
            while self._diagnosis is None and not self.queue:
                if not watch.wait(deadline_s - time.perf_counter()):
                    break
                with self.transaction:
                    self.receive()
        feeder = self._feeder
        name = f"process {0 if feeder is None else feeder.pid}"
        if feeder is not None and feeder.log_path is not None:
            name += f", log {feeder.log_path}"
        if self._diagnosis is not None:
            return f"the feeder ({name}) is alive\n{self._diagnosis}"
        silent_s = time.perf_counter() - self._last_message_s
        return f"the feeder ({name}) is alive but does not answer; its last message came {silent_s:.0f} s ago"
