"""Summarize what was pruned, why, and what counting the rest costs.

Pure; runs where a plan is made. Every row group has one fate; the shares of a report, and the stages that
`feedline plan` prints, are sums over fates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from feedline.dataclass import dataclass
from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import has_column
from feedline.warehouse.reading.columns import column_bytes, part_bytes
from feedline.warehouse.reading.row_filter import SAMPLED, UNSAMPLED, WHERE_TRUE
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.snapshot.snapshot import Snapshot

# What decided a row group's rows: partition keys; statistics (or being empty); bloom filters; statistics that prove all
# rows kept; arithmetic, all rows being sampled by position; or reading the columns of filter and sample.
PARTITION, STATISTICS, BLOOM, WHOLE, SAMPLED_BY_POSITION, COUNTED = np.arange(6, dtype=np.int8)
_SHARES = ("by_partition", "by_statistics", "by_bloom", "whole", "by_position", "counted")  # of a report, likewise

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Need: TypeAlias = tuple[frozenset[str], Bools]  # columns and parts of columns, and the row groups where they are read


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdicts:
    """Per row group: `fate` (int8, what decided its rows), `proofs` (uint8, bits of `row_filter`), and int64 rows that
    filter and sample keep (`rows`) and that the filter alone keeps (`matched`), UNCOUNTED until they are."""

    fate: npt.NDArray[np.int8]
    proofs: npt.NDArray[np.uint8]
    rows: Int64s
    matched: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a table: row groups, and the rows in them."""

    row_groups: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionReport:
    """What filter and sample select: the six shares after `table` add up to it.

    `by_partition`: pruned by partition keys alone; `by_statistics`: pruned by row-group statistics (or empty);
    `by_bloom`: pruned by bloom filters in the counting pass; `whole`: taken whole without reading; `by_position`:
    sampled without reading; `counted`: read by the counting pass. `matched`: row groups of which the filter keeps at
    least one row, and those rows; `kept`: likewise after the sample. `counted_bytes`: compressed bytes of the column
    chunks that the counting pass reads, `bloom_bytes`: bytes of bloom filters that it reads; `cached`: the counts came
    from an earlier run.
    """

    table: Share
    by_partition: Share
    by_statistics: Share
    by_bloom: Share
    whole: Share
    by_position: Share
    counted: Share
    matched: Share
    kept: Share
    counted_bytes: int
    bloom_bytes: int
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The row groups (bool [row groups]) and rows that remain after a step of the selection."""

    name: str
    row_groups: Bools
    rows: int


def report_of(
    snapshot: Snapshot,
    where: BoundExpression | None,
    sample: BoundSample | None,
    verdicts: Verdicts,
    *,
    bloom_bytes: int = 0,
    cached: bool = False,
) -> SelectionReport:
    stored, fate, rows, matched = snapshot.rows_per_row_group, verdicts.fate, verdicts.rows, verdicts.matched

    def share(row_groups: Bools, weights: Int64s = stored) -> Share:
        return Share(row_groups=int(row_groups.sum()), rows=int(weights[row_groups].sum()))

    needed = needed_bytes(snapshot, deciding_parts(verdicts.proofs, where, sample))
    return SelectionReport(
        table=share(np.ones(len(stored), np.bool_)),
        **{name: share(fate == number) for number, name in enumerate(_SHARES)},
        matched=share(matched > 0, matched),
        kept=share(rows > 0, rows),
        counted_bytes=int(needed[fate == COUNTED].sum()),
        bloom_bytes=bloom_bytes,
        cached=cached,
    )


def stages_of(snapshot: Snapshot, verdicts: Verdicts) -> Iterator[Stage]:
    """Yield the stages from the whole table to the rows that are read."""
    stored, fate = snapshot.rows_per_row_group, verdicts.fate
    for name, row_groups in (
        ("table", np.ones(len(stored), np.bool_)),
        ("partitions", fate != PARTITION),
        ("statistics", fate >= BLOOM),
        ("bloom filters", fate > BLOOM),
    ):
        yield Stage(name=name, row_groups=row_groups, rows=int(stored[row_groups].sum()))
    for name, kept in (("where", verdicts.matched), ("sample", verdicts.rows)):
        yield Stage(name=name, row_groups=kept > 0, rows=int(kept[kept > 0].sum()))


def count_files(snapshot: Snapshot, row_groups: Bools) -> int:
    """Count the files that have one of these row groups, which are in the files' order."""
    files = snapshot.file_of_row_group[row_groups]
    return int(np.count_nonzero(np.diff(files))) + 1 if len(files) else 0


def deciding_parts(
    proofs: npt.NDArray[np.uint8],
    where: BoundExpression | None,
    sample: BoundSample | None,
    *,
    whole: Bools | None = None,
    weigh: bool = False,
) -> list[Need]:
    """Return the column parts that filter and sample read, each with its row groups, matching `RowFilter.parts`.

    `whole`: row groups that stay whole; `weigh`: weights are computed, too.
    """
    part = np.ones(len(proofs), np.bool_) if whole is None else ~whole
    filtering = ((proofs & WHERE_TRUE) == 0) & part
    sampling = (proofs & UNSAMPLED) == 0
    sample_filtering = sampling & ((proofs & SAMPLED) == 0) & (part | weigh)
    return [
        (where.parts if where else frozenset(), filtering),
        (sample.where.parts if sample and sample.where else frozenset(), sample_filtering),
        (frozenset(sample.sample.key) if sample else frozenset(), sampling & part),
    ]


def needed_bytes(snapshot: Snapshot, needs: Sequence[Need]) -> Int64s:
    """Return the compressed bytes per row group of the parts needed there, each counted once."""
    total = np.zeros(len(snapshot.rows_per_row_group), np.int64)
    priced = [
        (names - {SAMPLE_WEIGHT} if SAMPLE_WEIGHT not in snapshot.schema.names else names, at) for names, at in needs
    ]
    priced = [(names, at) for names, at in priced if names and at.any()]
    every = frozenset[str]().union(*(names for names, _ in priced))
    if all(has_column(snapshot.schema, name) for name in every):  # no parts, so that columns just add up
        for name, sizes in column_bytes(snapshot, every):
            places = [at for names, at in priced if name in names]
            if any(at.all() for at in places):
                total += sizes
            else:
                total += np.where(np.logical_or.reduce(places, axis=0), sizes, 0)
        return total
    for present in product((False, True), repeat=len(priced)):
        at_these = np.logical_and.reduce([at == flag for (_, at), flag in zip(priced, present, strict=True)], axis=0)
        names = frozenset[str]().union(*(names for (names, _), flag in zip(priced, present, strict=True) if flag))
        if names and at_these.any():
            total[at_these] = part_bytes(snapshot, names)[at_these]
    return total
