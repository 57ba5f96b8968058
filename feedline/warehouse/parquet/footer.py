"""Read a file's footer: its digest, schema, row groups and column statistics.

Runs where a snapshot is taken and in every process that reads. The digest (sha256 of footer and trailer), pyarrow's
schema and the column chunks (`thrift`) come from the same bytes. Statistics are kept only if they can be trusted:
bounds need a declared order (the deprecated pair only for signed integers), INT96 and nested columns have none, and a
null count below zero or above the rows is unknown (-1). `bounds` decodes them.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, TableChangedError, TableError
from feedline.warehouse.parquet.column_kinds import WriterBug, writer_bugs
from feedline.warehouse.parquet.dedup_columns import (
    DedupMetadata,
    dedup_metadata,
    flag_column,
    logical_nulls,
    lost_metadata,
    may_be_flag,
)
from feedline.warehouse.parquet.schemas import FIELD_ID, leaf_count, storage_schema, without_dictionaries
from feedline.warehouse.parquet.stored_names import StoredNames, groups_under_other_names
from feedline.warehouse.parquet.thrift import BYTE_ARRAY, FIXED, PHYSICAL, MalformedError, Structure, structure_of
from feedline.warehouse.storage.faults import encrypted_error, explain_errors
from feedline.warehouse.storage.file_identity import stamp_of
from feedline.warehouse.storage.ranges import Range, read_range
from feedline.warehouse.storage.retry import is_local, with_retries

K = TypeVar("K")
V = TypeVar("V")

_TRAILER_BYTES = 8  # footer length (4, little-endian) and magic (4)
_GUESS_BYTES = 64 * 1024  # the first read, which holds most footers: one request instead of two on an object store
_Bytes: TypeAlias = bytes  # `ColumnFacts.bytes` hides the type of that name
_TRUE = b"\x01"  # a Boolean bound
KEPT_FOOTERS = 32  # parsed footers a process keeps; 400 columns x 8 row groups are 3 MB each


@dataclass(slots=True)
class ColumnFacts:
    """One top-level column of one file, a value per row group: compressed bytes, nulls, stored bounds.

    `nulls`: -1 if unknown, -1 - n if at least n. `physical`: the Parquet type that bounds are stored as (see `thrift`).
    Bounds are None if unknown; `exact`: both are values of the column, not truncated ones.
    """

    physical: int
    bytes: list[int]
    nulls: list[int]
    low: list[_Bytes | None]
    high: list[_Bytes | None]
    exact: list[bool]


@dataclass(slots=True)
class FileFacts:
    """The parts of a footer that a snapshot keeps; `columns` aligned with `schema`. tag: of the file that was open,
    empty if its store has none."""

    digest: bytes
    footer_bytes: int
    schema: pa.Schema
    rows: list[int]
    columns: list[ColumnFacts]
    tag: str = ""

    @property
    def physical(self) -> list[int]:
        return [column.physical for column in self.columns]


def file_facts(
    filesystem: pafs.FileSystem, path: str, size: int, name: str, stored_names: StoredNames | None = None
) -> FileFacts:
    """Read one file's footer. stored_names: of the table's columns, if they are not the table's.

    Raises CorruptFileError for a file that is not Parquet, TableError for an encrypted one, both naming `name`.
    """
    with explain_errors(name):
        tail, tag = with_retries(lambda: _tail_of(filesystem, path, size, name), filesystem, name, listed=True)
        with open_parquet(pa.BufferReader(tail)) as parquet:
            facts = _facts(parquet, tail, name, stored_names)
            _refuse_rows_elsewhere(parquet.metadata, size - len(tail), name)
            return replace(facts, tag=tag)


def key_value_metadata(filesystem: pafs.FileSystem, path: str, size: int, name: str) -> dict[bytes, bytes]:
    """Read the key-value metadata of a file's footer. Raises as `file_facts`."""
    with explain_errors(name):
        tail, _ = with_retries(lambda: _tail_of(filesystem, path, size, name), filesystem, name)
        return dict(pq.read_metadata(pa.BufferReader(tail)).metadata or {})


