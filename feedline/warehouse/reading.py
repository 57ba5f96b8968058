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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

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
from feedline.warehouse.sampling import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.schemas import children, conformed, is_unchecked
from feedline.warehouse.sieve import Sieve
from feedline.warehouse.snapshot import Snapshot
from feedline.warehouse.splits import Splits

CHUNK_ROWS = 32_768  # kinder to caches and to the allocator than whole row groups
UNCOUNTED = -1  # in `expected`: the rows a filter keeps are not known beforehand, and not checked

_Digest = bytes  # `Fragment.bytes` hides the type of that name


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The row groups of one file that one task reads.

    `table`: the root's URI; `path`: the file below it; `bytes`, `mtime_ns`, `footer_digest`, `footer_bytes`: the file
    as the snapshot saw it. `row_groups`: indices in the file; `expected`: rows kept of each, or UNCOUNTED;
    `proven`: what statistics say of each (bits of `sieve`), empty where nothing is known. `partition`: the file's keys
    and typed values.
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
    proven: tuple[int, ...] = ()

    @property
    def uri(self) -> str:
        """The file, as messages name it."""
        return join(shown(self.table), self.path)

    def proven_of(self, position: int) -> int:
        """What statistics say of one of its row groups."""
        return self.proven[position] if self.proven else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some kept rows of one row group, in file order; `row_group` is its index in the file `uri`."""

    frame: pl.DataFrame
    row_group: int
    uri: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Decoded rows in the table's types, before the filter; `position` of their row group in the fragment.

    `first_row`: index of the first of them in the file, where there is a sample (else 0); `sieve`: what decides which
    of them stay.
    """

    position: int
    data: pa.RecordBatch
    first_row: int
    sieve: Sieve


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file of the snapshot, open: pyarrow's reader, the bytes below it, and the leaves of each of its columns."""

    parquet: pq.ParquetFile
    source: pa.NativeFile
    stored: dict[str, range]

    def row_starts(self) -> list[int]:
        """Index in the file of every row group's first row, and the file's rows at the end."""
        metadata = self.parquet.metadata
        rows = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        return list(accumulate(rows, initial=0))


def fragment_of(
    snapshot: Snapshot,
    splits: Splits,
    selection_rows: npt.NDArray[np.int64],
    split_index: int,
    proven: npt.NDArray[np.uint8] | None = None,
) -> Fragment:
    """The order to read one split: its row groups that keep rows (`selection_rows`: rows kept per row group)."""
    first, stop = int(splits.first_row_group[split_index]), int(splits.stop_row_group[split_index])
    file, row_groups = int(splits.file[split_index]), np.arange(first, stop)
    return fragment_at(snapshot, file, row_groups, selection_rows[first:stop], proven)


def fragment_at(
    snapshot: Snapshot,
    file: int,
    row_groups: npt.NDArray[np.int64],
    expected: npt.NDArray[np.int64],
    proven: npt.NDArray[np.uint8] | None = None,
) -> Fragment:
    """The order to read some row groups (indices in the table) of one file; those that keep no row are left out.

    `proven`: what statistics say of every row group of the table, see `Fragment`.
    """
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
        proven=() if proven is None else tuple(proven[row_groups[kept]].tolist()),
    )


def read_fragment(
    fragment: Fragment,
    columns: Sequence[str],
    where: BoundExpression | None,
    schema: pa.Schema,
    *,
    sample: BoundSample | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Chunk]:
    """The kept rows of a fragment, chunk by chunk, as Polars frames of `columns` in the types of `schema`.

    With a sample `columns` may name `sample_weight`, a float32 of `schema` that no file has to hold.

    Raises TableChangedError where the file is not the snapshot's, CorruptFileError where a row group does not decode,
    DataError where the filter keeps another number of rows than expected (after the row group's last chunk).
    """
    _refuse_foreign(schema, columns)
    counts = [0] * len(fragment.row_groups)
    for batch in batches(
        fragment, columns, _sieve(where, sample, columns), schema, chunk_rows=chunk_rows, counts=counts
    ):
        frame, position = _kept_frame(batch, columns, fragment.path), batch.position
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
    sample: BoundSample | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> pa.Table:
    """The kept rows of a fragment as one Arrow table of `columns`; errors as `read_fragment`, but any Arrow type."""
    counts = [0] * len(fragment.row_groups)
    kept = []
    for batch in batches(
        fragment, columns, _sieve(where, sample, columns), schema, chunk_rows=chunk_rows, counts=counts
    ):
        data = batch.data
        if not batch.sieve.idle:
            sifted = batch.sieve.sift(data, fragment.path, batch.first_row)
            data = data.select(list(columns))
            if batch.sieve.weigh:
                index = data.schema.get_field_index(SAMPLE_WEIGHT)
                data = data.set_column(index, data.schema.field(index), pa.array(sifted.weights))
            if sifted.stays is not None:
                data = data.filter(pa.array(sifted.stays))
        counts[batch.position] += data.num_rows
        kept.append(data)
    return pa.Table.from_batches(kept, pa.schema([field_of(schema, name) for name in columns]))


