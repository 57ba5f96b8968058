"""What has the feeder told its trainer about its work?

Runs in: the trainer, and `feedline run --sink null`. A feeder repeats itself: each message about a stream replaces the
one before it, and streams are summed here. What a dead feeder had counted of an epoch is handed to the next one, which
goes on from there.
"""

from __future__ import annotations

from typing import Any

from feedline.loader.layout import BatchSchema
from feedline.loader.quality import Quality, measures, merge


class Told:
    """The last words of each kind: `stats` as the feeder counts them, and what the features' values were like."""

    def __init__(self) -> None:
        self.stats: dict[str, Any] = {}
        self._streams: dict[int, dict[str, Any]] = {}
        self._warnings: list[str] = []

    def hear(self, message: dict[str, Any]) -> None:
        """A message `stats`."""
        self.stats, quality = message["stats"], message["quality"]
        if quality["seen"] is not None:
            self._streams[quality["stream"]] = quality["seen"]
        self._warnings += quality["warnings"]

    def hand_over(self, stream: int) -> dict[str, Any] | None:
        """What was counted of a stream whose feeder died; from now on its successor's stream counts that."""
        return self._streams.pop(stream, None)

    def warnings(self) -> list[str]:
        """What was not as expected, each text once."""
        told, self._warnings = self._warnings, []
        return told

    @property
    def quality(self) -> Quality | None:
        """Counts of everything that was delivered, as far as it was told."""
        parts = [Quality.from_json(seen["quality"]) for seen in self._streams.values()]
        return merge(parts) if parts else None

    def report(self, schema: BatchSchema) -> dict[str, dict[str, Any]]:
        """The measures of each feature; none before the feeder told of them."""
        quality = self.quality
        return {} if quality is None else measures(quality, schema)
