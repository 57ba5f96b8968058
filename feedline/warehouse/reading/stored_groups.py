"""Read columns that a file stores once per run of equal rows: as unique rows, or in every row.

Runs in every process that reads, on the calling thread. Pure, over Arrow arrays; the format is that of
`parquet/dedup_columns`. The flags of a row group are checked as a whole before its first row is delivered. A chunk may
begin in the middle of a run: its first unique row is then the last one of the chunk before, which `RunReader` keeps.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.errors import TableError
from feedline.native.unique_rows import UniqueRows, unique_range
from feedline.warehouse.parquet.decode import DecodedRows
from feedline.warehouse.parquet.dedup_columns import DedupMetadata, RowGroupRuns, check_flags, flag_column
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.parquet.schemas import child_fields, is_list
from feedline.warehouse.reading.columns import CHUNK_ROWS, FileColumns, with_elements
from feedline.warehouse.storage.faults import label

Bools = npt.NDArray[np.bool_]

_MOST_VALUES = 2**31 - 1


def group_part(group: UniqueRows[pl.DataFrame], start: int, stop: int) -> UniqueRows[pl.DataFrame]:
    """The rows [start, stop)."""
    # inverse [0, 0, 1, 2, 2], rows [2, 5) -> unique rows [1, 3), inverse [0, 1, 1]
    first, last = unique_range(group.inverse, start, stop)
    inverse = group.inverse[start:stop]
    return UniqueRows(group.rows.slice(first, last - first), inverse - np.int32(first) if first else inverse)


def filter_group(group: UniqueRows[pl.DataFrame], stays: Bools) -> UniqueRows[pl.DataFrame]:
    """The rows where `stays` is true; unique rows that none of them uses go."""
    # inverse [0, 0, 1, 2], of which the first and last row stay -> unique rows 0 and 2, inverse [0, 1]
    kept = group.inverse[stays]
    used = np.zeros(group.rows.height, np.bool_)
    used[kept] = True
    if used.all():
        return UniqueRows(group.rows, kept)
    return UniqueRows(group.rows.filter(pl.Series(used)), (np.cumsum(used, dtype=np.int32) - np.int32(1))[kept])


def expand_group(group: UniqueRows[pl.DataFrame]) -> pl.DataFrame:
    """The columns of all rows."""
    return group.rows[group.inverse] if group.rows.height < len(group.inverse) else group.rows


class RunReader:
    """Turns the chunks of one row group, as they are stored, into rows. groups: the stored groups that are read, each
    with its flags, bool [rows of the row group]. Chunks come in order, each once."""

    def __init__(self, groups: Mapping[str, tuple[Sequence[str], Bools]], place: str) -> None:
        self._groups = groups
        self._place = place
        self._last: dict[str, pa.RecordBatch] = {}
        self._row = 0

    def starts(self) -> dict[str, Bools]:
        """Where runs start, of each column."""
        return {column: flags for columns, flags in self._groups.values() for column in columns}

    def take(self, decoded: DecodedRows) -> dict[str, UniqueRows[pa.RecordBatch]]:
        """The unique rows of each group in the next chunk. Raises TableError for values in rows that repeat others."""
        # flags [1, 0, 0, 1 | 0, 1] in two chunks -> unique rows a, b, then b again and c; inverse [0, 0, 0, 1], [0, 1]
        first, self._row = self._row, self._row + decoded.rows
        unique_rows = {}
        batch = decoded.batch
        for group, (columns, flags) in self._groups.items():
            starts = flags[first : self._row]
            unique = self._unique(group, decoded, batch, columns, np.flatnonzero(starts))
            if not starts[0]:
                pairs = zip(self._last[group].columns, unique.columns, strict=True)
                arrays = [pa.concat_arrays(pair) for pair in pairs]
                unique = pa.RecordBatch.from_arrays(arrays, names=list(columns))
            if self._row < len(flags) and not flags[self._row]:  # a copy, which does not hold the chunk
                self._last[group] = unique.take(pa.array([unique.num_rows - 1]))
            inverse = np.cumsum(starts, dtype=np.int32)
            unique_rows[group] = UniqueRows(unique, inverse - np.int32(1) if starts[0] else inverse)
        return unique_rows

    def _unique(
        self,
        group: str,
        decoded: DecodedRows,
        batch: pa.RecordBatch,
        columns: Sequence[str],
        index: npt.NDArray[np.int64],
    ) -> pa.RecordBatch:
        """The values where runs start. batch: the decoded columns of every row."""
        whole = batch.select([name for name in columns if name not in decoded.compact])
        values = {name: decoded.compact[name] for name in columns if name in decoded.compact} | _at_starts(whole, index)
        repeated = decoded.rows - len(index)
        for name in columns:
            if name in decoded.compact:
                is_valid = len(values[name]) == len(index)  # others would have been decoded
            else:
                is_valid = whole.column(name).null_count - values[name].null_count == repeated
            if not is_valid:
                raise TableError(
                    f"column {name!r} of {self._place} holds values in rows that repeat the row above by "
                    f"{flag_column(group)!r}: expected nulls. Another tool rewrote the file. Write the table again "
                    f"with feedline optimize, from its source"
                )
        return pa.RecordBatch.from_arrays([values[name] for name in columns], names=list(columns))


def _at_starts(stored: pa.RecordBatch, index: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """The rows where runs start, in one call; lists without a copy, as the null lists between them hold no values."""
    places = pa.array(index)
    lists = {name for name, kind in zip(stored.schema.names, stored.schema.types, strict=True) if is_list(kind)}
    flat = [name for name in stored.schema.names if name not in lists]
    arrays = {} if not flat else dict(zip(flat, pc.take(stored.select(flat), places, boundscheck=False), strict=True))
    return arrays | {name: _lists_at_starts(stored.column(name), index, places) for name in lists}


def _lists_at_starts(stored: pa.Array, index: npt.NDArray[np.int64], places: pa.Array) -> pa.Array:
    offsets = stored.offsets.to_numpy()
    borders = pa.array(np.append(offsets[index], offsets[-1]))
    list_class = pa.LargeListArray if pat.is_large_list(stored.type) else pa.ListArray
    null = stored.is_null().take(places)
    return list_class.from_arrays(borders, stored.values, type=stored.type, mask=null if null.true_count else None)


class StoredColumns:
    """The stored columns of one file for some fields: those of rows, and of groups stored once per run.

    A field whose stored columns are all of one group is built from the group's unique rows, and then repeated unless it
    is `compact`: delivered as unique rows. Every other field is built from columns that are repeated before.
    """

    def __init__(self, fields: FileColumns, compact: Collection[str], metadata: DedupMetadata | None) -> None:
        self._fields = fields
        self._metadata = metadata
        described = {} if metadata is None else metadata.groups
        group_of = {column: name for name, group in described.items() for column in group.columns}
        names_of: dict[str | None, list[str]] = {None: []}
        for name, columns in fields.inputs().items():
            groups = {group_of.get(column) for column in columns}
            names_of.setdefault(groups.pop() if len(groups) == 1 else None, []).append(name)
        self._rows = fields.only(names_of.pop(None))
        self._unique = {str(group): fields.only(names) for group, names in names_of.items()}
        self._compact = {group: [name for name in names_of[group] if name in compact] for group in self._unique}
        self._repeats = {group for group in self._unique if len(self._compact[group]) < len(names_of[group])}
        self._codable = {*self._rows.inputs(), *(name for each in self._compact.values() for name in each)}
        self._names = [name for name in fields.inputs() if not any(name in each for each in self._compact.values())]
        self._groups = {
            name: tuple(column for column in fields.columns if group_of.get(column) == name)
            for name in dict.fromkeys(group_of[column] for column in fields.columns if column in group_of)
        }
        self.leaves = fields.leaves

    def of_file(self, metadata: DedupMetadata | None) -> StoredColumns:
        """The same of another file that stores the same columns in the same groups."""
        if metadata is self._metadata:
            return self
        other = copy.copy(self)
        other._metadata = metadata
        return other

    def dictionaries(self, metadata: pq.FileMetaData, row_groups: Sequence[int]) -> list[str]:
        """As `FileColumns.dictionaries`."""
        return self._fields.dictionaries(metadata, row_groups)

    def chunk_rows(self, file: OpenFile, index: int, most: int) -> int:
        """As `FileColumns.chunk_rows`; twice as many rows where some columns are delivered as unique rows.

        More than CHUNK_ROWS only of narrow rows that hold nothing that is stored once per run.
        """
        row_group = file.metadata.row_group(index)
        if most > CHUNK_ROWS and self._groups:
            most = CHUNK_ROWS
        elif most > CHUNK_ROWS:
            most = self._fields.narrow_rows(row_group.num_rows, file.decoder.facts(index, self.leaves), most)
        copies: dict[str, float] = {}
        built: set[str] = set()  # from unique rows, and repeated then
        for group, columns in self._groups.items():
            runs = self._runs(group, index)
            unique = self._unique.get(group)
            if unique is not None and group in self._repeats:
                built |= set(unique.columns).difference(self._rows.columns)
            copies |= dict.fromkeys(
                (name for name in columns if name in built or name in self._rows.columns), runs.rows / max(runs.runs, 1)
            )
        most = 2 * most if any(self._compact.values()) else most
        return self._fields.chunk_rows(row_group, most, copies, built)

    def flag_leaves(self, file: OpenFile) -> list[int]:
        return [file.stored[flag_column(group)].start for group in self._groups]

    def reader(self, flags: pa.RecordBatch, row_group: int, uri: str) -> RunReader:
        """The reader of a row group with these flags, checked. Raises TableError if they are not those written."""
        place = label(uri, row_group)
        groups = {}
        for name, columns in self._groups.items():
            stored = flags.column(flag_column(name))
            groups[name] = columns, check_flags(stored, self._runs(name, row_group), name, place)
        return RunReader(groups, place)

    def starts(self, file: OpenFile, reader: RunReader) -> dict[int, Bools]:
        """Where runs start, by the Parquet columns that are stored once per run."""
        return {leaf: flags for column, flags in reader.starts().items() for leaf in file.stored[column]}

    def coded_leaves(self, names: Mapping[str, int]) -> dict[int, int]:
        """As `FileColumns.coded_leaves`; of what is stored once per run, only what is delivered as unique rows."""
        return self._fields.coded_leaves({name: most for name, most in names.items() if name in self._codable})

    def are_direct(self, decoded: DecodedRows) -> bool:
        """As `FileColumns.are_direct`; never of what is stored once per run."""
        return not self._groups and self._fields.are_direct(decoded)

    def rows(
        self,
        decoded: DecodedRows,
        reader: RunReader | None,
        uri: str,
        row_group: int,
        partition: Mapping[str, object],
        coded: Collection[str] = (),
    ) -> tuple[pa.RecordBatch, tuple[UniqueRows[pa.RecordBatch], ...]]:
        """The fields of a decoded chunk: those of every row, and those of unique rows, group by group."""
        if reader is None:
            return self._rows.batch(decoded.batch, uri, row_group, partition, rows=decoded.rows, coded=coded), ()
        groups, batch_of_rows = reader.take(decoded), decoded.batch
        stored_once = {name for batch in groups.values() for name in batch.rows.schema.names}
        arrays = {name: batch_of_rows.column(name) for name in self._rows.columns if name not in stored_once}
        fields: dict[str, pa.Array] = {}
        compact: list[UniqueRows[pa.RecordBatch]] = []
        for group, batch in groups.items():
            index = pa.array(batch.inverse)
            for name in [name for name in batch.rows.schema.names if name in self._rows.columns]:
                arrays[name] = repeat_rows(batch.rows.column(name), index, name, uri, row_group)
            if group in self._unique:
                unique = self._unique[group].batch(batch.rows, uri, row_group, partition, coded=coded)
                delivered = self._compact[group]
                fields |= {
                    name: repeat_rows(unique.column(name), index, name, uri, row_group)
                    for name in unique.schema.names
                    if name not in delivered
                }
                if delivered:
                    compact.append(UniqueRows(unique.select(delivered), batch.inverse))
        stored = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        rows = self._rows.batch(stored, uri, row_group, partition, rows=decoded.rows, coded=coded)
        fields |= dict(zip(rows.schema.names, rows.columns, strict=True))
        schema = pa.schema([self._fields.field(name).with_type(fields[name].type) for name in self._names])
        return pa.RecordBatch.from_arrays([fields[name] for name in self._names], schema=schema), tuple(compact)

    def _runs(self, group: str, row_group: int) -> RowGroupRuns:
        assert self._metadata is not None
        return self._metadata.groups[group].row_groups[row_group]


def repeat_rows(unique: pa.Array, index: pa.Array, name: str, uri: str, row_group: int) -> pa.Array:
    """The rows of unique ones. Raises TableError where they hold more values than an array of lists can."""
    counts = np.bincount(index.to_numpy(), minlength=len(unique))
    if _overflows(unique, counts):
        raise TableError(
            f"column {name!r} of {label(uri, row_group)} cannot be read as rows: its values in {len(index):,} rows "
            f"that repeat {len(unique):,} are more than 32 bits count. Deduplicate its group, or shorten its lists"
        )
    return _gather_lists(unique, index) if _is_ragged(unique.type) else unique.take(index)


def _is_ragged(kind: pa.DataType) -> bool:
    """Whether a type is of lists of numbers, or of codes."""
    tests = (pat.is_integer, pat.is_float32, pat.is_float64, pat.is_dictionary)
    return is_list(kind) and any(test(kind.value_type) for test in tests)


def _gather_lists(unique: pa.Array, index: pa.Array) -> pa.Array:
    """The rows of unique lists, by Polars: 2.4 ns per element, of which `take` takes 5.6."""
    kind, values = unique.type, unique.values
    is_coded = pat.is_dictionary(values.type)
    lists = pl.Series(with_elements(unique, values.indices if is_coded else values))
    gathered = lists.gather(pl.Series(index)).rechunk().to_arrow()
    found = pa.DictionaryArray.from_arrays(gathered.values, values.dictionary) if is_coded else gathered.values
    list_class = pa.LargeListArray if pat.is_large_list(kind) else pa.ListArray
    offsets = gathered.offsets if pat.is_large_list(kind) else gathered.offsets.cast(pa.int32())
    return list_class.from_arrays(offsets, found, type=kind, mask=gathered.is_null() if gathered.null_count else None)


def _overflows(unique: pa.Array, counts: npt.NDArray[np.int64]) -> bool:
    """Whether an array that has each row so often would hold more values than its offsets count. `take` checks it for
    strings alone, and after the copy."""
    kind = unique.type
    if not _has_offsets(kind):
        return False
    if pat.is_struct(kind):
        return any(_overflows(unique.field(index), counts) for index in range(kind.num_fields))
    counts = np.where(unique.is_null().to_numpy(False), 0, counts)
    if pat.is_string(kind) or pat.is_binary(kind):
        lengths, values = pc.binary_length(unique).fill_null(0).to_numpy(), None
    elif pat.is_fixed_size_list(kind):
        lengths = np.full(len(unique), kind.list_size)
        values = unique.values.slice(unique.offset * kind.list_size, len(unique) * kind.list_size)
    else:
        offsets = unique.offsets.to_numpy()
        lengths, values = np.diff(offsets), unique.values.slice(offsets[0], offsets[-1] - offsets[0])
    if not pat.is_large_list(kind) and int(lengths.astype(np.int64) @ counts) > _MOST_VALUES:
        return True
    return values is not None and _overflows(values, np.repeat(counts, lengths))


def _has_offsets(kind: pa.DataType) -> bool:
    """Whether arrays of a type hold offsets that may overflow, at some depth."""
    is_wide = pat.is_string(kind) or pat.is_binary(kind) or pat.is_list(kind) or pat.is_map(kind)
    return is_wide or any(_has_offsets(child.type) for child in child_fields(kind))
