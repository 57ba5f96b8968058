"""Count what blocks found in a cache: columns, bytes and waiting, summed over blocks.

Runs in: Dask workers, where blocks count; the feeder, which sums; the trainer and `feedline run`, which show it.
A *column* is one feature of the selected rows of one row group. Pure.
"""

from __future__ import annotations

from dataclasses import fields

from feedline.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounts:
    """Columns found and computed, and those of them that were to be kept but not written: the write budget was spent,
    or the folder took no more. Bytes read from and written to the cache's folder, damaged entries (their columns were
    computed again), and seconds waited for another job that computed the same columns."""

    found: int = 0
    computed: int = 0
    skipped: int = 0
    nbytes_read: int = 0
    nbytes_written: int = 0
    damaged: int = 0
    waited_s: float = 0.0

    def __add__(self, other: CacheCounts) -> CacheCounts:
        names = [field.name for field in fields(self)]
        return CacheCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def found_share(self) -> float:
        """The share of columns that were found; 0 before the first."""
        return self.found / max(1, self.found + self.computed)

    def describe(self) -> str:
        """One line: "cache: 1,234 of 1,300 features x row groups found (2.1 GB read), 66 computed (0.3 GB written)"."""
        columns = self.found + self.computed
        found = f"{self.found:,} of {columns:,} features x row groups found ({_size(self.nbytes_read)} read)"
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        computed = f"{self.computed:,} computed ({_size(self.nbytes_written)} written{skipped})"
        damaged = f", {self.damaged:,} damaged" if self.damaged else ""
        waited = f", {self.waited_s:.1f} s waited" if self.waited_s >= 0.05 else ""
        return f"cache: {found}, {computed}{damaged}{waited}"


def _size(nbytes: int) -> str:
    """A size as `0.3 GB`, in the unit of which it has at least a tenth."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= factor // 10:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes} B"
