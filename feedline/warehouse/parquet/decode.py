"""Decode Parquet columns of a row group in chunks of rows: with the compiled kernel where it can, else with pyarrow.

Runs in every process that reads, on the calling thread. The kernel's columns (`column_chunk`) keep step with the
batches of pyarrow's reader, which decodes all others. FEEDLINE_DECODER=arrow, or `source.decoder: arrow`, leaves all to
pyarrow.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError
from feedline.native import parquet as native
from feedline.native.parquet import DICTIONARY_PAGE, Page
from feedline.warehouse.parquet.column_chunk import (
    DECOMPRESSORS,
    ChunkDecoder,
    ChunkError,
    JointChunks,
    JointLayout,
    Request,
    Starts,
    joint_layout,
    open_chunks,
    take_rows,
)
from feedline.warehouse.parquet.column_kinds import ColumnKind, column_kind, writer_bugs
from feedline.warehouse.parquet.footer import ChunkFacts, chunk_facts
from feedline.warehouse.parquet.joined_footer import JoinedFooter
from feedline.warehouse.parquet.schemas import relabel, storage_schema
from feedline.warehouse.parquet.stored_names import StoredNames
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.file_identity import Stamp, refuse_changed
from feedline.warehouse.storage.ranges import Range, adjacent

DECODER_VARIABLE = "FEEDLINE_DECODER"
_KIND, _UNCOMPRESSED, _VALUES = (Page._fields.index(name) for name in ("kind", "uncompressed", "values"))
_MOST_LAYOUTS = 64  # of the columns that are read together, and of those of them that come as codes
# The bytes of a file from `start` to `stop`.
ReadRange: TypeAlias = Callable[[int, int], pa.Buffer]


def kernel_refusal(decoder: str = "auto") -> str:
    """Why the kernel decodes nothing in this process; empty if it decodes what it can. decoder: `source.decoder`."""
    if decoder == "arrow" or os.environ.get(DECODER_VARIABLE) == "arrow":
        return "decoder: arrow"
    return "" if native.COMPILED else "installed without a compiler"


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The columns of some rows. compact: those of which only rows that start runs, or are not null, were decoded.

    arrays: those that were decoded one by one, or by pyarrow. parts: all others, in batches. dictionaries: of those of
    them that are codes, or lists of codes, the entries that these stand for.
    """

    rows: int
    arrays: Mapping[str, pa.Array]
    compact: Mapping[str, pa.Array] = field(default_factory=dict)
    parts: tuple[pa.RecordBatch, ...] = ()
    dictionaries: Mapping[str, pa.Array] = field(default_factory=dict)

    @property
    def batch(self) -> pa.RecordBatch:
        """All but the compact ones: codes as dictionary arrays, or lists of these."""
        arrays = dict(self.arrays)
        for part in self.parts:
            for name, array in zip(part.schema.names, part.columns, strict=True):
                entries = self.dictionaries.get(name)
                arrays[name] = array if entries is None else _with_entries(array, entries)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _with_entries(codes: pa.Array, entries: pa.Array) -> pa.Array:
    if not isinstance(codes, pa.ListArray | pa.LargeListArray):
        return pa.DictionaryArray.from_arrays(codes, entries, safe=False)
    elements = pa.DictionaryArray.from_arrays(codes.values, entries, safe=False)
    item = codes.type.value_field.with_type(elements.type)
    kind = pa.large_list(item) if isinstance(codes, pa.LargeListArray) else pa.list_(item)
    return pa.Array.from_buffers(kind, len(codes), codes.buffers()[:2], codes.null_count, codes.offset, [elements])


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """Parquet columns (`leaves`) of a row group, in chunks of about `chunk_rows`.

    whole: further columns, if any, that the first batch holds, in all rows of the row group. coded: those that may come
    as codes and a dictionary, or lists of them, each with how many elements of a list are needed (0: all). starts:
    those that may come compact, each with the rows that start runs; read after `whole` was delivered, which may tell.
    first_rows: of the first chunk, from which they grow, where pyarrow decodes none of the columns (0: all alike).
    """

    row_group: int
    leaves: Sequence[int]
    chunk_rows: int
    whole: Sequence[int] = ()
    coded: Mapping[int, int] = field(default_factory=dict)
    starts: Mapping[int, Starts] = field(default_factory=dict)
    first_rows: int = 0

    @property
    def all_leaves(self) -> list[int]:
        return [*self.leaves, *self.whole]


