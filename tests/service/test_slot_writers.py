"""Batches that are being written are announced in order, before the error that ends their session."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.service import slot_writers
from feedline.service.slot_writers import SlotWriters


class _Ring:
    """A ring of free slots that records what is announced."""

    def __init__(self) -> None:
        self.announced: list[int] = []

    def holds(self, nbytes: int) -> bool:
        return True

    def acquire(self, nbytes: int) -> tuple[Any, int]:
        return SimpleNamespace(generation=0, slot=lambda index: index), 0

    def announce(self, memory: Any, slot: int, stream: int, header: int) -> None:
        self.announced.append(header)

    def release(self, generation: int, slot: int) -> None:
        pass


def _batch(step: int) -> Any:
    return SimpleNamespace(placement=SimpleNamespace(nbytes=8), header=step)


def test_finish_waits_for_the_batches_that_are_being_written(monkeypatch: pytest.MonkeyPatch):
    release, finished = threading.Event(), threading.Event()
    monkeypatch.setattr(slot_writers, "write", lambda *_: release.wait(60))
    ring = _Ring()
    writers = SlotWriters(ring, lambda: None)  # type: ignore[arg-type]
    assert all(writers.write(None, _batch(step)) for step in range(3))  # type: ignore[arg-type]

    def finish() -> None:
        writers.finish(1)
        finished.set()

    thread = threading.Thread(target=finish)
    thread.start()
    assert not finished.wait(0.05)
    release.set()
    thread.join(60)
    assert ring.announced == [0, 1, 2]
    writers.close()


def test_finish_raises_what_a_writer_raised(monkeypatch: pytest.MonkeyPatch):
    def write(layout: Any, batch: Any, memory: Any) -> None:
        if batch.header == 1:
            raise OSError("no room")

    monkeypatch.setattr(slot_writers, "write", write)
    ring = _Ring()
    writers = SlotWriters(ring, lambda: None)  # type: ignore[arg-type]
    assert all(writers.write(None, _batch(step)) for step in range(2))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no room"):
        writers.finish(1)
    assert ring.announced == [0]
    writers.close()
