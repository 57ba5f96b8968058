"""Copy batches to a device ahead of the training step: `FeedlineDataset(device="cuda")`.

Runs in: the trainer. `CudaCopies` copies on a stream of its own while the trainer's computes, `HostCopies` in ordinary
memory. A slot is free once its copy's event has completed (`Batch.to`), for which the trainer's stream waits; the
copy's memory is reused after the work queued on that stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from feedline.errors import FeedlineError
from feedline.loader.batch import Batch
from feedline.loader.ring.slots import Event

DEPTH = 2  # batches on their way while the trainer works on one: the next, and one more for jitter


class Copies(Protocol):
    """A kind of copies. `start` begins one, `hand_over` makes it usable by the work that the trainer queues next."""

    def start(self, batch: Batch) -> tuple[Batch, Event | None]: ...
    def hand_over(self, batch: Batch, copied: Event | None) -> None: ...


class CudaCopies:
    """Copies on a side stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: Batch) -> tuple[Batch, Event | None]:
        """Queue a copy; `Batch.to` holds the slot until an event on this stream."""
        with torch.cuda.stream(self._stream):
            moved = batch.to(self._device, non_blocking=True)
            copied: Event = self._stream.record_event()
        return moved, copied

    def hand_over(self, batch: Batch, copied: Event | None) -> None:
        """Make the trainer's current stream wait for the copy, and the allocator for that stream."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)  # type: ignore[arg-type]
        batch.record_stream(current)


class HostCopies:
    """Copies in ordinary memory, complete when they are started: batches that the trainer may keep."""

    def start(self, batch: Batch) -> tuple[Batch, Event | None]:
        return batch.clone(), None

    def hand_over(self, batch: Batch, copied: Event | None) -> None:
        """Nothing is left to wait for."""


def copies_to(device: torch.device | str) -> Copies:
    """The kind of copies for a device. Raises FeedlineError for one that is neither CUDA nor the CPU, or is missing."""
    target = torch.device(device)
    if target.type == "cpu":
        return HostCopies()
    if target.type != "cuda":
        raise FeedlineError(f"device is not supported: got {str(device)!r}, expected cuda, cuda:N or cpu")
    if not torch.cuda.is_available():
        raise FeedlineError(f"device is missing: got {str(device)!r}, and this process has no CUDA device")
    return CudaCopies(torch.device("cuda", torch.cuda.current_device()) if target.index is None else target)


class Prefetcher:
    """Batches whose copies are started up to `DEPTH` ahead. Waits for a batch only if none is on its way."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._started: deque[tuple[Batch, Event | None]] = deque()
        self._ended = False
        self._error: Exception | None = None  # raised while reading ahead: the batches before it come first

    def next(self, take: Callable[[], Batch | None], waiting: Callable[[], bool]) -> Batch | None:
        """The next batch on the device; None at the end. `take` waits for one, unless `waiting` says that one is there.

        After an exception batches may be lost: read again, with another prefetcher, after the last one handed out.
        """
        if not self._started and self._error is None and not self._ended:
            self._start(take)
        if not self._started:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None
        batch, copied = self._started.popleft()
        while len(self._started) < DEPTH and self._error is None and not self._ended:
            try:
                if not waiting():
                    break
                self._start(take)
            except Exception as error:
                self._error = error
        self._copies.hand_over(batch, copied)
        return batch

    def _start(self, take: Callable[[], Batch | None]) -> None:
        batch = take()
        if batch is None:
            self._ended = True
        else:
            self._started.append(self._copies.start(batch))
