"""Monitor the quality of delivered rows, feature by feature, and check it against `expect`.

Runs in: the feeder, and `Pipeline.batches`. A block is counted once, when its last step has been delivered.
Expectations are checked against the counts of one epoch, at its end; with `on_expect: error` also after every block:
bounds that further rows cannot restore at once, others from `ENOUGH_ROWS` rows on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from feedline.config.features import FeatureSpec, OnExpect, broken_bounds, complaint
from feedline.errors import DataError
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import COUNTS, Quality, measures, merge
from feedline.loader.ring.reports import EpochCounts
from feedline.planning.schedule import Block

ENOUGH_ROWS = 1_000_000
_PACKING_SHARE = 0.01
_KEPT_FINDINGS = 20
# Blocks that are merged at once.
_MERGED = 64


class QualityMonitor:
    """The counts of one trainer's epochs. Call `begin`, `add` and `end` for each epoch in turn. findings: the last
    complaints about expectations."""

    def __init__(
        self,
        schema: BatchSchema,
        features: Sequence[FeatureSpec],
        on_expect: OnExpect,
        *,
        enough_rows: int = ENOUGH_ROWS,
    ) -> None:
        self.schema = schema
        self._expectations = {feature.name: feature.expect for feature in features if feature.expect}
        self._stops = on_expect == "error"
        self._enough_rows = enough_rows
        self._epoch = 0
        self._through = -1
        self._counted: Quality | None = None  # of the epoch
        self._uncounted: list[Quality] = []  # merged together, which takes as long as merging one
        self._past_counts: Quality | None = None
        self._due_s = 0.0
        self._broken = 0
        self.findings: deque[str] = deque(maxlen=_KEPT_FINDINGS)

    def begin(self, epoch: int, seen: EpochCounts | None = None) -> None:
        """Begin an epoch, or continue it from the counts in `seen`, by another feeder or this one."""
        if seen is None or epoch != self._epoch:
            self._past_counts, self._counted, self._through = self.total, None, -1
            self._uncounted = []
        if seen is not None and self._through < seen.through:
            self._through, self._counted, self._uncounted = seen.through, seen.quality, []
        self._epoch = epoch

    def add(self, step: int, blocks: Sequence[tuple[Block, Quality]]) -> None:
        """Count the blocks whose last rows were delivered with this step. Raises DataError if they already break
        expectations."""
        # Blocks up to `_through` were counted by an earlier feeder.
        new = [quality for block, quality in blocks if block.last_step > self._through]
        self._through = max(self._through, step)
        if not new:
            return
        self._uncounted += new
        if self._stops and self._expectations:
            counts = self._epoch_counts
            self._stop(self._complaints(final=counts is not None and counts.rows < self._enough_rows))
        elif len(self._uncounted) >= _MERGED:
            self._merge()

    def end(self) -> list[str]:
        """End the epoch; returns a complaint per feature that breaks expectations, raised with `on_expect: error`."""
        complaints = self._complaints()
        self._broken += len(complaints)
        if self._stops:
            self._stop(complaints)
        self.findings.extend(complaints)
        return complaints

    def problems(self) -> dict[str, int]:
        """Values that are null, not finite or unknown, of all features and epochs, and expectations that were broken at
        the ends of epochs."""
        sums = {"null": 0, "nonfinite": 0, "unknown": 0, "expectation": self._broken}
        for part in (self._past_counts, self._epoch_counts):
            if part is not None:
                sums["null"] += int(part.counts[COUNTS.index("nulls")].sum())
                sums["nonfinite"] += int(part.counts[COUNTS.index("nonfinite")].sum())
                sums["unknown"] += int(part.lookups[1].sum())
        return sums

    @property
    def total(self) -> Quality | None:
        parts = [part for part in (self._past_counts, self._epoch_counts) if part is not None]
        return merge(parts) if parts else None

    def epoch_counts(self) -> bytes | None:
        """The epoch's `EpochCounts`, as bytes; None before its first block has left."""
        if self._epoch_counts is None:
            return None
        return EpochCounts(through=self._through, quality=self._epoch_counts).to_bytes()

    def due_counts(self) -> bytes | None:
        """As `epoch_counts`, but None where packing them would take more than 1 % of the time since the last call."""
        begun_s = time.perf_counter()
        if begun_s < self._due_s:
            return None
        counts = self.epoch_counts()
        self._due_s = begun_s + (time.perf_counter() - begun_s) / _PACKING_SHARE
        return counts

    @property
    def _epoch_counts(self) -> Quality | None:
        """Those of the epoch so far; None before its first block."""
        if self._uncounted:
            self._merge()
        return self._counted

    def _merge(self) -> None:
        earlier = [] if self._counted is None else [self._counted]
        self._counted, self._uncounted = merge([*earlier, *self._uncounted]), []

    def _complaints(self, *, final: bool = False) -> list[str]:
        if self._epoch_counts is None or not self._expectations:
            return []
        values = measures(self._epoch_counts, self.schema, self._expectations)
        return [
            complaint(name, bounds, values[name], epoch=self._epoch)
            for name, expectations in self._expectations.items()
            if (bounds := broken_bounds(expectations, values[name], final=final))
        ]

    def _stop(self, complaints: Sequence[str]) -> None:
        if complaints:
            self.findings.extend(complaints)
            raise DataError("\n".join(complaints))
