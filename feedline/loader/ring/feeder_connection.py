"""The connection to a feeder: attach to one or start it, send and receive messages, close or abandon it.

Runs in: the trainer, and `feedline run --sink null`. Slots that are announced wait in a queue for the reader of the
stream. A change that an interrupt tears (see `client.py`) is marked, and ends the connection at its next use.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from feedline.errors import FeederError, FeedlineError, from_wire
from feedline.loader.facts import FeederFacts, Hello, PlanFacts
from feedline.loader.ring.channel import END, Channel, ChannelClosedError, Descriptor
from feedline.loader.ring.launch import FeederCommand, FeederProcess
from feedline.loader.ring.rendezvous import await_successor, connect
from feedline.loader.ring.reports import FeederReports
from feedline.loader.ring.room import Room
from feedline.loader.ring.slots import Ready, RingReader
from feedline.version import VERSION

logger = logging.getLogger(__name__)

PROTOCOL = 3
# A feeder that dies this often without one batch in between will not get better by itself.
_FUTILE_DEATHS = 3
_QUIET_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A feeder's answer to a hello: its plan, itself, and the hello that asks any other feeder for the same plan."""

    hello: Hello
    facts: PlanFacts
    feeder: FeederFacts

    @classmethod
    def of(cls, hello: Hello, facts: dict[str, Any]) -> Answer:
        """The answer to a hello from the message's `facts`."""
        plan = PlanFacts.from_json(facts)
        again = replace(
            hello, rebase=None, snapshot=plan.snapshot, lanes=plan.lanes, plan=plan.plan, features=plan.features
        )
        return cls(hello=again, facts=plan, feeder=FeederFacts.from_json(facts))


class Transaction:
    """A change that is made whole (`with transaction:`); an interrupt in the middle marks the connection as torn."""

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

    def record_progress(self) -> None:
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


