"""Decode one column chunk with the compiled kernel, page by page, to Arrow arrays of values or of codes.

Runs in every process that reads, on the calling thread. Whether a chunk is decoded here is decided from the footer
(`column_kind`) and from its page headers and dictionary (`ChunkDecoder.open`), before a row is delivered: flat columns,
lists of one level, of the types that hot tables are made of, in all encodings but the deprecated BIT_PACKED. Everything
else is pyarrow's (see `decode`). The values are the same, bit by bit.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.native import parquet as native
from feedline.native.parquet import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    RLE,
    Cursor,
    Decoded,
    DictionaryStrings,
    Page,
)
from feedline.warehouse.parquet.schemas import is_unchecked

_PHYSICAL = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6, "FIXED_LEN_BYTE_ARRAY": 7}
_SIZES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_ENCODINGS = frozenset({0, 2, 3, 5, 6, 7, 8, 9})  # of values; BIT_PACKED is deprecated
_MOST_SIZE = 65536  # bytes of a value of a fixed size; of longer ones a block of rows may not fit in memory
_DATA = (DATA_PAGE, DATA_PAGE_V2)
_MOST_BYTES = 2**31 - 1  # of a chunk's strings: their offsets are 32 bits wide
# A dictionary is worth its codes while it has less than this share of the chunk's values: what is computed on it is
# computed that much less often, and gathered once.
_WORTH_CODES = 0.5
_WORTH_CUTTING = 2  # times as long are lists on average as what is needed of them: of shorter ones, all is delivered
_TOGETHER = 2**18  # bytes of pages that are decompressed at once: they are read from the second cache
_MANY = 2**16  # codes of 16 bits leave one number for a null, which is one entry more


_Decompress = Callable[[pa.Buffer, int], Any]  # to exactly the size that a page declares


class ChunkError(ValueError):
    """A column chunk that is not valid Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """How the values of a Parquet column are laid out, and the Arrow type that they become.

    lists: 0 for a flat column, 1 for lists that are never null, 2 for lists that may be.
    """

    physical: int
    size: int
    lists: int
    max_def: int
    type: pa.DataType

    @property
    def element(self) -> pa.DataType:
        """The type of a value."""
        return self.type.value_type if self.lists else self.type


def column_kind(field: pa.Field, column: pq.ColumnSchema) -> ColumnKind | str:
    """The kind of a column that is stored as one Parquet column; or why the kernel does not decode it."""
    kind, lists, nullable = field.type, 0, field.nullable
    if pat.is_list(kind) or pat.is_large_list(kind):
        lists, nullable = 1 + field.nullable, kind.value_field.nullable
        kind = kind.value_type
    if column.max_repetition_level != (lists > 0) or column.max_definition_level != lists + nullable:
        return "nested"
    physical = column.physical_type
    if physical not in _PHYSICAL or not _is_stored_as(kind, physical, column.length):
        return f"{physical.lower()} as {kind}"
    size = column.length if physical == "FIXED_LEN_BYTE_ARRAY" else _SIZES[physical]
    return ColumnKind(
        physical=_PHYSICAL[physical], size=size, lists=lists, max_def=column.max_definition_level, type=field.type
    )


def _is_stored_as(kind: pa.DataType, physical: str, length: int) -> bool:
    """Whether values of the physical type become the Arrow type as `_values` makes it."""
    if physical == "BOOLEAN":
        return bool(pat.is_boolean(kind))
    if physical == "INT32":
        narrow = pat.is_integer(kind) and kind.bit_width <= 32
        return bool(narrow or pat.is_date32(kind) or pat.is_time32(kind))
    if physical == "INT64":
        wide = pat.is_int64(kind) or pat.is_uint64(kind) or pat.is_time64(kind) or pat.is_duration(kind)
        return bool(wide or (pat.is_timestamp(kind) and kind.unit != "s"))
    if physical in ("FLOAT", "DOUBLE"):
        return bool(pat.is_float32(kind) if physical == "FLOAT" else pat.is_float64(kind))
    if physical == "BYTE_ARRAY":
        short = pat.is_string(kind) or pat.is_binary(kind)
        return bool(short or pat.is_large_string(kind) or pat.is_large_binary(kind))
    if pat.is_decimal128(kind):
        return 0 < length <= 16
    short = 0 < length <= _MOST_SIZE
    return bool((pat.is_fixed_size_binary(kind) and short) or (pat.is_float16(kind) and length == 2))


