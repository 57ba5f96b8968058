"""Counts of the blocks of a process: sums, from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from feedline.service.monitoring.block_counts import BlockCounts

SECONDS = {"read": 0.5, "transform": 0.25, "encode": 0.125}


def test_blocks_that_end_and_fail_are_counted():
    counts = BlockCounts()
    for _ in range(4):
        counts.begin()
    counts.end(rows=10, nbytes_read=100, nbytes_encoded=50, seconds=SECONDS)
    counts.end(rows=5, nbytes_read=10, nbytes_encoded=5, seconds=SECONDS)
    counts.fail("data")
    read = counts.read()
    assert (read.blocks, read.running, read.rows, read.nbytes_read, read.nbytes_encoded) == (2, 1, 15, 110, 55)
    assert read.seconds == {"read": 1.0, "transform": 0.5, "encode": 0.25}
    assert read.failed == {"data": 1}


def test_no_block_of_any_thread_is_lost():
    counts = BlockCounts()

    def compute(_: int) -> None:
        counts.begin()
        counts.end(rows=1, nbytes_read=2, nbytes_encoded=3, seconds=SECONDS)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(compute, range(2000)))
    read = counts.read()
    assert (read.blocks, read.running, read.rows, read.seconds["encode"]) == (2000, 0, 2000, 250.0)
