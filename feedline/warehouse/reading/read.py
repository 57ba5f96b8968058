"""Read the rows of one fragment as frames, or as Arrow tables: the hot path.

Runs in every process that computes blocks, one call per split, on the calling thread alone. The file is checked and
opened once (`parquet/open_file`), and each row group is read in chunks of about `chunk_rows`: only the requested
columns and column parts, and the filter's unless the row group is taken whole. Polars filters, but never reads. Errors
that name file and row group are: fewer rows than the footer declares, a page that does not decode or fails its
checksum, a string that is not UTF-8, and a filter that keeps another number of rows than the plan counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, DataError, StoreError, TableChangedError, TableError
from feedline.expressions import BoundExpression
from feedline.native.rows import TURN
from feedline.native.unique_rows import UniqueRows
from feedline.warehouse.parquet.decode import DecodedRows, DecodeRequest
from feedline.warehouse.parquet.open_file import OpenFile, Restartable
from feedline.warehouse.parquet.schemas import child_fields
from feedline.warehouse.reading.columns import CHUNK_ROWS, FileColumns, is_coded, is_same, part_bytes, split_codes
from feedline.warehouse.reading.exploded_rows import ExplodedRows, chunk_requests
from feedline.warehouse.reading.fragment import UNCOUNTED, Chunk, Fragment, FrameBatch, field_of, unpack_mask
from feedline.warehouse.reading.row_filter import RowFilter, worth_expanding
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.reading.seen_rows import Mark
from feedline.warehouse.reading.stored_groups import StoredColumns, filter_group
from feedline.warehouse.snapshot.exploded_lists import stored_schema
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.faults import explain_errors, label

# --------------------------------------------------------------------------------------------------------------------
# Resolve fields against the columns that files store, once for all files that store the same ones. What was resolved
# last is kept, with all that decides it: the fields, the types of the table's schema, what is delivered as unique
# rows, the keys of the partition, and the file's columns, types and groups stored once per run.

_KEPT = 32  # as many as there are layouts of files


# All that decides the columns, the table's and the file's schema apart; these; and the columns. The last ones first;
# replaced as a whole, as threads share it.
_kept: tuple[tuple[tuple[object, ...], pa.Schema, pa.Schema, StoredColumns], ...] = ()


def resolve_columns(
    file: OpenFile, schema: pa.Schema, names: tuple[str, ...], compact: frozenset[str], keys: frozenset[str]
) -> StoredColumns:
    """The stored columns of a file from which these columns and parts of a table are built. keys: of its partition."""
    global _kept
    groups = None if file.dedup is None else {name: group.columns for name, group in file.dedup.groups.items()}
    decisive = names, compact, keys, file.stored, groups
    for key, table_schema, file_schema, columns in _kept:
        # Of the file's schema only types matter.
        if key == decisive and table_schema.equals(schema, check_metadata=True) and file_schema.equals(file.schema):
            return columns.of_file(file.dedup)
    fields = [field_of(schema, name) for name in names]
    columns = StoredColumns(FileColumns(fields, schema, file.stored, file.schema, keys), compact, file.dedup)
    _kept = (decisive, schema, file.schema, columns), *_kept[: _KEPT - 1]
    return columns


# --------------------------------------------------------------------------------------------------------------------


class _KnownColumns:
    """Columns of schemas for which something was found to hold. They are known as objects, which the requests of a job
    share: it takes as long to compare schemas as to look at each column. The last ones; threads share them.
    """

    def __init__(self) -> None:
        self._kept: tuple[tuple[pa.Schema, Sequence[str]], ...] = ()

    def has(self, schema: pa.Schema, columns: Sequence[str]) -> bool:
        return any(schema is known and columns is names for known, names in self._kept)

    def add(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        if isinstance(columns, tuple) and not self.has(schema, columns):
            self._kept = (schema, columns), *self._kept[: _KEPT - 1]


_sound = _KnownColumns()  # of types that frames can hold
_whole = _KnownColumns()  # whole columns, no parts of any

_MARGIN = 1.06  # of rows that are decoded beyond those of which enough stay on average
_FOREIGN = {pa.lib.Type_DECIMAL256, pa.lib.Type_INTERVAL_MONTH_DAY_NANO}  # types that frames cannot hold


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What is read of each fragment of a table: `columns`, in the types of `schema`, of the rows that `where` and
    `sample` keep.

    With a sample, `columns` may include `sample_weight`, a float32 of `schema` that files need not store. `marks`:
    Boolean columns appended to those of frames. `compact`: columns, but not all, that come as unique rows
    (`Chunk.groups`) from files that store them once per run of equal rows. `coded`: columns that may come as codes
    (`Chunk.dictionaries`), each with how many elements of its lists are needed (0: all). `expanded`: those of which
    values are needed, too. What filter, sample and marks read comes as rows, and as values where these are not worth
    expanding. `chunk_rows`: the most; of wide rows CHUNK_ROWS. `first_rows`: kept ones of the first chunk, about (0:
    all alike).
    """

    columns: Sequence[str]
    schema: pa.Schema
    where: BoundExpression | None = None
    _: KW_ONLY
    sample: BoundSample | None = None
    marks: Sequence[Mark] = ()
    compact: Collection[str] = ()
    coded: Mapping[str, int] = field(default_factory=dict)
    expanded: Collection[str] = ()
    chunk_rows: int = CHUNK_ROWS
    first_rows: int = 0

    def only(self, *columns: str) -> ReadRequest:
        """The same rows: these columns, of every row and as values."""
        return ReadRequest(columns, self.schema, self.where, sample=self.sample)

    @property
    def parts(self) -> tuple[str, ...]:
        """The columns and column parts to read, besides those of filter and sample."""
        marked = (part for mark in self.marks for part in sorted(mark.parts))
        return tuple(dict.fromkeys([*self.columns, *marked])) if self.marks else tuple(self.columns)

    @property
    def all_parts(self) -> tuple[str, ...]:
        """The columns and column parts to read, with those of filter and sample."""
        return (*self.parts, *sorted(self.row_filter().parts))

    def row_filter(self) -> RowFilter:
        """The conditions on rows, for one pass over a fragment."""
        weigh = self.sample is not None and SAMPLE_WEIGHT in self.columns
        return RowFilter(where=self.where, sample=self.sample, weigh=weigh)


