"""The ring: slots of shared memory through which batches cross from the feeder to the trainer.

Runs in: the feeder (`RingWriter`) and the trainer (`RingReader`). A generation is one memfd of equal slots; a batch
too large for a slot, or a trainer that holds every slot, makes another one. The states of a slot:

    free --writer.acquire--> filling --READY--> ready --reader.lease--> leased --last view dies--> free (FREE)

Messages are the only synchronisation: no polling, no shared counters, no memory-ordering assumptions. A slot is never
written while anything views it. A memfd has no name, so nothing can leak or collide, and it dies with its last holder.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.errors import RingError
from feedline.loader.ring.channel import END, READY, Channel, Descriptor
from feedline.resources import available_memory_bytes

logger = logging.getLogger(__name__)

PAGE_BYTES = mmap.PAGESIZE
# A slot has room for batches an eighth larger than the first: ragged batches differ by a few per cent.
_SLACK = 1.125
# Slots of a fresh ring: two at the trainer (the batch it works on and the one it takes next), one ready, one being
# filled. Longer jitter is absorbed by finished blocks; more slots would only be more memory to touch before step 0.
_FIRST_SLOTS = 4
# Left to everything else on the machine when the ring is made.
_RESERVE_BYTES = 64 * 1024 * 1024


class Event(Protocol):
    """What a slot waits for before it is free: `torch.cuda.Event` is one."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class _Failed:
    """An event that could not be recorded: who waits for it gets the error instead."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def query(self) -> bool:
        raise self._error

    def synchronize(self) -> None:
        raise self._error


class _Mapping(mmap.mmap):
    """A mapping that calls `before_unmapping` when its last view is gone. A weakref would be called after unmapping."""

    before_unmapping: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.before_unmapping is not None:
            self.before_unmapping()


class RingMemory:
    """One generation: a memfd with `slots` slots of `slot_bytes` bytes, mapped into this process."""

    def __init__(self, fd: int, *, generation: int, slots: int, slot_bytes: int) -> None:
        self.fd = fd
        self.generation = generation
        self.slots = slots
        self.slot_bytes = slot_bytes
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self.map = _Mapping(fd, slots * slot_bytes, flags=flags)

    @classmethod
    def create(cls, *, generation: int, slots: int, slot_bytes: int) -> RingMemory:
        """Allocate a generation for real. Raises RingError with needed and available bytes where there is no room."""
        needed, available = slots * slot_bytes, available_memory_bytes()
        if needed + _RESERVE_BYTES > available:
            raise RingError(
                f"no memory for the ring: needed {needed:,} bytes ({slots} slots of {slot_bytes:,}), available "
                f"{available:,}. Lower batch.size or free memory on this host"
            )
        fd = os.memfd_create("feedline-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, needed)  # no SIGBUS later: the pages are ours now or this raises
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(fd, generation=generation, slots=slots, slot_bytes=slot_bytes)
        except OSError as error:
            os.close(fd)
            raise RingError(
                f"no memory for the ring: needed {needed:,} bytes, available {available:,} ({error})"
            ) from error

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    def slot(self, index: int, nbytes: int | None = None) -> NDArray[np.uint8]:
        """The bytes of one slot: an array whose base is the mapping itself, so that it lives as long as any view."""
        count = self.slot_bytes if nbytes is None else nbytes
        return np.frombuffer(self.map, dtype=np.uint8, count=count, offset=index * self.slot_bytes)

    def close_fd(self) -> None:
        """Close the descriptor; the mapping goes with its last view."""
        os.close(self.fd)


@dataclass(slots=True)
class _WriterGeneration:
    memory: RingMemory
    free: deque[int]
    retired: bool = False


class RingWriter:
    """The feeder's side: hands out free slots, adds generations, announces what is ready."""

    def __init__(self, channel: Channel, *, limit_bytes: int) -> None:
        self._channel = channel
        self._limit_bytes = limit_bytes
        self._generations: dict[int, _WriterGeneration] = {}
        self._next = 0

    @property
    def nbytes(self) -> int:
        return sum(generation.memory.nbytes for generation in self._generations.values())

    @property
    def slots(self) -> int:
        return sum(g.memory.slots for g in self._generations.values() if not g.retired)

    @property
    def free_slots(self) -> int:
        return sum(len(g.free) for g in self._generations.values() if not g.retired)

    def acquire(self, nbytes: int) -> tuple[RingMemory, int] | None:
        """A free slot for a batch of that size, or None while the trainer has them all."""
        current = [g for g in self._generations.values() if not g.retired]
        if not current or nbytes > current[-1].memory.slot_bytes:
            self._replace(current, nbytes)
            current = [g for g in self._generations.values() if not g.retired]
        for generation in current:
            if generation.free:
                return generation.memory, generation.free.popleft()
        return None

    def announce(self, memory: RingMemory, slot: int, *, stream: int, epoch: int, step: int, nbytes: int) -> None:
        self._channel.send(READY.pack(b"R", stream, memory.generation, slot, epoch, step, nbytes))

    def announce_end(self, *, stream: int, epoch: int) -> None:
        self._channel.send(END.pack(b"E", stream, epoch))

    def release(self, generation: int, slot: int) -> None:
        """The trainer has no view of that slot any more."""
        owner = self._generations[generation]
        owner.free.append(slot)
        self._drop_if_spent(generation)

    def grow(self) -> bool:
        """Add as many slots as there are, within the limit; False (and the trainer is told) where there is no room."""
        newest = [g for g in self._generations.values() if not g.retired][-1].memory
        slots = min(self.slots, (self._limit_bytes - self.nbytes) // newest.slot_bytes)
        if slots < 1:
            self._channel.send_json({"type": "full", "nbytes": self.nbytes, "limit": self._limit_bytes})
            return False
        try:
            self._add(slots, newest.slot_bytes)
        except RingError as error:
            self._channel.send_json(
                {"type": "full", "nbytes": self.nbytes, "limit": self._limit_bytes, "why": str(error)}
            )
            return False
        return True

    def close(self) -> None:
        for generation in self._generations.values():
            generation.memory.close_fd()
        self._generations.clear()

    def _replace(self, current: Sequence[_WriterGeneration], nbytes: int) -> None:
        """A generation with room for `nbytes` in place of the current ones: at least twice their slots' size."""
        wanted = int(nbytes * _SLACK)
        if current:
            wanted = max(wanted, 2 * current[-1].memory.slot_bytes)
        slot_bytes = -(-wanted // PAGE_BYTES) * PAGE_BYTES
        slots = max(2, min(_FIRST_SLOTS, self._limit_bytes // slot_bytes))
        for old in current:
            old.retired = True
            self._channel.send_json({"type": "retire", "generation": old.memory.generation})
            self._drop_if_spent(old.memory.generation)
        self._add(slots, slot_bytes)

    def _add(self, slots: int, slot_bytes: int) -> None:
        memory = RingMemory.create(generation=self._next, slots=slots, slot_bytes=slot_bytes)
        self._next += 1
        self._generations[memory.generation] = _WriterGeneration(memory, deque(range(slots)))
        message = {"type": "map", "generation": memory.generation, "slots": slots, "slot_bytes": slot_bytes}
        self._channel.send_json(message, memory.fd)

    def _drop_if_spent(self, generation: int) -> None:
        owner = self._generations[generation]
        if owner.retired and len(owner.free) == owner.memory.slots:
            owner.memory.close_fd()
            del self._generations[generation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A slot that holds a batch."""

    stream: int
    generation: int
    slot: int
    epoch: int
    step: int
    nbytes: int

    @classmethod
    def unpack(cls, packet: bytes) -> Ready:
        _, stream, generation, slot, epoch, step, nbytes = READY.unpack(packet)
        return cls(stream=stream, generation=generation, slot=slot, epoch=epoch, step=step, nbytes=nbytes)


@dataclass(slots=True)
class _ReaderGeneration:
    memory: RingMemory
    pinned: bool
    waiting: set[int] = field(default_factory=set)  # slots announced, not yet leased
    leases: int = 0
    retired: bool = False


@dataclass(slots=True)
class Lease:
    """The right to look at one slot: `root` holds its bytes, and the slot is free when the last view of it dies.

    `fences` are called at that moment and return the events to wait for before the slot may be written again.
    """

    root: NDArray[np.uint8]
    pinned: bool
    fences: list[Callable[[], Sequence[Event]]] = field(default_factory=list)


class RingReader:
    """The trainer's side: maps generations, leases ready slots, gives them back.

    `torn`: an interrupt (Ctrl-C) came while a slot was given back, and the feeder may never hear of that slot again.
    """

    def __init__(self, channel: Channel, *, pin: Callable[[int, int], bool], unpin: Callable[[int], None]) -> None:
        self._channel = channel
        self._pin = pin
        self._unpin = unpin
        self._mapped: dict[int, _ReaderGeneration] = {}
        self.torn = False
        # Filled by finalizers (any thread, no locks: deque.append is atomic), emptied by `settle`.
        self._returned: deque[tuple[int, int]] = deque()
        self._fenced: deque[tuple[int, int, Sequence[Event]]] = deque()

    @property
    def slots(self) -> int:
        """Slots the feeder may still fill."""
        return sum(mapped.memory.slots for mapped in self._mapped.values() if not mapped.retired)

    @property
    def fill(self) -> float:
        """Share of those slots that hold a batch which nobody has leased yet."""
        waiting = sum(len(mapped.waiting) for mapped in self._mapped.values() if not mapped.retired)
        return waiting / self.slots if self._mapped and self.slots else 0.0

    @property
    def held(self) -> int:
        """Slots of live generations that views keep from being filled again."""
        self.settle()
        return sum(mapped.leases for mapped in self._mapped.values() if not mapped.retired)

    @property
    def nbytes(self) -> int:
        return sum(mapped.memory.nbytes for mapped in self._mapped.values())

    def on_map(self, message: dict[str, Any], fd: Descriptor) -> None:
        """Map a generation and pin it; it is unpinned before it is unmapped, wherever an interrupt comes between."""
        numbers = {key: message[key] for key in ("generation", "slots", "slot_bytes")}
        memory = RingMemory(fd.number, **numbers)
        fd.close()  # the mapping keeps the memory
        address = _address(memory)
        memory.map.before_unmapping = functools.partial(self._unpin, address)
        pinned = self._pin(address, memory.nbytes)
        if not pinned:
            memory.map.before_unmapping = None
        self._mapped[memory.generation] = _ReaderGeneration(memory, pinned)

    def on_retire(self, message: dict[str, Any]) -> None:
        self._mapped[message["generation"]].retired = True
        self.settle()

    def expect(self, ready: Ready) -> None:
        """A slot was announced: its generation stays, though retired meanwhile, until it is leased or discarded."""
        self._mapped[ready.generation].waiting.add(ready.slot)

    def lease(self, ready: Ready) -> Lease:
        """The slot's bytes, with a finalizer that gives the slot back."""
        mapped = self._mapped[ready.generation]
        mapped.waiting.discard(ready.slot)
        mapped.leases += 1
        lease = Lease(mapped.memory.slot(ready.slot, ready.nbytes), mapped.pinned)
        finalizer = weakref.finalize(
            lease.root, _give_back, weakref.ref(self), os.getpid(), ready.generation, ready.slot, lease.fences
        )
        finalizer.atexit = False
        return lease

    def discard(self, ready: Ready) -> None:
        """Give a slot back unread."""
        self._mapped[ready.generation].waiting.discard(ready.slot)
        self._channel.free(ready.generation, ready.slot)

    def settle(self) -> None:
        """Free the slots whose events have completed; unmap spent generations."""
        while self._fenced and all(event.query() for event in self._fenced[0][2]):
            generation, slot, _ = self._fenced.popleft()
            self._free(generation, slot)
        while self._returned:
            generation, _ = self._returned.popleft()
            if generation in self._mapped:
                self._mapped[generation].leases -= 1
        for generation, mapped in list(self._mapped.items()):
            if mapped.retired and not mapped.leases and not mapped.waiting:
                del self._mapped[generation]
        self._channel.flush()

    def wait(self) -> None:
        """Wait for the events of the slot that has waited longest; `settle` frees it then."""
        for event in self._fenced[0][2]:
            event.synchronize()

    @property
    def fenced(self) -> int:
        """Slots that wait for a GPU."""
        return len(self._fenced)

    def close(self) -> None:
        """Stop using the mappings; those that are still viewed live as long as their views."""
        while self._fenced:
            _, _, events = self._fenced.popleft()
            _await(events)
        self._mapped.clear()

    def _free(self, generation: int, slot: int) -> None:
        self._returned.append((generation, slot))
        self._channel.free(generation, slot)


def _give_back(
    reader: weakref.ref[RingReader],
    pid: int,
    generation: int,
    slot: int,
    fences: Sequence[Callable[[], Sequence[Event]]],
) -> None:
    """The last view of a slot died. Runs anywhere, in any thread, in a forked child too (which owns no slot)."""
    if os.getpid() != pid:
        return
    owner = reader()
    try:
        try:
            events = [event for fence in fences for event in fence()]
        except Exception as error:  # of CUDA: the next `settle` raises it
            events = [_Failed(error)]
        if owner is None or generation not in owner._mapped:
            _await(events)  # the mapping may go next, and a GPU still reads it
        elif events:
            owner._fenced.append((generation, slot, events))
        else:
            owner._free(generation, slot)
    except BaseException:
        if owner is not None:
            owner.torn = True
        raise


def _await(events: Sequence[Event]) -> None:
    """Wait for events where nobody can do anything about an error, or where it would hide another."""
    for event in events:
        try:
            event.synchronize()
        except Exception as error:  # after an error of CUDA every call raises it
            logger.warning("a copy from the ring to a GPU ended in an error: %s", error)


def _address(memory: RingMemory) -> int:
    return int(memory.slot(0).__array_interface__["data"][0])
