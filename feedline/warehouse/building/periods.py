"""Divide time into the partitions of a built table, and tell which of them are closed.

Pure. Times are integers of one unit (`Timeline`), since 1970 in UTC. A partition [start, stop) is open until the
watermark has passed its end by the longest time that an outcome may follow. The watermark is the newest event of all
logs, less the lateness; events ahead of this machine's clock do not count, as one wrong clock would close everything.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.expressions.moments import moment_text

Int64s = NDArray[np.int64]

MARKER = "_SUCCESS"  # which `source.follow` waits for
_NS = 10**9
_HOURS = 24
_MOST = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The unit of times (`us` or `ns`), and whether partitions are hours or days."""

    unit: str
    hourly: bool

    @property
    def per_second(self) -> int:
        return 10**6 if self.unit == "us" else _NS

    @property
    def length(self) -> int:
        """The length of a partition."""
        return (3600 if self.hourly else 86_400) * self.per_second

    def of_ns(self, length_ns: int) -> int:
        """A length in nanoseconds in the unit, rounded up, so that nothing that counts is left out."""
        return -(-length_ns * self.per_second // _NS)

    def periods(self, times: Int64s) -> Int64s:
        """int64 [times]: the partition of each time, counted since 1970."""
        return times // self.length

    def bounds(self, period: int) -> tuple[int, int]:
        """The partition's [start, stop)."""
        return period * self.length, (period + 1) * self.length

    def folder(self, period: int) -> str:
        """`ds=2026-01-31`, or with hours `ds=2026-01-31/hour=07`."""
        if not self.hourly:
            return f"ds={moment_text(period, 'D')}"
        day, hour = divmod(period, _HOURS)
        return f"ds={moment_text(day, 'D')}/hour={hour:02}"

    @property
    def keys(self) -> tuple[str, ...]:
        return ("ds", "hour") if self.hourly else ("ds",)

    def text(self, time: int) -> str:
        """A time in ISO 8601."""
        return moment_text(time, self.unit, "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The time up to which all events have arrived; None: there is none. ahead: events of clocks that are ahead."""

    time: int | None
    ahead: bool = False

    def closes(self, stop: int, longest: int) -> bool:
        """Whether a partition that ends at `stop` is closed, where outcomes follow after at most `longest`."""
        # a day that ends at 24:00, outcomes within 30 minutes -> closed from 24:30
        return self.time is not None and self.time >= stop + longest


def watermark(newest: Iterable[int], *, lateness: int, now: int) -> Watermark:
    """The watermark of logs by their newest times, at the moment `now`."""
    times = list(newest)
    if not times:
        return Watermark(time=None)
    return Watermark(time=min(max(times), now) - lateness, ahead=max(times) > now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Times [start, stop) that a partition reads of a log; None: without a start."""

    start: int | None
    stop: int

    def overlaps(self, low: Int64s, high: Int64s) -> NDArray[np.bool_]:
        """bool [n]: whether some time of [low, high] may lie in it."""
        before = low < self.stop
        return before if self.start is None else before & (high >= self.start)


def impressions_window(bounds: tuple[int, int], longest: int) -> Window:
    """The impressions that compete for the outcomes of a partition's: its own, and those so long before and after."""
    return Window(start=bounds[0] - longest, stop=min(bounds[1] + longest, _MOST))


def outcomes_window(bounds: tuple[int, int], within: int) -> Window:
    """The outcomes of a partition's impressions, and those of its own time: [start, end + within]."""
    return Window(start=bounds[0], stop=min(bounds[1] + within, _MOST))


def features_window(bounds: tuple[int, int], within: int | None) -> Window:
    """The rows of a table of features that a partition's impressions may see."""
    return Window(start=None if within is None else bounds[0] - within, stop=bounds[1])
