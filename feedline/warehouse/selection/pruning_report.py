"""Sum up what decided on the rows of each row group, what was pruned and why, and what deciding costs.

Pure; runs where a plan is made. Every row group has one fate; the shares of a report, and the stages that
`feedline plan` prints, are sums over fates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from feedline.expressions import BoundExpression
from feedline.warehouse.reading.columns import part_bytes
from feedline.warehouse.reading.row_filter import SAMPLED, UNSAMPLED, WHERE_TRUE
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.snapshot.snapshot import Snapshot

# What decided: partition keys; statistics (or having no rows); bloom filters; statistics again, all rows being kept;
# arithmetic, all rows being sampled by their place; or reading the columns of filter and sample.
PARTITION, STATISTICS, BLOOM, WHOLE, SAMPLED_BY_PLACE, COUNTED = np.arange(6, dtype=np.int8)

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Need: TypeAlias = tuple[frozenset[str], Bools]  # columns and parts of columns, and the row groups where they are read


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdicts:
    """Per row group: `fate` (int8, what decided on its rows) and `proven` (uint8, bits of `row_filter`)."""

    fate: npt.NDArray[np.int8]
    proven: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Some of a table: row groups, and the rows stored in them."""

    row_groups: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionReport:
    """What filter and sample selected: the six shares after `table` add up to it.

    `by_partition`: pruned because of partition keys alone; `by_statistics`: pruned because of row-group statistics
    (or because the row group is empty); `by_bloom`: pruned by bloom filters, which the counting pass asks; `whole`:
    taken whole without reading; `by_place`: sampled without reading; `counted`: read by the counting pass.
    `matched`: row groups of which the filter keeps at least one row, and those rows; `kept`: likewise after the sample.
    `counted_bytes`: compressed bytes of the column chunks that the counting pass reads, `bloom_bytes`: bytes of bloom
    filters that it reads; `cached`: whether their counts were known from an earlier run.
    """

    table: Share
    by_partition: Share
    by_statistics: Share
    by_bloom: Share
    whole: Share
    by_place: Share
    counted: Share
    matched: Share
    kept: Share
    counted_bytes: int
    bloom_bytes: int
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is left after a step of the selection: bool per row group, and how many rows that is."""

    name: str
    left: Bools
    rows: int


def report_of(
    snapshot: Snapshot,
    where: BoundExpression | None,
    sample: BoundSample | None,
    verdicts: Verdicts,
    *,
    rows: Int64s,
    matched: Int64s,
    bloom_bytes: int,
    cached: bool,
) -> SelectionReport:
    """The report on a selection."""
    stored, fate = snapshot.rows_per_row_group, verdicts.fate

    def share(chosen: Bools, weights: Int64s = stored) -> Share:
        return Share(row_groups=int(chosen.sum()), rows=int(weights[chosen].sum()))

    counted = fate == COUNTED
    counted_bytes = int(needed_bytes(snapshot, deciding_parts(verdicts.proven, where, sample))[counted].sum())
    return SelectionReport(
        table=share(np.ones(len(stored), np.bool_)),
        by_partition=share(fate == PARTITION),
        by_statistics=share(fate == STATISTICS),
        by_bloom=share(fate == BLOOM),
        whole=share(fate == WHOLE),
        by_place=share(fate == SAMPLED_BY_PLACE),
        counted=share(counted),
        matched=share(matched > 0, matched),
        kept=share(rows > 0, rows),
        counted_bytes=counted_bytes,
        bloom_bytes=bloom_bytes,
        cached=cached,
    )


def stages_of(snapshot: Snapshot, verdicts: Verdicts, *, rows: Int64s, matched: Int64s) -> Iterator[Stage]:
    """The way from the table to the rows that are read, step by step."""
    stored, fate = snapshot.rows_per_row_group, verdicts.fate
    for name, left in (
        ("table", np.ones(len(stored), np.bool_)),
        ("partitions", fate != PARTITION),
        ("statistics", fate >= BLOOM),
        ("bloom filters", fate > BLOOM),
    ):
        yield Stage(name=name, left=left, rows=int(stored[left].sum()))
    for name, kept in (("where", matched), ("sample", rows)):
        yield Stage(name=name, left=kept > 0, rows=int(kept[kept > 0].sum()))


def deciding_parts(
    proven: npt.NDArray[np.uint8],
    where: BoundExpression | None,
    sample: BoundSample | None,
    *,
    whole: Bools | None = None,
    weigh: bool = False,
) -> list[Need]:
    """What filter and sample read, each with the row groups where it has to be read: as `RowFilter.parts` has it.

    `whole`: row groups known to stay whole; `weigh`: rows are weighed besides.
    """
    part = np.ones(len(proven), np.bool_) if whole is None else ~whole
    filtering = ((proven & WHERE_TRUE) == 0) & part
    sampling = (proven & UNSAMPLED) == 0
    telling = sampling & ((proven & SAMPLED) == 0) & (part | weigh)
    return [
        (where.parts if where else frozenset(), filtering),
        (sample.where.parts if sample and sample.where else frozenset(), telling),
        (frozenset(sample.sample.key) if sample else frozenset(), sampling & part),
    ]


def needed_bytes(snapshot: Snapshot, needs: Sequence[Need]) -> Int64s:
    """Compressed bytes per row group of what is needed there; what several need counts once."""
    total = np.zeros(len(snapshot.rows_per_row_group), np.int64)
    wanted = [
        (names - {SAMPLE_WEIGHT} if SAMPLE_WEIGHT not in snapshot.schema.names else names, at) for names, at in needs
    ]
    wanted = [(names, at) for names, at in wanted if names]
    for present in product((False, True), repeat=len(wanted)):
        here = np.logical_and.reduce([at == flag for (_, at), flag in zip(wanted, present, strict=True)], axis=0)
        names = frozenset[str]().union(*(names for (names, _), flag in zip(wanted, present, strict=True) if flag))
        if names and here.any():
            total[here] = part_bytes(snapshot, names)[here]
    return total
