"""How the rows of one split become frames: the hot path.

Runs in every process that works on blocks, one call per split, on the calling thread alone. A `Fragment` is the order
for a split: a file, which row groups, and how many rows of each the filter must keep. The file is opened once, its
size, time and footer digest are compared with the snapshot's, and each row group is read by pyarrow in chunks of about
`chunk_rows`: only the columns asked for (and the filter's, where the row group is not taken whole), coalesced
(`pre_buffer`), without Arrow's own threads. Polars filters, and never reads.

Nothing wrong is delivered: a row group that holds fewer rows than its footer says, a page that does not decode or fails
its checksum, a text that is not UTF-8, and a filter that keeps another number of rows than the plan counted are errors
that name file and row group.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.errors import CorruptFileError, DataError, TableChangedError, TableError
from feedline.expressions import BoundExpression
from feedline.warehouse.faults import explained, place
from feedline.warehouse.footers import column_leaves, footer_digest, opened, parsed_footers
from feedline.warehouse.locations import join, locate, shown
from feedline.warehouse.schemas import children, conformed, is_unchecked
from feedline.warehouse.snapshot import Snapshot
from feedline.warehouse.splits import Splits

CHUNK_ROWS = 32_768  # kinder to caches and to the allocator than whole row groups
UNCOUNTED = -1  # in `expected`: the rows a filter keeps are not known beforehand, and not checked

_Digest = bytes  # `Fragment.bytes` hides the type of that name


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The row groups of one file that one task reads.

    `table`: the root's URI; `path`: the file below it; `bytes`, `mtime_ns`, `footer_digest`, `footer_bytes`: the file
    as the snapshot saw it. `row_groups`: indices in the file; `expected`: rows kept of each, or UNCOUNTED.
    `partition`: the file's keys and typed values.
    """

    table: str
    path: str
    bytes: int
    mtime_ns: int
    footer_digest: _Digest
    footer_bytes: int
    row_groups: tuple[int, ...]
    expected: tuple[int, ...]
    partition: tuple[tuple[str, object], ...] = ()

    @property
    def uri(self) -> str:
        """The file, as messages name it."""
        return join(shown(self.table), self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some kept rows of one row group, in file order; `row_group` is its index in the file `uri`."""

    frame: pl.DataFrame
    row_group: int
    uri: str


@dataclass(frozen=True, slots=True)
class _Batch:
    """Decoded rows in the table's types, before the filter; `position` of their row group in the fragment."""

    position: int
    data: pa.RecordBatch
    filtered: bool


def fragment_of(
    snapshot: Snapshot, splits: Splits, selection_rows: npt.NDArray[np.int64], split_index: int
) -> Fragment:
    """The order to read one split: its row groups that keep rows (`selection_rows`: rows kept per row group)."""
    first, stop = int(splits.first_row_group[split_index]), int(splits.stop_row_group[split_index])
    return fragment_at(snapshot, int(splits.file[split_index]), np.arange(first, stop), selection_rows[first:stop])


def fragment_at(
    snapshot: Snapshot, file: int, row_groups: npt.NDArray[np.int64], expected: npt.NDArray[np.int64]
) -> Fragment:
    """The order to read some row groups (indices in the table) of one file; those that keep no row are left out."""
    kept = np.flatnonzero(expected)
    facts = snapshot.files
    places = snapshot.row_group_in_file[row_groups[kept]]
    return Fragment(
        table=snapshot.uri,
        path=facts["path"][file].as_py(),
        bytes=facts["bytes"][file].as_py(),
        mtime_ns=facts["mtime_ns"][file].as_py(),
        footer_digest=facts["footer_digest"][file].as_py(),
        footer_bytes=facts["footer_bytes"][file].as_py(),
        row_groups=tuple(places.tolist()),
        expected=tuple(expected[kept].tolist()),
        partition=snapshot.partition_of(file),
    )


def read_fragment(
    fragment: Fragment,
    columns: Sequence[str],
    where: BoundExpression | None,
    schema: pa.Schema,
    *,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Chunk]:
    """The kept rows of a fragment, chunk by chunk, as Polars frames of `columns` in the types of `schema`.

    Raises TableChangedError where the file is not the snapshot's, CorruptFileError where a row group does not decode,
    DataError where the filter keeps another number of rows than expected (after the row group's last chunk).
    """
    _refuse_foreign(schema, columns)
    counts = [0] * len(fragment.row_groups)
    for batch in _batches(fragment, columns, where, schema, chunk_rows, counts):
        frame, position = _frame(batch.data), batch.position
        if batch.filtered and where is not None:
            frame = frame.lazy().filter(where.polars).select(columns).collect(engine="in-memory")
        del batch
        counts[position] += frame.height
        if frame.height:
            held = [Chunk(frame=frame, row_group=fragment.row_groups[position], uri=fragment.uri)]
            del frame
            yield held.pop()  # the caller's alone


def read_arrow(
    fragment: Fragment,
    columns: Sequence[str],
    where: BoundExpression | None,
    schema: pa.Schema,
    *,
    chunk_rows: int = CHUNK_ROWS,
) -> pa.Table:
    """The kept rows of a fragment as one Arrow table of `columns`; errors as `read_fragment`, but any Arrow type."""
    counts = [0] * len(fragment.row_groups)
    kept = []
    for batch in _batches(fragment, columns, where, schema, chunk_rows, counts):
        data = batch.data
        if batch.filtered and where is not None:
            data = data.filter(_mask(data, where).to_arrow()).select(list(columns))
        counts[batch.position] += data.num_rows
        kept.append(data)
    return pa.Table.from_batches(kept, pa.schema([field_of(schema, name) for name in columns]))


def count_fragment(fragment: Fragment, where: BoundExpression, schema: pa.Schema) -> tuple[int, ...]:
    """How many rows of each row group the filter keeps, reading the filter's columns only (it must read one)."""
    counts = [0] * len(fragment.row_groups)
    for batch in _batches(fragment, sorted(where.columns), where, schema, CHUNK_ROWS, counts):
        counts[batch.position] += int(_mask(batch.data, where).sum())
    return tuple(counts)


def decode_fragment(fragment: Fragment, columns: Sequence[str], schema: pa.Schema) -> None:
    """Decode and check every value of these columns, and keep none; errors as `read_arrow`."""
    for _ in _batches(fragment, columns, None, schema, CHUNK_ROWS, [0] * len(fragment.row_groups)):
        pass


def bytes_of(snapshot: Snapshot, row_groups: npt.NDArray[np.int64] | None, columns: Sequence[str]) -> int:
    """Compressed bytes of these columns' chunks in these row groups (indices in the table; None for all).

    Partition columns cost nothing. Raises TableError for a column that the table has not.
    """
    total = 0
    for name in columns:
        field_of(snapshot.schema, name)
        if name not in snapshot.partition_columns:
            sizes = snapshot.column_facts(name).field("bytes").to_numpy()
            total += int(sizes.sum() if row_groups is None else sizes[row_groups].sum())
    return total


def field_of(schema: pa.Schema, name: str) -> pa.Field:
    """A table's column; raises TableError, naming the nearest one, where there is none of that name."""
    index = schema.get_field_index(name)
    if index >= 0:
        return schema.field(index)
    near = difflib.get_close_matches(name, schema.names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(schema.names[:20])}"
    raise TableError(f"column {name!r} is not in the table. {hint}")


def _batches(
    fragment: Fragment,
    columns: Sequence[str],
    where: BoundExpression | None,
    schema: pa.Schema,
    chunk_rows: int,
    counts: Sequence[int],
) -> Iterator[_Batch]:
    """Decode the fragment's row groups; `counts` is where the caller adds up what it kept, checked group by group."""
    if not columns:
        raise DataError("list of columns is empty: expected at least one column to read")
    extra = () if where is None else tuple(sorted(where.columns.difference(columns)))
    if where is not None:
        _refuse_foreign(schema, where.columns)
    with _unchanged(fragment) as parquet:
        leaves = column_leaves(parquet.schema_arrow, parquet.metadata.num_columns, fragment.uri)
        stored = dict(zip(parquet.schema_arrow.names, leaves, strict=True))
        for position, row_group in enumerate(fragment.row_groups):
            rows, expected = parquet.metadata.row_group(row_group).num_rows, fragment.expected[position]
            filtered = where is not None and expected != rows
            names = [*columns, *extra] if filtered else columns
            fields = [field_of(schema, name) for name in names]
            for data in _decoded(parquet, stored, fragment, row_group, fields, chunk_rows):
                held = [_Batch(position, data, filtered)]
                del data
                yield held.pop()
            if expected not in (UNCOUNTED, counts[position]):
                raise DataError(
                    f"filter keeps another number of rows of {place(fragment.uri, row_group)} than was counted: "
                    f"got {counts[position]}, expected {expected}. Delete the counts in work_dir and run again"
                )


def _decoded(
    parquet: pq.ParquetFile,
    stored: Mapping[str, range],
    fragment: Fragment,
    row_group: int,
    fields: Sequence[pa.Field],
    chunk_rows: int,
) -> Iterator[pa.RecordBatch]:
    """One row group in chunks, each with exactly `fields`: stored columns, the partition's constants, or nulls."""
    keys = dict(fragment.partition)
    wanted = {field.name for field in fields if field.name in stored and field.name not in keys}
    indices = [leaf for field in fields if field.name in wanted for leaf in stored[field.name]]
    batches = parquet.reader.iter_batches(chunk_rows, row_groups=[row_group], column_indices=indices, use_threads=False)
    rows = parquet.metadata.row_group(row_group).num_rows
    schema = pa.schema(fields)
    left = rows
    while True:
        with explained(fragment.uri, row_group=row_group, listed=True):
            batch = next(batches, None)
        if batch is None:
            break
        left -= batch.num_rows
        arrays = []
        for field in fields:
            if field.name in keys:
                arrays.append(pa.repeat(pa.scalar(keys[field.name], field.type), batch.num_rows))
            elif field.name in wanted:
                arrays.append(_conformed(batch.column(field.name), field, fragment, row_group))
            else:
                arrays.append(pa.nulls(batch.num_rows, field.type))
        held = [pa.RecordBatch.from_arrays(arrays, schema=schema)]
        del batch, arrays
        yield held.pop()  # the caller's alone: one chunk in memory while the next is decoded would be one too many
    if left:
        raise CorruptFileError(
            f"{place(fragment.uri, row_group)} does not hold the rows of its footer: got {rows - left}, "
            f"expected {rows}. Restore or rewrite the file"
        )


def _conformed(array: pa.Array, field: pa.Field, fragment: Fragment, row_group: int) -> pa.Array:
    """A stored column in the table's type, after the checks that pyarrow's reader leaves out."""
    where = place(fragment.uri, row_group)
    if is_unchecked(array.type):
        try:
            array.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
            raise CorruptFileError(
                f"column {field.name!r} of {where} is not valid Parquet: {error}. Restore or rewrite the file"
            ) from error
    try:
        return conformed(array, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"column {field.name!r} of {where} does not fit the table's type: "
            f"got {array.type}, expected {field.type} ({error}). Rewrite the file"
        ) from error


@contextmanager
def _unchanged(fragment: Fragment) -> Iterator[pq.ParquetFile]:
    """The fragment's file, open, after a check that it is the one of the snapshot."""
    location = locate(fragment.table)
    path = join(location.path, fragment.path)
    with explained(fragment.uri, listed=True):
        info = location.filesystem.get_file_info(path)
        if info.type != pafs.FileType.NotFound:
            _compare(fragment, info)
        source = location.filesystem.open_input_file(path)
    with source:
        with explained(fragment.uri, listed=True):
            start = fragment.bytes - fragment.footer_bytes
            tail = source.read_at(fragment.footer_bytes, start)
            if footer_digest(tail) != fragment.footer_digest:
                raise TableChangedError(
                    f"{fragment.uri} was replaced after the snapshot was taken: got another footer in a file of the "
                    "same size and time. Delete work_dir/tables, which remembers footers, and take a new snapshot"
                )
            parquet = opened(source, parsed_footers.get(fragment.footer_digest, tail))
        try:
            yield parquet
        finally:
            parquet.close(force=True)


def _compare(fragment: Fragment, info: pafs.FileInfo) -> None:
    mtime_ns = -1 if info.mtime_ns is None else info.mtime_ns
    if info.size != fragment.bytes or not _same_time(mtime_ns, fragment.mtime_ns):
        raise TableChangedError(
            f"{fragment.uri} changed after the snapshot was taken: got {info.size} bytes of {_time(mtime_ns)}, "
            f"expected {fragment.bytes} bytes of {_time(fragment.mtime_ns)}. Take a new snapshot"
        )


def _same_time(one_ns: int, other_ns: int) -> bool:
    """Object stores list times with fractions of a second and state them without: whole seconds decide there."""
    (one_s, one_rest), (other_s, other_rest) = divmod(one_ns, 10**9), divmod(other_ns, 10**9)
    return one_s == other_s and (one_rest == other_rest or not one_rest or not other_rest)


def _time(mtime_ns: int) -> str:
    if mtime_ns < 0:
        return "unknown time"
    return str(np.datetime64(mtime_ns, "ns"))


def _frame(data: pa.RecordBatch) -> pl.DataFrame:
    frame: pl.DataFrame = pl.from_arrow(data)  # type: ignore[assignment]
    return frame


def _mask(data: pa.RecordBatch, where: BoundExpression) -> pl.Series:
    """Which rows the filter keeps; null for those it cannot tell, which are dropped as well."""
    columns = [name for name in data.schema.names if name in where.columns]
    return _frame(data.select(columns)).select(where.polars).to_series()


def _refuse_foreign(schema: pa.Schema, columns: Iterable[str]) -> None:
    """Refuse types that Polars cannot hold: it panics on some, past every `except Exception`."""
    for name in columns:
        kind = field_of(schema, name).type
        if _is_foreign(kind):
            raise TableError(
                f"column {name!r} has a type that frames cannot hold: got {kind}. Leave it out, or rewrite it"
            )


def _is_foreign(kind: pa.DataType) -> bool:
    return pat.is_decimal256(kind) or pat.is_interval(kind) or any(_is_foreign(child.type) for child in children(kind))
