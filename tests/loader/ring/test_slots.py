"""Slots, leases and generations over a real socket pair, both ends in this process."""

from __future__ import annotations

import gc
import os
import signal
import socket

import numpy as np
import polars as pl
import pytest
from ring_forms import use

from feedline.errors import RingError
from feedline.loader.batch import Batch
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SlotHeader, SlotLayout
from feedline.loader.encoding.slot import RowSlice, draft, write
from feedline.loader.ring import slots as ring_module
from feedline.loader.ring.channel import ChannelClosedError, adopt, pair
from feedline.loader.ring.slots import RingMemory, RingReader, RingWriter
from feedline.loader.wire.ring_messages import Diagnosis, GrowRing, NewGeneration, RetiredGeneration, RingFull

MIB = 1 << 20


class Held:
    """A slot's bytes and what is known of their lease, as a batch holds them."""

    def __init__(self, lease):
        self.root, self.pinned, self.fences = np.frombuffer(lease, np.uint8), lease.generation.pinned, lease.fences


class Pair:
    """A writer and a reader that pump each other's messages."""

    def __init__(self, *, limit_bytes=64 * MIB, pin=lambda _a, _n: False, unpin=lambda _a: None):
        ours, theirs = pair()
        self.feeder, self.trainer = ours, adopt(theirs.detach())
        self.writer = RingWriter(self.feeder, limit_bytes=limit_bytes)
        self.reader = RingReader(self.trainer, pin=pin, unpin=unpin)
        self.ready = []
        self.full = []

    def send(self, value, nbytes, step=0):
        place = self.writer.acquire(nbytes)
        if place is None:
            return False
        memory, slot = place
        memory.slot(slot)[:nbytes] = value
        header = SlotHeader(epoch=0, step=step, rows=1, nbytes=nbytes, ipc_bytes=0, values=(), fixed=())
        self.writer.announce(self.writer.packet(1, memory, slot, header))
        self.receive()
        return True

    def receive(self):
        """Both sides read what lies in the socket."""
        while (received := self.trainer.receive(wait=False)) is not None:
            kind, message, *rest = received
            if kind == b"R":
                self.ready.append(received)
            elif isinstance(message, NewGeneration):
                self.reader.on_map(message, rest[0])
            elif isinstance(message, RetiredGeneration):
                self.reader.on_retire(message.generation)
            elif isinstance(message, RingFull):
                self.full.append(message)
        self.reader.settle()
        while (received := self.feeder.receive(wait=False)) is not None:
            self.writer.release(*received[1:])

    def take(self):
        return Held(self.reader.lease(self.ready.pop(0)))

    def close(self):
        self.reader.close()
        self.writer.close()
        self.feeder.close()
        self.trainer.close()


