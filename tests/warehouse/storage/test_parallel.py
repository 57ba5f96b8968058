"""Tasks in threads keep their order, and threads that wait for a store stop as soon as one fails."""

from __future__ import annotations

import threading

import pytest

from feedline.errors import DataError, StoreError
from feedline.warehouse.storage import parallel
from feedline.warehouse.storage.parallel import in_threads, interruptible, stop_event, stop_waiting

WAIT_S = 20


def test_results_come_in_the_order_of_the_tasks() -> None:
    met = threading.Barrier(2, timeout=WAIT_S)

    def work(task: int) -> int:
        met.wait()
        return task * 10

    assert list(in_threads(work, list(range(6)), threads=2)) == [0, 10, 20, 30, 40, 50]
    assert list(in_threads(abs, [])) == []


def test_threads_are_as_many_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "available_cores", lambda: 3)
    met = threading.Barrier(3, timeout=WAIT_S)
    assert sorted(in_threads(lambda _: met.wait(), [None] * 3)) == [0, 1, 2]


def test_a_failure_ends_the_waiting_of_the_others_and_is_what_is_raised() -> None:
    """Not the errors of the others, whose waiting was ended."""
    waits = threading.Semaphore(0)

    def work(task: int) -> None:
        if task < 2:
            waits.release()
            assert stop_event().wait(WAIT_S)
            raise StoreError("the work ended while it waited")
        assert waits.acquire(timeout=WAIT_S)
        assert waits.acquire(timeout=WAIT_S)
        raise DataError("the real one")

    with pytest.raises(DataError, match="the real one"):
        list(in_threads(work, list(range(3)), threads=3))
    assert not stop_event().is_set()


@pytest.mark.parametrize("way_out", [KeyboardInterrupt(), StoreError("another")])
def test_leaving_a_block_ends_waiting_and_cancels_pending_tasks(way_out: BaseException) -> None:
    waits, ended = threading.Event(), []

    def work(task: int) -> None:
        waits.set()
        ended.append((task, stop_event().wait(WAIT_S)))

    def leave() -> None:
        with interruptible(1, "test") as pool:
            pool.map(work, [0, 1])
            pool.submit(work, 2)
            assert waits.wait(WAIT_S)
            raise way_out

    with pytest.raises(type(way_out)):
        leave()
    assert ended == [(0, True)]


def test_the_end_of_the_process_ends_waiting_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one under way, and in one that begins later."""
    monkeypatch.setattr(parallel, "_exiting", threading.Event())
    waits = threading.Event()

    def work(_: int) -> None:
        waits.set()
        assert stop_event().wait(WAIT_S)
        raise StoreError("the work ended while it waited")

    def end() -> None:
        assert waits.wait(WAIT_S)
        stop_waiting()

    ending = threading.Thread(target=end)
    ending.start()
    for _ in range(2):
        with pytest.raises(StoreError, match="ended while it waited"):
            list(in_threads(work, [0]))
    ending.join()
    assert not parallel._stops
