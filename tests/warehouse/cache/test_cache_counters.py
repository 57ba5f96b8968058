"""Counts are added by any thread."""

from __future__ import annotations

import threading

import pytest

from feedline.warehouse.cache.flights import CacheCounters


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


def test_an_unknown_count_is_refused():
    with pytest.raises(AttributeError):
        CacheCounters().add(hist=1)
