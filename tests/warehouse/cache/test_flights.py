"""A flight is held by one thread of all processes of a host, and ends with its holder."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cache_entries import columns_of, fill_in_flight, group_of, hold_flight, ref_of, same
from forked import forked
from pipelines import eventually

from feedline.warehouse.cache import flights
from feedline.warehouse.cache.cache_folder import CacheFolder
from feedline.warehouse.cache.flights import CacheCounters

DIGEST = "abcdef0123456789"


def fly(folder: Path, counters: CacheCounters, **options: Any) -> AbstractContextManager[bool]:
    return flights.flight(str(folder), DIGEST, counters, flights.WorkTimes(), **options)


class Waiter(threading.Thread):
    """Takes a flight, notes whether it has waited, and keeps it until an event is set."""

    def __init__(self, folder: Path, digest: str = DIGEST, *, until: threading.Event | None = None) -> None:
        super().__init__(daemon=True)
        self.flies, self.until = threading.Event(), until or threading.Event()
        if until is None:
            self.until.set()
        self.folder, self.digest = str(folder), digest
        self.counters = CacheCounters()
        self.waited: bool | None = None

    def run(self) -> None:
        with flights.flight(self.folder, self.digest, self.counters, flights.WorkTimes()) as waited:
            self.waited = waited
            self.flies.set()
            assert self.until.wait(30)


@contextmanager
def polled(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that is set once a waiter of this process has found the flight taken."""
    polling, sleep = threading.Event(), time.sleep

    def note(pause_s: float) -> None:
        polling.set()
        sleep(pause_s)

    with monkeypatch.context() as patch:
        patch.setattr(flights.time, "sleep", note)
        yield polling


def test_the_first_holder_has_not_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    counters, now_s = CacheCounters(), time.time
    for later_s, expected in ((0, False), (0, True), (3, False)):  # just after another, its work may be found
        monkeypatch.setattr(flights.time, "time", lambda later_s=later_s: now_s() + later_s)
        with fly(tmp_path, counters) as ended:
            assert ended is expected
    assert counters == CacheCounters()
    assert stat.S_IMODE((tmp_path / DIGEST[:3]).stat().st_mode) == 0o600


def test_the_second_thread_waits_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    waiter = Waiter(tmp_path)
    with polled(monkeypatch) as polling, fly(tmp_path, CacheCounters()):
        waiter.start()
        assert polling.wait(30)
        assert waiter.waited is None
    waiter.join(30)
    assert waiter.waited is True
    assert waiter.counters.waited_s > 0
    assert waiter.counters.duplicates == 0


def test_other_row_groups_do_not_wait(tmp_path: Path):
    waiter = Waiter(tmp_path, "123" + DIGEST)
    with fly(tmp_path, CacheCounters()):
        waiter.start()
        waiter.join(30)
    assert waiter.waited is False


def test_an_error_of_the_holder_ends_the_flight(tmp_path: Path):
    counters = CacheCounters()
    with pytest.raises(ZeroDivisionError), fly(tmp_path, counters):
        raise ZeroDivisionError
    assert flights.try_lock(str(tmp_path / DIGEST[:3])) is not None


def test_a_killed_holder_frees_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held = multiprocessing.get_context("forkserver").Event()
    process = forked(hold_flight, str(tmp_path / "cache"), 1, held)
    assert held.wait(30)
    cache = CacheFolder(ref_of(tmp_path / "cache"))
    waiter = Waiter(tmp_path / "cache" / "locks", group_of(1).digest)
    with polled(monkeypatch) as polling:
        waiter.start()
        assert polling.wait(30)
        began_s = time.monotonic()
        process.kill()
        waiter.join(30)
    assert waiter.waited is True
    assert time.monotonic() - began_s < flights.LIMIT_S / 4
    assert waiter.counters.duplicates == cache.counters.duplicates == 0
    process.join(30)


