"""A dataset's statistics: what the trainer received, and how long it waited.

Runs in: the trainer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.ring.client import FeederClient


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStats:
    """Rows (including padding), batches and bytes since the first batch was requested; `wait_fraction` is the share of
    time that the trainer waited for batches, `ring_fill` the share of slots that hold a batch for it now. `window` is
    the number of blocks that the feeder may have in flight now, `window_reason` what decided it (0, "": not yet).
    `cached` is what the feeder's blocks found in the cache (None: no cache, or no block yet)."""

    rows: int
    batches: int
    nbytes: int
    seconds: float
    rows_per_s: float
    wait_s: float
    wait_fraction: float
    ring_fill: float
    ring_bytes: int
    feeders: int
    window: int
    window_reason: str
    cached: CacheCounts | None

    @classmethod
    def of(cls, feed: FeederClient, *, rows: int, start_s: float | None) -> Self:
        """The statistics as of now. start_s: when the first batch was requested."""
        feed.refresh()
        counts, work = feed.stats, feed.reports.stats
        seconds = time.perf_counter() - start_s if start_s is not None else 0.0
        return cls(
            rows=rows,
            batches=counts.batches,
            nbytes=counts.nbytes,
            seconds=seconds,
            rows_per_s=rows / seconds if seconds else 0.0,
            wait_s=counts.wait_s,
            wait_fraction=min(1.0, counts.wait_s / seconds) if seconds else 0.0,
            ring_fill=feed.ring_fill,
            ring_bytes=feed.ring_bytes,
            feeders=feed.feeders,
            window=work.window,
            window_reason=work.window_reason,
            cached=work.delivery.cached,
        )