# What follows passes chunks on without a local variable: one that held a chunk while the next is decoded would double
# the memory.


def read_fragment(fragment: Fragment, request: ReadRequest) -> Iterator[Chunk]:
    """Yield the kept rows of a fragment, chunk by chunk, as Polars frames.

    Raises TableChangedError if the file changed since the snapshot, CorruptFileError if a row group does not decode,
    DataError if the filter keeps a different number of rows than expected (after the row group's last chunk).
    """
    refuse_no_columns(request)
    if not _sound.has(request.schema, request.columns):
        refuse_foreign(request.schema, request.columns)
        _sound.add(request.schema, request.columns)
    assert not request.compact or not set(request.columns).issubset(request.compact), "a frame has at least one column"
    counts, delivered = [0] * len(fragment.row_groups), [0] * len(fragment.row_groups)
    dictionaries = _Dictionaries()

    def kept_chunk(batch: FrameBatch) -> Chunk | None:
        position = batch.position
        frame, groups, values = _kept_rows(batch, request, fragment, dictionaries)
        first, counts[position] = counts[position], counts[position] + frame.height
        if fragment.excluded and fragment.excluded[position] is not None:
            stays = ~unpack_mask(fragment.excluded[position], counts[position])[first:]
            frame, groups = frame.filter(pl.Series(stays)), tuple(filter_group(group, stays) for group in groups)
        if not frame.height:
            return None
        start, delivered[position] = delivered[position], delivered[position] + frame.height
        return Chunk(frame=frame, fragment=fragment, position=position, start=start, groups=groups, dictionaries=values)

    yield from filter(None, map(kept_chunk, batches(fragment, request, counts)))


