"""Write batches into slots on threads without the interpreter's lock, which announce them in the order of their steps.

Runs in: the feeder; all calls come from its loop, which measures batches and writes small ones itself. The threads are
the process's own (`native/_writers.h`), as many for all rings as its cores may need. Tasks never receive a slot: a
hedged or abandoned one would write into it when it is in use again. See
docs/decisions/0001-one-layout-for-slots-and-blocks.md.
"""

from __future__ import annotations

import os
from collections import deque

import numpy as np
from numpy.typing import NDArray

from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.slot import Draft, content, write
from feedline.loader.ring.channel import Channel
from feedline.loader.ring.slots import RingMemory, RingWriter
from feedline.native import rows as native
from feedline.resources.cgroups import available_cores

# One thread copies 5 GB/s of blocks that have left the caches, and computing a block takes at least eight times as long
# as copying it.
_FEWEST_THREADS, _CORES_PER_THREAD = 2, 8


class SlotWriters:
    """The slots of one ring that are being written. A poll of `wake` finds when all are, or one cannot be."""

    def __init__(self, ring: RingWriter, channel: Channel) -> None:
        self._ring = ring
        self._channel = channel
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._queue = _queue(channel.fileno(), self.wake)
        self._writing: deque[tuple[Draft, RingMemory, int]] = deque()  # in the order of their steps
        self._is_held = False

    @property
    def busy(self) -> bool:
        return bool(self._writing)

    @property
    def copy_s(self) -> float:
        """Seconds of the threads; `copy_cpu_s`: of their CPUs."""
        return self._queue.seconds

    @property
    def copy_cpu_s(self) -> float:
        return self._queue.cpu_seconds

    def add(self, layout: SlotLayout, batch: Draft, stream: int) -> bool:
        """Begin to write a batch into a free slot; False, and nothing happens, while there is none. A small batch is
        then written."""
        nbytes = batch.placement.nbytes
        if self._writing and not self._ring.holds(nbytes):
            return False  # the slots being written are announced before their generation is retired
        free = self._ring.acquire(nbytes)
        if free is None:
            return False
        if self._channel.has_posted and not self._is_held:  # such as a new generation
            self._hold(True)
        memory, slot = free
        self._writing.append((batch, memory, slot))
        packet = self._ring.packet(stream, memory, slot, batch.header)
        if isinstance(self._queue, _WrittenAtOnce):
            self._queue.write_batch(layout, batch, memory.slot(slot), packet)
        else:
            self._queue.write(memory.slot(slot), *content(layout, batch), packet)
        return True

    def announce(self) -> list[Draft]:
        """The next batches that are announced, which this does for those that no thread has. Raises ValueError if there
        are none before one that cannot be written."""
        if not self._writing:
            return []
        count, packets, has_failed = self._queue.take()
        announced = [self._writing.popleft()[0] for _ in range(count)]
        if announced:
            self._ring.announce(packets)
        elif has_failed:
            raise ValueError("a code of a slot's lists is out of range")
        if packets or self._is_held:
            self._hold(self._channel.has_posted)
        return announced

    def finish(self) -> None:
        """Announce the batches that are being written, once they are. Raises ValueError as `announce`."""
        self._queue.wait()
        while self.announce():
            pass

    def drop(self) -> None:
        """Return the slots that have not been announced to the ring, once nobody writes them."""
        if not self._writing:
            return
        sent = self._queue.drop()
        for _, memory, slot in [*self._writing][sent:]:
            self._ring.release(memory.generation, slot)
        self._writing.clear()

    def close(self) -> None:
        self.drop()
        os.close(self.wake)

    def _hold(self, is_held: bool) -> None:
        self._is_held = is_held
        self._queue.hold(is_held)


class _WrittenAtOnce:
    """A queue without compiled functions: batches are written when they are added, and announced by `take`."""

    seconds = cpu_seconds = 0.0

    def __init__(self) -> None:
        self._packets: list[bytes] = []

    def write_batch(self, layout: SlotLayout, batch: Draft, slot: NDArray[np.uint8], packet: bytes) -> None:
        write(layout, batch, slot)
        self._packets.append(packet)

    def take(self) -> tuple[int, bytes, bool]:
        packets, self._packets = self._packets, []
        return len(packets), b"".join(packets), False

    def hold(self, is_held: bool) -> None:
        """Nothing is announced but by `take`."""

    def wait(self) -> None:
        """All batches are written."""

    def drop(self) -> int:
        self._packets.clear()
        return 0


def _queue(connection: int, wake: int) -> native.SlotQueue | _WrittenAtOnce:
    if not native.COMPILED:
        return _WrittenAtOnce()
    threads = max(_FEWEST_THREADS, int(available_cores()) // _CORES_PER_THREAD)
    return native.slot_queue(connection, wake, threads)
