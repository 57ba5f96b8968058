"""Read the first rows that a filter and a sample keep, without counting the table first.

Runs in the process of a command, on the calling thread. Row groups that statistics rule out are not opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from feedline.expressions import BoundExpression
from feedline.warehouse.reading.fragment import UNCOUNTED, Chunk, Fragment, fragment_of
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import BoundSample
from feedline.warehouse.reading.seen_rows import Mark
from feedline.warehouse.selection.exclusion import Exclusion
from feedline.warehouse.selection.select import screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import plan_splits

_CHUNK_ROWS = 2_048
_SPLIT_ROWS = 65_536


def screened_splits(
    snapshot: Snapshot,
    where: BoundExpression | None,
    sample: BoundSample | None,
    choose: Callable[[int], Iterable[int]] = range,
    exclusion: Exclusion | None = None,
) -> Iterator[Fragment]:
    """Yield splits that may keep rows, uncounted, in the table's order; `choose` picks the indices, given how many.
    `exclusion`: bad rows to leave out."""
    selection = screen_rows(snapshot, where, sample=sample).without(exclusion)
    stored = snapshot.rows_per_row_group
    planned = np.where(selection.rows == UNCOUNTED, stored, selection.rows)
    splits = plan_splits(planned, snapshot.file_of_row_group, _SPLIT_ROWS)
    uncounted = np.where(selection.rows == 0, 0, UNCOUNTED)  # not all are read to the end, so nothing is checked
    for index in choose(len(splits)):
        fragment = fragment_of(snapshot, splits, uncounted, index, selection.proofs)
        first, stop = int(splits.first_row_group[index]), int(splits.stop_row_group[index])
        bits = [selection.excluded_bits(group) for group in range(first, stop) if selection.rows[group]]
        yield replace(fragment, excluded=tuple(bits)) if any(each is not None for each in bits) else fragment


def first_rows(
    snapshot: Snapshot,
    columns: Sequence[str],
    schema: pa.Schema,
    count: int,
    *,
    where: BoundExpression | None,
    sample: BoundSample | None,
    marks: Sequence[Mark] = (),
    exclusion: Exclusion | None = None,
) -> list[Chunk]:
    """Read the first `count` kept rows, or all if there are fewer, in the table's order; see `read_fragment`.
    `exclusion`: bad rows to leave out."""
    first: list[Chunk] = []
    missing = count
    request = ReadRequest(columns, schema, where, sample=sample, marks=marks, chunk_rows=_CHUNK_ROWS)
    for fragment in screened_splits(snapshot, where, sample, exclusion=exclusion):
        if not fragment.row_groups:
            continue
        for chunk in read_fragment(fragment, request):
            rows = min(missing, chunk.frame.height)
            if rows:
                first.append(chunk.part(0, rows))
            missing -= rows
            if not missing:
                return first
    return first