def read_arrow(fragment: Fragment, request: ReadRequest) -> pa.Table:
    """Read the kept rows of a fragment as an Arrow table, of any Arrow types; raises as `read_fragment`. Of a request
    without marks, and without columns that come as unique rows or as codes."""
    refuse_no_columns(request)
    counts = [0] * len(fragment.row_groups)
    parts = []
    for batch in batches(fragment, request, counts):
        data = batch.data
        if not batch.row_filter.idle:
            result = batch.row_filter.apply(data, fragment.path, batch.first_row)
            data = data.select(list(request.columns))
            if batch.row_filter.weigh:
                index = data.schema.get_field_index(SAMPLE_WEIGHT)
                data = data.set_column(index, data.schema.field(index), pa.array(result.weights))
            if result.stays is not None:
                data = data.filter(pa.array(result.stays))
        counts[batch.position] += data.num_rows
        parts.append(data)
    return pa.Table.from_batches(parts, pa.schema([field_of(request.schema, name) for name in request.columns]))


def decode_fragment(fragment: Fragment, columns: Sequence[str], schema: pa.Schema) -> None:
    """Decode and check every value of these columns, keeping none; raises as `read_arrow`."""
    for _ in batches(fragment, ReadRequest(columns, schema), [0] * len(fragment.row_groups)):
        pass


def batches(
    fragment: Fragment,
    request: ReadRequest,
    counts: Sequence[int],
    skip: Callable[[OpenFile], Collection[int]] = lambda file: (),
) -> Iterator[FrameBatch]:
    """Decode the fragment's row groups: the request's columns, and those that filter, sample and marks read.

    The caller adds the rows it keeps to `counts`, which is checked after each row group. `skip` is called once and
    returns the positions of row groups not to read.
    """
    schema, row_filter = request.schema, request.row_filter()
    marked = frozenset[str]().union(*(mark.parts for mark in request.marks))
    columns = request.parts
    compact = frozenset(request.compact).difference(marked)
    coded = {name: most for name, most in request.coded.items() if name not in marked}
    refuse_foreign(schema, row_filter.parts)
    names = (*columns, *row_filter.parts) if row_filter.parts else columns
    with fragment.open(names) as file:
        kinds = stored_schema(schema, fragment.exploded)
        if not _whole.has(schema, names) and any(schema.get_field_index(name) < 0 for name in names):
            whole = _columns_of(file, fragment, kinds, names)
            file.read_dictionaries(whole.dictionaries(file.metadata, fragment.row_groups))
        else:
            _whole.add(schema, names)
        skipped = skip(file)
        is_numbered = row_filter.sample is not None or any(mark.samples for mark in request.marks)
        first_rows = fragment.first_rows(file) if is_numbered else None  # a footer may name thousands of row groups
        needed: dict[tuple[tuple[str, ...], frozenset[str]], tuple[StoredColumns, ExplodedRows | None]] = {}
        for position, row_group in enumerate(fragment.row_groups):
            if position in skipped:
                continue
            rows, expected = file.metadata.row_group(row_group).num_rows, fragment.expected[position]
            span = fragment.spans[position] if fragment.spans else None
            selectable = rows if fragment.exploded is None else None if span is None else span[1] - span[0]
            here = row_filter.for_row_group(proofs=fragment.proofs_of(position), whole=expected == selectable)
            names = (*columns, *sorted(here.parts.difference(columns)))
            need = names, compact - here.parts
            if need not in needed:
                lists = None if fragment.exploded is None else ExplodedRows.of(fragment.exploded, file, schema, names)
                stored = names if lists is None else lists.stored
                of_file = _columns_of(file, fragment, kinds if lists is None else lists.schema, stored, need[1])
                needed[need] = of_file, lists
            of_file, lists = needed[need]
            filtered = here.coded(rows)
            values = (here.parts - filtered).union(request.expanded).intersection(coded)
            values -= worth_expanding(schema, values, rows)
            names_of_codes = filtered.difference(columns).union(coded.keys() - values)
            pieces = _RowGroup(
                fragment=fragment,
                position=position,
                row_filter=here,
                first_row=0 if first_rows is None else first_rows[position],
                chunk_rows=request.chunk_rows if lists is None else chunk_requests(request.chunk_rows, rows, span),
                first_rows=0 if position else _first_rows(request.first_rows, rows, expected),
                coded={name: 0 if name in here.parts else coded.get(name, 0) for name in names_of_codes},
            )
            if lists is None:
                yield from _decode_twice(file, of_file, pieces)
            else:
                pieces = replace(pieces, coded=lists.coded(pieces.coded))
                decoded = _decode_twice(file, of_file, pieces)
                yield from lists.of_group(decoded, need[1], fragment, position, pieces.first_row)
            if expected not in (UNCOUNTED, counts[position]):
                raise DataError(
                    f"filter keeps a different number of rows of {label(fragment.uri, row_group)} than was counted: "
                    f"got {counts[position]}, expected {expected}. Delete the counts in work_dir and run again"
                )


