"""Write batches into slots on threads of their own, and announce them in the order of their steps.

Runs in: the feeder; all calls come from its loop, which measures batches and writes small ones itself. Tasks never
receive a slot: a hedged or abandoned one would write into it when it is in use again. See
docs/decisions/0001-one-layout-for-slots-and-blocks.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.slot import Draft, write
from feedline.loader.ring.slots import RingMemory, RingWriter

# One thread copies 5 GB/s of blocks that have left the caches.
THREADS = 2
# Batches that are ready together and have fewer bytes are written by the loop.
SMALL_BYTES = 64 * 1024


@dataclass(slots=True, kw_only=True)
class _Writing:
    """Batches that one thread writes one after the other. written: how many it has; done: None until it begins."""

    layout: SlotLayout
    batches: list[tuple[Draft, RingMemory, int]] = field(default_factory=list)
    announced: int = 0
    written: int = 0
    done: Future[None] | None = None
    seconds: float = 0.0
    cpu_s: float = 0.0

    def write(self) -> None:
        for batch, memory, slot in self.batches:
            write(self.layout, batch, memory.slot(slot))
            self.written += 1

    def write_in_thread(self) -> None:
        """`write`, in a thread whose time counts."""
        start_s, cpu_s = time.perf_counter(), time.thread_time()
        self.write()
        self.seconds, self.cpu_s = time.perf_counter() - start_s, time.thread_time() - cpu_s


class SlotWriters:
    """The slots of one ring that are being written. wake: called by the threads, when they have written theirs."""

    def __init__(self, ring: RingWriter, wake: Callable[[], None]) -> None:
        self._ring = ring
        self._wake = wake
        self._threads: ThreadPoolExecutor | None = None  # until the first batch
        self._writing: deque[_Writing] = deque()  # in the order of their steps; the last may not have begun
        self.copy_s = self.copy_cpu_s = 0.0  # of the threads

    @property
    def busy(self) -> bool:
        return bool(self._writing)

    @property
    def has_written(self) -> bool:
        """Whether `announce` has a batch, or an error."""
        if not self._writing:
            return False
        first = self._writing[0]
        return first.written > first.announced or (first.done is not None and first.done.done())

    @property
    def is_waited_for(self) -> bool:
        """Whether the trainer may have nothing to read: no slot is written, or ready, beside the two that it uses."""
        return not self._writing and self._ring.slots - self._ring.free_slots <= 2

    def add(self, layout: SlotLayout, batch: Draft) -> bool:
        """Take a free slot for a batch that `begin` will write; False, and nothing happens, while there is none."""
        nbytes = batch.placement.nbytes
        if self._writing and not self._ring.holds(nbytes):
            return False  # the slots being written are announced before their generation is retired
        free = self._ring.acquire(nbytes)
        if free is None:
            return False
        if not self._writing or self._writing[-1].done is not None:
            self._writing.append(_Writing(layout=layout))
        self._writing[-1].batches.append((batch, *free))
        return True

    def begin(self) -> None:
        """Begin to write the batches that were added; small ones are then written."""
        if not self._writing or self._writing[-1].done is not None:
            return
        last = self._writing[-1]
        if sum([batch.placement.nbytes for batch, _, _ in last.batches]) <= SMALL_BYTES:
            last.done = Future()
            try:
                last.write()
            except Exception as error:  # raised by `announce`
                last.done.set_exception(error)
            else:
                last.done.set_result(None)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="feedline-slot-writer")
        last.done = self._threads.submit(last.write_in_thread)
        last.done.add_done_callback(lambda _: self._wake())

    def announce(self, stream: int) -> list[Draft]:
        """Announce the next batches, as far as they are written, and return them. Raises the error of their writer if
        there are none before it."""
        announced: list[Draft] = []
        while self._writing:
            first = self._writing[0]
            is_done = first.done is not None and first.done.done()
            if written := first.batches[first.announced : first.written]:
                self._ring.announce(stream, [(memory, slot, batch.header) for batch, memory, slot in written])
                first.announced += len(written)
                announced += [batch for batch, _, _ in written]
            if not is_done:
                break
            if first.announced < len(first.batches):
                if not announced and first.done is not None:
                    first.done.result()  # raises
                break
            self._writing.popleft()
            self.copy_s += first.seconds
            self.copy_cpu_s += first.cpu_s
        return announced

    def finish(self, stream: int) -> None:
        """Announce the batches that are being written, once they are. Raises the error of a writer."""
        while self._writing:
            done = self._writing[0].done
            assert done is not None, "batches that were added have begun"
            done.exception()  # waits
            self.announce(stream)

    def drop(self) -> None:
        """Return the slots that have not been announced to the ring, once nobody writes them."""
        while self._writing:
            dropped = self._writing.popleft()
            if dropped.done is not None and not dropped.done.cancel():
                dropped.done.exception()  # waits; an error does not matter any more
            for _, memory, slot in dropped.batches[dropped.announced :]:
                self._ring.release(memory.generation, slot)

    def close(self) -> None:
        self.drop()
        if self._threads is not None:
            self._threads.shutdown()