@pytest.fixture(params=["compiled", "python"])
def rings(request, monkeypatch):
    use(request.param, monkeypatch)
    made = []

    def make(**options):
        made.append(Pair(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_bytes_cross_and_the_slot_comes_back_with_the_last_view(rings):
    ring = rings()
    assert ring.send(7, 1000)
    lease = ring.take()
    view = lease.root[10:20].view(np.uint8)
    assert (lease.root == 7).all()
    assert len(lease.root) == 1000
    free = ring.writer.free_slots
    del lease
    ring.receive()
    assert ring.writer.free_slots == free, "a view is left: the slot must stay leased"
    assert (view == 7).all()
    del view
    ring.receive()
    assert ring.writer.free_slots == free + 1


@pytest.mark.parametrize("kept", ["dense", "categorical", "values", "an array of its tensor", "a clone"])
def test_each_tensor_of_a_batch_holds_its_slot(rings, kept):
    ring = rings()
    schema = BatchSchema(
        (
            SlotColumn(name="d", group="dense", dtype="float32", arrow="float", offset=0),
            SlotColumn(name="c", group="categorical", dtype="int64", arrow="int64", offset=0),
            SlotColumn(name="s", group="sparse", dtype="int64", arrow="int64", offset=0),
        )
    )
    layout = SlotLayout(schema)
    values = np.arange(3), np.array([0, 1, 3], np.int64)
    rows = encode(pl.DataFrame({"d": [1.0, 2.0], "c": [7, 8], "s": [[0], [1, 2]]}), schema)
    measured = draft(layout, [RowSlice(encoded=rows, start=0, stop=2)], epoch=0, step=0)
    memory, slot = ring.writer.acquire(measured.placement.nbytes)
    write(layout, measured, memory.slot(slot))
    ring.writer.announce(ring.writer.packet(1, memory, slot, measured.header))
    ring.receive()
    free = ring.writer.free_slots
    ready = ring.ready.pop()
    lease = ring.reader.lease(ready)
    batch = Batch(layout, 0, 0, 2, measured.placement.nbytes, lease)
    del lease
    sparse = batch.sparse["s"]
    held = {
        "dense": batch.dense,
        "categorical": batch.categorical,
        "values": sparse.values,
        "an array of its tensor": sparse.offsets.numpy()[1:],
        "a clone": batch.clone(),
    }[kept]
    assert (sparse.values.tolist(), sparse.offsets.tolist()) == (values[0].tolist(), values[1].tolist())
    del batch, sparse
    ring.receive()
    assert ring.writer.free_slots == (free + 1 if kept == "a clone" else free)
    del held
    ring.receive()
    assert ring.writer.free_slots == free + 1


def test_nothing_is_overwritten_while_it_is_held(rings):
    ring = rings()
    held = []
    for step in range(ring_module._FIRST_SLOTS):
        assert ring.send(step, 500, step)
        held.append(ring.take())
    assert not ring.send(99, 500), "every slot is leased"
    assert [int(lease.root[0]) for lease in held] == list(range(ring_module._FIRST_SLOTS))
    assert ring.reader.held_slots == ring.reader.slots
    held.pop(3)
    ring.receive()
    assert ring.send(42, 500)
    assert int(ring.take().root[0]) == 42


def test_growth_adds_slots_up_to_the_limit_and_reports_a_full_ring(rings):
    slot_bytes = MIB
    ring = rings(limit_bytes=16 * slot_bytes)
    held = []
    while True:
        if not ring.send(len(held), int(slot_bytes / ring_module._SLACK)):
            if not ring.writer.grow():
                break
            ring.receive()
            continue
        held.append(ring.take())
    ring.receive()
    assert ring.full
    assert ring.writer.nbytes <= 16 * slot_bytes
    assert len(held) == 16
    assert [int(lease.root[0]) for lease in held] == list(range(16))


def test_slots_are_added_on_request_while_the_ring_stays_small(rings, monkeypatch):
    ring = rings(limit_bytes=1024 * MIB)
    assert ring.writer.provide(20) == 0, "before the first batch nobody knows how large slots are"
    assert ring.send(1, MIB // 2)
    assert ring.writer.provide(20) == ring.writer.slots == 20
    assert ring.writer.provide(6) == 20, "none is taken away"
    assert ring.writer.provide(10_000) == ring.writer.slots < 10_000
    assert ring.writer.nbytes <= 64 * MIB
    ring.receive()
    assert ring.reader.slots == ring.writer.slots
    steps = ring.writer.free_slots
    assert all(ring.send(step % 251, MIB // 2, step) for step in range(steps))
    assert not ring.send(0, MIB // 2), "every slot is used"
    assert [ready[6] for ready in ring.ready[1:]] == list(range(steps))
    tight = rings(limit_bytes=1024 * MIB)
    assert tight.send(1, 100)
    monkeypatch.setattr(ring_module, "available_memory_bytes", lambda: 0)
    assert tight.writer.provide(20) == 4, "without memory it stays as it is"


def test_a_need_that_grows_slot_by_slot_makes_few_memories(rings):
    ring = rings(limit_bytes=1024 * MIB)
    assert ring.send(1, 100)
    slots = [ring.writer.provide(need) for need in range(1, 33)]
    assert all(found >= need for need, found in enumerate(slots, 1))
    assert len(set(slots)) == 4
    assert slots[-1] == 32


def test_a_larger_batch_adds_a_generation_and_the_old_one_is_unmapped_with_its_last_lease(rings):
    ring = rings()
    ring.send(1, 1000)
    old = ring.take()
    assert ring.send(2, 100_000)
    new = ring.take()
    assert len(new.root) == 100_000
    assert ring.reader.slots == ring_module._FIRST_SLOTS
    assert (old.root == 1).all()
    assert len(ring.reader._generations) == 2
    del old
    ring.receive()
    assert len(ring.reader._generations) == 1
    assert len(ring.writer._generations) == 1
    first = ring.writer._generations[1].memory.slot_bytes
    assert first >= 2 * ring_module.PAGE_BYTES


class FakeEvent:
    def __init__(self):
        self.done = False
        self.waited = False

    def query(self):
        return self.done

    def synchronize(self):
        self.waited = True
        self.done = True


def test_a_fenced_slot_waits_for_its_event(rings):
    ring = rings()
    ring.send(1, 1000)
    free = ring.writer.free_slots
    event = FakeEvent()
    lease = ring.take()
    lease.fences.append(lambda: [event])
    del lease
    ring.receive()
    assert ring.writer.free_slots == free
    assert ring.reader.fenced_slots == 1
    event.done = True
    ring.receive()
    assert ring.writer.free_slots == free + 1

    ring.send(2, 1000)
    slow = FakeEvent()
    lease = ring.take()
    lease.fences.append(lambda: [slow])
    del lease
    ring.reader.wait()
    assert slow.waited


def test_a_slot_released_after_the_end_waits_for_its_event_there(rings):
    """The mapping may go with this view, and a GPU still reads it."""
    for gone in (False, True):
        ring = rings()
        ring.send(1, 1000)
        event = FakeEvent()
        lease = ring.take()
        lease.fences.append(lambda event=event: [event])
        ring.reader.close()
        if gone:
            ring.reader = RingReader(ring.trainer, pin=lambda _a, _n: False, unpin=lambda _a: None)
        del lease
        assert event.waited


def test_a_cuda_error_is_raised_by_next_but_not_by_close(rings):
    ring = rings()
    for value in (1, 2):
        ring.send(value, 1000)
    failing = [ring.take(), ring.take()]
    event = FakeEvent()

    def fail(*_):
        raise RuntimeError("an illegal memory access was encountered")

    event.query = event.synchronize = fail
    failing[0].fences.append(lambda: [event])
    failing[1].fences.append(fail)  # the event could not even be recorded
    for _ in range(2):
        del failing[0]
        with pytest.raises(RuntimeError, match="illegal memory access"):
            ring.reader.settle()
    assert ring.reader.fenced_slots == 2, "nobody fills a slot of which nothing is known"
    ring.reader.close()


@pytest.mark.parametrize("held", [False, True])
def test_a_mapping_is_unpinned_while_it_is_still_mapped(rings, held):
    unpinned = []

    def unpin(address):
        with open("/proc/self/maps") as maps:
            unpinned.append(any(int(line.split("-")[0], 16) == address for line in maps))

    ring = rings(pin=lambda _a, _n: True, unpin=unpin)
    ring.send(1, 3 * MIB)
    lease = ring.take() if held else None
    ring.ready.clear()
    ring.reader.close()
    assert unpinned == ([] if held else [True])
    del lease
    assert unpinned == [True]


def test_a_forked_child_frees_nothing_and_does_not_hide_a_death(rings):
    ring = rings()
    ring.send(1, 1000)
    lease = ring.take()
    free = ring.writer.free_slots
    started, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover -- the child; it must not run pytest's exit
        del lease
        gc.collect()
        os.write(started[1], b"x")
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        os.read(started[0], 1)
        ring.receive()
        assert ring.writer.free_slots == free
        assert (lease.root == 1).all()
        ring.trainer.close()
        with pytest.raises(ChannelClosedError):  # though the child lives and had the descriptor
            ring.feeder.receive()
    finally:
        os.write(go_on[1], b"x")
        os.waitpid(child, 0)
        for fd in (*started, *go_on):
            os.close(fd)


def test_no_memory_is_an_error_with_needed_and_available_bytes(monkeypatch):
    monkeypatch.setattr(ring_module, "available_memory_bytes", lambda: 80 * MIB)
    with pytest.raises(RingError, match=r"needed 104,857,600 bytes .* available 83,886,080"):
        RingMemory.create(generation=0, slots=100, slot_bytes=MIB)


def test_a_memfd_cannot_shrink_under_its_mapping():
    memory = RingMemory.create(generation=0, slots=2, slot_bytes=MIB)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, MIB)
    memory.close_fd()


def test_long_messages_travel_as_memfds():
    ours, theirs = pair()
    other = adopt(theirs.detach())
    text = "x" * 1_000_000
    ours.send_message(Diagnosis(text=text))
    _, message, fd = other.receive()
    assert message.text == text
    assert fd is None
    assert other.peer_uid() == os.getuid()
    ours.close()
    with pytest.raises(ChannelClosedError):
        other.receive()
    with pytest.raises(ChannelClosedError):
        other.send_message(GrowRing())
    other.close()


def test_the_death_of_a_process_is_an_eof():
    ours, theirs = pair()
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    theirs.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(ChannelClosedError):
        ours.receive()
    ours.close()


def test_slots_announced_together_come_in_one_packet_and_are_freed_in_one(rings):
    ring = rings()
    places = [ring.writer.acquire(500) for _ in range(ring_module._FIRST_SLOTS)]
    headers = [
        SlotHeader(epoch=2, step=step, rows=step + 7, nbytes=500 + step, ipc_bytes=0, values=(), fixed=())
        for step in range(len(places))
    ]
    ring.receive()  # of the memory
    packets = [ring.writer.packet(1, *place, header) for place, header in zip(places, headers, strict=True)]
    ring.writer.announce(b"".join(packets))
    packet = bytearray(1000)
    assert ring.trainer._socket.recv_into(packet, 0, socket.MSG_PEEK) == 41 * len(places)
    assert ring.trainer.receive_other() is None
    queue = ring.trainer.queue
    assert [arrival[4:] for arrival in queue] == [(each.rows, 2, each.step, each.nbytes) for each in headers]
    assert ring.reader.fill == 1
    sent = []
    for _ in places:
        lease = ring.reader.lease(queue.popleft())
        del lease
        before = ring.writer.free_slots
        while (received := ring.feeder.receive(wait=False)) is not None:
            ring.writer.release(*received[1:])
        sent.append(ring.writer.free_slots - before)
    assert sent == [0, 2, 1, 1], "at once, where the trainer may wait next"
    assert ring.reader.held_slots == 0


def test_an_announced_slot_keeps_its_generation_until_it_is_taken(rings):
    ring = rings()
    memory, slot = ring.writer.acquire(500)
    memory.slot(slot)[:500] = 9
    header = SlotHeader(epoch=0, step=0, rows=1, nbytes=500, ipc_bytes=0, values=(), fixed=())
    ring.writer.announce(ring.writer.packet(1, memory, slot, header))
    assert ring.writer.acquire(100_000) is not None  # in another generation
    while (received := ring.trainer.receive_other()) is not None:
        _, message, descriptor = received
        if isinstance(message, NewGeneration):
            ring.reader.on_map(message, descriptor)
        else:
            ring.reader.on_retire(message.generation)
    assert len(ring.reader._generations) == 2
    lease = ring.reader.lease(ring.trainer.queue.popleft())
    assert bytes(np.frombuffer(lease, np.uint8)) == b"\x09" * 500
    del lease
    ring.reader.settle()
    assert len(ring.reader._generations) == 1


def test_a_new_ring_of_large_slots_gets_half_of_them_after_its_first_batch(rings):
    ring = rings(limit_bytes=256 * MIB)
    size = ring_module._BYTES_AT_ONCE // 2
    free = ring.writer.acquire(size)
    assert free is not None
    assert ring.writer.slots == 2
    ring.writer.release(free[0].generation, free[1])
    assert ring.send(1, size)
    assert ring.writer.slots == ring_module._FIRST_SLOTS
    lease = ring.take()
    assert (lease.root == 1).all()
    del lease
    assert ring.reader.slots == ring_module._FIRST_SLOTS
    assert ring.send(2, size)
    assert ring.writer.slots == ring_module._FIRST_SLOTS
