"""Read rows of a file by their position, decoding only the pages that hold them.

Runs in every process that reads, on the calling thread. Columns that the kernel decodes, of one value a row, are read
by their offset indexes (`parquet/offset_index`): of each column chunk its dictionary and the pages that hold the rows,
which are decoded as if they were a chunk. In all other cases the row groups that hold the rows are read whole, with the
same result: columns of lists and structs, columns that pyarrow decodes or that are stored once per run of equal rows,
files without an offset index, pages that are not what their index says or do not decode, and where most rows of a row
group are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, TableArgumentError
from feedline.warehouse.parquet.decode import ChunkPages, DecodedRows
from feedline.warehouse.parquet.footer import ChunkFacts
from feedline.warehouse.parquet.offset_index import NO_PAGES, PageIndex, index_place, page_index, page_indexes
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, field_of
from feedline.warehouse.reading.read import ReadRequest, read_arrow, refuse_no_columns, resolve_columns
from feedline.warehouse.storage.ranges import Range

Ranges = NDArray[np.int64]

_MOST_PART = 0.75  # of a row group, or of the bytes of a column chunk: from here on all is read, at once


@dataclass(frozen=True, slots=True)
class RangeRows:
    """Rows of ranges, end to end. table: one column per requested column, in the schema's types.

    bytes_read: compressed bytes of pages, dictionaries and whole column chunks that were read for them, with what lies
    between two pages where that was read over.
    """

    table: pa.Table
    bytes_read: int


def read_ranges(fragment: Fragment, columns: Sequence[str], schema: pa.Schema, ranges: Ranges) -> RangeRows:
    """Read these columns and column parts of some rows of a file, filters and exclusions of the fragment aside.

    ranges: int64 [n, 2], [start, stop) in rows of the file, all row groups end to end; ascending, disjoint, not empty,
    within the fragment's row groups. Raises TableArgumentError for others, and as `read_arrow`.
    """
    refuse_no_columns(ReadRequest(columns, schema))
    _refuse_disorder(ranges)
    with fragment.open() as file:
        wanted = _by_row_group(file, fragment, ranges)
        paged = [name for name in columns if _is_paged(file, fragment, schema, name)]
        others = [name for name in columns if name not in paged]
        batches, nbytes = _read_pages(file, fragment, paged, schema, wanted) if paged else ({}, 0)
        tables = []
        for row_group, here in wanted.items():
            parts = []
            for names in (paged, others):
                if names is paged and row_group in batches:
                    parts.append(pa.Table.from_batches([batches.pop(row_group)]))
                elif names:
                    parts.append(_read_whole(fragment, row_group, names, schema, here))
                    nbytes += _chunk_bytes(file, fragment, row_group, names, schema)
            arrays = {name: part.column(name) for part in parts for name in part.column_names}
            tables.append(pa.table([arrays[name] for name in columns], schema=_fields(schema, columns)))
    table = pa.concat_tables(tables) if tables else _fields(schema, columns).empty_table()
    return RangeRows(table, nbytes)


def _fields(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([field_of(schema, name) for name in columns])


def _refuse_disorder(ranges: Ranges) -> None:
    # [[2, 5], [5, 9]] -> borders 0, 2, 5, 5, 9: a start may be where the range before stops
    borders = np.append(0, ranges.reshape(-1))
    wrong = np.flatnonzero(np.diff(borders) < np.arange(len(borders) - 1) % 2)
    if len(wrong):
        got, before = borders[wrong[0] + 1], borders[wrong[0]]
        raise TableArgumentError(
            f"row ranges do not ascend: got {got} behind {before}, expected pairs of a row and a later one, each from "
            "the end of the last pair on. Sort and merge them"
        )


def _by_row_group(file: OpenFile, fragment: Fragment, ranges: Ranges) -> dict[int, Ranges]:
    """The ranges within each row group that has any, in its rows."""
    # row groups of 100 rows, [[90, 110], [120, 130]] -> 0: [[90, 100]], 1: [[0, 10], [20, 30]]
    starts = np.array(file.row_starts())
    if len(ranges) and ranges[-1, 1] > starts[-1]:
        raise TableArgumentError(
            f"row range ends behind the rows of {fragment.uri}: got {ranges[-1, 1]}, expected at most {starts[-1]}"
        )
    first = np.searchsorted(ranges[:, 1], starts[:-1], "right")
    after = np.searchsorted(ranges[:, 0], starts[1:], "left")
    found = {}
    for row_group in np.flatnonzero(first < after).tolist():
        here = ranges[first[row_group] : after[row_group]]
        found[row_group] = np.clip(here, starts[row_group], starts[row_group + 1]) - starts[row_group]
    if missing := found.keys() - set(fragment.row_groups):
        raise TableArgumentError(
            f"row range lies in a row group of {fragment.uri} that is not read: got {min(missing)}, expected one of "
            f"{', '.join(map(str, fragment.row_groups))}"
        )
    return found


def _is_paged(file: OpenFile, fragment: Fragment, schema: pa.Schema, name: str) -> bool:
    """Whether a column is read page by page, where there is an offset index: or is the same in all rows."""
    if schema.get_field_index(name) < 0:  # a part, of columns that may hold others
        return False
    leaves = file.stored.get(name)
    if leaves is None or name in dict(fragment.partition):
        return True
    groups = () if file.dedup is None else file.dedup.groups.values()
    stored_once = any(name in group.columns for group in groups)
    own = leaves.stop <= file.base.metadata.num_columns  # not of a column file
    return own and not stored_once and len(leaves) == 1 and file.decoder.is_flat(leaves.start)


class _Part(NamedTuple):
    """What is read of a column chunk: runs of pages, int64 [k, 2], and their spans, behind that of its dictionary."""

    pages: PageIndex
    runs: NDArray[np.int64]
    spans: list[Range]


def _read_pages(
    file: OpenFile, fragment: Fragment, columns: Sequence[str], schema: pa.Schema, wanted: dict[int, Ranges]
) -> tuple[dict[int, pa.RecordBatch], int]:
    """The rows of ranges, by row groups: of those that are read by pages, and decode. With the bytes that were read."""
    keys = frozenset(name for name, _ in fragment.partition)
    stored = resolve_columns(file, schema, tuple(columns), frozenset(), keys)
    sparse = {
        row_group: here
        for row_group, here in wanted.items()
        if not stored.leaves or _count(here) < _MOST_PART * file.metadata.row_group(row_group).num_rows
    }
    facts = {row_group: file.decoder.facts(row_group, stored.leaves) for row_group in sparse}
    indexes = _indexes(file, fragment, stored.leaves, facts)
    parts: dict[tuple[int, int], _Part] = {}
    for row_group, chunks in facts.items():
        if all(len(indexes[row_group, leaf].rows) for leaf in stored.leaves):
            runs: dict[bytes, NDArray[np.int64]] = {}  # columns whose pages have the same rows share them
            for leaf, chunk in zip(stored.leaves, chunks, strict=True):
                index = indexes[row_group, leaf]
                key = index.rows.tobytes()
                if key not in runs:
                    runs[key] = index.runs_of(sparse[row_group])
                parts[row_group, leaf] = _part(index, chunk, runs[key])
    spans = [span for part in parts.values() for span in part.spans]
    buffers, nbytes = file.read_spans(spans) if spans else ([], 0)
    contents = iter(buffers)
    batches = {}
    for row_group, here in sparse.items():
        if stored.leaves and (row_group, stored.leaves[0]) not in parts:
            continue
        own = {leaf: parts[row_group, leaf] for leaf in stored.leaves}
        pages = {leaf: _joined([next(contents) for _ in part.spans], part) for leaf, part in own.items()}
        try:
            arrays = file.decoder.decode_pages(row_group, pages)
        except CorruptFileError:  # reading it whole tells, or succeeds
            arrays = None
        if arrays is None:
            continue
        cut = _cut(arrays, {name: own[file.stored[name].start] for name in arrays}, here)
        decoded = DecodedRows(_count(here), cut)
        batches[row_group], _ = stored.rows(decoded, None, fragment.uri, row_group, dict(fragment.partition))
    return batches, nbytes


def _count(ranges: Ranges) -> int:
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def _indexes(
    file: OpenFile, fragment: Fragment, leaves: Sequence[int], facts: dict[int, list[ChunkFacts]]
) -> dict[tuple[int, int], PageIndex]:
    """The offset indexes of column chunks: those that are not kept are read at once."""
    file_key = fragment.uri, fragment.stamp, fragment.footer_digest
    found: dict[tuple[int, int], PageIndex] = {}
    missing: dict[tuple[int, int], tuple[Range, ChunkFacts]] = {}
    for row_group, chunks in facts.items():
        for leaf, chunk in zip(leaves, chunks, strict=True):
            kept = page_indexes.get((*file_key, row_group, leaf))
            if kept is not None:
                found[row_group, leaf] = kept
            elif place := index_place(file.base.metadata, fragment.footer_digest, row_group, leaf, fragment.bytes):
                missing[row_group, leaf] = place, chunk
            else:
                found[row_group, leaf] = NO_PAGES
    buffers, _ = file.read_spans([place for place, _ in missing.values()]) if missing else ([], 0)
    for (key, (_, chunk)), content in zip(missing.items(), buffers, strict=True):
        index = page_index(content, chunk, file.metadata.row_group(key[0]).num_rows)
        found[key] = page_indexes.put((*file_key, *key), index)
    return found


def _part(index: PageIndex, chunk: ChunkFacts, runs: NDArray[np.int64]) -> _Part:
    spans = index.spans(runs)
    first, start, end = chunk.place[0], int(index.offsets[0]), int(index.offsets[-1])
    if first < start:
        spans.insert(0, (first, start))
    if sum([after - before for before, after in spans]) > _MOST_PART * (end - first):
        return _Part(index, np.array([[0, len(index.rows) - 1]]), [(first, end)])
    return _Part(index, runs, spans)


def _joined(contents: list[pa.Buffer], part: _Part) -> ChunkPages:
    content = contents[0] if len(contents) == 1 else pa.py_buffer(b"".join(contents))
    return ChunkPages(content, part.pages.page_rows(part.runs))


def _cut(arrays: dict[str, pa.Array], parts: dict[str, _Part], ranges: Ranges) -> dict[str, pa.Array]:
    """The rows of ranges, of the rows of pages that were decoded."""
    cut, indices = {}, {}
    rows = _count(ranges)
    for name, array in arrays.items():
        if rows == len(array):
            cut[name] = array
            continue
        starts = parts[name].pages.rows_before(ranges, parts[name].runs)
        if len(ranges) == 1:
            cut[name] = array.slice(int(starts[0]), rows)
            continue
        key = starts.tobytes()  # columns with the same pages share it
        if key not in indices:
            indices[key] = _positions(starts, ranges[:, 1] - ranges[:, 0])
        cut[name] = pc.take(array, indices[key], boundscheck=False)
    return cut


def _positions(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array:
    """All rows from each start on."""
    # starts [3, 10], lengths [2, 3] -> [3, 4, 10, 11, 12]
    before = np.cumsum(lengths) - lengths
    return pa.array(np.repeat(starts - before, lengths) + np.arange(int(lengths.sum())))


def _read_whole(
    fragment: Fragment, row_group: int, columns: Sequence[str], schema: pa.Schema, ranges: Ranges
) -> pa.Table:
    """The rows of ranges of a row group that is read whole."""
    alone = replace(fragment, row_groups=(row_group,), expected=(UNCOUNTED,), proofs=(), excluded=())
    table = read_arrow(alone, ReadRequest(columns, schema))
    if len(ranges) == 1:
        return table.slice(int(ranges[0, 0]), _count(ranges))
    return table.take(_positions(ranges[:, 0], ranges[:, 1] - ranges[:, 0]))


def _chunk_bytes(file: OpenFile, fragment: Fragment, row_group: int, columns: Sequence[str], schema: pa.Schema) -> int:
    """Those of the column chunks from which columns are read."""
    keys = frozenset(name for name, _ in fragment.partition)
    stored = resolve_columns(file, schema, tuple(columns), frozenset(), keys)
    return sum(chunk.nbytes for chunk in file.decoder.facts(row_group, [*stored.leaves, *stored.flag_leaves(file)]))
