"""The feeders' reports on their work, as the trainer keeps them.

Runs in: the trainer, and `feedline run --sink null`. A report replaces the one before it on its stream; streams are
summed. Another feeder continues from the counts of a dead one.
"""

from __future__ import annotations

import struct
from typing import Any, Self

from feedline.dataclass import dataclass
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality, measures, merge
from feedline.loader.ring.channel import REPORT
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.facts import FeederFacts, FeederStats
from feedline.progress import Progress

_THROUGH = struct.Struct("<q")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochCounts:
    """The counts of a stream's epoch up to the last rows of the step `through`: another feeder continues from them."""

    through: int
    quality: Quality

    def to_bytes(self) -> bytes:
        """The step, and the counts' bytes."""
        return _THROUGH.pack(self.through) + self.quality.to_bytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The inverse of `to_bytes`."""
        return cls(through=_THROUGH.unpack_from(content)[0], quality=Quality.from_bytes(content[_THROUGH.size :]))


class FeederReports:
    """The last report of each kind: the feeder's `stats`, the quality of the features' values, the progress of a plan
    that is waited for, if it is watched, and the facts of the feeder that answered last."""

    def __init__(self) -> None:
        self._stats = pack(FeederStats())
        # Counts of the streams that ended, and the last report on each stream that may go on; set at once.
        self._quality: tuple[list[Quality], dict[int, bytes]] = ([], {})
        self._first_stream = 0  # late reports on earlier streams are dropped: this one includes their counts
        self.warnings: list[str] = []  # not taken yet
        self.planning: Progress | None = None
        self.feeder: FeederFacts | None = None

    def receive(self, packet: bytes) -> None:
        """Take a report (see `report_packet`). Other streams have ended, so their counts are summed."""
        _, stream, stats_bytes = REPORT.unpack_from(packet)
        self._stats = packet[REPORT.size : REPORT.size + stats_bytes]
        seen = packet[REPORT.size + stats_bytes :]
        past, streams = self._quality
        if seen and stream >= self._first_stream:
            ended = [EpochCounts.from_bytes(report).quality for number, report in streams.items() if number != stream]
            self._quality = [merge([*past, *ended])] if ended else past, {stream: seen}

    def hand_over(self, stream: int, successor: int) -> bytes | None:
        """The bytes of the `EpochCounts` of a stream that continues as `successor`, kept until the first report on
        that."""
        # Stream 3 has reported steps [0, 40) when its feeder dies; stream 4 goes on at step 40 with these counts, which
        # its first report contains. A report on stream 3 that comes late would count them twice.
        self._first_stream = successor
        past, streams = self._quality
        report = streams.get(stream) or streams.get(successor)
        if report is None:
            return None
        self._quality = past, {**{n: each for n, each in streams.items() if n != stream}, successor: report}
        return report

    def take_warnings(self) -> list[str]:
        """Warnings about the data since the last call."""
        warnings, self.warnings = self.warnings, []
        return warnings

    @property
    def stats(self) -> FeederStats:
        """The feeder's counts of its work."""
        return unpack(FeederStats, self._stats)

    @property
    def quality(self) -> Quality | None:
        """Counts of all rows delivered, as far as reported."""
        past, streams = self._quality
        parts = [*past, *(EpochCounts.from_bytes(report).quality for report in streams.values())]
        return merge(parts) if parts else None

    def report(self, schema: BatchSchema) -> dict[str, dict[str, Any]]:
        """The measures of each feature; empty before the first report."""
        quality = self.quality
        return {} if quality is None else measures(quality, schema)


def report_packet(stream: int, stats: FeederStats, seen: bytes | None) -> bytes:
    """The feeder's report on a stream: its stats, and the bytes of its `EpochCounts` (None: the last ones hold)."""
    work = pack(stats)
    return REPORT.pack(b"S", stream, len(work)) + work + (seen or b"")
