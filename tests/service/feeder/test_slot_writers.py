"""Batches are written by threads and announced in the order of their steps, before an error of one of them."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest

from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotLayout
from feedline.loader.encoding.slot import Draft, RowSlice, draft, write_rows
from feedline.loader.ring.channel import Channel, ChannelClosedError, adopt, pair
from feedline.loader.ring.slots import RingMemory, RingWriter
from feedline.loader.wire.ring_messages import NewGeneration
from feedline.native import rows as native
from feedline.service.feeder.slot_writers import SlotWriters

COLUMN = SlotColumn(name="x", group="dense", dtype="float32", arrow="float", offset=0)
SMALL, LARGE = 100, 40_000  # rows of a batch, written by the caller, and by a thread


class Trainer:
    """The other end: slots as they are announced, with the bytes of their batches."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.memories: dict[int, RingMemory] = {}

    def batches(self) -> list[tuple[int, bytes, tuple[int, int]]]:
        """Step, bytes and slot of each batch that was announced since the last call."""
        found = []
        while (arrival := self.channel.receive(wait=False)) is not None:
            kind, message, *rest = arrival
            if isinstance(message, NewGeneration):
                fd = rest[0]
                self.memories[message.generation] = RingMemory(
                    os.dup(fd.number),
                    generation=message.generation,
                    slots=message.slots,
                    slot_bytes=message.slot_bytes,
                )
            elif kind == b"R":
                generation, slot, _, _, step, nbytes = rest
                content = self.memories[generation].slot(slot, nbytes).tobytes()
                found.append((step, content, (generation, slot)))
        return found

    def close(self) -> None:
        for memory in self.memories.values():
            memory.close_fd()
        self.channel.close()


class Session:
    def __init__(self) -> None:
        self.channel, theirs = pair()
        self.trainer = Trainer(adopt(theirs.detach()))
        self.ring = RingWriter(self.channel, limit_bytes=1 << 26)
        self.writers = SlotWriters(self.ring, self.channel)
        self.layout = SlotLayout(BatchSchema((COLUMN,)))

    def draft(self, step: int, rows: int) -> Draft:
        values = encode(pl.DataFrame({"x": np.arange(rows, dtype=np.float64) + step}), self.layout.schema)
        return draft(self.layout, [RowSlice(encoded=values, start=0, stop=rows)], epoch=0, step=step)

    def expected(self, batch: Draft) -> bytes:
        return write_rows(self.layout, [batch.slices[0].encoded], step=batch.header.step).tobytes()

    def add(self, step: int, rows: int) -> bytes:
        batch = self.draft(step, rows)
        assert self.writers.add(self.layout, batch, 1)
        return self.expected(batch)

    def await_written(self) -> None:
        assert select.select([self.writers.wake], [], [], 60)[0]

    def close(self) -> None:
        self.writers.close()
        self.ring.close()
        self.channel.close()
        self.trainer.close()


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session()
    yield session
    session.close()


compiled = pytest.mark.skipif(not native.COMPILED, reason="without the compiled functions all is written by the caller")


@pytest.mark.parametrize(
    "rows", [[SMALL] * 4, [LARGE] * 4, [LARGE, LARGE, SMALL, SMALL]], ids=["small", "large", "both"]
)
def test_batches_are_announced_in_order_with_the_bytes_that_one_thread_writes(session: Session, rows: list[int]):
    expected = [session.add(step, each) for step, each in enumerate(rows)]
    session.writers.finish()
    assert not session.writers.busy
    found = session.trainer.batches()
    assert [(step, content) for step, content, _ in found] == list(enumerate(expected))


@compiled
def test_a_thread_announces_what_it_has_written_and_wakes_the_loop(session: Session):
    session.add(0, SMALL)
    session.writers.finish()  # the ring is there
    session.add(1, LARGE)
    session.await_written()
    assert [step for step, *_ in session.trainer.batches()] == [0, 1], "before the loop has looked"
    assert [batch.header.step for batch in session.writers.announce()] == [1]
    assert not select.select([session.writers.wake], [], [], 0)[0]
    assert session.writers.copy_s > 0


def test_small_batches_are_written_when_they_are_added(session: Session):
    session.add(0, SMALL)
    session.add(1, SMALL)
    assert session.writers.busy
    assert [batch.header.step for batch in session.writers.announce()] == [0, 1]
    assert not session.writers.busy


