"""Decode Parquet columns of a row group in chunks of rows: with the compiled kernel where it can, else with pyarrow.

Runs in every process that reads, on the calling thread. The kernel's columns (`column_chunk`) keep step with the
batches of pyarrow's reader, which decodes all others. FEEDLINE_DECODER=arrow, or `source.decoder: arrow`, leaves all to
pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

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
from feedline.warehouse.storage.ranges import Range, adjacent

DECODER_VARIABLE = "FEEDLINE_DECODER"
# The bytes of a file from `start` to `stop`.
ReadRange: TypeAlias = Callable[[int, int], pa.Buffer]
NOT_CODED: Mapping[Any, int] = MappingProxyType({})
ALL_ROWS: Mapping[int, Starts] = MappingProxyType({})


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
    coded: Mapping[int, int] = field(default_factory=lambda: NOT_CODED)
    starts: Mapping[int, Starts] = field(default_factory=lambda: ALL_ROWS)
    first_rows: int = 0

    @property
    def all_leaves(self) -> list[int]:
        return [*self.leaves, *self.whole]


def chunk_sizes(rows: int, most: int, first: int = 0) -> Iterator[int]:
    """The rows of each chunk: `most`, but for the first ones, of which each has twice the rows of the one before.

    first: rows of the first chunk (0: most).
    """
    size = min(first, most) or most
    while rows > 0:
        yield min(size, rows)
        rows, size = rows - size, min(2 * size, most)


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
        names: StoredNames | None,
        uri: str,
        file_bytes: int,
        *,
        decoder: str = "auto",
        as_stored: bool = True,
        like: FileDecoder | None = None,
    ) -> None:
        self._schema = schema
        self._metadata = metadata
        self._names = names
        self._uri = uri
        self._file_bytes = file_bytes
        self._decoder = decoder
        self._as_stored = as_stored
        self._alone = {leaves.start: name for name, leaves in stored.items() if len(leaves) == 1}
        self._kinds: dict[int, ColumnKind | str] = {} if like is None else like._kinds

    def decodes(self, schema: pa.Schema, metadata: pq.FileMetaData) -> bool:
        """Whether another file has the same columns, stored as the same Parquet columns."""
        return bool(self._schema.equals(schema) and self._metadata.schema.equals(metadata.schema))

    def kind(self, leaf: int) -> ColumnKind | str:
        """How the kernel decodes a Parquet column; or why it does not."""
        return kernel_refusal(self._decoder) or self._kind(leaf)

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
        row_group, leaves = request.row_group, request.leaves
        if request.whole:
            yield self._whole(parquet, row_group, request.whole, read)
        opened = self._open(row_group, leaves, read, request.coded, request.starts)
        own = {self._alone[leaf]: chunk for leaf, chunk in opened.items()}
        others = [leaf for leaf in leaves if leaf not in opened]
        if others or not own:
            batches: Iterator[pa.RecordBatch] = parquet.reader.iter_batches(
                request.chunk_rows, row_groups=[row_group], column_indices=others, use_threads=False
            )
            for batch in batches:
                yield self._join(self._rename(batch), own, batch.num_rows, row_group)
            return
        rows = self._metadata.row_group(row_group).num_rows
        for size in chunk_sizes(rows, request.chunk_rows, request.first_rows):
            yield self._join(None, own, size, row_group)

    def _whole(self, parquet: pq.ParquetFile, row_group: int, leaves: Sequence[int], read: ReadRange) -> DecodedRows:
        opened = self._open(row_group, leaves, read, NOT_CODED, ALL_ROWS)
        if len(opened) == len(leaves):
            rows = self._metadata.row_group(row_group).num_rows
            return self._join(None, {self._alone[leaf]: chunk for leaf, chunk in opened.items()}, rows, row_group)
        table = parquet.reader.read_row_group(row_group, column_indices=leaves, use_threads=False)
        arrays = [pa.concat_arrays(each.chunks) for each in table.columns]
        batch = self._rename(pa.RecordBatch.from_arrays(arrays, schema=table.schema))
        return DecodedRows(batch.num_rows, batch, {})

    def _open(
        self,
        row_group: int,
        leaves: Sequence[int],
        read: ReadRange,
        coded: Mapping[int, int],
        starts: Mapping[int, Starts],
    ) -> dict[int, ChunkDecoder]:
        """The chunks for the kernel, by their Parquet columns."""
        if kernel_refusal(self._decoder):
            return {}
        kinds = {leaf: kind for leaf in leaves if not isinstance(kind := self._kind(leaf), str)}
        group = self._metadata.row_group(row_group)
        rows, ranges = group.num_rows, chunk_ranges(self._metadata, row_group, list(kinds), self._file_bytes)
        contents: dict[Range, pa.Buffer] = {}
        for (first, end), inner in adjacent([each for each in ranges if 0 <= each[0] <= each[1] <= self._file_bytes]):
            span = read(first, end)
            contents |= {(start, stop): span[start - first : stop - first] for start, stop in inner}
        requests: dict[int, Request] = {}
        bugs = writer_bugs(self._metadata.created_by)
        for (leaf, kind), place in zip(kinds.items(), ranges, strict=True):
            chunk, content = group.column(leaf), contents.get(place)
            size = chunk.total_compressed_size
            if content is not None and len(content) >= size:
                own = content[:size]  # a damaged page must not go on in the bytes of another column
                codes, prefix = leaf in coded, coded.get(leaf, 0)
                requests[leaf] = Request(kind, chunk, rows, own, codes, prefix, starts.get(leaf), bugs)
        opened = zip(requests, open_chunks(list(requests.values())), strict=True)
        return {leaf: chunk for leaf, chunk in opened if chunk is not None}

    def _join(
        self, batch: pa.RecordBatch | None, own: dict[str, ChunkDecoder], rows: int, row_group: int
    ) -> DecodedRows:
        if not own:
            return DecodedRows(rows, batch, {})
        arrays = {} if batch is None else dict(zip(batch.schema.names, batch.columns, strict=True))
        compact: dict[str, pa.Array] = {}
        for name, found in zip(own, take_rows(list(own.values()), rows), strict=True):
            if isinstance(found, ChunkError):
                raise CorruptFileError(
                    f"column {name!r} of {label(self._uri, row_group)} is not valid Parquet: {found}. Restore or "
                    "rewrite the file"
                ) from found
            (compact if own[name].compact else arrays)[name] = found
        return DecodedRows(rows, pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)), compact)

    def _rename(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._as_stored:
            batch = relabel(batch, storage_schema(batch.schema))
        return batch if self._names is None else self._names.rename(batch, self._uri)
