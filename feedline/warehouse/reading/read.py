"""How the rows of one split become frames: the hot path.

Runs in every process that works on blocks, one call per split, on the calling thread alone. A `Fragment` is the order
for a split: a file, which row groups, and how many rows of each the filter must keep. The file is opened once, after a
check that it is the snapshot's (`opening`), and each row group is read by pyarrow in chunks of about `chunk_rows`: only
the columns and parts of columns asked for (and the filter's, where the row group is not taken whole; see `parts`), in
few requests, without Arrow's own threads. Polars filters, and never reads.

Nothing wrong is delivered: a row group that holds fewer rows than its footer says, a page that does not decode or fails
its checksum, a text that is not UTF-8, and a filter that keeps another number of rows than the plan counted are errors
that name file and row group.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import CorruptFileError, DataError, TableArgumentError, TableError
from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import PartError, has_column, part_field, part_of
from feedline.warehouse.parquet.open_file import OpenFile, Seen, unchanged
from feedline.warehouse.parquet.schemas import children
from feedline.warehouse.reading.columns import FileColumns, part_bytes
from feedline.warehouse.reading.masks import unpacked
from feedline.warehouse.reading.row_filter import Sieve
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.reading.seen_rows import Mark
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import Splits
from feedline.warehouse.storage.faults import explained, place
from feedline.warehouse.storage.locations import join, locate, shown

CHUNK_ROWS = 32_768  # kinder to caches and to the allocator than whole row groups
UNCOUNTED = -1  # in `expected`: the rows a filter keeps are not known beforehand, and not checked

_Digest = bytes  # `Fragment.bytes` hides the type of that name


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The row groups of one file that one task reads.

    `table`: the root's URI; `path`: the file below it; `bytes`, `mtime_ns`, `footer_digest`, `footer_bytes`: the file
    as the snapshot saw it. `row_groups`: indices in the file; `expected`: rows kept of each, or UNCOUNTED;
    `proven`: what statistics say of each (bits of `sieve`), empty where nothing is known. `partition`: the file's keys
    and typed values. `excluded`: per row group, which of the kept rows `read_fragment` leaves out (`masks`), or None
    for none of them; empty where none of any.
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
    excluded: tuple[_Digest | None, ...] = ()

    @property
    def uri(self) -> str:
        """The file, as messages name it."""
        return join(shown(self.table), self.path)

    def proven_of(self, position: int) -> int:
        """What statistics say of one of its row groups."""
        return self.proven[position] if self.proven else 0

    @property
    def seen(self) -> Seen:
        """The file as the snapshot saw it."""
        return Seen(
            uri=self.uri,
            size_bytes=self.bytes,
            mtime_ns=self.mtime_ns,
            footer_digest=self.footer_digest,
            footer_bytes=self.footer_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some kept rows of one row group, in file order.

    `position`: of the row group in the fragment. `start`: rows that the row group delivered before these.
    """

    frame: pl.DataFrame
    fragment: Fragment
    position: int
    start: int

    @property
    def row_group(self) -> int:
        """Its index in the file."""
        return self.fragment.row_groups[self.position]

    @property
    def uri(self) -> str:
        """The file, as messages name it."""
        return self.fragment.uri

    def part(self, start: int, stop: int) -> Chunk:
        """Its rows [start, stop)."""
        return replace(self, frame=self.frame.slice(start, stop - start), start=self.start + start)


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Decoded rows in the table's types, before the filter; `position` of their row group in the fragment.

    `first_row`: index of the first of them in the file, where that was asked for (else 0); `sieve`: what decides which
    of them stay.
    """

    position: int
    data: pa.RecordBatch
    first_row: int
    sieve: Sieve


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
    marks: Sequence[Mark] = (),
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Chunk]:
    """The kept rows of a fragment, chunk by chunk, as Polars frames of `columns` in the types of `schema`.

    With a sample `columns` may name `sample_weight`, a float32 of `schema` that no file has to hold. `marks`: Boolean
    columns behind them.

    Raises TableChangedError where the file is not the snapshot's, CorruptFileError where a row group does not decode,
    DataError where the filter keeps another number of rows than expected (after the row group's last chunk).
    """
    refuse_foreign(schema, columns)
    counts, delivered = [0] * len(fragment.row_groups), [0] * len(fragment.row_groups)
    sieve = _sieve(where, sample, columns)
    read = list(dict.fromkeys([*columns, *(part for mark in marks for part in sorted(mark.parts))]))
    placed = any(mark.sieve.sample is not None for mark in marks)
    for batch in batches(fragment, read, sieve, schema, chunk_rows=chunk_rows, counts=counts, placed=placed):
        frame, position = _kept_frame(batch, columns, marks, fragment), batch.position
        del batch
        first = counts[position]
        counts[position] += frame.height
        if fragment.excluded and fragment.excluded[position] is not None:
            frame = frame.filter(pl.Series(~unpacked(fragment.excluded[position], counts[position])[first:]))
        if frame.height:
            held = [Chunk(frame=frame, fragment=fragment, position=position, start=delivered[position])]
            delivered[position] += frame.height
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


def decode_fragment(fragment: Fragment, columns: Sequence[str], schema: pa.Schema) -> None:
    """Decode and check every value of these columns, and keep none; errors as `read_arrow`."""
    for _ in batches(fragment, columns, Sieve(), schema, counts=[0] * len(fragment.row_groups)):
        pass


def batches(
    fragment: Fragment,
    columns: Sequence[str],
    sieve: Sieve,
    schema: pa.Schema,
    *,
    chunk_rows: int = CHUNK_ROWS,
    counts: Sequence[int],
    skip: Callable[[OpenFile], Collection[int]] = lambda file: (),
    placed: bool = False,
) -> Iterator[FrameBatch]:
    """Decode the fragment's row groups: `columns`, and what is needed to sift them.

    `counts` is where the caller adds up what it kept, checked group by group. `skip` is asked once which of the
    fragment's row groups (their positions) need not be read. `placed`: `first_row` is wanted without a sample, too.
    """
    refuse_foreign(schema, sieve.parts)
    location = locate(fragment.table)
    with unchanged(location.filesystem, join(location.path, fragment.path), fragment.seen) as file:
        names = (*columns, *sieve.parts)
        if not all(has_column(schema, name) for name in names):
            whole = _columns_of(file, fragment, schema, names)
            file.read_dictionaries(whole.dictionaries(file.metadata, fragment.row_groups))
        skipped = skip(file)
        placed = placed or sieve.sample is not None
        starts = file.row_starts() if placed else None  # a footer may name thousands of row groups
        needed: dict[tuple[str, ...], FileColumns] = {}
        for position, row_group in enumerate(fragment.row_groups):
            if position in skipped:
                continue
            rows, expected = file.metadata.row_group(row_group).num_rows, fragment.expected[position]
            here = sieve.for_row_group(proven=fragment.proven_of(position), whole=expected == rows)
            names = (*columns, *sorted(here.parts.difference(columns)))
            if names not in needed:
                needed[names] = _columns_of(file, fragment, schema, names)
            first_row = 0 if starts is None else starts[row_group]
            for data in _decoded(file, needed[names], fragment, row_group, chunk_rows):
                held = [FrameBatch(position, data, first_row, here)]
                first_row += data.num_rows
                del data
                yield held.pop()
            if expected not in (UNCOUNTED, counts[position]):
                raise DataError(
                    f"filter keeps another number of rows of {place(fragment.uri, row_group)} than was counted: "
                    f"got {counts[position]}, expected {expected}. Delete the counts in work_dir and run again"
                )


def bytes_of(snapshot: Snapshot, row_groups: npt.NDArray[np.int64] | None, columns: Sequence[str]) -> int:
    """Compressed bytes of these columns' and parts' chunks in these row groups (indices in the table; None for all).

    Partition columns cost nothing; see `part_bytes`. Raises TableError for a column that the table has not.
    """
    for name in columns:
        field_of(snapshot.schema, name)
    sizes = part_bytes(snapshot, columns)
    return int(sizes.sum() if row_groups is None else sizes[row_groups].sum())


def field_of(schema: pa.Schema, name: str) -> pa.Field:
    """A table's column or part of one; raises TableError, naming the nearest one, where there is none of that name."""
    index = schema.get_field_index(name)
    if index >= 0:
        return schema.field(index)
    part = part_of(name)
    if part is not None:
        try:
            return part_field(schema, part).with_name(name)
        except PartError as error:
            raise TableArgumentError(f"{error}. Name a column, or one with a key that it has") from None
    near = difflib.get_close_matches(name, schema.names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(schema.names[:20])}"
    raise TableArgumentError(f"column {name!r} is not in the table. {hint}")


def _sieve(where: BoundExpression | None, sample: BoundSample | None, columns: Sequence[str]) -> Sieve:
    if not columns:
        raise DataError("list of columns is empty: expected at least one column to read")
    return Sieve(where=where, sample=sample, weigh=sample is not None and SAMPLE_WEIGHT in columns)


def _columns_of(file: OpenFile, fragment: Fragment, schema: pa.Schema, names: Sequence[str]) -> FileColumns:
    """How these columns and parts are made of what the file holds."""
    fields = [field_of(schema, name) for name in names]
    return FileColumns(fields, schema, file.stored, file.schema, dict(fragment.partition))


def _decoded(
    file: OpenFile, columns: FileColumns, fragment: Fragment, row_group: int, chunk_rows: int
) -> Iterator[pa.RecordBatch]:
    """One row group in chunks, each with exactly the fields of `columns`."""
    group = file.metadata.row_group(row_group)
    batches = file.batches(row_group, columns.leaves, columns.chunk_rows(group, chunk_rows))
    rows = group.num_rows
    left = rows
    while True:
        with explained(fragment.uri, row_group=row_group, listed=True):
            batch = next(batches, None)
        if batch is None:
            break
        left -= batch.num_rows
        held = [columns.batch(batch, fragment.uri, row_group)]
        del batch
        yield held.pop()  # the caller's alone: one chunk in memory while the next is decoded would be one too many
    if left:
        raise CorruptFileError(
            f"{place(fragment.uri, row_group)} does not hold the rows of its footer: got {rows - left}, "
            f"expected {rows}. Restore or rewrite the file"
        )


def _frame(data: pa.RecordBatch) -> pl.DataFrame:
    frame: pl.DataFrame = pl.from_arrow(data)  # type: ignore[assignment]
    return frame


def _kept_frame(batch: FrameBatch, columns: Sequence[str], marks: Sequence[Mark], fragment: Fragment) -> pl.DataFrame:
    """A chunk's kept rows, with exactly `columns` and `marks`."""
    frame, sieve = _frame(batch.data), batch.sieve
    if marks:
        told = [mark.of(batch.data, fragment.table, fragment.path, batch.first_row) for mark in marks]
        frame, columns = frame.with_columns(told), [*columns, *(mark.name for mark in marks)]
    if sieve.idle:
        return frame.select(columns) if marks else frame
    if sieve.sample is None and not sieve.weigh and sieve.where is not None:
        return frame.lazy().filter(sieve.where.narrow).select(columns).collect(engine="in-memory")
    sifted = sieve.sift(batch.data, fragment.path, batch.first_row)
    if sieve.weigh:
        frame = frame.with_columns(pl.Series(SAMPLE_WEIGHT, sifted.weights))
    frame = frame.select(columns)
    return frame if sifted.stays is None else frame.filter(pl.Series(sifted.stays))


def refuse_foreign(schema: pa.Schema, columns: Iterable[str]) -> None:
    """Refuse types that Polars cannot hold: it panics on some, past every `except Exception`."""
    for name in columns:
        kind = field_of(schema, name).type
        if _is_foreign(kind):
            raise TableError(
                f"column {name!r} has a type that frames cannot hold: got {kind}. Leave it out, or rewrite it"
            )


def _is_foreign(kind: pa.DataType) -> bool:
    return pat.is_decimal256(kind) or pat.is_interval(kind) or any(_is_foreign(child.type) for child in children(kind))