def _first_rows(kept: int, rows: int, expected: int) -> int:
    """How many rows to decode so that about `kept` stay, or a few more, of a row group of which `expected` stay."""
    # 100 of 1,000 rows, of which 200 stay -> 100 * 1,000 / 200 * _MARGIN = 530
    share = rows / expected if expected > 0 else 1
    return int(kept * share) if share == 1 else int(kept * share * _MARGIN)


def bytes_of(snapshot: Snapshot, row_groups: npt.NDArray[np.int64] | None, columns: Sequence[str]) -> int:
    """Return the compressed bytes of these columns and parts in these row groups (indices in the table; None: all).

    Partition columns cost nothing; see `part_bytes`. Raises TableError for an unknown column.
    """
    for name in columns:
        field_of(snapshot.schema, name)
    sizes = part_bytes(snapshot, columns)
    return int(sizes.sum() if row_groups is None else sizes[row_groups].sum())


def refuse_no_columns(request: ReadRequest) -> None:
    """Raise DataError for a request without columns."""
    if not request.columns:
        raise DataError("list of columns is empty: expected at least one column to read")


def _columns_of(
    file: OpenFile, fragment: Fragment, schema: pa.Schema, names: Sequence[str], compact: Collection[str] = ()
) -> StoredColumns:
    keys = frozenset(name for name, _ in fragment.partition)
    return resolve_columns(file, schema, tuple(names), frozenset(compact), keys)


def arrow_columns(fragment: Fragment, columns: Sequence[str], schema: pa.Schema) -> dict[str, str]:
    """The stored columns, of those from which these columns and parts are read, that pyarrow decodes, each with the
    reason, as far as the file's footer says it.
    """
    with fragment.open() as file:
        names = {leaf: name for name, leaves in file.stored.items() for leaf in leaves}
        kinds = stored_schema(schema, fragment.exploded)
        leaves, first = _columns_of(file, fragment, kinds, columns).leaves, fragment.row_groups[0]
        reasons = ((names[leaf], file.decoder.left_to_arrow(leaf, first)) for leaf in leaves)
        return {name: reason for name, reason in reasons if reason is not None}


