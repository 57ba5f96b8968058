"""Monitor the quality of what a trainer is delivered, feature by feature, and check it against `expect`.

Runs in: the feeder, and `Pipeline.batches`. Pure. A block is counted once, when its last step has been delivered;
blocks that were computed ahead and never delivered are not counted.

Expectations are checked against the counts of one epoch, at its end. With `on_expect: error` they are also checked
after every block: bounds that no further row can satisfy at once, others from `ENOUGH_ROWS` rows on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.errors import DataError
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality, measures, merge
from feedline.planning.schedule import Block
from feedline.spec.expectations import OnExpect, broken_bounds, complaint
from feedline.spec.features import FeatureSpec

ENOUGH_ROWS = 1_000_000


class QualityMonitor:
    """The counts of one trainer's epochs, one after the other: begin, add, end."""

    def __init__(
        self,
        schema: BatchSchema,
        features: Sequence[FeatureSpec],
        on_expect: OnExpect,
        *,
        enough_rows: int = ENOUGH_ROWS,
    ) -> None:
        self.schema = schema
        self._expecting = {feature.name: feature.expect for feature in features if feature.expect}
        self._stops = on_expect == "error"
        self._enough_rows = enough_rows
        self._epoch = 0
        self._through = -1
        self._now: Quality | None = None
        self._before: Quality | None = None

    def begin(self, epoch: int, seen: Mapping[str, Any] | None = None) -> None:
        """Begin an epoch, or continue one with the counts of another feeder or of this one (`seen`)."""
        if seen is None or epoch != self._epoch:
            self._before, self._now, self._through = self.total, None, -1
        if seen is not None and self._through < int(seen["through"]):
            self._through, self._now = int(seen["through"]), Quality.from_json(seen["quality"])
        self._epoch = epoch

    def add(self, step: int, blocks: Sequence[tuple[Block, Quality]]) -> None:
        """Count the blocks whose last rows were delivered with this step.

        Raises DataError where they break expectations already.
        """
        counted = [] if self._now is None else [self._now]
        new = [quality for block, quality in blocks if block.last_step > self._through]  # else by an earlier feeder
        self._through = max(self._through, step)
        if not new:
            return
        self._now = merge([*counted, *new])
        if self._stops:
            self._stop(self._complaints(final=self._now.rows < self._enough_rows))

    def end(self) -> list[str]:
        """End the epoch: a complaint per feature that breaks expectations. Raises DataError with `on_expect: error`."""
        complaints = self._complaints()
        if self._stops:
            self._stop(complaints)
        return complaints

    @property
    def total(self) -> Quality | None:
        """Counts of all epochs."""
        parts = [part for part in (self._before, self._now) if part is not None]
        return merge(parts) if parts else None

    def seen(self) -> dict[str, Any] | None:
        """The counts of the epoch and the step they reach: another feeder continues from them."""
        return None if self._now is None else {"through": self._through, "quality": self._now.to_json()}

    def _complaints(self, *, final: bool = False) -> list[str]:
        if self._now is None or not self._expecting:
            return []
        found = measures(self._now, self.schema, self._expecting)
        return [
            complaint(name, bounds, found[name], epoch=self._epoch)
            for name, expected in self._expecting.items()
            if (bounds := broken_bounds(expected, found[name], final=final))
        ]

    def _stop(self, complaints: Sequence[str]) -> None:
        if complaints:
            raise DataError("\n".join(complaints))