class _ByIndex(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file whose columns are read by index: the table of their names costs 2 ms for 400 columns."""

    def _build_nested_paths(self) -> dict[str, list[int]]:
        return {}


def footer_digest(tail: bytes) -> bytes:
    """The sha256 of footer and trailer."""
    return hashlib.sha256(tail).digest()


def open_parquet(
    source: Any,
    metadata: pq.FileMetaData | None = None,
    *,
    pre_buffer: bool = True,
    dictionaries: Sequence[str] = (),
) -> pq.ParquetFile:
    """Open a Parquet file with the settings that all readers of Feedline share. `pre_buffer`: for sources with latency.

    INT96 timestamps become microseconds, as Spark writes them: nanoseconds wrap around silently outside 1677-2262.
    Extension types that a process registered, and pyarrow's own, are still in the schema: see `storage_schema`. Page
    checksums are verified where present. `dictionaries`: paths of the Parquet columns of strings to read as
    dictionaries.
    """
    return _ByIndex(
        source,
        metadata=metadata,
        read_dictionary=list(dictionaries) or None,
        pre_buffer=pre_buffer,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
        arrow_extensions_enabled=False,
    )


class RecentValues(Generic[K, V]):
    """The values that were used last, by key; shared by the threads of a process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> V:
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value

    def find(self, fits: Callable[[V], bool]) -> V | None:
        """The last value of which that is true."""
        with self._lock:
            return next(filter(fits, reversed(self._values.values())), None)


parsed_footers: RecentValues[bytes, pq.FileMetaData] = RecentValues(KEPT_FOOTERS)


def parsed_footer(digest: bytes, tail: bytes) -> pq.FileMetaData:
    """The footer of that digest, parsed from `tail` if it is not cached."""
    footer = parsed_footers.get(digest)
    return parsed_footers.put(digest, pq.read_metadata(pa.BufferReader(tail))) if footer is None else footer


def column_leaves(schema: pa.Schema, columns: int, name: str) -> list[range]:
    """The Parquet columns of each field of a file's Arrow schema, correct also for names with dots."""
    leaf_ranges: list[range] = []
    start = 0
    for field in schema:
        stop = start + leaf_count(field.type)
        leaf_ranges.append(range(start, stop))
        start = stop
    if start != columns:
        raise TableError(f"{name} has {columns} Parquet columns: expected the {start} of its Arrow schema")
    return leaf_ranges


class ChunkFacts(NamedTuple):
    """What a footer says of a column chunk. place: the bytes that pyarrow's reader reads. nbytes: compressed ones.
    physical: the Parquet type."""

    place: Range
    nbytes: int
    uncompressed_bytes: int
    values: int
    codec: str
    physical: str


def chunk_facts(metadata: pq.FileMetaData, row_group: int, leaves: Iterable[int], file_bytes: int) -> list[ChunkFacts]:
    """Those of some Parquet columns of a row group: asked for once, as each answer of pyarrow takes 0.1 us."""
    group = metadata.row_group(row_group)
    padding = max((bug.padding_bytes for bug in writer_bugs(metadata.created_by)), default=0)
    facts = []
    for leaf in leaves:
        chunk = group.column(leaf)
        start, nbytes = chunk.data_page_offset, chunk.total_compressed_size
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        place = max(start, 0), min(start + nbytes + padding, file_bytes)
        own = chunk.total_uncompressed_size, chunk.num_values, chunk.compression, chunk.physical_type
        facts.append(ChunkFacts(place, nbytes, *own))
    return facts


def chunk_ranges(metadata: pq.FileMetaData, row_group: int, leaves: Iterable[int], file_bytes: int) -> list[Range]:
    """The byte ranges that pyarrow's reader reads for some Parquet columns of a row group."""
    return [facts.place for facts in chunk_facts(metadata, row_group, leaves, file_bytes)]


def _tail_of(filesystem: pafs.FileSystem, path: str, size: int, name: str) -> tuple[bytes, str]:
    """Footer and trailer, and the file's tag."""
    with filesystem.open_input_file(path) as source:
        if is_local(filesystem):
            return _tail(source.read_at, size, name), ""
        if (actual := source.size()) != size:
            raise TableChangedError(
                f"{name} changed while it was listed: got {actual} bytes, expected {size}. Try again"
            )
        tag = stamp_of(filesystem, path, source).tag
        return _tail(lambda count, start: read_range(source, start, count), size, name), tag


def _tail(read: Callable[[int, int], bytes], size: int, name: str) -> bytes:
    if size < _TRAILER_BYTES + 4:
        raise CorruptFileError(f"{name} is not Parquet: got {size} bytes, expected at least 12. Restore or delete it")
    guess = min(size, _GUESS_BYTES)
    tail = read(guess, size - guess)
    magic = tail[-4:]
    if magic == b"PARE":
        raise encrypted_error(name)
    if len(tail) != guess or magic != b"PAR1":
        raise CorruptFileError(
            f"{name} is not Parquet: got {magic!r} as its last bytes, expected b'PAR1'. Restore or delete it"
        )
    tail_bytes = int.from_bytes(tail[-8:-4], "little") + _TRAILER_BYTES
    if tail_bytes > size - 4:
        raise CorruptFileError(
            f"{name} has a corrupt footer: got a length of {tail_bytes - _TRAILER_BYTES} bytes in a file of {size}. "
            "Restore or delete it"
        )
    return tail[-tail_bytes:] if tail_bytes <= guess else read(tail_bytes, size - tail_bytes)


def _facts(parquet: pq.ParquetFile, tail: bytes, name: str, stored_names: StoredNames | None) -> FileFacts:
    schema, metadata = storage_schema(parquet.schema_arrow), parquet.metadata
    stored = [PHYSICAL.get(metadata.schema.column(i).physical_type, -1) for i in range(metadata.num_columns)]
    leaf_ranges = column_leaves(schema, len(stored), name)
    try:
        structure = structure_of(tail[:-_TRAILER_BYTES])
    except MalformedError as error:
        raise CorruptFileError(f"{name} has a corrupt footer: {error}. Restore or delete it") from None
    if structure.encrypted:
        raise encrypted_error(name)
    types = {tuple(chunk.type for chunk in chunks) for chunks in structure.chunks}
    # the file's own total of rows is ignored: some writers leave it at zero, and reading checks each row group
    misfit = types - {tuple(stored)} or any(rows < 0 for rows in structure.rows)
    if misfit or not _fit_levels(structure, metadata.schema, stored):
        raise CorruptFileError(
            f"{name} has a corrupt footer: got row groups that do not match its columns. Restore or delete it"
        )
    bugs = writer_bugs(metadata.created_by)
    columns = [
        _column(structure, leaf_range, without_dictionaries(field.type), stored[leaf_range.start], bugs)
        for leaf_range, field in zip(leaf_ranges, schema, strict=True)
    ]
    groups = dedup_metadata(metadata.metadata, schema, structure.rows, name)
    if groups is not None and stored_names is not None:
        raise groups_under_other_names(name)
    if groups is not None:
        schema, columns = _logical(schema, columns, groups)
    elif (flags := _lost_flags(schema, columns)) is not None:
        raise lost_metadata(flags, name)
    schema = _bare(schema) if stored_names is None else stored_names.schema(schema, name)
    return FileFacts(footer_digest(tail), len(tail), schema, structure.rows, columns)


def _refuse_rows_elsewhere(metadata: pq.FileMetaData, end: int, name: str) -> None:
    """Raise CorruptFileError for a summary of other files' footers. end: where the file's own footer begins.

    Readers ignore the path of a column chunk, and files that were moved hold their rows all the same.
    """
    if not metadata.num_row_groups or not metadata.num_columns:
        return
    chunk = metadata.row_group(0).column(0)
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    if chunk.file_path and start + chunk.total_compressed_size > end:
        raise CorruptFileError(
            f"{name} holds no rows, but footers of other files: got column chunks in {chunk.file_path!r}. Delete it, "
            "begin its name with an underscore, or name the files"
        )


def _fit_levels(structure: Structure, schema: pq.ParquetSchema, stored: Sequence[int]) -> bool:
    """Whether size statistics count the levels that the columns have: on others pyarrow ends the process."""
    for sizes in {tuple(chunk.sizes for chunk in chunks) for chunks in structure.chunks}:
        for leaf, (counts_bytes, repetition, definition) in enumerate(sizes):
            if counts_bytes or repetition or definition:
                column = schema.column(leaf)
                levels = {0, column.max_repetition_level + 1}, {0, column.max_definition_level + 1}
                if repetition not in levels[0] or definition not in levels[1]:
                    return False
                if counts_bytes and stored[leaf] != BYTE_ARRAY:
                    return False
    return True


def _logical(
    schema: pa.Schema, columns: Sequence[ColumnFacts], groups: DedupMetadata
) -> tuple[pa.Schema, list[ColumnFacts]]:
    """The table's columns without the flags, and with the nulls of its rows instead of those stored."""
    for group in groups.groups.values():
        for name in group.columns:
            column = columns[schema.get_field_index(name)]
            column.nulls = [logical_nulls(*facts) for facts in zip(group.row_groups, column.nulls, strict=True)]
    flags = {flag_column(name) for name in groups.groups}
    columns_left = [index for index, name in enumerate(schema.names) if name not in flags]
    return pa.schema([schema.field(index) for index in columns_left]), [columns[index] for index in columns_left]


def _lost_flags(schema: pa.Schema, columns: Sequence[ColumnFacts]) -> str | None:
    """A column that, by place, name, type and statistics, may hold flags of runs, where others may hold their nulls."""
    for end in reversed(range(len(columns))):  # flags come last, and are never null
        field, flags = schema.field(end), columns[end]
        if not may_be_flag(field) or any(nulls > 0 for nulls in flags.nulls):
            return None
        for index, low in enumerate(flags.low):
            if low != _TRUE and any(column.nulls[index] for column in columns[:end]):
                return str(field.name)
    return None


def _bare(schema: pa.Schema) -> pa.Schema:
    """The schema without metadata (pandas' alone can be larger than the rest), except field ids."""
    ids = [(field.metadata or {}).get(FIELD_ID) for field in schema]
    notes = [None if id is None else {FIELD_ID: id} for id in ids]
    return pa.schema([field.with_metadata(metadata) for field, metadata in zip(schema, notes, strict=True)])


def _column(
    structure: Structure, leaf_range: range, kind: pa.DataType, physical: int, bugs: Sequence[WriterBug]
) -> ColumnFacts:
    count = len(structure.rows)
    sizes = [sum(chunks[leaf].bytes for leaf in leaf_range) for chunks in structure.chunks]
    if pat.is_nested(kind):
        return ColumnFacts(physical, sizes, [-1] * count, [None] * count, [None] * count, [False] * count)
    first_chunks = [chunks[leaf_range.start] for chunks in structure.chunks]
    nulls = [
        rows if pat.is_null(kind) else chunk.nulls if 0 <= chunk.nulls <= rows else -1
        for chunk, rows in zip(first_chunks, structure.rows, strict=True)
    ]
    is_misread = pat.is_decimal(kind) and physical in (BYTE_ARRAY, FIXED) and any(bug.decimal_bounds for bug in bugs)
    if structure.ordered and not is_misread:
        low, high = [chunk.low for chunk in first_chunks], [chunk.high for chunk in first_chunks]
    elif pat.is_signed_integer(kind):
        low, high = [chunk.old_low for chunk in first_chunks], [chunk.old_high for chunk in first_chunks]
    else:
        low = high = [None] * count
    return ColumnFacts(physical, sizes, nulls, low, high, [chunk.exact for chunk in first_chunks])
