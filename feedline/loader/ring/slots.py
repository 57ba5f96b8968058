"""The ring: slots of shared memory through which batches cross from the feeder to the trainer.

Runs in: the feeder (`RingWriter`) and the trainer (`RingReader`). A generation is one memfd of slots of equal size;
another one is added when a batch does not fit a slot, or the trainer holds every slot. States of a slot:

    free --writer.acquire--> filling --READY--> ready --reader.lease--> leased --last view dies--> free (FREE)

Messages are the only synchronisation: no polling, no shared counters, no memory-ordering assumptions. A slot is never
written while a view of it exists.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import logging
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import RingError
from feedline.loader.encoding.layout import SlotHeader
from feedline.loader.ring.channel import END, Channel, Descriptor
from feedline.loader.ring.numa import preferred_node
from feedline.loader.wire.ring_messages import NewGeneration, RetiredGeneration, RingFull
from feedline.native import ring as native
from feedline.native.ring import READY, Arrival, Books, Lease
from feedline.resources.cgroups import available_memory_bytes

logger = logging.getLogger(__name__)

# Slots are an eighth larger than the first batch: ragged batches differ by a few per cent.
_SLACK = 1.125
# Slots of a new ring: two leased (the current batch and the next), one ready, one being filled.
_FIRST_SLOTS = 4
# The memory of a new ring's slots (two at least) before its first batch is announced: 1.8 ms per megabyte on a VM.
_BYTES_AT_ONCE = 32 * 2**20
# A ring gets more slots for a smooth run only as long as it is smaller than this.
_SMALL_RING_BYTES = 64 * 2**20
PAGE_BYTES = mmap.PAGESIZE
_BYTE = np.dtype(np.uint8)
# Memory left free for other processes when a generation is allocated.
_RESERVE_BYTES = 64 * 1024 * 1024


class Event(Protocol):
    """A condition for freeing a slot, such as a `torch.cuda.Event`."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class _FailedEvent:
    """An event that could not be recorded: waiting for it raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def query(self) -> bool:
        raise self._error

    def synchronize(self) -> None:
        raise self._error


class _Mapping(mmap.mmap):
    """A mapping that calls `before_unmapping` after its last view; a weakref callback would run after unmapping."""

    before_unmapping: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.before_unmapping is not None:
            self.before_unmapping()


class RingMemory:
    """One generation: a memfd with `slots` slots of `slot_bytes` bytes, mapped into this process.

    A memfd has no name, so it cannot leak or collide: the kernel frees it with its last descriptor and mapping.
    """

    def __init__(self, fd: int, *, generation: int, slots: int, slot_bytes: int) -> None:
        self.fd = fd
        self.generation = generation
        self.slots = slots
        self.slot_bytes = slot_bytes
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self.map = _Mapping(fd, slots * slot_bytes, flags=flags)

    @classmethod
    def create(cls, *, generation: int, slots: int, slot_bytes: int, node: int | None = None) -> RingMemory:
        """Allocate the pages of a generation, on a NUMA node if it is given.

        Raises RingError with needed and available bytes if memory is short.
        """
        nbytes, available = slots * slot_bytes, available_memory_bytes()
        if nbytes + _RESERVE_BYTES > available:
            raise RingError(
                f"no memory for the ring: needed {nbytes:,} bytes ({slots} slots of {slot_bytes:,}), available "
                f"{available:,}. Lower batch.size or free memory on this host"
            )
        fd = os.memfd_create("feedline-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with preferred_node(node):
                os.posix_fallocate(fd, 0, nbytes)  # raises here rather than SIGBUS on a later write
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(fd, generation=generation, slots=slots, slot_bytes=slot_bytes)
        except OSError as error:
            os.close(fd)
            raise RingError(
                f"no memory for the ring: needed {nbytes:,} bytes, available {available:,} ({error})"
            ) from error

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    def slot(self, index: int, nbytes: int | None = None) -> NDArray[np.uint8]:
        """The bytes of one slot, as an array over the mapping, which therefore lives as long as any view."""
        count = self.slot_bytes if nbytes is None else nbytes
        return np.ndarray((count,), _BYTE, self.map, index * self.slot_bytes)

    @property
    def address(self) -> int:
        """The address of the first slot in this process."""
        return int(self.slot(0).__array_interface__["data"][0])

    def close_fd(self) -> None:
        """Close the descriptor; the mapping stays until its last view is gone."""
        os.close(self.fd)


@dataclass(slots=True, eq=False)
class _WriterGeneration:
    memory: RingMemory
    free: deque[int]


class RingWriter:
    """The feeder's side: hands out free slots, adds generations, announces ready slots."""

    def __init__(self, channel: Channel, *, limit_bytes: int) -> None:
        self._channel = channel
        self._limit_bytes = limit_bytes
        self._generations: dict[int, _WriterGeneration] = {}
        self._current: list[_WriterGeneration] = []  # those that are not retired
        self._next_generation = 0
        self._missing = 0  # slots to add when the first batch is announced
        self.slots = 0  # of the current generations
        self.node: int | None = None  # the NUMA node of further generations

    @property
    def nbytes(self) -> int:
        return sum(generation.memory.nbytes for generation in self._generations.values())

    @property
    def free_slots(self) -> int:
        return sum([len(each.free) for each in self._current])

    def acquire(self, nbytes: int) -> tuple[RingMemory, int] | None:
        """A free slot of at least `nbytes`, or None while the trainer holds all."""
        if not self.holds(nbytes):
            self._replace(nbytes)
        for generation in self._current:
            if generation.free:
                return generation.memory, generation.free.popleft()
        return None

    def holds(self, nbytes: int) -> bool:
        """Whether a slot holds as many bytes: else `acquire` retires the current generation for a larger one."""
        return bool(self._current) and nbytes <= self._current[-1].memory.slot_bytes

    def packet(self, stream: int, memory: RingMemory, slot: int, header: SlotHeader) -> bytes:
        """The packet that announces a slot with its batch."""
        return READY.pack(b"R", stream, memory.generation, slot, header.rows, header.epoch, header.step, header.nbytes)

    def announce(self, packets: bytes) -> None:
        """Announce slots by their packets, back to back; none if others were announced meanwhile."""
        if packets:
            self._channel.post(packets)
        if self._missing:
            missing, self._missing = self._missing, 0
            with contextlib.suppress(RingError):  # the trainer makes do with what there is
                self._add(missing, self._current[-1].memory.slot_bytes)

    def announce_end(self, *, stream: int, epoch: int) -> None:
        self._channel.post(END.pack(b"E", stream, epoch))

    def release(self, generation: int, slot: int) -> None:
        """Take a slot back that the trainer freed, or that was never announced."""
        owner = self._generations[generation]
        owner.free.append(slot)
        self._drop_if_spent(generation)

    def release_all(self, arrivals: deque[Arrival]) -> None:
        """Take the slots of FREE messages back, and empty their queue."""
        while arrivals:
            _, generation, slot = arrivals.popleft()
            self.release(generation, slot)

    def grow(self) -> bool:
        """Double the slots, within the limit. Returns False, after telling the trainer, if there is no memory."""
        newest = self._current[-1].memory
        slots = min(self.slots, (self._limit_bytes - self.nbytes) // newest.slot_bytes)
        if slots < 1:
            self._channel.post_message(RingFull(nbytes=self.nbytes, limit=self._limit_bytes))
            return False
        try:
            self._add(slots, newest.slot_bytes)
        except RingError as error:
            self._channel.post_message(RingFull(nbytes=self.nbytes, limit=self._limit_bytes, why=str(error)))
            return False
        return True

    def provide(self, slots: int) -> int:
        """Add slots until the ring has so many, if it stays small and memory permits; returns their number.

        They are doubled at least: a need that grows slot by slot does not make a memory for each.
        """
        # Needs of 5, 6, 8 and 9 slots, one after the other, of a ring of 4: it has 8, 8, 8 and 16.
        if self._current and slots > self.slots:
            slot_bytes = self._current[-1].memory.slot_bytes
            room = (min(self._limit_bytes, _SMALL_RING_BYTES) - self.nbytes) // slot_bytes
            if room > 0:
                with contextlib.suppress(RingError):  # the trainer makes do with what there is
                    self._add(min(max(slots - self.slots, self.slots), room), slot_bytes)
        return self.slots

    def close(self) -> None:
        for generation in self._generations.values():
            generation.memory.close_fd()
        self._generations.clear()
        self._current.clear()
        self.slots = 0

    def _replace(self, nbytes: int) -> None:
        """Retire the current generations for one whose slots hold `nbytes`, and are at least twice as large."""
        # A first batch of 10,000 bytes needs slots of 11,250: three pages of 4,096. One of 13,000 after it gets slots
        # twice as large, of 24,576.
        least_bytes = int(nbytes * _SLACK)
        if self._current:
            least_bytes = max(least_bytes, 2 * self._current[-1].memory.slot_bytes)
        slot_bytes = -(-least_bytes // PAGE_BYTES) * PAGE_BYTES
        slots = max(2, min(_FIRST_SLOTS, self._limit_bytes // slot_bytes))
        retired, self._current, self.slots = self._current, [], 0
        for old in retired:
            self._channel.post_message(RetiredGeneration(generation=old.memory.generation))
            self._drop_if_spent(old.memory.generation)
        if not retired:
            first = max(2, min(slots, _BYTES_AT_ONCE // slot_bytes))
            self._missing, slots = slots - first, first
        self._add(slots, slot_bytes)

    def _add(self, slots: int, slot_bytes: int) -> None:
        memory = RingMemory.create(generation=self._next_generation, slots=slots, slot_bytes=slot_bytes, node=self.node)
        self._next_generation += 1
        self._generations[memory.generation] = added = _WriterGeneration(memory, deque(range(slots)))
        self._current.append(added)
        self.slots += slots
        message = NewGeneration(generation=memory.generation, slots=slots, slot_bytes=slot_bytes)
        self._channel.post_message(message, memory.fd)

    def _drop_if_spent(self, generation: int) -> None:
        owner = self._generations[generation]
        if owner not in self._current and len(owner.free) == owner.memory.slots:
            owner.memory.close_fd()
            del self._generations[generation]


@dataclass(slots=True, eq=False)
class _ReaderGeneration:
    """A generation as leases know it: they keep the mapping, this must not."""

    reader: weakref.ref[RingReader]
    number: int
    memory: RingMemory
    pinned: bool
    leased: set[int] = field(default_factory=set)  # changed by finalizers, in any thread: both changes are atomic
    retired: bool = False
    closed: bool = False

    def tear(self) -> None:
        """Mark the ring as torn."""
        if (reader := self.reader()) is not None:
            reader.torn = True


class RingReader:
    """The trainer's side: maps generations, leases ready slots, frees them.

    `torn`: an interrupt (Ctrl-C) came while a slot was being freed, so the feeder may never get it back.

    A free slot is reported at once if the trainer may wait for the next batch, else when as many are free as batches
    wait: each packet costs a system call, and wakes the feeder.
    """

    def __init__(self, channel: Channel, *, pin: Callable[[int, int], bool], unpin: Callable[[int], None]) -> None:
        self._reference = weakref.ref(self)
        self._channel = channel
        self._queue = channel.queue  # what the trainer has not taken
        self._pin = pin
        self._unpin = unpin
        self._generations: dict[int, _ReaderGeneration] = {}
        self._books: dict[int, Books] = {}  # of the same generations
        self._retired: list[int] = []  # generations to unmap after their last lease
        self.torn = False
        # Filled by finalizers (any thread, no locks: deque.append is atomic), emptied by `settle`.
        self._fenced: deque[tuple[_ReaderGeneration, int, Sequence[Event]]] = deque()

    @property
    def slots(self) -> int:
        """Slots that the feeder may fill: those of generations that are not retired."""
        return sum(each.memory.slots for each in self._generations.values() if not each.retired)

    @property
    def fill(self) -> float:
        """Share of those slots that hold a batch not leased yet."""
        current = {number for number, each in self._generations.items() if not each.retired}
        waiting = sum(arrival[0] == b"R" and arrival[2] in current for arrival in tuple(self._queue))
        return waiting / self.slots if self._generations and self.slots else 0.0

    @property
    def held_slots(self) -> int:
        """Slots of generations that are not retired that views keep from being filled again."""
        self.settle()
        return sum(len(each.leased) for each in self._generations.values() if not each.retired)

    @property
    def nbytes(self) -> int:
        return sum(each.memory.nbytes for each in self._generations.values())

    def on_map(self, new: NewGeneration, fd: Descriptor) -> None:
        """Map a generation and pin it; wherever an interrupt comes, it is unpinned before it is unmapped."""
        memory = RingMemory(fd.number, generation=new.generation, slots=new.slots, slot_bytes=new.slot_bytes)
        fd.close()  # the mapping keeps the memory
        address = memory.address
        memory.map.before_unmapping = functools.partial(self._unpin, address)
        pinned = self._pin(address, memory.nbytes)
        if not pinned:
            memory.map.before_unmapping = None
        generation = _ReaderGeneration(self._reference, memory.generation, memory, pinned)
        self._books[generation.number] = self._channel.books(generation, generation.leased, _free_fenced)
        self._generations[generation.number] = generation

    def on_retire(self, generation: int) -> None:
        self._generations[generation].retired = True
        self._retired.append(generation)
        self.settle()

    def lease(self, ready: Arrival) -> Lease:
        """The slot's bytes, whose last view frees the slot. Settles what is due.

        The lease's `fences` are called then, and return the events to wait for before the slot is written again.
        """
        _, _, number, slot, _, _, _, nbytes = ready
        memory = self._generations[number].memory
        lease = native.lease(memory.map, slot * memory.slot_bytes, nbytes, self._books[number], slot)
        if self._fenced or self._retired:
            self.settle()
        return lease

    def discard(self, ready: Arrival) -> None:
        """Free a slot unread."""
        _, _, number, slot, *_ = ready
        self._channel.free(number, slot)

    def settle(self) -> None:
        """Free the slots whose events have completed; unmap spent generations."""
        while self._fenced and all(event.query() for event in self._fenced[0][2]):
            generation, slot, _ = self._fenced.popleft()
            self._free(generation, slot)
        if self._retired:
            self._unmap_spent()

    def _unmap_spent(self) -> None:
        waiting = {arrival[2] for arrival in tuple(self._queue) if arrival[0] == b"R"}
        for number in tuple(self._retired):
            if not self._generations[number].leased and number not in waiting:
                self._retired.remove(number)
                self._drop(number)

    def _drop(self, number: int) -> None:
        """Forget a generation, whose mapping lives as long as its views."""
        del self._books[number]
        generation = self._generations.pop(number)
        generation.closed = True
        del generation.memory  # a lease whose finalizer was interrupted must not keep it

    def wait(self) -> None:
        """Wait for the events of the oldest fenced slot, which the next `settle` frees."""
        for event in self._fenced[0][2]:
            event.synchronize()

    @property
    def fenced_slots(self) -> int:
        """Slots whose bytes a GPU may still read."""
        return len(self._fenced)

    def close(self) -> None:
        """Drop the mappings; one that is still viewed lives as long as its views."""
        while self._fenced:
            _, _, events = self._fenced.popleft()
            _await(events)
        for number in tuple(self._generations):
            self._drop(number)
        self._retired.clear()

    def _free(self, generation: _ReaderGeneration, slot: int) -> None:
        generation.leased.discard(slot)
        self._channel.report(generation.number, slot)


# A forked child owns no slot, and after the end of the program none is freed.
os.register_at_fork(after_in_child=lambda: native.forget_leases())
atexit.register(lambda: native.forget_leases())


def _free_fenced(generation: _ReaderGeneration, slot: int, fences: list[Callable[[], Sequence[Event]]]) -> None:
    """Free a slot that has fences after its last view. A callback: runs in any thread."""
    owner, events = generation.reader(), _events_of(fences)
    if owner is None or generation.closed:
        _await(events)  # the mapping may be unmapped next, while a GPU still reads it
    elif events:
        owner._fenced.append((generation, slot, events))
    else:
        owner._free(generation, slot)


def _events_of(fences: Sequence[Callable[[], Sequence[Event]]]) -> Sequence[Event]:
    try:
        return [event for fence in fences for event in fence()]
    except Exception as error:  # CUDA's; the next `settle` raises it
        return [_FailedEvent(error)]


def _await(events: Sequence[Event]) -> None:
    """Wait for events; errors are logged, since here they could not be handled, or would hide another."""
    for event in events:
        try:
            event.synchronize()
        except Exception as error:  # after a CUDA error every call raises it
            logger.warning("a copy from the ring to a GPU ended in an error: %s", error)
