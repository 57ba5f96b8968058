"""The trainer's client of feeders: it delivers the next slot even if a feeder dies.

Runs in: the trainer, and `feedline run --sink null`. A `FeederClient` attaches to a feeder of `feedline run` or starts
its own, begins a stream at a step, and receives slots. When the feeder dies it finds or starts another and continues
at the step after the last one it handed out. No torch.

States: new -> open (hello answered with facts) -> streaming (begin sent) -> open ... -> closed.

An interrupt (Ctrl-C in a notebook) may come between any two instructions. While the client waits, no change is under
way. After an interrupt in the middle of a change, the state of the connection is unknown: it is marked as torn, and the
next call continues with another feeder. A feeder that works on another plan is sent the hello of this plan again.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from feedline.errors import BatchTimeoutError
from feedline.loader.facts import Hello, PlanFacts
from feedline.loader.ring.channel import ChannelClosedError
from feedline.loader.ring.feeder_connection import Answer, FeederConnection, StreamEnd
from feedline.loader.ring.launch import FeederAccess
from feedline.loader.ring.messages import BeginStream
from feedline.loader.ring.reports import FeederReports
from feedline.loader.ring.slots import Lease, Ready


@dataclass(slots=True)
class ClientStats:
    """Batches received, their bytes, and seconds spent waiting for them, since the first call."""

    batches: int = 0
    nbytes: int = 0
    wait_s: float = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of a `with` block as waiting."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.wait_s += time.perf_counter() - start_s


class FeederClient:
    """The trainer's end of a stream, over one feeder after the other."""

    def __init__(
        self,
        access: FeederAccess,
        *,
        pin: Callable[[int, int], bool] = lambda _address, _nbytes: False,
        unpin: Callable[[int], None] = lambda _address: None,
    ) -> None:
        self._connection = FeederConnection(access, pin=pin, unpin=unpin)
        self._pid = os.getpid()
        self._answer: Answer | None = None  # the plan of the stream
        self._stream = 0
        self._begin_sent = False
        self._resuming = False  # the stream continues one of another feeder, with its counts
        self._last_epoch = False
        self._node: int | None = None
        self._position: tuple[int, int] | None = None  # epoch and step of the next batch
        self._waiting_for: tuple[tuple[int, int], float] | None = None  # a position, and since when
        self.timeout_s: float | None = None  # for a batch, and for a plan
        self.stats = ClientStats()

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Attach to a waiting feeder or start one. Returns at once, before the feeder is ready."""
        self._connection.start()

    def open(self, hello: Hello) -> Answer:
        """Request a plan and wait for the answer. Raises the feeder's error, or BatchTimeoutError if it takes longer
        than a batch may; the stream keeps its plan."""
        start_s = time.perf_counter()
        while True:
            try:
                self._connection.connect()
                answer = self._connection.ask(hello, since_s=start_s, timeout_s=self.timeout_s)
            except ChannelClosedError:
                self._connection.abandon()
            else:
                self._connection.current = answer
                return answer

    def begin(self, answer: Answer, epoch: int, step: int, *, last: bool = False, node: int | None = None) -> None:
        """Start an epoch's stream at a step; frees slots of an earlier stream unread.

        last: no other epoch follows. node: the NUMA node of the trainer's GPU.
        """
        self._begin_sent = self._resuming = False
        if self._answer is not None and self._answer.facts.schema != answer.facts.schema:
            self._connection.reports = FeederReports()  # counts of other features cannot be added
        self._answer, self._position, self._last_epoch, self._node = answer, (epoch, step), last, node
        with contextlib.suppress(ChannelClosedError):  # `next` recovers
            self._connection.connect()
            self._begin()

    def next(self, at: tuple[int, int] | None = None) -> tuple[Ready, Lease] | None:
        """The next slot of the stream, or None at the end of its epoch.

        at: epoch and step of the batch that the trainer needs; an interrupt may have dropped one handed out before.
        """
        assert self._answer is not None, "begin() comes before next()"
        if at is not None and at != self._position:
            self._begin_sent = False
            self._position = at
        while True:
            try:
                self._connection.refuse_torn()
                if not self._begin_sent:
                    self._begin()
                return self._next()
            except ChannelClosedError:
                self._recover()

    def close(self) -> None:
        """Close the connection; a feeder of our own ends. Batches that are still held stay readable."""
        if os.getpid() == self._pid:  # a forked child owns neither the feeder nor pinned memory
            self.interrupt()
            self._connection.leave()

    def interrupt(self) -> None:
        """Make `next` raise FeederError, also where it waits now. Any thread may call this."""
        self._connection.interrupt()

    # -- facts ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the feeder's messages, so that the facts below are of now; in the thread that calls `next` only."""
        self._connection.refresh()

    @property
    def attached(self) -> bool:
        """Whether the feeder belongs to `feedline run`."""
        return self._connection.attached

    @property
    def feeders(self) -> int:
        """The number of feeders so far."""
        return self._connection.feeders

    @property
    def reports(self) -> FeederReports:
        """The feeders' reports on their work."""
        return self._connection.reports

    @property
    def ring_fill(self) -> float:
        """Share of the slots that hold a batch for the trainer."""
        reader = self._connection.reader
        return reader.fill if reader is not None else 0.0

    @property
    def ring_bytes(self) -> int:
        """Size of the ring."""
        reader = self._connection.reader
        return reader.nbytes if reader is not None else 0

    # -- receiving ------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[Ready, Lease] | None:
        while True:
            with self._connection.transaction:
                item = self._take()
            if item == "end":
                return None
            if item is not None:
                return item
            reader = self._connection.reader
            assert reader is not None
            if reader.fenced_slots:
                with self.stats.waiting():
                    reader.wait()
                continue
            with self._connection.transaction:
                exhausted = self._connection.room.is_exhausted(reader)
            if not exhausted:
                assert self._position is not None
                with self.stats.waiting():
                    self._wait()
                continue
            with self.stats.waiting():
                gc.collect()
                with self._connection.transaction:
                    self._connection.room.request_slots(reader, self._connection.send)

    def _wait(self) -> None:
        """Wait for a message; raises BatchTimeoutError if the step has not come within the timeout."""
        assert self._position is not None
        epoch, step = self._position
        if self._waiting_for is None or self._waiting_for[0] != self._position:
            self._waiting_for = self._position, time.perf_counter()
        try:
            self._connection.wait(
                f"step {step} of epoch {epoch}", since_s=self._waiting_for[1], timeout_s=self.timeout_s
            )
        except BatchTimeoutError:
            self._waiting_for = None  # the next call waits again
            raise

    def _take(self) -> tuple[Ready, Lease] | Literal["end"] | None:
        """The next slot of the stream, "end" at its end, None if neither has arrived."""
        reader = self._connection.receive(until_slot=True)
        reader.settle()
        queue = self._connection.queue
        while queue:
            item = queue.popleft()
            if isinstance(item, StreamEnd):
                if item.stream == self._stream:
                    self._refuse_gap(item.epoch, self._facts.steps_of(item.epoch))
                    self._begin_sent = False  # another call begins the stream again, to get its end again
                    return "end"
            elif item.stream != self._stream:
                reader.discard(item)
            else:
                lease = reader.lease(item)
                self._count(item)
                return item, lease
        self._connection.raise_failure()
        return None

    @property
    def _facts(self) -> PlanFacts:
        assert self._answer is not None
        return self._answer.facts

    def _count(self, ready: Ready) -> None:
        self._refuse_gap(ready.epoch, ready.step)
        self._position = (ready.epoch, ready.step + 1)
        self._connection.record_progress()
        self.stats.batches += 1
        self.stats.nbytes += ready.nbytes
        if ready.step + 1 == self._facts.steps_of(ready.epoch):
            with contextlib.suppress(ChannelClosedError):  # the batch is here anyway
                self._connection.send({"type": "epoch_done", "epoch": ready.epoch})

    def _refuse_gap(self, epoch: int, step: int) -> None:
        if (epoch, step) != self._position:
            raise ChannelClosedError("a message was lost")

    # -- starting and recovering ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Send `begin`, after a hello if the feeder works on another plan."""
        assert self._answer is not None
        assert self._position is not None
        if self._connection.current is not self._answer:
            self._connection.ask(self._answer.hello, timeout_s=self.timeout_s)
            self._connection.current = self._answer
        with self._connection.transaction:
            stream = self._stream + 1
            seen = self.reports.hand_over(self._stream, stream) if self._resuming else None
            self._stream = stream
            self._connection.room.reset()
            epoch, step = self._position
            begin = BeginStream(
                stream=stream, epoch=epoch, step=step, last=self._last_epoch, seen=seen, node=self._node
            )
            self._connection.send(begin.to_json())
            self._begin_sent = self._resuming = True

    def _recover(self) -> None:
        """Replace a feeder that is gone, and continue at the step after the last one handed out."""
        with self.stats.waiting():
            while True:
                self._connection.abandon()
                try:
                    self._connection.connect()
                    self._begin()
                except ChannelClosedError:
                    continue
                return