class ChunkDecoder:
    """A column chunk that is decoded here. Raises ChunkError for what is not valid, MemoryError without memory."""

    def __init__(
        self,
        kind: ColumnKind,
        rows: int,
        pages: list[Page],
        content: pa.Buffer,
        decompress: _Decompress,
        *,
        codes: pa.DataType | None,
        prefix: int,
    ) -> None:
        self._kind = kind
        self._rows_left = rows
        # Of lists, only their levels say whether there are more rows.
        self._has_more = kind.lists == 0 and sum(page.values for page in pages if page.kind in _DATA) > rows
        self._pages = deque(pages)
        self._content = content
        self._decompress = decompress
        self._ahead: deque[Any] = deque()  # of the next pages, decompressed
        self._codes = codes
        size = 0 if codes is None else codes.bit_width // 8
        self._cursor = Cursor(kind.physical, kind.size, kind.lists, kind.max_def, codes=size, prefix=prefix)
        self._strings: DictionaryStrings | None = None
        self._dictionary: pa.Array | None = None

    @classmethod
    def open(
        cls,
        kind: ColumnKind,
        chunk: pq.ColumnChunkMetaData,
        rows: int,
        content: pa.Buffer,
        *,
        codes: bool,
        prefix: int = 0,
    ) -> ChunkDecoder | str:
        """The chunk whose bytes begin with its first page; or why the kernel does not decode it. rows: of the row
        group. codes: deliver codes of its dictionary, where that has far fewer entries than there are values. prefix:
        how many elements of a list are enough; others may be left out (0: none).
        """
        decompress = DECOMPRESSORS.get(chunk.compression)
        if decompress is None:
            return f"codec {chunk.compression}"
        pages = _checked(native.pages, content, chunk.num_values)
        data = [page for page in pages if page.kind in _DATA]
        unknown = {page.encoding for page in data}.difference(_ENCODINGS)
        levels = {page.def_encoding for page in data if page.kind == DATA_PAGE and kind.max_def}
        levels |= {page.rep_encoding for page in data if page.kind == DATA_PAGE and kind.lists}
        if unknown or levels.difference({RLE}):
            return "deprecated encoding"
        entries = sum(page.values for page in pages if page.kind == DICTIONARY_PAGE)
        coded = {page.encoding for page in data} <= {_PLAIN_DICTIONARY, _RLE_DICTIONARY}
        codes = codes and coded and 0 < entries < _WORTH_CODES * chunk.num_values
        code = (pa.uint16() if entries < _MANY else pa.int32()) if codes else None
        # Strings are checked to be UTF-8 in all rows, so they are all delivered.
        worth = chunk.num_values > _WORTH_CUTTING * prefix * rows and kind.lists > 0 and (kind.size > 0 or codes)
        opened = cls(kind, rows, pages, content, decompress, codes=code, prefix=prefix if worth else 0)
        try:
            while entries and opened._next_page(until=DICTIONARY_PAGE):
                pass
        except pa.ArrowInvalid:  # an entry is not UTF-8, which matters if rows use it
            return cls.open(kind, chunk, rows, content, codes=False, prefix=prefix)
        if kind.size or codes:
            return opened
        longest = 0 if opened._strings is None else opened._strings.longest
        most = chunk.total_uncompressed_size + longest * chunk.num_values
        return opened if most <= _MOST_BYTES else "strings of more than 2 GiB"

    def read(self, rows: int) -> pa.Array:
        """The next rows, of the column's type, or a dictionary array of it (in lists: of elements)."""
        while not (complete := _checked(self._cursor.advance, rows)):
            if not self._next_page():
                break
        decoded = _checked(self._cursor.take)
        if decoded.rows != rows:
            raise ChunkError(f"its pages hold fewer rows than its footer says: got {decoded.rows}, expected {rows}")
        self._rows_left -= rows
        if self._rows_left == 0 and (self._has_more or (self._kind.lists and complete)):  # the next list has begun
            raise ChunkError("its pages hold more rows than its footer says")
        return self._array(decoded)

    def _next_page(self, until: int | None = None) -> bool:
        """Hand the next page to the cursor; False if there is none, or after one of the kind `until`."""
        if not self._pages:
            return False
        page = self._pages[0]
        content = self._bytes(page)
        if page.crc >= 0 and native.crc32(content) != page.crc:
            raise ChunkError("a page's checksum does not fit its bytes")
        if page.kind == DICTIONARY_PAGE:
            values = self._decompressed()
            if page.encoding not in (_PLAIN, _PLAIN_DICTIONARY):
                raise ChunkError("its dictionary has no plain values")
            _checked(self._cursor.set_dictionary, values, page.values)
            self._strings = None if self._kind.size else _checked(self._cursor.dictionary_strings)
            if self._codes is not None:
                self._dictionary = self._dictionary_array(values, page.values)
        elif page.kind == DATA_PAGE:
            _checked(self._cursor.begin, page, None, self._decompressed())
        elif page.kind == DATA_PAGE_V2:
            size = page.def_bytes + page.rep_bytes
            values, rest = content.slice(size), page.uncompressed - size
            if page.is_compressed and (len(values) or rest):  # no bytes at all are not compressed
                values = self._decompress(values, rest)
            _checked(self._cursor.begin, page, content.slice(0, size), values)
        self._pages.popleft()
        return page.kind != until

    def _bytes(self, page: Page) -> pa.Buffer:
        return self._content.slice(page.start, page.compressed)

    def _decompressed(self) -> Any:
        """The bytes of the next page, all of which are compressed.

        Of zstd, small pages after one another are decompressed in one call, as one stream of frames: each call sets up
        a context of its own, which takes as long as decompressing 10 KB.
        """
        if not self._ahead:
            pages = self._frames() if self._decompress is _zstd else []
            if len(pages) < 2:
                return self._decompress(self._bytes(self._pages[0]), self._pages[0].uncompressed)
            joined = self._decompress(b"".join(map(self._bytes, pages)), sum(page.uncompressed for page in pages))
            ends = itertools.accumulate(page.uncompressed for page in pages)
            self._ahead.extend(
                joined.slice(end - page.uncompressed, page.uncompressed) for page, end in zip(pages, ends, strict=True)
            )
        return self._ahead.popleft()

    def _frames(self) -> list[Page]:
        """The next pages, of a moderate size together, that are a zstd frame each, of the size that they declare."""
        size, pages = 0, []
        for page in self._pages:
            size += page.uncompressed
            whole = page.kind in (DICTIONARY_PAGE, DATA_PAGE)
            if size > _TOGETHER or not whole or native.zstd_size(self._bytes(page)) != page.uncompressed:
                break
            pages.append(page)
        return pages

    def _dictionary_array(self, values: Any, count: int) -> pa.Array:
        """The entries, after the checks that reading omits. Raises pa.ArrowInvalid."""
        if self._strings is None:
            return _values(self._kind, count, values, None, None, 0)
        array = _values(self._kind, count, self._strings.offsets, self._strings.bytes, None, 0)
        if is_unchecked(array.type) and not self._strings.is_ascii:
            array.validate(full=True)
        return array

    def _array(self, decoded: Decoded) -> pa.Array:
        kind, valid = self._kind, _buffer(decoded.valid)
        if self._dictionary is None:
            values = _values(kind, decoded.elements, decoded.values, decoded.bytes, valid, decoded.nulls)
        else:
            codes = pa.Array.from_buffers(
                self._codes, decoded.elements, [valid, _buffer(decoded.values)], decoded.nulls
            )
            values = pa.DictionaryArray.from_arrays(codes, self._dictionary, safe=False)
        if not kind.lists:
            return values
        list_type = kind.type if self._dictionary is None else _list_like(kind.type, values.type)
        starts = _buffer(decoded.starts)
        if pat.is_large_list(kind.type):
            starts = _widen(decoded.starts, decoded.rows + 1)
        buffers = [_buffer(decoded.list_valid), starts]
        return pa.Array.from_buffers(list_type, decoded.rows, buffers, decoded.null_lists, children=[values])


