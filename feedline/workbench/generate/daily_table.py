"""Divide the rows of a generated table among days and files: `DailyTable`, the part that all recipes share.

Runs in the process of the command and in the generator's Dask tasks. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import SpecError

ROW_BITS = 24  # a row's index within its file
_MAX_PARTS = 1 << 20  # per day: a session's id is (day, part, session) from high to low bits
_RANGES = {
    "rows": (1, 1 << 48),
    "days": (1, 36_500),
    "seed": (0, (1 << 64) - 1),
    "row_group_rows": (1, 1 << ROW_BITS),
    "part_rows": (1, 1 << ROW_BITS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyTable:
    """`rows` rows over `days` partitions, from the day `start` on.

    `part_rows`: a file's rows, at most; the default is four default row groups. Raises SpecError for values out of
    range.
    """

    rows: int
    days: int
    seed: int = 0
    row_group_rows: int = 65_536
    part_rows: int = 1 << 18
    start: date = date(2026, 1, 1)
    compression: str = "zstd"

    def __post_init__(self) -> None:
        """Raise SpecError for values out of range."""
        check_ranges(self, _RANGES)
        if self.days > self.rows:
            raise SpecError(f"days exceed rows: got {self.days} days and {self.rows} rows, expected a row per day.")
        try:
            self.midnight(self.days)
        except OverflowError as error:
            raise SpecError(f"days end after the calendar: got {self.days} days from {self.start}.") from error
        if self.parts(self.days - 1) > _MAX_PARTS:  # the last day holds the most rows
            raise SpecError(
                f"A day has too many files: got {self.parts(self.days - 1)}, expected at most {_MAX_PARTS}."
            )
        if not _is_codec(self.compression):
            raise SpecError(
                f"compression is unknown: got {self.compression!r}, expected zstd, lz4, snappy, gzip, brotli or none."
            )

    def midnight(self, day: int) -> datetime:
        """Return when the day begins, in UTC."""
        return datetime.combine(self.start + timedelta(days=day), time(), UTC)

    def partition(self, day: int) -> str:
        return f"ds={self.midnight(day).date().isoformat()}"

    def parts(self, day: int) -> int:
        """Return the number of files of the day; days, and files in a day, hold even shares of the rows."""
        return -(-(self._before(day + 1) - self._before(day)) // self.part_rows)

    def part_bounds(self, day: int, part: int) -> tuple[int, int]:
        """Return the part's rows as a range of the table's rows."""
        # 10 rows in 3 files -> [0, 3), [3, 6), [6, 10)
        start, stop, parts = self._before(day), self._before(day + 1), self.parts(day)
        return start + (stop - start) * part // parts, start + (stop - start) * (part + 1) // parts

    def _before(self, day: int) -> int:
        return self.rows * day // self.days


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """One file of a generated table: its path below the table's folder, and its rows."""

    target: str
    schema: pa.Schema
    row_groups: Iterator[pa.Table]


def check_ranges(
    recipe: object, integers: Mapping[str, tuple[int, int]], numbers: Mapping[str, tuple[float, float]] | None = None
) -> None:
    """Raise SpecError where a field of `recipe` is not an integer, or number, from low to high."""
    for ranges, kinds, words in ((integers, int, "an integer"), (numbers or {}, (int, float), "a number")):
        for name, (low, high) in ranges.items():
            value = getattr(recipe, name)
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                raise SpecError(f"{name} is out of range: got {value!r}, expected {words} from {low} to {high}.")


def _is_codec(name: object) -> bool:
    try:
        return isinstance(name, str) and (name == "none" or pa.Codec.is_available(name))
    except ValueError:
        return False
