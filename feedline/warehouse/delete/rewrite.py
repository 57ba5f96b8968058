"""Write a file without some of its rows: row groups that hold none of them are copied byte for byte.

Runs in: the threads of `delete`, one file each. Row groups that hold such rows are decoded, filtered, and encoded as
they were (codec, encodings, rows of pages, bloom filters of the same size); statistics follow from their rows. What
`optimize` stores in footers is made to hold: the flags and digests of groups stored once per run (`dedup_columns`), and
the index of histories (`history_note`). A file that pyarrow would lay out otherwise (lists of two levels, decimals in
byte arrays) is encoded as a whole. A thread holds one row group, decoded, and the encoded rows of one file.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, DataError, TableChangedError
from feedline.warehouse.parquet.column_kinds import writer_bugs
from feedline.warehouse.parquet.dedup_columns import (
    METADATA_KEY,
    DedupMetadata,
    GroupRuns,
    RowGroupRuns,
    check_flags,
    dedup_metadata,
    flag_column,
    keep_rows,
)
from feedline.warehouse.parquet.footer import file_facts, footer_digest
from feedline.warehouse.parquet.history_note import NOTE_KEY as HISTORY_KEY
from feedline.warehouse.parquet.history_note import HistoryNote, NoteBuilder
from feedline.warehouse.parquet.request_rows import ROWS_KEY
from feedline.warehouse.parquet.schemas import without_dictionaries
from feedline.warehouse.parquet.spliced_file import (
    Part,
    Source,
    Write,
    bloom_filter_bytes,
    have_same_layout,
    is_copyable,
    notes_of,
    splice,
)
from feedline.warehouse.parquet.thrift import MalformedError
from feedline.warehouse.parquet.writer import DICTIONARY, PLAIN, Encoding, leaf_paths, upload, writer_options
from feedline.warehouse.reading.fragment import Fragment, unpack_mask
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.storage.faults import explain_errors, label
from feedline.warehouse.storage.ranges import read_range
from feedline.warehouse.storage.retry import is_local, with_retries

_TRAILER_BYTES = 8
_Digest = bytes  # within `WrittenFile` the field `bytes` hides the type
_MOST_NANOSECONDS = int(np.iinfo(np.int64).max)
_LEVELS = {"RLE", "BIT_PACKED", "RLE_DICTIONARY", "PLAIN_DICTIONARY"}  # encodings that are not of values in pages
_CODECS = {"snappy", "gzip", "brotli", "zstd", "lz4"}
_FALSE_POSITIVES = 0.05  # of bloom filters; with it, and a number of values, pyarrow decides their size
_BITS_PER_VALUE = -8 / np.log(1 - _FALSE_POSITIVES ** (1 / 8))  # of a filter of split blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """Rows to delete of one file. fragment: all its row groups. deleted: per row group of the file that holds such
    rows, the bits of these (see `pack_mask`)."""

    fragment: Fragment
    rows: tuple[int, ...]
    deleted: Mapping[int, bytes] = field(repr=False)

    def mask(self, row_group: int) -> Bools:
        """bool [the row group's rows]: those to delete."""
        return unpack_mask(self.deleted.get(row_group), self.rows[row_group])

    @property
    def count(self) -> int:
        """The rows to delete."""
        return sum(int(np.bitwise_count(np.frombuffer(bits, np.uint8)).sum()) for bits in self.deleted.values())

    @property
    def is_gone(self) -> bool:
        """Whether no row is left."""
        return self.count == sum(self.rows)

    @property
    def kept(self) -> list[int]:
        """The row groups that keep rows."""
        return [group for group, rows in enumerate(self.rows) if not (rows and self.mask(group).all())]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBytes:
    """The bytes of pages of row groups that were copied, and of those that were encoded anew."""

    copied: int
    encoded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file without the rows: its size, its footer's digest and size, and the bytes of its row groups."""

    bytes: int
    digest: _Digest
    footer_bytes: int
    pages: WrittenBytes


def write_file_without(
    rows: FileRows, filesystem: pafs.FileSystem, path: str, target: str, note: Mapping[bytes, bytes] | None = None
) -> WrittenFile:
    """Write the file at `path` without the rows to `target`, of a store by way of memory. note: metadata that it gets
    in place of the file's. Raises as `write_without`."""
    name = rows.fragment.uri
    if is_local(filesystem):
        with filesystem.open_input_file(path) as source, filesystem.open_output_stream(target) as sink:
            pages = write_without(rows, source, sink.write, note)
        shutil.copymode(path, target)
    else:

        def read() -> bytes:
            with filesystem.open_input_file(path) as source:
                return read_range(source, 0, source.size())

        content = pa.BufferReader(with_retries(read, filesystem, name))
        buffer = pa.BufferOutputStream()
        pages = write_without(rows, content, buffer.write, note)
        upload(filesystem, target, buffer.getvalue())
    size = filesystem.get_file_info(target).size
    facts = file_facts(filesystem, target, size, name)
    left = [int(np.count_nonzero(~rows.mask(group))) for group in rows.kept]
    assert list(facts.rows) == left, f"{name}: {facts.rows} rows"
    return WrittenFile(bytes=size, digest=facts.digest, footer_bytes=facts.footer_bytes, pages=pages)


def write_without(
    rows: FileRows, source: pa.NativeFile, write: Write, note: Mapping[bytes, bytes] | None = None
) -> WrittenBytes:
    """Write the file without the rows. source: the file, open. note: metadata in place of the file's. Raises
    TableChangedError where it is another one by its footer, DataError for values that cannot be written, what reading
    raises, and OSError as `write` does."""
    name = rows.fragment.uri
    try:
        with explain_errors(name):
            tail = _tail(rows.fragment, source)
            new = _encode(_OldFile(rows, _open(source, name), tail[:-_TRAILER_BYTES], source.read_at))
        copied, encoded = splice(new.sources, new.parts, {**new.notes, **(note or {})}, write, like=new.like)
    except MalformedError as error:
        raise CorruptFileError(f"{name} has a corrupt footer: {error}. Restore or delete it") from None
    return WrittenBytes(copied=copied, encoded=encoded)


@dataclass(frozen=True, slots=True)
class _OldFile:
    """A file whose rows are deleted, open."""

    task: FileRows
    parquet: pq.ParquetFile
    footer: bytes
    read_at: Any

    @property
    def metadata(self) -> pq.FileMetaData:
        return self.parquet.metadata

    @property
    def schema(self) -> pa.Schema:
        """Its columns as values: a dictionary would take deleted values along, which no row has any more."""
        fields = [field.with_type(without_dictionaries(field.type)) for field in self.parquet.schema_arrow]
        return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class _NewFile:
    """What a new file consists of, as `splice` takes it."""

    sources: tuple[Source, Source]
    parts: list[Part]
    notes: dict[bytes, bytes]
    like: int


def _encode(old: _OldFile) -> _NewFile:
    """Encode the row groups that cannot be copied."""
    task, metadata = old.task, old.metadata
    dedup = dedup_metadata(metadata.metadata, old.schema, task.rows, task.fragment.uri)
    options = _options_like(old)
    empty = _encoded(old, [], options)
    bugs = writer_bugs(metadata.created_by)
    copies = (
        is_copyable(old.footer)
        and have_same_layout(old.footer, _footer_of(empty))
        and not any(bug.padding_bytes for bug in bugs)
    )
    again = [group for group in task.kept if group in task.deleted or not copies]
    runs: dict[str, dict[int, RowGroupRuns]] = {}
    encoded = _encoded(old, _kept_tables(old, again, dedup, runs), options)
    places = {group: Part(1, place, group) for place, group in enumerate(again)}
    parts = [places.get(group) or Part(0, group, group) for group in task.kept]
    notes = notes_of(old.footer)
    if dedup is not None:
        notes[METADATA_KEY] = _kept_runs(dedup, task.kept, runs).to_json()
    notes.pop(ROWS_KEY, None)  # of a request table, whose impressions are counted again
    if HISTORY_KEY in notes:
        notes[HISTORY_KEY] = _history_note(old, notes[HISTORY_KEY]).to_json()
    own = Source(_footer_of(encoded), lambda nbytes, offset: encoded.slice(offset, nbytes).to_pybytes())
    return _NewFile((Source(old.footer, old.read_at), own), parts, notes, 0 if copies else 1)


def _tail(fragment: Fragment, source: pa.NativeFile) -> bytes:
    """Footer and trailer. Raises TableChangedError where they are others than the snapshot's."""
    tail: bytes = source.read_at(fragment.footer_bytes, fragment.bytes - fragment.footer_bytes)
    if footer_digest(tail) != fragment.footer_digest:
        raise TableChangedError(
            f"{fragment.uri} was replaced while rows were deleted: got another footer. Run the same command again"
        )
    return tail


def _open(source: pa.NativeFile, name: str) -> pq.ParquetFile:
    """Open a file so that its values are read in full.

    Spark's INT96 timestamps are of microseconds, and may lie outside of what nanoseconds reach; others are of
    nanoseconds. Raises DataError for a file with both, and for times that no unit holds.
    """
    parquet = _opened(source, "us")
    schema = parquet.metadata.schema
    leaves = [schema.column(leaf) for leaf in range(len(schema.names))]
    times = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    if not times:
        return parquet
    fine, is_fine, is_far = _opened(source, "ns"), False, False
    files = parquet, fine, _opened(source, "s")
    for group in range(parquet.num_row_groups):
        for columns in zip(*(file.read_row_group(group, columns=times).columns for file in files), strict=True):
            if pat.is_nested(columns[0].type):
                raise DataError(f"{name} has INT96 timestamps in lists or structs: expected columns. Rewrite the file")
            micros, nanos, seconds = (column.drop_null().cast(pa.int64()).to_numpy() for column in columns)
            far = np.abs(micros) > _MOST_NANOSECONDS // 1000
            is_far |= bool(far.any())
            is_fine |= bool((nanos % 1000)[~far].any())
            if not np.array_equal(micros // 1_000_000, seconds):
                raise DataError(
                    f"{name} has INT96 timestamps that microseconds do not reach: got columns {', '.join(times)}. "
                    "Write them as another type"
                )
    if is_fine and is_far:
        raise DataError(
            f"{name} has INT96 timestamps of nanoseconds, and others outside of 1677 to 2262: got columns "
            f"{', '.join(times)}, expected one or the other. Write them as another type"
        )
    return fine if is_fine else parquet


def _opened(source: pa.NativeFile, unit: str) -> pq.ParquetFile:
    return pq.ParquetFile(
        source,
        pre_buffer=False,
        coerce_int96_timestamp_unit=unit,
        page_checksum_verification=True,
        arrow_extensions_enabled=False,
    )


# -- encoding ---------------------------------------------------------------------------------------------------------


def _options_like(old: _OldFile) -> dict[str, Any]:
    """The arguments of pyarrow's writer for row groups like those of a file."""
    metadata = old.metadata
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    first = next((group for group in groups if group.num_rows), None)
    if first is None or not first.num_columns:
        return {}
    leaves = list(leaf_paths(old.schema))
    if len(leaves) != first.num_columns:  # lists of two levels, which are encoded as a whole
        return {"compression": _codec(first.column(0))}
    chunks = [first.column(index) for index in range(first.num_columns)]
    encodings = [
        Encoding(leaf=leaf, encoding=_encoding(chunk), codec=_codec(chunk))
        for leaf, chunk in zip(leaves, chunks, strict=True)
    ]
    options = writer_options(encodings, _page_rows(old))
    options["write_page_index"] = any(chunk.has_offset_index for chunk in chunks)
    options["use_deprecated_int96_timestamps"] = any(chunk.physical_type == "INT96" for chunk in chunks)
    options["store_decimal_as_integer"] = any(
        chunk.physical_type in ("INT32", "INT64") and metadata.schema.column(index).logical_type.type == "DECIMAL"
        for index, chunk in enumerate(chunks)
    )
    filters = _bloom_filters(old, leaves)
    return options | ({"bloom_filter_options": filters} if filters else {})


def _encoding(chunk: Any) -> str:
    if chunk.has_dictionary_page:
        return DICTIONARY
    names = [name for name in chunk.encodings if name not in _LEVELS]
    return str(next((name for name in names if name != PLAIN), PLAIN))


def _codec(chunk: Any) -> str:
    """The codec of a column chunk, as pyarrow's writer names it; for LZ4 with Hadoop's frames, which nothing writes any
    more, the plain one."""
    if chunk.compression == "UNCOMPRESSED":
        return "none"
    name = str(chunk.compression).lower()
    return name if name in _CODECS else "lz4"


def _page_rows(old: _OldFile) -> int | None:
    """The rows of pages, in a table of histories."""
    content = notes_of(old.footer).get(HISTORY_KEY)
    return None if content is None else HistoryNote.from_json(content, old.task.fragment.uri).stripe_rows


def _bloom_filters(old: _OldFile, leaves: Sequence[str]) -> dict[str, Any]:
    """The options of filters as large as those that the file has, by Parquet column."""
    sizes = bloom_filter_bytes(old.footer, old.read_at)
    # 1,024 bytes -> 1,024 * 8 / 9.6 values: pyarrow rounds their bits up to the next power of two
    return {
        leaves[leaf]: {"ndv": max(1, int(nbytes * 8 / _BITS_PER_VALUE)), "fpp": _FALSE_POSITIVES}
        for leaf, nbytes in sizes.items()
    }


def _kept_tables(
    old: _OldFile, groups: Iterable[int], dedup: DedupMetadata | None, runs: dict[str, dict[int, RowGroupRuns]]
) -> Iterable[pa.Table]:
    """The rows of row groups that stay, as they are stored, one table each; `runs` gets what their flags hold. Raises
    TableError for flags that are not those of the footer."""
    stored = {} if dedup is None else dedup.groups
    names = {name: each.columns for name, each in stored.items()}
    for group in groups:
        whole = old.parquet.read_row_group(group).cast(old.schema)
        for name, each in stored.items():
            place = label(old.task.fragment.uri, group)
            check_flags(whole[flag_column(name)], each.row_groups[group], name, place)
        table, found = keep_rows(whole, names, ~old.task.mask(group))
        for name, flags in found.items():
            runs.setdefault(name, {})[group] = flags
        yield table


def _encoded(old: _OldFile, tables: Iterable[pa.Table], options: Mapping[str, Any]) -> pa.Buffer:
    """A file of these tables, a row group each. Raises DataError for what pyarrow cannot write."""
    sink = pa.BufferOutputStream()
    try:
        with pq.ParquetWriter(sink, old.schema, **options) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=max(table.num_rows, 1))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{old.task.fragment.uri} cannot be written without some of its rows: {error}. Rewrite the file"
        ) from error
    return sink.getvalue()