def stored_columns(fragment: Fragment) -> frozenset[str]:
    """The columns that a fragment's file stores once per run."""
    with fragment.open() as file:
        groups = () if file.dedup is None else file.dedup.groups.values()
        return frozenset(name for group in groups for name in group.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowGroup:
    """One row group of a fragment to decode. first_row: its index in the file (0: not asked for). chunk_rows: of a
    chunk. first_rows: of the first one, from which they grow (0: all alike)."""

    fragment: Fragment
    position: int
    row_filter: RowFilter
    first_row: int
    chunk_rows: int
    first_rows: int
    coded: Mapping[str, int]

    @property
    def index(self) -> int:
        return self.fragment.row_groups[self.position]


def _decode_twice(file: OpenFile, columns: StoredColumns, group: _RowGroup) -> Iterator[FrameBatch]:
    """As `_decode`; kept bytes of a store that do not decode are dropped and fetched again, as transfers may damage."""
    decoded = Restartable(lambda: _decode(file, columns, group))
    while True:
        try:
            yield from decoded
        except TableError as error:  # of damaged headers, pyarrow says that it cannot read them
            if isinstance(error, TableChangedError | StoreError) or not file.drop_kept(group.index):
                raise
        else:
            return


def _decode(file: OpenFile, columns: StoredColumns, group: _RowGroup) -> Iterator[FrameBatch]:
    """Yield one row group in chunks: exactly the fields of `columns`, of every row and of unique rows."""
    uri, index, partition = group.fragment.uri, group.index, dict(group.fragment.partition)
    metadata = file.metadata.row_group(index)
    flags, reader = columns.flag_leaves(file), None
    starts: dict[int, npt.NDArray[np.bool_]] = {}
    decoded = file.batches(
        DecodeRequest(
            row_group=index,
            leaves=columns.leaves,
            chunk_rows=columns.chunk_rows(file, index, group.chunk_rows),
            whole=flags,
            coded=columns.coded_leaves(group.coded),
            starts=starts,
            first_rows=group.first_rows,
        )
    )
    if flags:
        with explain_errors(uri, row_group=index, listed=True):
            decoded_flags = next(decoded).batch
        reader = columns.reader(decoded_flags, index, uri)
        starts |= columns.starts(file, reader)
    row = 0

    def take() -> FrameBatch | None:
        nonlocal row
        with explain_errors(uri, row_group=index, listed=True):
            rows = next(decoded, None)
        if rows is None:
            return None
        first_row, row = group.first_row + row, row + rows.rows
        build = partial(columns.rows, rows, reader, uri, index, partition, group.coded)
        if columns.are_direct(rows):
            return FrameBatch(group.position, lambda: build()[0], first_row, group.row_filter, decoded=rows)
        data, groups = build()
        return FrameBatch(group.position, lambda: data, first_row, group.row_filter, groups)

    yield from iter(take, None)
    if row != metadata.num_rows:
        raise CorruptFileError(
            f"{label(uri, index)} does not hold the rows of its footer: got {row}, expected {metadata.num_rows}. "
            "Restore or rewrite the file"
        )


def _frame(data: pa.RecordBatch) -> pl.DataFrame:
    frame: pl.DataFrame = pl.from_arrow(data, rechunk=False)  # type: ignore[assignment]  # one chunk, in any case
    return frame


class _Dictionaries:
    """The dictionaries of coded columns: the same object for all chunks of a column chunk. Few of them are needed as
    series, for which Polars copies strings."""

    def __init__(self) -> None:
        self._kept: dict[str, pa.Array] = {}

    def same(self, name: str, array: pa.Array) -> pa.Array:
        """The dictionary of a column. The last one is kept, so that no other can have its memory."""
        last = self._kept.get(name)
        if last is None or not is_same(last, array):
            last = self._kept[name] = array
        return last


def _coded_frame(data: pa.RecordBatch, kept: _Dictionaries) -> tuple[pl.DataFrame, dict[str, pa.Array]]:
    """The columns, of coded ones the codes, and the dictionaries of these."""
    arrays, dictionaries, is_simple = [], {}, True
    for name, array in zip(data.schema.names, data.columns, strict=True):
        is_number = pat.is_primitive(array.type)
        parts = None if is_number else split_codes(array)
        if parts is not None:
            array, dictionaries[name] = parts[0], kept.same(name, parts[1])
        else:
            is_simple &= is_number
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, names=data.schema.names) if dictionaries else data
    # `from_arrow` makes eight calls for each column. The other way, Polars panics on some nested types.
    return pl.DataFrame(batch) if is_simple else _frame(batch), dictionaries


