"""A thread's waits for its store count once, and without its own CPU time."""

from __future__ import annotations

import threading
import time

from feedline.warehouse.storage.fetch_clock import FetchClock


def test_waits_within_waits_count_once_and_computing_does_not():
    clock, started_s = FetchClock(), time.perf_counter()
    with clock.waiting(), clock.waiting():
        threading.Event().wait(0.05)
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            pass
    assert 0.04 <= clock.seconds <= time.perf_counter() - started_s - 0.02 + 1e-3


def test_each_thread_has_its_own():
    clock, others = FetchClock(), []

    def wait() -> None:
        with clock.waiting():
            threading.Event().wait(0.02)
        others.append(clock.seconds)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert others[0] >= 0.01
    assert clock.seconds == 0.0