def test_who_has_waited_does_not_make_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the holder computed may not be kept: then all that have waited compute at once."""
    with polled(monkeypatch) as polling, ExitStack() as stack:
        stack.enter_context(fly(tmp_path, CacheCounters()))
        waiter = Waiter(tmp_path, until=threading.Event())
        waiter.start()
        assert polling.wait(30)
        stack.close()
        assert waiter.flies.wait(30)
        number = flights.try_lock(str(tmp_path / DIGEST[:3]))
        assert number is not None
        os.close(number)
        waiter.until.set()
        waiter.join(30)
    assert waiter.waited is True


def test_a_waiter_does_not_wait_for_the_next_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The lock is never free when the waiter looks."""
    with polled(monkeypatch) as polling, ExitStack() as stack:
        number = flights.try_lock(str(tmp_path / DIGEST[:3]))
        assert number is not None
        stack.callback(os.close, number)
        waiter = Waiter(tmp_path)
        waiter.start()
        assert polling.wait(30)
        os.ftruncate(number, 2)  # ended
        waiter.join(30)
    assert waiter.waited is True
    assert waiter.counters.duplicates == 0


def test_others_wait_for_the_heir_of_a_killed_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held = multiprocessing.get_context("forkserver").Event()
    process = forked(hold_flight, str(tmp_path / "cache"), 1, held)
    assert held.wait(30)
    waiters = [Waiter(tmp_path / "cache" / "locks", group_of(1).digest, until=threading.Event()) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    process.kill()
    process.join(30)
    assert eventually(lambda: any(waiter.flies.is_set() for waiter in waiters))
    first, second = sorted(waiters, key=lambda waiter: not waiter.flies.is_set())
    with polled(monkeypatch) as polling:
        assert polling.wait(30)
        assert not second.flies.is_set()
    for waiter in (first, second):
        waiter.until.set()
        waiter.join(30)
        assert waiter.waited is True


@pytest.mark.parametrize(("seconds", "expected"), [((), 60), ((0.1,), 5), ((2, 3, 1), 15), ((3, 99), 60)])
def test_others_are_waited_for_some_times_as_long_as_own_work_takes(seconds: tuple[float, ...], expected: float):
    times = flights.WorkTimes()
    for each in seconds:
        times.add(each)
    assert times.limit_s == expected


def test_a_holder_that_takes_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flights, "LIMIT_S", 0.02)
    counters = CacheCounters()
    with fly(tmp_path, CacheCounters()):
        with fly(tmp_path, counters) as waited:
            assert waited
        with fly(tmp_path, counters):  # the first holder still has it
            pass
    assert counters.duplicates == 2
    assert counters.waited_s >= 0.04


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_all_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    counters = CacheCounters()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fail)
        with fly(tmp_path, counters) as waited:
            assert not waited
    assert counters.duplicates == 1


def test_without_a_folder_all_compute(tmp_path: Path):
    counters = CacheCounters()
    with fly(tmp_path / "missing", counters) as waited:
        assert not waited
    assert counters.duplicates == 1


def test_a_lock_is_tried(tmp_path: Path):
    path = str(tmp_path / "lock")
    number = flights.try_lock(path)
    assert number is not None
    assert flights.try_lock(path) is None
    os.close(number)
    again = flights.try_lock(path)
    assert again is not None
    os.close(again)
    assert flights.try_lock(str(tmp_path / "missing" / "lock")) is None


def test_the_mode_of_a_lock_is_not_the_umasks(tmp_path: Path):
    before = os.umask(0o077)
    try:
        with fly(tmp_path, CacheCounters(), mode=0o660):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / DIGEST[:3]).stat().st_mode) == 0o660


def test_processes_that_fill_the_same_row_groups_compute_each_once(tmp_path: Path):
    context = multiprocessing.get_context("forkserver")
    barrier, computed = context.Barrier(3), context.SimpleQueue()
    processes = [forked(fill_in_flight, str(tmp_path / "cache"), 30, barrier, computed) for _ in range(3)]
    numbers = [number for _ in processes for number in computed.get()]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert sorted(numbers) == list(range(30))
    cache = CacheFolder(ref_of(tmp_path / "cache"))
    for number in range(30):
        truth = columns_of(group_of(number))
        found = cache.find(group_of(number), list(truth))
        assert all(same(found[name], truth[name]) for name in truth)


def test_counts_of_threads_are_all_there():
    counters = CacheCounters()
    start = threading.Barrier(4)

    def add() -> None:
        start.wait(30)
        for _ in range(5_000):
            counters.add(hits=1, bytes_read=3, waited_s=0.5)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (counters.hits, counters.bytes_read, counters.waited_s) == (20_000, 60_000, 10_000.0)