def _list_like(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    field = kind.value_field.with_type(element)
    return pa.large_list(field) if pat.is_large_list(kind) else pa.list_(field)


def _values(kind: ColumnKind, count: int, values: Any, strings: Any, valid: pa.Buffer | None, nulls: int) -> pa.Array:
    """Values of a type from a buffer of their physical type."""
    element, content = kind.element, _buffer(values)
    if strings is not None:
        if pat.is_large_string(element) or pat.is_large_binary(element):
            content = _widen(values, count + 1)
        return pa.Array.from_buffers(element, count, [valid, content, _buffer(strings)], nulls)
    if pat.is_decimal(element):
        content = _decimals(values, count, kind.size)
    elif pat.is_integer(element) and element.bit_width < 32:
        narrow = np.frombuffer(values, np.int32, count).astype(f"i{element.bit_width // 8}")
        content = pa.py_buffer(narrow)
    return pa.Array.from_buffers(element, count, [valid, content], nulls)


def _decimals(content: Any, count: int, size: int) -> pa.Buffer:
    """Big-endian integers of `size` bytes as little-endian ones of 16."""
    stored = np.frombuffer(content, np.uint8, count * size).reshape(count, size)[:, ::-1]
    wide = np.empty((count, 16), np.uint8)
    wide[:, :size] = stored
    if size < 16:
        wide[:, size:] = np.where(stored[:, -1:] >= 128, 255, 0)
    return pa.py_buffer(wide)


def _widen(offsets: Any, count: int) -> pa.Buffer:
    return pa.py_buffer(np.frombuffer(offsets, np.int32, count).astype(np.int64))


def _buffer(content: Any) -> pa.Buffer | None:
    return None if content is None else pa.py_buffer(content)


def _checked(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ChunkError:
        raise
    except ValueError as error:
        raise ChunkError(str(error)) from None


def _plain(content: pa.Buffer, size: int) -> Any:
    if len(content) != size:
        raise ChunkError("a page has another size than its header says")
    return content


def _zstd(content: pa.Buffer, size: int) -> Any:
    return _by_arrow("zstd", content, size)  # refuses another size


def _snappy(content: pa.Buffer, size: int) -> Any:
    declared = shift = 0
    for byte in content.slice(0, min(5, len(content))).to_pybytes():
        declared |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if declared != size:
        raise ChunkError("a page does not decompress to its size")
    return _by_arrow("snappy", content, size)


def _by_arrow(codec: str, content: pa.Buffer, size: int) -> Any:
    try:
        return pa.Codec(codec).decompress(content, size)
    except (OSError, pa.ArrowInvalid) as error:
        raise ChunkError(f"a page does not decompress: {error}") from None


def _lz4(content: pa.Buffer, size: int) -> Any:
    return _checked(lambda: native.lz4(content, size, hadoop=False))


def _hadoop_lz4(content: pa.Buffer, size: int) -> Any:
    return _checked(lambda: native.lz4(content, size, hadoop=True))


def _gzip(content: pa.Buffer, size: int) -> Any:
    """Of one member or several, in a stream: each member that Python's zlib ends with copies all bytes behind it."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(content), "gzip") as stream:
            out = stream.read_buffer(size + 1)  # one more, to reach the end and its checksum
    except (OSError, pa.ArrowInvalid) as error:
        raise ChunkError(f"a page does not decompress: {error}") from None
    if len(out) != size:
        raise ChunkError("a page does not decompress to its size")
    return out


DECOMPRESSORS: dict[str, _Decompress] = {
    "UNCOMPRESSED": _plain,
    "ZSTD": _zstd,
    "SNAPPY": _snappy,
    "LZ4": _lz4,
    "LZ4_RAW": _lz4,
    "GZIP": _gzip,
    "UNKNOWN": _hadoop_lz4,  # pyarrow's name for it, and for LZO, which does not decompress so
}
