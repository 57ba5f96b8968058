"""The feeder's reports of its work, as its trainer keeps them.

Runs in: the trainer, and `feedline run --sink null`. A feeder repeats itself: each report on a stream replaces the one
before it, and streams are summed here. Reports are kept as they came and parsed when somebody asks: with thousands of
features that takes longer than a step. What a dead feeder had counted of an epoch is handed to the next one, which goes
on from there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality, measures, merge
from feedline.loader.facts import FeederStats
from feedline.loader.ring.channel import REPORT


class FeederReports:
    """The last report of each kind: the feeder's `stats`, and the quality of the features' values."""

    def __init__(self) -> None:
        self._stats = b"{}"
        # Counts of the streams that are over, and the last report on each stream that is not known to be.
        self._counted: tuple[Quality | None, dict[int, bytes]] = (None, {})
        self._handed_over = 0  # streams before this one go on in it: a late report on them is counted there
        self._warnings: list[str] = []

    def receive(self, packet: bytes) -> None:
        """A report (see `report_packet`). Of streams before this one no other will come: they are summed up."""
        _, stream, stats_bytes = REPORT.unpack_from(packet)
        self._stats = packet[REPORT.size : REPORT.size + stats_bytes]
        seen = packet[REPORT.size + stats_bytes :]
        past, streams = self._counted
        if seen and stream >= self._handed_over:
            over = [_quality(kept) for number, kept in streams.items() if number != stream]
            past = merge([*([] if past is None else [past]), *over]) if over else past
            self._counted = past, {stream: seen}

    def add_warnings(self, texts: Sequence[str]) -> None:
        """A message `warnings`."""
        self._warnings += texts

    def hand_over(self, stream: int, successor: int) -> dict[str, Any] | None:
        """What was counted of a stream that goes on under another number; kept until the first report on that."""
        self._handed_over = successor
        past, streams = self._counted
        kept = streams.get(stream) or streams.get(successor)
        if kept is None:
            return None
        self._counted = past, {**{n: each for n, each in streams.items() if n != stream}, successor: kept}
        seen: dict[str, Any] = json.loads(kept)
        return seen

    def take_warnings(self) -> list[str]:
        """Warnings about the data since the last call, each text once."""
        texts, self._warnings = self._warnings, []
        return texts

    @property
    def stats(self) -> FeederStats:
        """The feeder's counts of its own work."""
        return FeederStats.from_json(json.loads(self._stats))

    @property
    def quality(self) -> Quality | None:
        """Counts of everything that was delivered, as far as it was reported."""
        past, streams = self._counted
        parts = [*([] if past is None else [past]), *(_quality(seen) for seen in streams.values())]
        return merge(parts) if parts else None

    def report(self, schema: BatchSchema) -> dict[str, dict[str, Any]]:
        """The measures of each feature; empty before the first report."""
        quality = self.quality
        return {} if quality is None else measures(quality, schema)


def report_packet(stream: int, stats: FeederStats, seen: dict[str, Any] | None) -> bytes:
    """The feeder's report on a stream: its counts of work, and what was counted of the stream's epoch so far."""
    counted = json.dumps(stats.to_json()).encode()
    return REPORT.pack(b"S", stream, len(counted)) + counted + (b"" if seen is None else json.dumps(seen).encode())


def _quality(seen: bytes) -> Quality:
    return Quality.from_json(json.loads(seen)["quality"])