class FeederConnection:
    """The trainer's end, over one feeder after the other."""

    def __init__(
        self, command: FeederCommand, *, pin: Callable[[int, int], bool], unpin: Callable[[int], None]
    ) -> None:
        self._command = command
        self._pin = pin
        self._unpin = unpin
        self._process: FeederProcess | None = None
        self._channel: Channel | None = None
        self._pidfd: int | None = None
        self._closed = False
        self._attached_at: Path | None = None  # the socket of the `feedline run` that keeps the feeder
        self._asked = 0  # the number of the last hello
        self._facts: dict[str, Any] | None = None  # the facts that answered it
        self._failure: dict[str, Any] | None = None  # the feeder's last message: the error that ended it
        self.current: Answer | None = None  # the plan that the feeder works on; whoever asks for one says which it is
        self.reader: RingReader | None = None
        self.queue: deque[Ready | tuple[int, int]] = deque()  # slots, and (stream, epoch) where a stream ends
        self.transaction = Transaction()
        self.feeder_pid = 0
        self.feeders = 0
        self.room = Room()
        self.deaths = _Deaths()
        self.reports = FeederReports()

    def start(self) -> None:
        """Attach to a waiting feeder or start one; returns at once, the feeder gets ready meanwhile."""
        self._refuse_closed()
        with self.transaction:
            self.current = None
            for path in self._command.attach_paths:
                if (channel := connect(path)) is not None:
                    self._channel, self._attached_at = channel, path
                    break
            else:
                self._attached_at = None
                self._process = FeederProcess(self._command)
                self._channel = self._process.channel
            self.reader = RingReader(self._channel, pin=self._pin, unpin=self._unpin)
            self.feeder_pid = self._process.pid if self._process is not None else self._channel.peer_pid()
            self._poll, self._pidfd = _watch(self._channel, self.feeder_pid)
            self.feeders += 1
        self._refuse_closed()  # `interrupt` may have come too early to see this channel

    def connect(self) -> None:
        """Attach or start where there is no feeder. Raises ChannelClosedError after an interrupt: abandon it first."""
        self.refuse_torn()
        if self._channel is None:
            self.start()

    @property
    def attached(self) -> bool:
        """Whether the feeder is one of `feedline run`."""
        return self._attached_at is not None

    def interrupt(self) -> None:
        """From any thread: who waits for the feeder gets a FeederError instead, now and ever after."""
        self._closed = True
        if (channel := self._channel) is not None:
            channel.shut_down()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FeederError("this feed is closed: expected an open one")

    def leave(self) -> None:
        """Let go of the feeder. An interrupt may end this anywhere: then it is done again."""
        try:
            if self.reader is not None:
                self.reader.close()
            self.queue.clear()
            self._failure = None
        finally:
            if self._channel is not None:
                self._channel.close()
            pidfd, self._pidfd = self._pidfd, None
            if pidfd is not None:
                os.close(pidfd)
            if self._process is not None:
                self._process.end()
            self._channel = self._process = self.reader = None

    def refuse_torn(self) -> None:
        """Raise ChannelClosedError where an interrupt left nothing to go on with."""
        if self.is_torn:
            raise ChannelClosedError("interrupted")

    @property
    def is_torn(self) -> bool:
        """Whether an interrupt came in the middle of a change."""
        return self.transaction.torn or (self.reader is not None and self.reader.torn)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; while there is no room for it, receive: the feeder may be waiting for just that."""
        if self._channel is None:
            raise ChannelClosedError("not connected")
        while not self._channel.send_json(message, wait=False):
            self.receive()
            self._channel.await_room_or_news()

    def receive(self) -> RingReader:
        """File what the feeder sent; returns the ring that it fills.

        An error of the feeder is held until the queue is empty: the batches before it come first.
        """
        channel, reader = self._channel, self.reader
        if channel is None or reader is None:
            raise ChannelClosedError("not connected")
        while self._failure is None and (received := channel.receive(wait=False)) is not None:
            packet, message, fd = received
            kind = packet[:1]
            if kind == b"R":
                ready = Ready.unpack(packet)
                reader.expect(ready)
                self.queue.append(ready)
            elif kind == b"E":
                _, stream, epoch = END.unpack(packet)
                self.queue.append((stream, epoch))
            elif kind == b"S":
                self.reports.receive(packet)
            else:
                self._handle(message, fd, reader)
        if not self.queue:
            self.raise_failure()
        return reader

    def raise_failure(self) -> None:
        """Raise the error that ended the feeder, if one did; ChannelClosedError for that of an earlier hello.

        Call it where no slot in the queue is waited for: nothing else will come from this feeder.
        """
        failure = self._failure
        if failure is None:
            return
        self.leave()  # it ended with a reason: that is no death to recover from
        if failure.get("number") not in (None, 0, self._asked):
            raise ChannelClosedError("the error belongs to an earlier hello")
        raise from_wire(failure["name"], failure["message"])

    def _handle(self, message: dict[str, Any], fd: Descriptor | None, reader: RingReader) -> None:
        kind = message["type"]
        if kind == "map":
            assert fd is not None
            reader.on_map(message, fd)
            self.room.granted()
        elif kind == "retire":
            reader.on_retire(message)
        elif kind == "full":
            self.room.refused(message)
        elif kind == "error":
            self._failure = message
        elif kind == "facts":
            if message["number"] == self._asked:
                self._facts = message["facts"]
        elif kind == "warnings":
            self.reports.add_warnings(message["texts"])

    def wait(self, what: str) -> None:
        """Wait for a message or the feeder's death; logs every half minute what it waits for."""
        began = time.perf_counter()
        while not (events := self._poll.poll(_QUIET_S * 1000)):
            waited = time.perf_counter() - began
            feeder = f"process {self.feeder_pid}"
            if self._process is not None:
                feeder += f", log {self._process.log_path}"
            logger.warning("waited %.0f s for %s; the feeder (%s) is alive", waited, what, feeder)
        if self._pidfd is not None and events == [(self._pidfd, select.POLLIN)]:
            raise ChannelClosedError("the feeder's process ended")

    def ask(self, hello: Hello) -> Answer:
        """The answer to this hello; that to an earlier one, which was interrupted, is skipped."""
        with self.transaction:
            self.current = self._facts = None
            self._asked += 1
            self.raise_failure()
            about = {"protocol": PROTOCOL, "feedline": VERSION, "number": self._asked}
            self.send({"type": "hello", **about, **hello.to_json()})
        while True:
            with self.transaction:
                self.receive()
                self.raise_failure()
            if self._facts is not None:
                return Answer.of(hello, self._facts)
            self.wait("the plan")

    def abandon(self) -> None:
        """Close the connection to a feeder that is dead, or that an interrupt tore; look for one to attach to."""
        self._refuse_closed()
        torn = self.is_torn
        if self._channel is None and not torn:
            return  # it was abandoned already
        words = ""
        with self.transaction:
            if self._channel is not None and not torn:
                with contextlib.suppress(ChannelClosedError):
                    self.receive()
                    self.raise_failure()  # it may have sent why it ended
                if self._channel is not None:
                    self._channel.shut_down()  # it may live: then it ends now
                words = self._process.last_words() if self._process else "(it was started by feedline run: see there)"
            self.leave()
        if torn:
            logger.warning(
                "an interrupt came in the middle of a message to the feeder: another feeder continues in its place"
            )
        else:
            self.deaths.count(words)
        if self._attached_at is not None:
            await_successor(self._attached_at, unless=lambda: self._closed)


def _watch(channel: Channel, feeder: int) -> tuple[select.poll, int | None]:
    """A poll for messages and the feeder's death, and its pidfd; None where the kernel has none."""
    poll, pidfd = select.poll(), None
    poll.register(channel.fileno(), select.POLLIN)
    with contextlib.suppress(OSError, AttributeError):
        pidfd = os.pidfd_open(feeder)
        poll.register(pidfd, select.POLLIN)
    return poll, pidfd
