"""What a session counts of its trainer's blocks: sums, as they cross the wire, and a line after each epoch."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from finished_blocks import BLOCK_RESULT

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.service.feeder.trainer_session import FeederCounters
from feedline.service.monitoring.block_counts import count_block

FOUND = CacheCounts(found=3, nbytes_read=9, waited_s=0.5)
COMPUTED = CacheCounts(computed=1, nbytes_written=8)


def delivered(*cached: CacheCounts | None) -> BlockStats:
    """The sums over a block for each of these counts."""
    stats = BlockStats()
    for counts in cached:
        count_block(stats, replace(BLOCK_RESULT, cached=counts), turnaround_s=3.25)
    return stats


def test_blocks_add_up():
    stats = delivered(None, None)
    assert (stats.blocks, stats.nbytes_read, stats.nbytes_encoded) == (2, 200, 10)
    assert (stats.times, stats.cached) == (BLOCK_RESULT.times + BLOCK_RESULT.times + BlockTimes(queued_s=2.0), None)


@pytest.mark.parametrize(
    ("cached", "total"),
    [
        ((FOUND,), FOUND),
        ((FOUND, COMPUTED, None), FOUND + COMPUTED),
        ((None, CacheCounts()), CacheCounts()),
    ],
)
def test_what_blocks_found_in_the_cache_crosses_the_wire(cached: tuple[CacheCounts | None, ...], total: CacheCounts):
    stats = FeederCounters(delivery=delivered(*cached)).stats()
    assert stats.delivery.cached == total
    assert unpack(FeederStats, pack(stats)) == stats


def test_a_line_says_what_the_cache_had(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="feedline.cache")
    FeederCounters(delivery=delivered(None)).log_cached(0)
    assert not caplog.messages
    FeederCounters(epoch=1, delivery=delivered(FOUND, COMPUTED)).log_cached(2)
    assert caplog.messages == [f"rank 2: after epoch 1, {(FOUND + COMPUTED).describe()}"]