def chunk_sizes(rows: int, most: int, first: int = 0) -> Iterator[int]:
    """The rows of each chunk: `most`, but for the first ones, of which each has twice the rows of the one before.

    first: rows of the first chunk (0: most).
    """
    # 1,000 rows, at most 400, first 100 -> 100, 200, 400, 300
    size = min(first, most) or most
    while rows > 0:
        yield min(size, rows)
        rows, size = rows - size, min(2 * size, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """A file as the snapshot describes it; `uri` as messages name it. `stored_names`: of the table's columns in it, if
    they are not the table's. `decoder`: `auto`, or `arrow` for pyarrow alone."""

    uri: str
    stamp: Stamp
    footer_digest: bytes
    footer_bytes: int
    stored_names: StoredNames | None = None
    decoder: str = "auto"

    @property
    def size_bytes(self) -> int:
        return self.stamp.size_bytes

    def refuse_other(self, now: Stamp) -> None:
        """Raise TableChangedError if a store describes another file."""
        remedy = "Take a new snapshot, or go on with feedline rebase"
        refuse_changed(self.uri, self.stamp, now, "after the snapshot was taken", remedy)


class ChunkPages(NamedTuple):
    """Pages of a column chunk of a flat column, end to end: its dictionary, if it has one, and some of its data pages.
    rows: int64 [data pages], those that each should hold."""

    content: pa.Buffer
    rows: NDArray[np.int64]

    def uncompressed_bytes(self, rows: int) -> int | None:
        """Those of all pages, of so many rows; None where they do not hold `rows` each."""
        try:
            table = native.page_table(self.content, rows)
        except ValueError:
            return None
        pages = np.frombuffer(table.pages, np.int64).reshape(-1, len(Page._fields))
        is_data = pages[:, _KIND] != DICTIONARY_PAGE
        return int(pages[:, _UNCOMPRESSED].sum()) if np.array_equal(pages[is_data, _VALUES], self.rows) else None


class FileDecoder:
    """Decodes one file's columns, under the table's names.

    schema, stored: its columns and their Parquet columns. as_stored: none is of a type that pyarrow reads, but no
    column of a table has (`storage_type`). like: the decoder of a file with the same columns. uris: of columns that are
    in another file than `version` says, the file.
    """

    def __init__(
        self,
        schema: pa.Schema,
        stored: dict[str, range],
        metadata: pq.FileMetaData | JoinedFooter,
        version: FileVersion,
        *,
        as_stored: bool = True,
        like: FileDecoder | None = None,
        uris: Mapping[str, str] | None = None,
    ) -> None:
        self._schema = schema
        self._metadata = metadata
        self._version = version
        self.as_stored = as_stored
        self._size_bytes = metadata.size_bytes if isinstance(metadata, JoinedFooter) else version.size_bytes
        self._uris = uris or {}
        self._alone = {leaves.start: name for name, leaves in stored.items() if len(leaves) == 1}
        self._kinds: dict[int, ColumnKind | str] = {} if like is None else like._kinds
        self._layouts: dict[tuple[tuple[str, int], ...], JointLayout] = {} if like is None else like._layouts
        self._asked: tuple[tuple[int, tuple[int, ...]], list[ChunkFacts]] | None = None

    def decodes(self, schema: pa.Schema, metadata: pq.FileMetaData | JoinedFooter) -> bool:
        """Whether another file has the same columns, stored as the same Parquet columns."""
        return bool(self._schema.equals(schema) and self._metadata.schema.equals(metadata.schema))

    def kind(self, leaf: int) -> ColumnKind | str:
        """How the kernel decodes a Parquet column; or why it does not."""
        return kernel_refusal(self._version.decoder) or self._kind(leaf)

    def _kind(self, leaf: int) -> ColumnKind | str:
        if leaf not in self._kinds:
            name = self._alone.get(leaf)
            column = self._metadata.schema.column(leaf)
            self._kinds[leaf] = "nested" if name is None else column_kind(self._schema.field(name), column)
        return self._kinds[leaf]

    def left_to_arrow(self, leaf: int, row_group: int) -> str | None:
        """Why pyarrow decodes a column chunk, as far as the footer says it; None if the kernel does."""
        kind = self.kind(leaf)
        codec = self._metadata.row_group(row_group).column(leaf).compression
        return kind if isinstance(kind, str) else None if codec in DECOMPRESSORS else f"codec {codec}"

    def batches(
        self, parquet: Callable[[], pq.ParquetFile], request: DecodeRequest, read: ReadRange
    ) -> Iterator[DecodedRows]:
        """Decode columns of a row group. parquet: the file for pyarrow. Raises CorruptFileError."""
        row_group = request.row_group
        if request.whole:
            yield self._whole(parquet, request, read)
        chunks = self._opened(self._open(request, read), row_group)
        leaves = [leaf for leaf in request.leaves if self._alone.get(leaf) not in chunks.names]
        if leaves or not chunks.names:
            batches: Iterator[pa.RecordBatch] = parquet().reader.iter_batches(
                request.chunk_rows, row_groups=[row_group], column_indices=leaves, use_threads=False
            )
            for batch in batches:
                yield chunks.take(batch.num_rows, self._rename(batch))
            return
        rows = self._metadata.row_group(row_group).num_rows
        for size in chunk_sizes(rows, request.chunk_rows, request.first_rows):
            yield chunks.take(size)

    def _whole(self, parquet: Callable[[], pq.ParquetFile], request: DecodeRequest, read: ReadRange) -> DecodedRows:
        row_group, leaves = request.row_group, request.whole
        chunks = self._open(replace(request, leaves=leaves, coded={}, starts={}), read)
        if len(chunks) == len(leaves):
            return self._opened(chunks, row_group).take(self._metadata.row_group(row_group).num_rows)
        table = parquet().reader.read_row_group(row_group, column_indices=leaves, use_threads=False)
        arrays = [pa.concat_arrays(column.chunks) for column in table.columns]
        batch = self._rename(pa.RecordBatch.from_arrays(arrays, schema=table.schema))
        return DecodedRows(batch.num_rows, _columns_of(batch))

    def _open(self, request: DecodeRequest, read: ReadRange) -> dict[str, ChunkDecoder]:
        """The chunks for the kernel, by their columns."""
        if kernel_refusal(self._version.decoder):
            return {}
        kinds = {leaf: kind for leaf in request.leaves if not isinstance(kind := self._kind(leaf), str)}
        rows, file_bytes = self._metadata.row_group(request.row_group).num_rows, self._size_bytes
        all_facts = self.facts(request.row_group, kinds)
        places = [facts.place for facts in all_facts if 0 <= facts.place[0] <= facts.place[1] <= file_bytes]
        spans: dict[Range, tuple[pa.Buffer, int]] = {}
        for (first, end), inner in adjacent(places):
            span = read(first, end)
            spans |= {(start, stop): (span, start - first) for start, stop in inner if stop - first <= len(span)}
        refused = self._refused_pages
        coded, starts = request.coded, request.starts
        requests: dict[str, Request] = {}
        for (leaf, kind), facts in zip(kinds.items(), all_facts, strict=True):
            start, stop = facts.place
            # a damaged page must not go on in the bytes of another column
            if facts.place in spans and stop - start >= facts.nbytes >= 0:
                content, at = spans[facts.place]
                requests[self._alone[leaf]] = Request(
                    kind, facts, rows, content, at, leaf in coded, coded.get(leaf, 0), starts.get(leaf), refused
                )
        opened = zip(requests, open_chunks(list(requests.values())), strict=True)
        return {name: chunk for name, chunk in opened if chunk is not None}

    def _opened(self, chunks: Mapping[str, ChunkDecoder], row_group: int) -> _Opened:
        joint = {name: chunk for name, chunk in chunks.items() if chunk.is_joint}
        key = tuple([(name, chunk.code_bytes) for name, chunk in joint.items()])
        if (layout := self._layouts.get(key)) is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = joint_layout(joint)
        places = {name: label(uri, row_group) for name, uri in self._uris.items()}
        return _Opened(chunks, JointChunks(joint, layout), label(self._version.uri, row_group), places)

    def is_flat(self, leaf: int) -> bool:
        """Whether the kernel decodes a Parquet column, which is a column of its own, of one value a row."""
        kind = self.kind(leaf)
        return isinstance(kind, ColumnKind) and not kind.lists

    def decode_pages(self, row_group: int, pages: Mapping[int, ChunkPages]) -> dict[str, pa.Array] | None:
        """Decode all rows of some pages, by Parquet columns that are flat (see `is_flat`); the arrays by columns.

        None: some are not decoded here, or are not what they were taken for. Raises CorruptFileError.
        """
        requests: dict[int, dict[str, Request]] = {}
        for (leaf, part), own in zip(pages.items(), self.facts(row_group, pages), strict=True):
            kind, rows = self.kind(leaf), int(part.rows.sum())
            uncompressed_bytes = part.uncompressed_bytes(rows)
            if isinstance(kind, str) or uncompressed_bytes is None:
                return None
            here = own._replace(nbytes=len(part.content), uncompressed_bytes=uncompressed_bytes, values=rows)
            request = Request(kind, here, rows, part.content, refused=self._refused_pages)
            requests.setdefault(rows, {})[self._alone[leaf]] = request
        arrays: dict[str, pa.Array] = {}
        for rows, alike in requests.items():
            chunks = dict(zip(alike, open_chunks(list(alike.values())), strict=True))
            opened = {name: chunk for name, chunk in chunks.items() if chunk is not None}
            if len(opened) < len(chunks):
                return None
            batch = self._opened(opened, row_group).take(rows).batch
            arrays |= _columns_of(batch)
        return arrays

    @cached_property
    def _refused_pages(self) -> int:
        """Kinds of pages, as bits, that only pyarrow reads right."""
        return functools.reduce(operator.or_, (bug.page_kinds for bug in writer_bugs(self._metadata.created_by)), 0)

    def facts(self, row_group: int, leaves: Iterable[int]) -> list[ChunkFacts]:
        """What the footer says of some column chunks; the last answer is kept."""
        key, asked = (row_group, tuple(leaves)), self._asked  # threads share it
        if asked is None or asked[0] != key:
            if isinstance(self._metadata, JoinedFooter):
                found = self._metadata.chunk_facts(*key)
            else:
                found = chunk_facts(self._metadata, *key, self._version.size_bytes)
            asked = self._asked = key, found
        return asked[1]

    def _rename(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.as_stored:
            batch = relabel(batch, storage_schema(batch.schema))
        names = self._version.stored_names
        return batch if names is None else names.rename(batch, self._version.uri)


def _columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


class _Opened:
    """The chunks of a row group for the kernel, by their columns. joint: of them. place, places: of messages, also by
    column."""

    def __init__(
        self, chunks: Mapping[str, ChunkDecoder], joint: JointChunks, place: str, places: Mapping[str, str]
    ) -> None:
        self.names = chunks.keys()
        self._place, self._places = place, places
        self._joint = joint
        self._single = {name: chunk for name, chunk in chunks.items() if not chunk.is_joint}

    def take(self, rows: int, batch: pa.RecordBatch | None = None) -> DecodedRows:
        """The next rows. batch: what pyarrow decoded of them. Raises CorruptFileError."""
        arrays = {} if batch is None else _columns_of(batch)
        compact: dict[str, pa.Array] = {}
        parts = self._joint.take(rows)
        taken: dict[str, pa.Array | ChunkError] = dict(
            zip(self._single, take_rows(list(self._single.values()), rows), strict=True)
        )
        if isinstance(parts, dict):
            taken |= parts
        for name in self.names:
            array = taken.get(name)
            if isinstance(array, ChunkError):
                place = self._places.get(name, self._place)
                raise CorruptFileError(
                    f"column {name!r} of {place} is not valid Parquet: {array}. Restore or rewrite the file"
                ) from array
            if array is not None:
                (compact if self._single[name].compact else arrays)[name] = array
        assert not isinstance(parts, dict)
        return DecodedRows(rows, arrays, compact, parts, self._joint.dictionaries)