def test_no_batch_overtakes_messages_that_wait_for_room(session: Session):
    """The socket is full, then the trainer reads."""
    packet = bytes(30_000)
    while not session.channel.has_posted:
        session.channel.post(b"S" + packet)
    steps = range(3)
    expected = [session.add(step, LARGE) for step in steps]
    session.writers.finish()
    received: list[Any] = []
    while len(received) < len(steps):
        received += session.trainer.batches()
        session.channel.deliver()
    assert [(step, content) for step, content, _ in received] == list(enumerate(expected))


def test_a_batch_that_finds_no_room_follows_once_there_is_some(session: Session):
    session.add(0, SMALL)
    session.writers.finish()
    filler = session.channel
    while filler.send(b"S" + bytes(1000), wait=False):
        pass
    while filler.send(b"S", wait=False):
        pass
    session.add(1, LARGE)
    session.await_written() if native.COMPILED else session.writers.finish()
    session.writers.announce()
    assert session.channel.has_posted
    assert [step for step, *_ in session.trainer.batches()] == [0]
    session.channel.deliver()
    assert [step for step, *_ in session.trainer.batches()] == [1]
    session.add(2, LARGE)
    session.writers.finish()
    assert [step for step, *_ in session.trainer.batches()] == [2]


def test_slots_that_were_not_announced_are_free_again(session: Session):
    session.add(0, LARGE)
    slots = session.ring.slots
    session.writers.finish()
    session.trainer.batches()
    before = session.ring.free_slots
    session.writers._hold(True)  # as if a message waited for room
    session.add(1, LARGE)
    session.add(2, LARGE)
    session.writers.drop()
    assert session.ring.free_slots == before
    assert session.trainer.batches() == []
    assert not session.writers.busy
    assert session.ring.slots >= slots


def test_what_was_announced_before_it_is_dropped_keeps_its_slot(session: Session):
    session.add(0, LARGE)
    session.writers.finish()
    session.trainer.batches()
    free = session.ring.free_slots
    session.add(1, LARGE)
    if native.COMPILED:
        session.await_written()
    session.writers.drop()
    announced = len(session.trainer.batches())
    assert announced == native.COMPILED
    assert session.ring.free_slots == free - announced


@compiled
def test_an_error_follows_the_batches_before_it(session: Session):
    queue: Any = session.writers._queue
    session.add(0, LARGE)
    session.writers.finish()
    free = session.ring.free_slots
    session.add(1, LARGE)
    # a list of one value, whose code has no entry in its table
    batch, (memory, slot) = session.draft(2, 1), session.ring.acquire(100_000) or pytest.fail("no slot")
    offsets, codes, table = np.array([0, 1]), np.array([7], np.int32), np.zeros(2, np.int64)
    one = np.zeros((1, 1), np.float32)
    piece = 0, 1, True, one, one[:, :0], (), ((codes, table),), (None,), (offsets,)
    places = 64, 4, 128, 0, 128, 192, 1, ((256, 320, 384, 8, -1),)
    packet = session.ring.packet(1, memory, slot, batch.header)
    queue.write(memory.slot(slot), bytes(8), (), [(places, [piece])], [], packet)
    session.writers._writing.append((batch, memory, slot))
    session.add(3, LARGE)
    with pytest.raises(ValueError, match="out of range"):
        session.writers.finish()
    assert [step for step, *_ in session.trainer.batches()] == [0, 1]
    session.writers.drop()
    assert session.ring.free_slots == free - 1


def test_a_trainer_that_has_left_ends_no_thread(session: Session):
    session.add(0, LARGE)
    session.writers.finish()
    session.trainer.channel.close()
    session.add(1, LARGE)
    session.add(2, LARGE)
    try:
        session.writers.finish()
    except ChannelClosedError:
        assert not native.COMPILED
    other = Session()
    expected = other.add(0, LARGE)
    other.writers.finish()
    assert [content for _, content, _ in other.trainer.batches()] == [expected]
    other.close()


@compiled
def test_queues_share_threads_and_end_while_others_write():
    sessions = [Session() for _ in range(6)]
    expected = [[session.add(step, LARGE) for step in range(3)] for session in sessions]
    for session in sessions[::2]:
        session.close()
    for session, contents in list(zip(sessions, expected, strict=True))[1::2]:
        session.writers.finish()
        assert [content for _, content, _ in session.trainer.batches()] == contents
        session.close()


@compiled
def test_a_forked_child_waits_for_no_thread_of_its_parent(session: Session):
    session.add(0, LARGE)
    child = os.fork()
    if not child:
        del session.writers._queue  # its jobs are lost
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        queue = native.slot_queue(ours.fileno(), os.eventfd(0), 2)
        queue.write(np.zeros(100_000, np.uint8), bytes(8), (), [], [], bytes(41))
        queue.wait()
        os._exit(len(theirs.recv(100)) != 41)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
