"""What was a rank's trainer delivered, feature by feature, and is that as pipeline.yaml expects?

Runs in: the feeder, and `Pipeline.batches`. Pure. A block is counted when its last step has been delivered, whole and
once; blocks that were computed ahead and never delivered are not.

Held against expectations is what was counted of one epoch: at its end, where it is all there is to know. With
`on_expect: error` also after every block: bounds that no further row can mend at once, others as soon as so many rows
are counted that what is left will hardly mend them (`ENOUGH_ROWS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.errors import DataError
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality, measures, merge
from feedline.planning.schedule import Block
from feedline.spec.expectations import OnExpect, broken, complaint
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
        """An epoch begins, or goes on after what another feeder, or this one, had counted of it (`seen`)."""
        if seen is None or epoch != self._epoch:
            self._before, self._now, self._through = self.total, None, -1
        if seen is not None and self._through < int(seen["through"]):
            self._through, self._now = int(seen["through"]), Quality.from_json(seen["quality"])
        self._epoch = epoch

    def add(self, step: int, blocks: Sequence[tuple[Block, Quality]]) -> None:
        """A step is delivered, and with it the last rows of some blocks.

        Raises DataError where that breaks expectations already.
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
        """The epoch ends: what is not as expected, a text per feature. Raises DataError where that is an error."""
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
        """What was counted of the epoch, and up to which step: what another feeder goes on from."""
        return None if self._now is None else {"through": self._through, "quality": self._now.to_json()}

    def _complaints(self, *, final: bool = False) -> list[str]:
        if self._now is None or not self._expecting:
            return []
        found = measures(self._now, self.schema, self._expecting)
        return [
            complaint(name, bounds, found[name], epoch=self._epoch)
            for name, expected in self._expecting.items()
            if (bounds := broken(expected, found[name], final=final))
        ]

    def _stop(self, complaints: Sequence[str]) -> None:
        if complaints:
            raise DataError("\n".join(complaints))