def _footer_of(file: pa.Buffer) -> bytes:
    size = int.from_bytes(file.slice(file.size - _TRAILER_BYTES, 4).to_pybytes(), "little")
    return bytes(file.slice(file.size - _TRAILER_BYTES - size, size).to_pybytes())


# -- notes ------------------------------------------------------------------------------------------------------------


def _kept_runs(
    dedup: DedupMetadata, kept: Sequence[int], runs: Mapping[str, Mapping[int, RowGroupRuns]]
) -> DedupMetadata:
    """The groups of the new file: the flags of row groups that were encoded anew, and of the others as they were."""
    groups = {
        name: GroupRuns(
            columns=group.columns,
            row_groups=tuple(runs.get(name, {}).get(place, group.row_groups[place]) for place in kept),
        )
        for name, group in dedup.groups.items()
    }
    return DedupMetadata(groups=groups)


def _history_note(old: _OldFile, content: bytes) -> HistoryNote:
    """The index of the rows that stay, in their order: which is that of histories still."""
    order = HistoryNote.from_json(content, old.task.fragment.uri).order
    columns = [order.key, order.sort_by[0]]
    builder = NoteBuilder(order, old.schema.field(order.key).type)
    for group in old.task.kept:
        table = old.parquet.read_row_group(group, columns=columns).select(columns)
        table = table.cast(pa.schema([old.schema.field(name) for name in columns]))
        builder.add(table.filter(pa.array(~old.task.mask(group))))
    return builder.note()
