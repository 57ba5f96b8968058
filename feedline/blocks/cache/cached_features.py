"""Features of some rows as a cache keeps them, with those of deduplicated groups, which have a row per run.

Pure; runs in every process that computes blocks. Where a group's runs begin is kept once, in bits, for all of its
features. A block's unique rows are those of the runs, repeated where it lets one end (see `group_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.cache.cached_columns import part_of_column, rows_of_columns, split_columns
from feedline.blocks.cache.cached_counts import facts_of, facts_of_part, with_row_counts
from feedline.blocks.group_runs import Bools, unique_starts
from feedline.blocks.row_counts import RowCounts
from feedline.loader.encoding.encoded_rows import EncodedRows, take
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality
from feedline.native.unique_rows import UniqueRows, first_uses
from feedline.warehouse.cache.cache_folder import CachedColumn


@dataclass(frozen=True, slots=True)
class CachedFeatures:
    """Some features of some rows. columns: by feature. runs: bool [rows], where runs begin, by deduplicated group.
    rows: the rows as they were encoded, None where they were found, or where groups end runs of their own."""

    columns: Mapping[str, CachedColumn]
    runs: Mapping[str, Bools]
    rows: EncodedRows | None = None

    def merge(self, other: CachedFeatures) -> CachedFeatures:
        """These features and others of the same rows."""
        return CachedFeatures({**self.columns, **other.columns}, {**self.runs, **other.runs})


def split_features(rows: EncodedRows, schema: BatchSchema, quality: Quality, row_counts: RowCounts) -> CachedFeatures:
    """The features of encoded rows, of whose groups each run has one unique row."""
    facts = facts_of(quality, schema)
    found, runs = dict[str, CachedColumn](), dict[str, Bools]()
    of_parts = (rows, *(group.rows for group in rows.groups))
    for part, own in zip(schema.parts, of_parts, strict=True):
        found |= split_columns(own, part, facts)
    for name, group in zip(schema.dedup, rows.groups, strict=True):
        runs[name] = np.zeros(rows.rows, np.bool_)
        runs[name][first_uses(group.inverse)] = True
    columns = {name: with_row_counts(each, name, row_counts) for name, each in found.items()}
    return CachedFeatures(columns, runs, None if runs else rows)


def part_of_features(kept: CachedFeatures, schema: BatchSchema, start: int, stop: int) -> CachedFeatures:
    """Rows [start, stop), as views. schema: of all features of a batch."""
    found, runs = dict[str, CachedColumn](), dict[str, Bools]()
    for name, part in zip((None, *schema.dedup), schema.parts, strict=True):
        columns = {column.name: kept.columns[column.name] for column in part if column.name in kept.columns}
        first, last, repeats = start, stop, None
        if name is not None:
            if name not in kept.runs:
                continue
            first, last, repeats = _runs_between(kept.runs[name], start, stop)
            runs[name] = kept.runs[name][start:stop].copy()
            runs[name][0] = True
        facts = facts_of_part(columns, _only(part, columns), first, last, repeats)
        found |= {each: part_of_column(column, first, last, facts[each]) for each, column in columns.items()}
    return CachedFeatures(found, runs)


def _runs_between(starts: Bools, start: int, stop: int) -> tuple[int, int, NDArray[np.int64]]:
    """The first and the last but one of the runs that rows [start, stop) are of, and how many of them each has."""
    first = int(np.count_nonzero(starts[: start + 1])) - 1
    begins = np.flatnonzero(starts[start + 1 : stop]) + 1
    repeats = np.diff(begins, prepend=0, append=stop - start)
    return first, first + len(repeats), repeats


def rows_of_features(kept: CachedFeatures, schema: BatchSchema, rows: int, borders: Sequence[int]) -> EncodedRows:
    """The rows of a batch's features. borders: rows at which a group's runs end, the first apart."""
    plain = rows_of_columns(kept.columns, schema.parts[0], rows)
    groups = []
    for name, part in zip(schema.dedup, schema.parts[1:], strict=True):
        runs = kept.runs[name]
        unique = rows_of_columns(kept.columns, part, int(np.count_nonzero(runs)))
        starts = unique_starts(runs, borders)
        if np.count_nonzero(starts) > unique.rows:
            unique = take([unique], (np.cumsum(runs) - 1)[starts])
        groups.append(UniqueRows(unique, np.cumsum(starts, dtype=np.int32) - np.int32(1)))
    return replace(plain, groups=tuple(groups))


def runs_column(runs: Bools) -> CachedColumn:
    """Where runs begin, as it is kept."""
    return CachedColumn({"starts": np.packbits(runs, bitorder="little")}, {"rows": len(runs)})


def runs_of_column(column: CachedColumn) -> Bools:
    """The inverse of `runs_column`."""
    bits = np.unpackbits(column.arrays["starts"], count=column.facts["rows"], bitorder="little")
    runs: Bools = bits.view(np.bool_)
    return runs


def _only(schema: BatchSchema, names: Mapping[str, CachedColumn]) -> BatchSchema:
    return BatchSchema(tuple(column for column in schema if column.name in names))
