"""The trainer's client of feeders: it delivers the next slot even when a feeder dies.

Runs in: the trainer, and `feedline run --sink null`. A `FeederClient` attaches to a feeder that `feedline run` keeps,
or starts one of its own, says where the stream begins, and receives slots. When the feeder dies it finds or starts
another and continues at the step after the last one it handed out. No torch here.

States: new -> open (hello answered with facts) -> streaming (begin sent) -> open ... -> closed.

An interrupt (Ctrl-C in a notebook) may come between any two instructions. While the client waits, nothing is being
changed. In the middle of a change, the state of the connection is unknown: it is marked as torn, and the next call
continues with another feeder. A feeder that works on another plan than the agreed one is asked for that again.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from feedline.loader.facts import Hello, PlanFacts
from feedline.loader.ring.channel import ChannelClosedError
from feedline.loader.ring.feeder_connection import Answer, FeederConnection
from feedline.loader.ring.launch import FeederCommand
from feedline.loader.ring.reports import FeederReports
from feedline.loader.ring.slots import Lease, Ready


@dataclass(slots=True)
class ClientStats:
    """Since the feed began: batches, their bytes, seconds spent waiting for them."""

    batches: int = 0
    nbytes: int = 0
    wait_s: float = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in a `with` block as waiting."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.wait_s += time.perf_counter() - began


class FeederClient:
    """The trainer's end of a stream, over one feeder after the other."""

    def __init__(
        self,
        command: FeederCommand,
        *,
        pin: Callable[[int, int], bool] = lambda _address, _nbytes: False,
        unpin: Callable[[int], None] = lambda _address: None,
    ) -> None:
        self._connection = FeederConnection(command, pin=pin, unpin=unpin)
        self._pid = os.getpid()
        self._answer: Answer | None = None  # the plan of the stream
        self._stream = 0
        self._begun = False  # `begin` was sent for the stream
        self._goes_on = False  # the stream was begun before, and is counted on
        self._last = False
        self._place: tuple[int, int] | None = None
        self.stats = ClientStats()

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Attach to a waiting feeder or start one; returns at once, the feeder gets ready meanwhile."""
        self._connection.start()

    def open(self, hello: Hello) -> Answer:
        """Say who asks and for which plan. Raises what the feeder could not do; the stream's plan stays as it is."""
        while True:
            try:
                self._connection.connect()
                answer = self._connection.ask(hello)
            except ChannelClosedError:
                self._connection.abandon()
            else:
                self._connection.current = answer
                return answer

    def begin(self, answer: Answer, epoch: int, step: int, *, last: bool = False) -> None:
        """Start an epoch's stream at a step (the `last` epoch, or not); an earlier stream's slots go back unread."""
        self._begun = self._goes_on = False
        if self._answer is not None and self._answer.facts.schema != answer.facts.schema:
            self._connection.reports = FeederReports()  # counts of other features cannot be added
        self._answer, self._place, self._last = answer, (epoch, step), last
        with contextlib.suppress(ChannelClosedError):  # `next` meets the closed channel, and recovers
            self._connection.connect()
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
                self._connection.refuse_torn()
                if not self._begun:
                    self._begin()
                return self._next()
            except ChannelClosedError:
                self._recover()

    def close(self) -> None:
        """Say goodbye for good; a feeder of our own ends. Batches that are still held stay readable."""
        if os.getpid() == self._pid:  # a forked child owns neither the feeder nor what is pinned
            self.interrupt()
            self._connection.leave()

    def interrupt(self) -> None:
        """From any thread: who waits for this feed's next slot gets a FeederError instead, now and ever after."""
        self._connection.interrupt()

    # -- facts ----------------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether the feeder is one of `feedline run`."""
        return self._connection.attached

    @property
    def feeders(self) -> int:
        """How many there have been."""
        return self._connection.feeders

    @property
    def reports(self) -> FeederReports:
        """The feeders' reports of their work."""
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
                found = self._take()
            if found == "end":
                return None
            if found is not None:
                return found
            reader = self._connection.reader
            assert reader is not None
            if reader.fenced:
                with self.stats.waiting():
                    reader.wait()
                continue
            with self._connection.transaction:
                wanted = self._connection.room.is_wanted(reader)
            if not wanted:
                assert self._place is not None
                with self.stats.waiting():
                    self._connection.wait(f"step {self._place[1]} of epoch {self._place[0]}")
                continue
            with self.stats.waiting():
                gc.collect()
                with self._connection.transaction:
                    self._connection.room.make(reader, self._connection.send)

    def _take(self) -> tuple[Ready, Lease] | Literal["end"] | None:
        """What is there: a slot of the stream, its end, or nothing."""
        reader = self._connection.receive()
        reader.settle()
        queue = self._connection.queue
        while queue:
            item = queue.popleft()
            if isinstance(item, tuple):
                if item[0] == self._stream:
                    self._refuse_gap(item[1], self._facts.steps_of(item[1]))
                    self._begun = False  # whoever asks once more is answered once more
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
        self._place = (ready.epoch, ready.step + 1)
        self._connection.deaths.record_progress()
        self.stats.batches += 1
        self.stats.nbytes += ready.nbytes
        if ready.step + 1 == self._facts.steps_of(ready.epoch):
            with contextlib.suppress(ChannelClosedError):  # the batch is here all the same
                self._connection.send({"type": "epoch_done", "epoch": ready.epoch})

    def _refuse_gap(self, epoch: int, step: int) -> None:
        if (epoch, step) != self._place:
            raise ChannelClosedError("a message was lost")

    # -- starting and recovering ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Tell the feeder of the stream, and before that of its plan where it works on another."""
        assert self._answer is not None
        assert self._place is not None
        if self._connection.current is not self._answer:
            self._connection.ask(self._answer.hello)
            self._connection.current = self._answer
        with self._connection.transaction:
            number = self._stream + 1
            seen = self.reports.hand_over(self._stream, number) if self._goes_on else None
            self._stream = number
            self._connection.room.forget()
            stream = {"stream": number, "epoch": self._place[0], "step": self._place[1]}
            self._connection.send({"type": "begin", **stream, "last": self._last, "seen": seen})
            self._begun = self._goes_on = True

    def _recover(self) -> None:
        """The feeder is gone: go on with another one from the step after the last that was handed out."""
        with self.stats.waiting():
            while True:
                self._connection.abandon()
                try:
                    self._connection.connect()
                    self._begin()
                except ChannelClosedError:
                    continue
                return
