"""The trainer's client of feeders: it delivers the next slot even if a feeder dies.

Runs in: the trainer, and `feedline run --sink null`; no torch. When the feeder dies, the client finds or starts
another and continues at the step after the last one that it handed out.

States: new -> open (hello answered with facts) -> streaming (begin sent) -> open ... -> closed.

An interrupt (Ctrl-C) may come between any two instructions, but not in a change while the client waits. One in the
middle of a change marks the connection as torn, and the next call continues with another feeder.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeAlias

from feedline.dataclass import dataclass
from feedline.errors import BatchTimeoutError, FeedlineError
from feedline.loader.ring.channel import ChannelClosedError
from feedline.loader.ring.feeder_connection import Answer, FeederConnection
from feedline.loader.ring.launch import FeederAccess
from feedline.loader.ring.reports import FeederReports
from feedline.loader.ring.slots import RingReader
from feedline.loader.wire.facts import Hello
from feedline.loader.wire.ring_messages import BeginStream, EpochDone, StallReport
from feedline.native.ring import Arrival, Lease

# A batch in its slot: epoch, step, rows, bytes, the slot's bytes.
Slot: TypeAlias = tuple[int, int, int, int, Lease]

_STALL_REPORT_S = 0.5


@dataclass(slots=True)
class ClientStats:
    """Batches received, their bytes, and seconds spent waiting for them, since the first call. waiting_since_s: the
    clock when a wait that has not ended began."""

    batches: int = 0
    nbytes: int = 0
    wait_s: float = 0.0
    waiting_since_s: float | None = None

    def wait_until(self, now_s: float) -> float:
        """Seconds of waiting, with the wait that has not ended; any thread may ask."""
        since_s, waited_s = self.waiting_since_s, self.wait_s
        return waited_s if since_s is None else waited_s + max(0.0, now_s - since_s)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of a `with` block as waiting."""
        self.waiting_since_s = start_s = time.perf_counter()
        try:
            yield
        finally:
            self.waiting_since_s = None
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
        self.reports = self._connection.reports  # the feeders', on their work
        self._pid = os.getpid()
        self._answer: Answer | None = None  # the plan of the stream
        self._stream = 0
        self._steps = 0  # of the stream's epoch
        self._begin_sent = self._last_epoch = False
        self._resuming = False  # the stream continues one of another feeder, with its counts
        self._node: int | None = None
        self._position: tuple[int, int] | None = None  # epoch and step of the next batch
        self._waiting_for: tuple[tuple[int, int], float] | None = None  # a position, and since when
        self._first_step = 0  # of the stream
        self._stalled_s = self._stall_sent_s = 0.0  # seconds to report, and when the last ones were
        self._counted_s: float | None = None  # up to when a wait is counted; None: a stream's first block is not
        self._connection.tick = self._report_stall
        self.timeout_s: float | None = None  # for a batch, and for a plan
        self.stats = ClientStats()

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Attach to a waiting feeder or start one. Returns at once, before the feeder is ready."""
        self._connection.start()

    def open(self, hello: Hello, *, watched: bool = False) -> Answer:
        """Request a plan and wait for the answer. Raises the feeder's error, or BatchTimeoutError if it takes longer
        than a batch may; the stream keeps its plan. watched: `reports.planning` is the progress meanwhile."""
        start_s = time.perf_counter()
        while True:
            try:
                self._connection.connect()
                answer = self._connection.ask(hello, since_s=start_s, timeout_s=self.timeout_s, watched=watched)
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
            # Counts of other features cannot be added.
            self.reports = self._connection.reports = FeederReports()
        self._answer, self._position, self._last_epoch, self._node = answer, (epoch, step), last, node
        with contextlib.suppress(ChannelClosedError):  # `next` recovers
            self._connection.connect()
            self._begin()

    def next(self, at: tuple[int, int] | None = None) -> Slot | None:
        """The next slot of the stream, or None at the end of its epoch.

        at: epoch and step of the batch that the trainer needs; an interrupt may have dropped one handed out before.
        """
        if at is not None and at != self._position:
            self._begin_sent = False
            self._position = at
        connection = self._connection
        transaction = connection.transaction
        while True:
            # A training step has evicted this code from the caches, and pays for each function: what it needs is flat.
            try:
                if not self._begin_sent:
                    connection.refuse_torn()
                    self._begin()
                reader = connection.reader
                if transaction.torn or reader is None or reader.torn:
                    _raise_closed("interrupted, or not connected")
                transaction.torn = True  # until the slot is taken: see `Transaction`
                try:
                    arrival = connection.queue.popleft() if connection.queue else connection.next_slot()
                    if arrival is not None and arrival[1] == self._stream and arrival[0] == b"R":
                        _, _, _, _, rows, epoch, step, nbytes = arrival
                        if (epoch, step) != self._position:
                            _raise_closed("a message was lost")
                        lease = reader.lease(arrival)
                        self._position = (epoch, step + 1)
                        self.stats.batches += 1
                        self.stats.nbytes += nbytes
                        if step + 1 == self._steps or not connection.has_delivered:
                            self._record_progress(epoch, step)
                        transaction.torn = False
                        return epoch, step, rows, nbytes, lease
                    ended = self._is_end(arrival, reader)
                except (FeedlineError, ChannelClosedError):
                    transaction.torn = False
                    raise
                transaction.torn = False
                if ended:
                    return None
                if arrival is None:
                    self._await_slot(reader)
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

    def _is_end(self, arrival: Arrival | None, reader: RingReader) -> bool:
        """Whether it is the end of the stream; frees a slot of an earlier stream. Settles what is due."""
        reader.settle()
        if arrival is None:
            return False
        if arrival[0] == b"R":
            reader.discard(arrival)
            return False
        _, stream, epoch = arrival
        if stream != self._stream:
            return False
        if (epoch, self._steps) != self._position:
            _raise_closed("a message was lost")
        self._begin_sent = False  # another call begins the stream again, to get its end again
        return True

    def _record_progress(self, epoch: int, step: int) -> None:
        """Note a feeder's first batch; report an epoch's last one."""
        self._connection.record_progress()
        if step + 1 == self._steps:
            with contextlib.suppress(ChannelClosedError):  # the batch is here anyway
                self._connection.send(EpochDone(epoch=epoch))

    def _await_slot(self, reader: RingReader) -> None:
        """Wait for a message, or for the events of a slot; make room if the trainer holds every slot."""
        if reader.fenced_slots:
            with self.stats.waiting():
                reader.wait()
            return
        with self._connection.transaction:
            exhausted = self._connection.room.is_exhausted(reader)
        with self.stats.waiting():
            if not exhausted:
                self._wait()
                return
            gc.collect()
            with self._connection.transaction:
                self._connection.room.request_slots(reader, self._connection.send)

    def _wait(self) -> None:
        """Wait for a message; raises BatchTimeoutError if the step has not come within the timeout."""
        assert self._position is not None
        epoch, step = self._position
        if self._waiting_for is None or self._waiting_for[0] != self._position:
            self._waiting_for = self._position, time.perf_counter()
        self._counted_s = time.perf_counter() if step > self._first_step else None
        try:
            self._connection.wait(
                f"step {step} of epoch {epoch}", since_s=self._waiting_for[1], timeout_s=self.timeout_s
            )
            self._report_stall()
        except BatchTimeoutError:
            self._waiting_for = None  # the next call waits again
            raise
        finally:
            self._counted_s = None

    def _report_stall(self) -> None:
        """Count the wait for the feeder so far, which decides on workers by it; sends at most two messages a second."""
        end_s = time.perf_counter()
        if self._counted_s is not None:
            self._stalled_s, self._counted_s = self._stalled_s + end_s - self._counted_s, end_s
        if not self._stalled_s or end_s - self._stall_sent_s < _STALL_REPORT_S:
            return
        with self._connection.transaction:
            with contextlib.suppress(ChannelClosedError):  # its end, or its error, is read after the batches before it
                self._connection.send(StallReport(seconds=self._stalled_s))
            self._stalled_s, self._stall_sent_s = 0.0, end_s

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
            self._first_step = step
            self._steps = self._answer.facts.steps_of(epoch)
            self._connection.send(
                BeginStream(stream=stream, epoch=epoch, step=step, last=self._last_epoch, seen=seen, node=self._node)
            )
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


def _raise_closed(reason: str) -> NoReturn:
    """Another feeder continues, at the position of the trainer."""
    raise ChannelClosedError(reason)
