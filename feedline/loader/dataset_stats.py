"""A dataset's statistics: what the trainer received, how long it waited, and what limits it.

Runs in: the trainer.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Self

from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.ring.client import FeederClient
from feedline.resources.cgroups import available_cores

if TYPE_CHECKING:
    from feedline.loader.batch import Batch
    from feedline.loader.limits.trainer_verdict import Headspace, TrainerMark, TrainerSamples
    from feedline.loader.limits.verdict import Verdict

logger = logging.getLogger("feedline.verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStats:
    """What a dataset received since its first batch was requested, and how long it waited.

    rows, batches, nbytes: received in `seconds`, padding included; rows_per_s: rows / seconds. wait_s: seconds in which
    the trainer waited for batches; wait_fraction: their share. ring_fill: the share of slots that hold a batch for it
    now; ring_bytes: the memory of all slots. feeders: how many have served it, more than one if some died. window: the
    number of blocks that the feeder may have in flight now; window_reason: what decided it (0, "": not yet). cached:
    what the feeder's blocks found in the cache (None: no cache, or no block yet).

    Examples:
        >>> with FeedlineDataset("pipeline.yaml", set={"batch.size": 512}) as dataset:
        ...     rows = sum(batch.rows for batch in dataset)
        ...     stats = dataset.stats()
        >>> stats.rows == rows, 0 <= stats.wait_fraction <= 1
        (True, True)
    """

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
        """The statistics of a connection, `feed`, as of now, with its rows. start_s: when the first was requested."""
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


class MeasuredDataset:
    """What a dataset says about its own run. What explains it is imported when it is first asked for."""

    _feed: FeederClient
    _spec: PipelineSpec
    _rows: int
    _start_s: float | None = None
    _samples: TrainerSamples | None = None

    def stats(self) -> DatasetStats:
        """Counts and shares since the first batch was requested."""
        return DatasetStats.of(self._feed, rows=self._rows, start_s=self._start_s)

    def verdict(self) -> Verdict:
        """What limits this training so far, and what would change it; see docs/explain.md. `str` of it is a sentence.

        Each call, and each epoch's end, is a sample: rates have intervals from the fourth on."""
        samples = self._measured()
        samples.add(self._mark())
        return samples.verdict(self._spec, cores=available_cores())

    def headspace(self, batch: Batch, *, steps: int = 20) -> Headspace[Batch]:
        """Iterate over this batch `steps` times, to measure the trainer without a loader: `rows_per_s` and `gain` of
        the result, the most that any loader could give. Position and state of the dataset stay as they are."""
        from feedline.loader.limits.trainer_verdict import Headspace  # noqa: PLC0415 -- most runs never ask

        return Headspace(batch, batch.rows, steps=steps, rows_per_s=self.stats().rows_per_s)

    def _measured(self) -> TrainerSamples:
        from feedline.loader.limits.trainer_verdict import TrainerSamples  # noqa: PLC0415 -- most runs never ask

        if self._samples is None:
            self._samples = TrainerSamples(began_s=self._start_s)
        return self._samples

    def _mark(self) -> TrainerMark:
        from feedline.loader.limits.trainer_verdict import TrainerMark  # noqa: PLC0415 -- most runs never ask

        self._feed.refresh()
        return TrainerMark(
            at_s=time.perf_counter(),
            wait_s=self._feed.stats.wait_s,
            cpu_s=time.process_time(),
            rows=self._rows,
            stats=self._feed.reports.stats,
        )

    def _log_epoch(self) -> None:
        """Log a line about the epoch that has ended, if anybody reads it."""
        if logger.isEnabledFor(logging.INFO):
            line = self._measured().epoch_line(self._mark(), self._spec, cores=available_cores())
            logger.info("%s", line)
