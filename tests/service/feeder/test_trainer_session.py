"""What a session counts of its trainer's blocks: sums, as they cross the wire, and a line after each epoch."""

from __future__ import annotations

import logging
from dataclasses import replace

import pyarrow as pa
import pytest

from feedline.blocks.request import BlockResult
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Observer
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.service.feeder.delivery import DeliveryStats
from feedline.service.feeder.trainer_session import FeederCounters

RESULT = BlockResult(
    key="k",
    rows=1,
    parts=None,
    image=pa.py_buffer(b"1234"),
    read_s=1.0,
    transform_s=2.0,
    encode_s=3.0,
    nbytes_read=5,
    quality=Observer(BatchSchema(()), ()).quality(),
)
FOUND = CacheCounts(found=3, nbytes_read=9, waited_s=0.5)
COMPUTED = CacheCounts(computed=1, nbytes_written=8)


def delivered(*cached: CacheCounts | None) -> DeliveryStats:
    """The sums over a block for each of these counts."""
    stats = DeliveryStats()
    for counts in cached:
        stats.add(replace(RESULT, cached=counts))
    return stats


def test_blocks_add_up():
    stats = delivered(None, None)
    assert (stats.blocks, stats.nbytes_read, stats.nbytes_encoded) == (2, 10, 8)
    assert (stats.read_s, stats.transform_s, stats.encode_s, stats.cached) == (2.0, 4.0, 6.0, None)


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
    assert type(stats.delivery) is BlockStats
    assert stats.delivery.cached == total
    assert unpack(FeederStats, pack(stats)) == stats


def test_a_line_says_what_the_cache_had(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="feedline.cache")
    FeederCounters(delivery=delivered(None)).log_cached(0)
    assert not caplog.messages
    FeederCounters(epoch=1, delivery=delivered(FOUND, COMPUTED)).log_cached(2)
    assert caplog.messages == [f"rank 2: after epoch 1, {(FOUND + COMPUTED).describe()}"]
