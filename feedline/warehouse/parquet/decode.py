"""Decode Parquet columns of a row group in chunks of rows: with the compiled kernel where it can, else with pyarrow.

Runs in every process that reads, on the calling thread. The kernel's columns (`column_chunk`) keep step with the
batches of pyarrow's reader, which decodes all others. FEEDLINE_DECODER=arrow, or `source.decoder: arrow`, leaves all to
pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.errors import CorruptFileError
from feedline.native import parquet as native
from feedline.warehouse.parquet.column_chunk import (
    DECOMPRESSORS,
    ChunkDecoder,
    ChunkError,
    Request,
    Starts,
    open_chunks,
    take_rows,
)
from feedline.warehouse.parquet.column_kinds import ColumnKind, column_kind, writer_bugs
from feedline.warehouse.parquet.footer import chunk_ranges
from feedline.warehouse.parquet.schemas import relabel, storage_schema
from feedline.warehouse.parquet.stored_names import StoredNames
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.file_identity import Stamp, refuse_changed
from feedline.warehouse.storage.ranges import Range, adjacent

DECODER_VARIABLE = "FEEDLINE_DECODER"
# The bytes of a file from `start` to `stop`.
ReadRange: TypeAlias = Callable[[int, int], pa.Buffer]


def kernel_refusal(decoder: str = "auto") -> str:
    """Why the kernel decodes nothing in this process; empty if it decodes what it can. decoder: `source.decoder`."""
    if decoder == "arrow" or os.environ.get(DECODER_VARIABLE) == "arrow":
        return "decoder: arrow"
    return "" if native.COMPILED else "installed without a compiler"


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The columns of some rows. compact: those of which only rows that start runs, or are not null, were decoded."""

    rows: int
    batch: pa.RecordBatch
    compact: Mapping[str, pa.Array]


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


class FileDecoder:
    """Decodes one file's columns, under the table's names.

    schema, stored: its columns and their Parquet columns. as_stored: none is of a type that pyarrow reads, but no
    column of a table has (`storage_type`). like: the decoder of a file with the same columns.
    """

    def __init__(
        self,
        schema: pa.Schema,
        stored: dict[str, range],
        metadata: pq.FileMetaData,
        version: FileVersion,
        *,
        as_stored: bool = True,
        like: FileDecoder | None = None,
    ) -> None:
        self._schema = schema
        self._metadata = metadata
        self._version = version
        self._as_stored = as_stored
        self._alone = {leaves.start: name for name, leaves in stored.items() if len(leaves) == 1}
        self._kinds: dict[int, ColumnKind | str] = {} if like is None else like._kinds

    def decodes(self, schema: pa.Schema, metadata: pq.FileMetaData) -> bool:
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

    def batches(self, parquet: pq.ParquetFile, request: DecodeRequest, read: ReadRange) -> Iterator[DecodedRows]:
        """Decode columns of a row group. Raises CorruptFileError."""
        row_group = request.row_group
        if request.whole:
            yield self._whole(parquet, request, read)
        chunks = self._open(request, read)
        leaves = [leaf for leaf in request.leaves if self._alone.get(leaf) not in chunks]
        if leaves or not chunks:
            batches: Iterator[pa.RecordBatch] = parquet.reader.iter_batches(
                request.chunk_rows, row_groups=[row_group], column_indices=leaves, use_threads=False
            )
            for batch in batches:
                yield self._join(self._rename(batch), chunks, batch.num_rows, row_group)
            return
        rows = self._metadata.row_group(row_group).num_rows
        for size in chunk_sizes(rows, request.chunk_rows, request.first_rows):
            yield self._join(None, chunks, size, row_group)

    def _whole(self, parquet: pq.ParquetFile, request: DecodeRequest, read: ReadRange) -> DecodedRows:
        row_group, leaves = request.row_group, request.whole
        chunks = self._open(replace(request, leaves=leaves, coded={}, starts={}), read)
        if len(chunks) == len(leaves):
            return self._join(None, chunks, self._metadata.row_group(row_group).num_rows, row_group)
        table = parquet.reader.read_row_group(row_group, column_indices=leaves, use_threads=False)
        arrays = [pa.concat_arrays(column.chunks) for column in table.columns]
        batch = self._rename(pa.RecordBatch.from_arrays(arrays, schema=table.schema))
        return DecodedRows(batch.num_rows, batch, {})

    def _open(self, request: DecodeRequest, read: ReadRange) -> dict[str, ChunkDecoder]:
        """The chunks for the kernel, by their columns."""
        if kernel_refusal(self._version.decoder):
            return {}
        kinds = {leaf: kind for leaf in request.leaves if not isinstance(kind := self._kind(leaf), str)}
        group, file_bytes = self._metadata.row_group(request.row_group), self._version.size_bytes
        ranges = chunk_ranges(self._metadata, request.row_group, list(kinds), file_bytes)
        contents: dict[Range, pa.Buffer] = {}
        for (first, end), inner in adjacent([each for each in ranges if 0 <= each[0] <= each[1] <= file_bytes]):
            span = read(first, end)
            contents |= {(start, stop): span[start - first : stop - first] for start, stop in inner}
        requests: dict[str, Request] = {}
        bugs, coded = writer_bugs(self._metadata.created_by), request.coded
        for (leaf, kind), place in zip(kinds.items(), ranges, strict=True):
            chunk, content = group.column(leaf), contents.get(place)
            size = chunk.total_compressed_size
            if content is not None and len(content) >= size:
                # a damaged page must not go on in the bytes of another column
                requests[self._alone[leaf]] = Request(
                    kind,
                    chunk,
                    group.num_rows,
                    content[:size],
                    codes=leaf in coded,
                    prefix=coded.get(leaf, 0),
                    starts=request.starts.get(leaf),
                    bugs=bugs,
                )
        opened = zip(requests, open_chunks(list(requests.values())), strict=True)
        return {name: chunk for name, chunk in opened if chunk is not None}

    def _join(
        self, batch: pa.RecordBatch | None, chunks: dict[str, ChunkDecoder], rows: int, row_group: int
    ) -> DecodedRows:
        if not chunks:
            return DecodedRows(rows, batch, {})
        arrays = {} if batch is None else dict(zip(batch.schema.names, batch.columns, strict=True))
        compact: dict[str, pa.Array] = {}
        for name, array in zip(chunks, take_rows(list(chunks.values()), rows), strict=True):
            if isinstance(array, ChunkError):
                place = label(self._version.uri, row_group)
                raise CorruptFileError(
                    f"column {name!r} of {place} is not valid Parquet: {array}. Restore or rewrite the file"
                ) from array
            (compact if chunks[name].compact else arrays)[name] = array
        return DecodedRows(rows, pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)), compact)

    def _rename(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._as_stored:
            batch = relabel(batch, storage_schema(batch.schema))
        names = self._version.stored_names
        return batch if names is None else names.rename(batch, self._version.uri)
