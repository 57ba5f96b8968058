"""Decode column chunks with the compiled kernel, page by page, to Arrow arrays of values or of codes.

Runs in every process that reads, on the calling thread. The footer (`column_kind`), page headers and dictionary
(`open_chunks`) decide before a row is delivered whether a chunk is decoded here or by pyarrow (see `decode`). See
docs/decisions/0037.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feedline.native import parquet as native
from feedline.native.parquet import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    RLE,
    Cursor,
    Decoded,
    DictionaryStrings,
    PageTable,
)
from feedline.native.rows import TURN
from feedline.warehouse.parquet.column_kinds import ColumnKind, WriterBug

_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
# Of encodings, as bits: of values, all but BIT_PACKED, which is deprecated.
_KNOWN_BITS = sum(1 << encoding for encoding in (0, 2, 3, 5, 6, 7, 8, 9))
_CODED_BITS = 1 << _PLAIN_DICTIONARY | 1 << _RLE_DICTIONARY
_LEVEL_BITS = 1 << RLE
_MOST_BYTES = 2**31 - 1  # of a chunk's strings: their offsets are 32 bits wide
# A dictionary is worth its codes while it has less than this share of the chunk's values: what is computed on it is
# computed that much less often, and gathered once.
_WORTH_CODES = 0.5
_WORTH_CUTTING = 2  # times as long are lists on average as what is needed of them: of shorter ones, all is delivered
_MANY = 2**16  # codes of 16 bits leave one number for a null, which is one entry more


Starts: TypeAlias = NDArray[np.bool_]
_Decompress = Callable[[pa.Buffer, int], Any]  # to exactly the size that a page declares


def code_type(entries: int) -> pa.DataType:
    """The type of codes of so many entries, and of null."""
    return pa.uint16() if entries < _MANY else pa.int32()


class ChunkError(ValueError):
    """A column chunk that is not valid Parquet."""


class ChunkDecoder:
    """A column chunk that is decoded here, with others (`open_chunks`, `read_chunks`)."""

    def __init__(self, request: Request, table: PageTable, codes: pa.DataType | None, prefix: int) -> None:
        kind, chunk = request.kind, request.chunk
        self._kind = kind
        self._rows_left = request.rows
        self._values, self._most_bytes = chunk.num_values, chunk.total_uncompressed_size
        self._entries = table.entries
        self._codes = codes
        size = 0 if codes is None else codes.bit_width // 8
        self.cursor = Cursor(kind.physical, kind.size, kind.lists, kind.max_def, codes=size, prefix=prefix)
        self.compact = False
        if request.starts is not None and kind.is_nullable:
            self.cursor.set_flags(request.starts)
            self.compact = True
        self._type = kind.type  # of lists: of what is delivered
        self._dictionary: pa.Array | None = None
        # Of lists, only their levels say whether there are more rows.
        self._has_more = kind.lists == 0 and self._values > request.rows
        self.finds_pages = chunk.compression in native.CODECS
        if self.finds_pages:
            self.cursor.set_source(request.content, table.pages, native.CODECS[chunk.compression])
            return
        self._pages = deque(native.pages_of(table.pages))
        self._content = request.content
        self._decompress = _DECOMPRESSORS[chunk.compression]
        self._entry_bytes: Any = None

    @classmethod
    def prepare(cls, request: Request) -> ChunkDecoder | None:
        """The chunk to be opened; None for pyarrow."""
        kind, values, prefix = request.kind, request.chunk.num_values, request.prefix
        if request.chunk.compression not in DECOMPRESSORS:
            return None
        try:
            table = native.page_table(request.content, values)
        except ValueError:
            return None
        if (
            table.encodings & ~_KNOWN_BITS
            or (kind.max_def and table.def_encodings & ~_LEVEL_BITS)
            or (kind.lists and table.rep_encodings & ~_LEVEL_BITS)
            or any(table.kinds & bug.page_kinds for bug in request.bugs)
        ):
            return None
        coded = not table.encodings & ~_CODED_BITS and 0 < table.entries < _WORTH_CODES * values
        codes = code_type(table.entries) if request.codes and coded else None
        # Strings are checked to be UTF-8 in all rows, so they are all delivered.
        is_deliverable = kind.lists > 0 and (kind.size > 0 or codes is not None)
        worth = is_deliverable and values > _WORTH_CUTTING * prefix * request.rows
        return cls(request, table, codes, prefix if worth else 0)

    def finish(self) -> bool:
        """Take the dictionary that was found. Returns whether the kernel decodes the chunk.

        Raises ChunkError; pa.ArrowInvalid where an entry is not UTF-8, which matters if rows use it.
        """
        kind, strings = self._kind, None
        if self._entries and not kind.size:
            strings = _checked(self.cursor.dictionary_strings)
        if self._codes is not None:
            self._dictionary = self._dictionary_array(strings)
            if kind.lists:
                field = kind.type.value_field.with_type(pa.dictionary(self._codes, kind.element))
                self._type = pa.large_list(field) if kind.long_lists else pa.list_(field)
            return True
        if kind.size:
            return True
        longest = 0 if strings is None else strings.longest
        return bool(self._most_bytes + longest * self._values <= _MOST_BYTES)

    def advance(self, rows: int | None) -> bool:
        """Decode until there are so many rows, or take the dictionary (None), where the cursor does not find pages
        itself. Returns whether there are, or there is one.
        """
        if rows is None:
            return self._entries > 0 and self._next_page()
        while not (complete := bool(_checked(self.cursor.advance, rows))):
            if not self._next_page():
                break
        return complete

    def take(self, rows: int, complete: bool) -> pa.Array:
        """The next rows, which were decoded: of the column's type, or a dictionary array of it (in lists: of elements).
        Those that are delivered, if it is `compact`.

        complete: there were so many, or the next list has begun.
        """
        decoded = _checked(self.cursor.take)
        if (got := decoded.rows + decoded.passed) != rows:
            raise ChunkError(f"its pages hold fewer rows than its footer says: got {got}, expected {rows}")
        self._rows_left -= rows
        if self._rows_left == 0 and (self._has_more or (self._kind.lists and complete)):
            raise ChunkError("its pages hold more rows than its footer says")
        valid = None if decoded.valid is None else pa.py_buffer(decoded.valid)
        if self._dictionary is None:
            array = _values(self._kind, decoded.elements, decoded.values, decoded.bytes, valid, decoded.nulls)
        else:
            buffers = [valid, pa.py_buffer(decoded.values)]
            codes = pa.Array.from_buffers(self._codes, decoded.elements, buffers, decoded.nulls)
            array = pa.DictionaryArray.from_arrays(codes, self._dictionary, safe=False)
        return self._lists(decoded, array) if self._kind.lists else array

    def _next_page(self) -> bool:
        """Hand the next page to the cursor. Returns whether there is one."""
        if not self._pages:
            return False
        page = self._pages.popleft()
        content = self._content.slice(page.start, page.compressed)
        if page.crc >= 0 and native.crc32(content) != page.crc:
            raise ChunkError("a page's checksum does not fit its bytes")
        if page.kind == DICTIONARY_PAGE:
            self._entry_bytes = self._decompress(content, page.uncompressed)
            if page.encoding not in (_PLAIN, _PLAIN_DICTIONARY):
                raise ChunkError("its dictionary has no plain values")
            _checked(self.cursor.set_dictionary, self._entry_bytes, page.values)
        elif page.kind == DATA_PAGE:
            _checked(self.cursor.begin, page, None, self._decompress(content, page.uncompressed))
        elif page.kind == DATA_PAGE_V2:
            size = page.def_bytes + page.rep_bytes
            values, rest = content.slice(size), page.uncompressed - size
            if page.is_compressed and (len(values) or rest):  # no bytes at all are not compressed
                values = self._decompress(values, rest)
            if len(values) != rest:
                raise ChunkError("a page has another size than its header says")
            _checked(self.cursor.begin, page, content.slice(0, size), values)
        return True

    def _dictionary_array(self, strings: DictionaryStrings | None) -> pa.Array:
        """The entries, after the checks that reading omits. Raises pa.ArrowInvalid."""
        if strings is None:
            values = self.cursor.dictionary_bytes() if self.finds_pages else self._entry_bytes
            return _values(self._kind, self._entries, values, None, None, 0)
        array = _values(self._kind, self._entries, strings.offsets, strings.bytes, None, 0)
        if self._kind.is_text and not strings.is_ascii:
            array.validate(full=True)
        return array

    def _lists(self, decoded: Decoded, elements: pa.Array) -> pa.Array:
        starts = _widen(decoded.starts, decoded.rows + 1) if self._kind.long_lists else pa.py_buffer(decoded.starts)
        valid = None if decoded.list_valid is None else pa.py_buffer(decoded.list_valid)
        return pa.Array.from_buffers(self._type, decoded.rows, [valid, starts], decoded.null_lists, children=[elements])


class Request(NamedTuple):
    """A column chunk for the kernel. content: all of its bytes. rows: of the row group. bugs: of what wrote the file.

    codes: deliver codes of its dictionary, where that has far fewer entries than there are values. prefix: how many
    elements of a list are enough; others may be left out (0: none). starts: bool [rows], the rows to deliver, with any
    others that are not null (see `compact`).
    """

    kind: ColumnKind
    chunk: pq.ColumnChunkMetaData
    rows: int
    content: pa.Buffer
    codes: bool = False
    prefix: int = 0
    starts: Starts | None = None
    bugs: Sequence[WriterBug] = ()


def open_chunks(requests: Sequence[Request]) -> list[ChunkDecoder | None]:
    """The chunks for the kernel, each with the first rows to come; None for pyarrow, which also says what is wrong with
    one that does not open.
    """
    with TURN:
        prepared = [ChunkDecoder.prepare(request) for request in requests]
    outcomes = iter(_outcomes([each for each in prepared if each is not None], None))
    with TURN:
        return [
            None if decoder is None or isinstance(next(outcomes), str) else _finished(decoder, request)
            for request, decoder in zip(requests, prepared, strict=True)
        ]


def _finished(decoder: ChunkDecoder, request: Request) -> ChunkDecoder | None:
    try:
        return decoder if decoder.finish() else None
    except ChunkError:
        return None
    except pa.ArrowInvalid:
        [opened] = open_chunks([request._replace(codes=False)])
        return opened


def take_rows(decoders: Sequence[ChunkDecoder], rows: int) -> list[pa.Array | ChunkError]:
    """The next rows of each chunk (see `ChunkDecoder.take`), or why there are none."""
    arrays: list[pa.Array | ChunkError] = []
    outcomes = _outcomes(decoders, rows)
    with TURN:
        for decoder, outcome in zip(decoders, outcomes, strict=True):
            try:
                arrays.append(ChunkError(outcome) if isinstance(outcome, str) else decoder.take(rows, outcome))
            except ChunkError as error:
                arrays.append(error)
    return arrays


def _outcomes(decoders: Sequence[ChunkDecoder], rows: int | None) -> list[bool | str]:
    """Decode until there are so many rows of each, or open all (None): in one call where the cursors find the pages.

    Whether there are so many, or a dictionary; a text is what is wrong with the chunk.
    """
    cursors = [decoder.cursor for decoder in decoders if decoder.finds_pages]
    outcomes = native.read_chunks(cursors, -1 if rows is None else rows)
    if None in outcomes:
        raise MemoryError("there is no memory for a column of the chunk")
    results = [outcome for outcome in outcomes if outcome is not None]
    if len(results) == len(decoders):
        return results
    remaining = iter(results)
    return [next(remaining) if decoder.finds_pages else _advance(decoder, rows) for decoder in decoders]


def _advance(decoder: ChunkDecoder, rows: int | None) -> bool | str:
    try:
        return decoder.advance(rows)
    except ChunkError as error:
        return str(error)


def _values(kind: ColumnKind, count: int, values: Any, strings: Any, valid: pa.Buffer | None, nulls: int) -> pa.Array:
    """Values of a type from a buffer of their physical type."""
    if strings is not None:
        offsets = _widen(values, count + 1) if kind.long_strings else pa.py_buffer(values)
        return pa.Array.from_buffers(kind.element, count, [valid, offsets, pa.py_buffer(strings)], nulls)
    if kind.is_decimal:
        content = _decimals(values, count, kind.size)
    elif kind.narrow:
        content = pa.py_buffer(np.frombuffer(values, np.int32, count).astype(kind.narrow))
    else:
        content = pa.py_buffer(values)
    return pa.Array.from_buffers(kind.element, count, [valid, content], nulls)


def _decimals(content: Any, count: int, size: int) -> pa.Buffer:
    """Big-endian integers of `size` bytes as little-endian ones of 16."""
    # -200 in 2 bytes: ff 38 -> 38 ff, and 14 times ff
    stored = np.frombuffer(content, np.uint8, count * size).reshape(count, size)[:, ::-1]
    wide = np.empty((count, 16), np.uint8)
    wide[:, :size] = stored
    if size < 16:
        wide[:, size:] = np.where(stored[:, -1:] >= 128, 255, 0)
    return pa.py_buffer(wide)


def _widen(offsets: Any, count: int) -> pa.Buffer:
    return pa.py_buffer(np.frombuffer(offsets, np.int32, count).astype(np.int64))


def _checked(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ValueError as error:
        raise ChunkError(str(error)) from None


def _zstd(content: pa.Buffer, size: int) -> Any:
    try:
        return pa.Codec("zstd").decompress(content, size)  # refuses another size
    except (OSError, pa.ArrowInvalid) as error:
        raise ChunkError(f"a page does not decompress: {error}") from None


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


_DECOMPRESSORS: dict[str, _Decompress] = {"ZSTD": _zstd, "GZIP": _gzip}
DECOMPRESSORS = frozenset({*native.CODECS, *_DECOMPRESSORS})  # pyarrow's names of the codecs
