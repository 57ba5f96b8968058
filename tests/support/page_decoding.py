"""Decode a Parquet file in memory with the compiled kernel or with pyarrow, and compare what they deliver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.native import parquet as native
from feedline.native.parquet import Page
from feedline.warehouse.parquet.column_chunk import (
    ChunkDecoder,
    ChunkError,
    ColumnKind,
    Request,
    open_chunks,
    take_rows,
)
from feedline.warehouse.parquet.decode import DecodeRequest, FileDecoder, FileVersion
from feedline.warehouse.parquet.footer import ChunkFacts, column_leaves, open_parquet
from feedline.warehouse.storage.file_identity import Stamp


class File:
    """A file's bytes, its footer and its decoder."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.parquet = open_parquet(pa.BufferReader(content), pre_buffer=False)
        self.metadata: pq.FileMetaData = self.parquet.metadata
        self.schema: pa.Schema = self.parquet.schema_arrow
        self.leaves = column_leaves(self.schema, self.metadata.num_columns, "file")
        stored = dict(zip(self.schema.names, self.leaves, strict=True))
        version = FileVersion(uri="file", stamp=Stamp(len(content), -1), footer_digest=b"", footer_bytes=0)
        self.decoder = FileDecoder(self.schema, stored, self.metadata, version)
        self._buffer = pa.py_buffer(content)

    @property
    def groups(self) -> range:
        return range(self.metadata.num_row_groups)

    def leaf(self, name: str) -> int:
        """The Parquet column of a column that has one."""
        [leaf] = self.leaves[self.schema.names.index(name)]
        return leaf

    def chunk(self, name: str, group: int = 0, *, codes: bool = False) -> ChunkDecoder | None:
        """The kernel's decoder of a column chunk; None for pyarrow."""
        leaf = self.leaf(name)
        kind = self.decoder.kind(leaf)
        assert isinstance(kind, ColumnKind), kind
        metadata = self.metadata.row_group(group)
        chunk = metadata.column(leaf)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        content = self.read(start, start + chunk.total_compressed_size)
        return opened(kind, chunk, metadata.num_rows, content, codes=codes)

    def read(self, start: int, stop: int) -> pa.Buffer:
        return self._buffer.slice(start, stop - start)

    def batches(
        self, group: int, chunk_rows: int, coded: Mapping[int, int] = MappingProxyType({}), *, alone: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Batches of all columns; `alone`: where pyarrow's reader would be asked, there is none."""
        leaves = [leaf for each in self.leaves for leaf in each]
        parquet: Any = None if alone else self.parquet
        request = DecodeRequest(row_group=group, leaves=leaves, chunk_rows=chunk_rows, coded=coded)
        decoded = self.decoder.batches(lambda: parquet, request, self.read)
        return (each.batch for each in decoded)


def table_of(
    content: bytes, chunk_rows: int = 1000, *, coded: bool = False, prefix: int = 0, alone: bool = True
) -> pa.Table:
    """All rows of a file, in its columns' order. alone: by the kernel alone, which fails where it does not decode.

    prefix: how many elements of lists are needed, if coded.
    """
    file = File(content)
    codes = {leaf: prefix for each in file.leaves for leaf in each} if coded else {}
    batches = [batch for group in file.groups for batch in file.batches(group, chunk_rows, codes, alone=alone)]
    for batch in batches:
        batch.validate()
    chunks = {name: [batch.column(name) for batch in batches] for name in file.schema.names}
    if coded:  # a row group each has its dictionary, or none
        chunks = {name: [values_of(each) for each in arrays] for name, arrays in chunks.items()}
    columns = [pa.chunked_array(chunks[field.name], field.type) for field in file.schema]
    return pa.Table.from_arrays(columns, names=file.schema.names)


def arrow_table(content: bytes) -> pa.Table:
    """All rows, as pyarrow decodes them."""
    file = File(content)
    tables = [file.parquet.reader.read_row_group(group, use_threads=False) for group in file.groups]
    return pa.concat_tables(tables) if tables else file.schema.empty_table()


def stored(table: pa.Table, **options: Any) -> bytes:
    """A table as pyarrow writes it."""
    out = BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def values_of(array: pa.Array) -> pa.Array:
    """Codes, or lists of codes, as the values they stand for."""
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return array
    inner = values_of(array.values)
    offset_type = pa.int64() if pa.types.is_large_list(array.type) else pa.int32()
    offsets = pa.Array.from_buffers(offset_type, len(array) + 1, [None, array.buffers()[1]], offset=array.offset)
    kind = array.type.value_field.with_type(inner.type)
    wide = pa.large_list(kind) if pa.types.is_large_list(array.type) else pa.list_(kind)
    mask = array.is_null() if array.null_count else None
    return type(pa.array([], wide)).from_arrays(offsets, inner, type=wide, mask=mask)


def difference(found: pa.Table, expected: pa.Table) -> str:
    """Where two tables differ, bit by bit; empty if they do not."""
    if found.schema.names != expected.schema.names or found.num_rows != expected.num_rows:
        return f"{found.num_rows} rows of {found.schema.names}, {expected.num_rows} of {expected.schema.names}"
    for name, one, other in zip(found.schema.names, found.columns, expected.columns, strict=True):
        if why := _difference(_whole(one), _whole(other)):
            return f"{name}: {why}"
    return ""


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _difference(one: pa.Array, other: pa.Array) -> str:
    if one.type != other.type:
        return f"{one.type}, {other.type}"
    if len(one) != len(other) or one.null_count != other.null_count or not one.is_null().equals(other.is_null()):
        return f"nulls differ, of {len(one)} and {len(other)}: {one.null_count}, {other.null_count}"
    if pa.types.is_struct(one.type):
        return "".join(_difference(*pair) for pair in zip(one.flatten(), other.flatten(), strict=True))
    if pa.types.is_map(one.type):
        one, other = _lists(one), _lists(other)
    if pa.types.is_list(one.type) or pa.types.is_large_list(one.type):
        if not one.value_lengths().equals(other.value_lengths()):
            return "lengths of lists differ"
        return _difference(one.flatten(), other.flatten())
    if pa.types.is_dictionary(one.type):
        return _difference(one.dictionary_decode(), other.dictionary_decode())
    return "" if _bits(one.drop_null()).equals(_bits(other.drop_null())) else "values differ"


def _lists(maps: pa.Array) -> pa.Array:
    kind = pa.list_(pa.struct([maps.type.key_field, maps.type.item_field]))
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(maps.offsets, entries, type=kind)


def _bits(array: pa.Array) -> pa.Array:
    """NaNs and zeros are told apart by their bits."""
    if pa.types.is_floating(array.type):
        return pa.array(array.to_numpy(zero_copy_only=False).view(f"i{array.type.bit_width // 8}"))
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array.view(pa.binary() if pa.types.is_string(array.type) else pa.large_binary())
    return array if pa.types.is_null(array.type) else array.drop_null()


def beginnings(table: pa.Table, prefix: int) -> pa.Table:
    """The first elements of the lists of the only column."""
    kind = table.schema.field("v").type
    rows = [row and row[:prefix] for row in table["v"].to_pylist()]
    return pa.table([pa.array(rows, kind)], schema=table.schema)


def opened(kind: Any, chunk: Any, rows: int, content: pa.Buffer, *, codes: bool = False) -> ChunkDecoder | None:
    """The kernel's decoder of a column chunk of so many rows; None for pyarrow."""
    sizes = len(content), chunk.total_uncompressed_size
    facts = ChunkFacts((0, len(content)), *sizes, chunk.num_values, chunk.compression, chunk.physical_type)
    [found] = open_chunks([Request(kind, facts, rows, content, codes=codes)])
    return found


def read_rows(decoder: ChunkDecoder | None, rows: int) -> pa.Array:
    """The next rows of a chunk for the kernel. Raises ChunkError."""
    assert decoder is not None
    [found] = take_rows([decoder], rows)
    if isinstance(found, ChunkError):
        raise found
    return found


def pages_in(chunk: Any, values: int) -> list[Page]:
    """The pages of a column chunk of so many values."""
    return native.pages_of(native.page_table(chunk, values).pages)
