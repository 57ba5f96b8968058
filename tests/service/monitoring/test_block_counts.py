"""Counts of the blocks of a process: sums, from any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from finished_blocks import BLOCK_RESULT

from feedline.service.monitoring.block_counts import BlockCounts


def test_no_block_of_any_thread_is_lost():
    counts = BlockCounts()

    def compute(index: int) -> None:
        counts.begin()
        if index % 4:
            counts.end(BLOCK_RESULT)
        else:
            counts.fail("data")

    counts.begin()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(compute, range(2000)))
    read = counts.read()
    counts.end(BLOCK_RESULT)
    assert (read.running, read.failed, read.sums.blocks) == (1, {"data": 500}, 1500)
    assert (read.sums.rows, read.sums.nbytes_read, read.sums.nbytes_encoded) == (15_000, 150_000, 7_500)
    assert read.sums.times.stages == {"read": 2250.0, "transform": 750.0, "encode": 375.0}
