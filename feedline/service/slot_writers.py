"""Write batches into slots on threads of their own, and announce them in the order of their steps.

Runs in: the feeder; all calls come from its loop. A batch is measured by the loop, since its size decides which slot it
needs. Then one of a few threads copies its rows, with the interpreter's lock released, while the loop continues with
the next batch. Tasks never receive a slot: a hedged or abandoned one would write into it when it is in use again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.slot import Draft, write
from feedline.loader.ring.slots import RingMemory, RingWriter

# One thread copies 5 GB/s of blocks that have left the caches.
THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    batch: Draft
    memory: RingMemory
    slot: int
    done: Future[None]


class SlotWriters:
    """The slots of one ring that are being written. wake: called by the threads, whenever a slot is finished."""

    def __init__(self, ring: RingWriter, wake: Callable[[], None]) -> None:
        self._ring = ring
        self._wake = wake
        self._threads: ThreadPoolExecutor | None = None  # until the first batch
        self._writing: deque[_Writing] = deque()  # in the order of their steps

    @property
    def busy(self) -> bool:
        """Whether a slot is written that has not been announced."""
        return bool(self._writing)

    def write(self, layout: SlotLayout, batch: Draft) -> bool:
        """Begin to write a batch into a free slot; False, and nothing happens, while there is none."""
        nbytes = batch.placement.nbytes
        if self._writing and not self._ring.holds(nbytes):
            return False  # the slots being written are announced before their generation is retired
        free = self._ring.acquire(nbytes)
        if free is None:
            return False
        memory, slot = free
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="feedline-slot-writer")
        done = self._threads.submit(write, layout, batch, memory.slot(slot))
        self._writing.append(_Writing(batch=batch, memory=memory, slot=slot, done=done))
        done.add_done_callback(lambda _: self._wake())
        return True

    def announce(self, stream: int) -> Draft | None:
        """Announce the next batch, if it is written, and return it. Raises the error of its writer."""
        if not self._writing or not self._writing[0].done.done():
            return None
        written = self._writing[0]
        written.done.result()
        self._ring.announce(written.memory, written.slot, stream, written.batch.header)
        return self._writing.popleft().batch

    def finish(self, stream: int) -> None:
        """Announce the batches that are being written, once they are. Raises the error of a writer."""
        while self._writing:
            self._writing[0].done.exception()  # waits
            self.announce(stream)

    def drop(self) -> None:
        """Return the slots that have not been announced to the ring, once nobody writes them."""
        while self._writing:
            dropped = self._writing.popleft()
            if not dropped.done.cancel():
                dropped.done.exception()  # waits; an error does not matter any more
            self._ring.release(dropped.memory.generation, dropped.slot)

    def close(self) -> None:
        """Drop what is being written and end the threads."""
        self.drop()
        if self._threads is not None:
            self._threads.shutdown()