def batches(
    fragment: Fragment,
    columns: Sequence[str],
    sieve: Sieve,
    schema: pa.Schema,
    *,
    chunk_rows: int = CHUNK_ROWS,
    counts: Sequence[int],
    skip: Callable[[OpenFile], Collection[int]] = lambda file: (),
) -> Iterator[Batch]:
    """Decode the fragment's row groups: `columns`, and what is needed to sift them.

    `counts` is where the caller adds up what it kept, checked group by group. `skip` is asked once which of the
    fragment's row groups (their positions) need not be read.
    """
    _refuse_foreign(schema, sieve.columns)
    with _unchanged(fragment) as file:
        skipped = skip(file)
        starts = file.row_starts() if sieve.sample is not None else None  # a footer may name thousands of row groups
        for position, row_group in enumerate(fragment.row_groups):
            if position in skipped:
                continue
            rows, expected = file.parquet.metadata.row_group(row_group).num_rows, fragment.expected[position]
            here = sieve.for_row_group(proven=fragment.proven_of(position), whole=expected == rows)
            names = [*columns, *sorted(here.columns.difference(columns))]
            fields = [field_of(schema, name) for name in names]
            first_row = 0 if starts is None else starts[row_group]
            for data in _decoded(file, fragment, row_group, fields, chunk_rows):
                held = [Batch(position, data, first_row, here)]
                first_row += data.num_rows
                del data
                yield held.pop()
            if expected not in (UNCOUNTED, counts[position]):
                raise DataError(
                    f"filter keeps another number of rows of {place(fragment.uri, row_group)} than was counted: "
                    f"got {counts[position]}, expected {expected}. Delete the counts in work_dir and run again"
                )


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


def _sieve(where: BoundExpression | None, sample: BoundSample | None, columns: Sequence[str]) -> Sieve:
    if not columns:
        raise DataError("list of columns is empty: expected at least one column to read")
    return Sieve(where=where, sample=sample, weigh=sample is not None and SAMPLE_WEIGHT in columns)


def _decoded(
    file: OpenFile, fragment: Fragment, row_group: int, fields: Sequence[pa.Field], chunk_rows: int
) -> Iterator[pa.RecordBatch]:
    """One row group in chunks, each with exactly `fields`: stored columns, the partition's constants, or nulls."""
    parquet, stored, keys = file.parquet, file.stored, dict(fragment.partition)
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
def _unchanged(fragment: Fragment) -> Iterator[OpenFile]:
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
                    "same size and time. Take a new snapshot"
                )
            parquet = opened(source, parsed_footers.get(fragment.footer_digest, tail))
        try:
            leaves = column_leaves(parquet.schema_arrow, parquet.metadata.num_columns, fragment.uri)
            yield OpenFile(parquet, source, dict(zip(parquet.schema_arrow.names, leaves, strict=True)))
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


def _kept_frame(batch: Batch, columns: Sequence[str], path: str) -> pl.DataFrame:
    """A chunk's kept rows, with exactly `columns`."""
    frame, sieve = _frame(batch.data), batch.sieve
    if sieve.idle:
        return frame
    if sieve.sample is None and not sieve.weigh and sieve.where is not None:
        return frame.lazy().filter(sieve.where.polars).select(columns).collect(engine="in-memory")
    sifted = sieve.sift(batch.data, path, batch.first_row)
    if sieve.weigh:
        frame = frame.with_columns(pl.Series(SAMPLE_WEIGHT, sifted.weights))
    frame = frame.select(columns)
    return frame if sifted.stays is None else frame.filter(pl.Series(sifted.stays))


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
