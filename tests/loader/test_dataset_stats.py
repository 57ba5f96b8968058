"""A dataset's statistics: rates, waits, and what the feeder's blocks found in a cache."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.loader.dataset_stats import DatasetStats
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.facts import BlockStats, FeederStats


def feed(**delivery: Any) -> Any:
    """A client of a feeder that has delivered ten batches."""
    work = FeederStats(window=3, window_reason="memory", delivery=BlockStats(**delivery))
    return SimpleNamespace(
        refresh=lambda: None,
        stats=SimpleNamespace(batches=10, nbytes=1000, wait_s=0.5),
        reports=SimpleNamespace(stats=work),
        ring_fill=0.5,
        ring_bytes=4096,
        feeders=1,
    )


def test_rates_count_from_the_first_request():
    stats = DatasetStats.of(feed(), rows=80, start_s=time.perf_counter() - 2.0)
    assert (stats.rows, stats.batches, stats.nbytes, stats.window, stats.window_reason) == (80, 10, 1000, 3, "memory")
    assert stats.rows_per_s == pytest.approx(80 / stats.seconds)
    assert 0 < stats.wait_fraction <= 0.25


def test_before_the_first_request_rates_are_zero():
    stats = DatasetStats.of(feed(), rows=0, start_s=None)
    assert (stats.seconds, stats.rows_per_s, stats.wait_fraction) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("counts", [None, CacheCounts(found=3, computed=1, nbytes_read=99)])
def test_counts_of_a_cache_are_the_feeders(counts: CacheCounts | None):
    assert DatasetStats.of(feed(cached=counts), rows=0, start_s=None).cached == counts
