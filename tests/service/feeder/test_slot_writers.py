"""Batches that are being written are announced in order, before the error that ends their session."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.service.feeder import slot_writers
from feedline.service.feeder.slot_writers import SMALL_BYTES, SlotWriters


class _Ring:
    """A ring of free slots that records what is announced."""

    def __init__(self) -> None:
        self.announced: list[int] = []
        self.released = 0

    def holds(self, nbytes: int) -> bool:
        return True

    def acquire(self, nbytes: int) -> tuple[Any, int]:
        return SimpleNamespace(generation=0, slot=lambda index: index), 0

    def announce(self, stream: int, written: list[tuple[Any, int, int]]) -> None:
        self.announced += [header for _, _, header in written]

    def release(self, generation: int, slot: int) -> None:
        self.released += 1


def _batch(step: int, nbytes: int = SMALL_BYTES + 1) -> Any:
    return SimpleNamespace(placement=SimpleNamespace(nbytes=nbytes), header=step)


def _begin(writers: SlotWriters, steps: list[list[int]]) -> None:
    """Begin to write batches; those of a list together."""
    for together in steps:
        assert all(writers.add(None, _batch(step)) for step in together)  # type: ignore[arg-type]
        writers.begin()


def test_batches_written_together_are_announced_as_they_are_written(monkeypatch: pytest.MonkeyPatch):
    written, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def write(layout: Any, batch: Any, memory: Any) -> None:
        written.release()
        go_on.acquire(timeout=60)

    monkeypatch.setattr(slot_writers, "write", write)
    ring = _Ring()
    writers = SlotWriters(ring, lambda: None)  # type: ignore[arg-type]
    _begin(writers, [[0, 1]])
    assert written.acquire(timeout=60)
    assert writers.announce(1) == []
    go_on.release()
    assert written.acquire(timeout=60)  # the first is written
    assert [batch.header for batch in writers.announce(1)] == [0]
    assert writers.busy
    go_on.release()
    writers.finish(1)
    assert ring.announced == [0, 1]
    assert not writers.busy
    writers.close()


def test_small_batches_are_written_at_once_by_the_thread_that_adds_them(monkeypatch: pytest.MonkeyPatch):
    """An error of one is raised after those before it were announced."""

    def write(layout: Any, batch: Any, memory: Any) -> None:
        threads.append(threading.get_ident())
        if batch.header == 2:
            raise OSError("no room")

    threads: list[int] = []
    monkeypatch.setattr(slot_writers, "write", write)
    ring = _Ring()
    writers = SlotWriters(ring, lambda: None)  # type: ignore[arg-type]
    assert not writers.has_written
    for step in range(4):
        writers.add(None, _batch(step, SMALL_BYTES // 4))  # type: ignore[arg-type]
    writers.begin()
    assert threads == [threading.get_ident()] * 3
    assert writers.has_written
    assert [batch.header for batch in writers.announce(1)] == [0, 1]
    assert writers.has_written
    with pytest.raises(OSError, match="no room"):
        writers.announce(1)
    assert ring.announced == [0, 1]
    writers.close()
    assert ring.released == 2


def test_slots_that_were_not_announced_are_released(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slot_writers, "write", lambda *_: None)
    ring = _Ring()
    writers = SlotWriters(ring, lambda: None)  # type: ignore[arg-type]
    _begin(writers, [[0, 1], [2]])
    writers.add(None, _batch(3))  # type: ignore[arg-type]
    writers.drop()
    assert ring.released == 4
    assert not writers.busy
    writers.close()


def test_finish_waits_for_the_batches_that_are_being_written(monkeypatch: pytest.MonkeyPatch):
    release, finished = threading.Event(), threading.Event()
    monkeypatch.setattr(slot_writers, "write", lambda *_: release.wait(60))
    ring = _Ring()
    writers = SlotWriters(ring, lambda: None)  # type: ignore[arg-type]
    _begin(writers, [[0], [1, 2]])

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


@pytest.mark.parametrize("together", [[[0], [1], [2]], [[0, 1, 2]], [[0, 1], [2]]])
def test_finish_raises_what_a_writer_raised(monkeypatch: pytest.MonkeyPatch, together: list[list[int]]):
    def write(layout: Any, batch: Any, memory: Any) -> None:
        if batch.header == 1:
            raise OSError("no room")

    monkeypatch.setattr(slot_writers, "write", write)
    ring = _Ring()
    writers = SlotWriters(ring, lambda: None)  # type: ignore[arg-type]
    _begin(writers, together)
    with pytest.raises(OSError, match="no room"):
        writers.finish(1)
    assert ring.announced == [0]
    writers.close()