def _direct_frame(
    decoded: DecodedRows, columns: Sequence[str], kept: _Dictionaries
) -> tuple[pl.DataFrame, dict[str, pa.Array]]:
    """These columns as they were decoded, of coded ones the codes, and the dictionaries of these."""
    dictionaries = {name: kept.same(name, array) for name, array in decoded.dictionaries.items()}
    frames = [pl.DataFrame(part) for part in decoded.parts]
    frame = frames[0] if len(frames) == 1 else pl.concat(frames, how="horizontal")
    return frame if frame.columns == list(columns) else frame[columns], dictionaries


def _coded_groups(
    groups: Sequence[UniqueRows[pa.RecordBatch]], kept: _Dictionaries
) -> tuple[tuple[UniqueRows[pl.DataFrame], ...], dict[str, pa.Array]]:
    frames: list[UniqueRows[pl.DataFrame]] = []
    dictionaries: dict[str, pa.Array] = {}
    with TURN:
        for group in groups:
            frame, values = _coded_frame(group.rows, kept)
            frames.append(UniqueRows(frame, group.inverse))
            dictionaries |= values
    return tuple(frames), dictionaries


def _kept_rows(
    batch: FrameBatch, request: ReadRequest, fragment: Fragment, kept: _Dictionaries
) -> tuple[pl.DataFrame, tuple[UniqueRows[pl.DataFrame], ...], dict[str, pa.Array]]:
    """Return the kept rows of a batch, with exactly the columns and marks of a request; columns stored once per run as
    groups, and the dictionaries of coded ones.
    """
    columns, marks = request.columns, request.marks
    if batch.decoded is not None and batch.row_filter.idle and not marks:
        with TURN:
            frame, dictionaries = _direct_frame(batch.decoded, columns, kept)
        return frame, (), dictionaries
    groups, codes_of_groups = _coded_groups(batch.groups, kept)
    if groups:
        compact = {name for group in groups for name in group.rows.columns}
        columns = [name for name in columns if name not in compact]
    data, row_filter = batch.data, batch.row_filter
    is_plain = not any(is_coded(data.schema.field(name).type) for name in row_filter.parts)
    with TURN:
        frame, dictionaries = _coded_frame(data if is_plain else data.select(columns), kept)
    dictionaries |= codes_of_groups
    if marks:
        columns_of_marks = [mark.of(data, fragment.table, fragment.path, batch.first_row) for mark in marks]
        frame, columns = frame.with_columns(columns_of_marks), [*columns, *(mark.name for mark in marks)]
    if row_filter.idle:
        return frame.select(columns) if marks else frame, groups, dictionaries
    where = row_filter.where if row_filter.sample is None and not row_filter.weigh else None
    if where is not None and is_plain and not groups:
        stays = frame.lazy().filter(where.narrow).select(columns).collect(engine="in-memory")
        return stays, (), dictionaries
    result = row_filter.apply(data, fragment.path, batch.first_row)
    if row_filter.weigh:
        frame = frame.with_columns(pl.Series(SAMPLE_WEIGHT, result.weights))
    frame = frame if frame.columns == list(columns) else frame.select(columns)
    if result.stays is None:
        return frame, groups, dictionaries
    groups = tuple(filter_group(group, result.stays) for group in groups)
    return frame.filter(pl.Series(result.stays)), groups, dictionaries


def refuse_foreign(schema: pa.Schema, columns: Iterable[str]) -> None:
    """Raise TableError for types that Polars cannot hold: on some it panics, past any `except Exception`."""
    for name in columns:
        kind = field_of(schema, name).type
        if _is_foreign(kind):
            raise TableError(
                f"column {name!r} has a type that frames cannot hold: got {kind}. Leave it out, or rewrite it"
            )


def _is_foreign(kind: pa.DataType) -> bool:
    return kind.id in _FOREIGN or (kind.num_fields > 0 and any(_is_foreign(child.type) for child in child_fields(kind)))
