"""Decode column chunks with the compiled kernel, page by page, to Arrow arrays of values or of codes.

Runs in every process that reads, on the calling thread. The footer (`column_kind`), page headers and dictionary
(`open_chunks`) decide before a row is delivered whether a chunk is decoded here or by pyarrow (see `decode`). See
docs/decisions/0037.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.native import parquet as native
from feedline.native.parquet import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    Cursor,
    Decoded,
    DictionaryStrings,
    OpenedChunk,
)
from feedline.native.rows import TURN
from feedline.warehouse.parquet.column_kinds import ColumnKind
from feedline.warehouse.parquet.footer import ChunkFacts

_PLAIN, _PLAIN_DICTIONARY = 0, 2
_MOST_BYTES = 2**31 - 1  # of a chunk's strings: their offsets are 32 bits wide
_MANY = 2**16  # codes of 16 bits leave one number for a null, which is one entry more
_CODES = {0: None, 2: pa.uint16(), 4: pa.int32()}


Starts: TypeAlias = NDArray[np.bool_]
_Decompress = Callable[[pa.Buffer, int], Any]  # to exactly the size that a page declares


def code_type(entries: int) -> pa.DataType:
    """The type of codes of so many entries, and of null."""
    return pa.uint16() if entries < _MANY else pa.int32()


class ChunkError(ValueError):
    """A column chunk that is not valid Parquet."""


class ChunkDecoder:
    """A column chunk that is decoded here, with others (`open_chunks`, `read_chunks`)."""

    def __init__(self, request: Request, opened: OpenedChunk) -> None:
        compiled, self._entries, code_bytes, pages = opened
        kind, facts = request.kind, request.facts
        self._kind = kind
        self._rows_left = request.rows
        self._values, self._most_bytes = facts.values, facts.uncompressed_bytes
        # Of lists, only their levels say whether there are more rows.
        self._has_more = kind.lists == 0 and self._values > request.rows
        self.code_bytes = code_bytes  # 0 of values
        self._codes = _CODES[code_bytes]
        self.cursor = Cursor.over(compiled)
        self.compact = False
        if request.starts is not None and kind.is_nullable:
            self.cursor.set_flags(request.starts)
            self.compact = True
        self._dictionary: pa.Array | None = None
        self.finds_pages = pages is None
        # Whether its rows are handed out with those of others (`JointChunks`).
        self.is_joint = self.finds_pages and not self.compact and not kind.is_decimal
        if not self.finds_pages:
            self._pages = deque(native.pages_of(pages))
            self._content = request.content.slice(request.start, facts.nbytes)
            self._decompress = _DECOMPRESSORS[facts.codec]
            self._entry_bytes: Any = None

    @property
    def dictionary(self) -> pa.Array | None:
        """The entries that its codes stand for; None of values."""
        return self._dictionary

    @property
    def is_flat(self) -> bool:
        """Whether its rows, or their codes, have a fixed size."""
        return self._kind.lists == 0 and (self._kind.size > 0 or self._codes is not None)

    @property
    def stored_type(self) -> pa.DataType:
        """The type of its rows, where codes are integers."""
        if self._codes is None:
            return self._kind.type
        if not self._kind.lists:
            return self._codes
        codes = self._kind.type.value_field.with_type(self._codes)
        return pa.large_list(codes) if self._kind.long_lists else pa.list_(codes)

    def finish(self) -> bool:
        """Take the dictionary that was found. Returns whether the kernel decodes the chunk.

        Raises ChunkError; pa.ArrowInvalid where an entry is not UTF-8, which matters if rows use it.
        """
        kind, strings = self._kind, None
        if self._entries and not kind.size:
            strings = _checked(self.cursor.dictionary_strings)
        if self._codes is not None:
            self._dictionary = self._dictionary_array(strings)
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
            raise _too_few(got, rows)
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
        kind = self._kind.type
        if self._dictionary is not None:
            field = kind.value_field.with_type(elements.type)
            kind = pa.large_list(field) if self._kind.long_lists else pa.list_(field)
        return pa.Array.from_buffers(kind, decoded.rows, [valid, starts], decoded.null_lists, children=[elements])


class Request(NamedTuple):
    """A column chunk for the kernel. content: bytes of the file, in which it begins at `start`. rows: of the row group.
    refused: kinds of pages, as bits, that only pyarrow reads right.

    codes: deliver codes of its dictionary, where that has far fewer entries than there are values. prefix: how many
    elements of a list are enough; others may be left out (0: none). starts: bool [rows], the rows to deliver, with any
    others that are not null (see `compact`).
    """

    kind: ColumnKind
    facts: ChunkFacts
    rows: int
    content: pa.Buffer
    start: int = 0
    codes: bool = False
    prefix: int = 0
    starts: Starts | None = None
    refused: int = 0


def open_chunks(requests: Sequence[Request]) -> list[ChunkDecoder | None]:
    """The chunks for the kernel, each with the first rows to come; None for pyarrow, which also says what is wrong with
    one that does not open.
    """
    asked = [
        (content, start, facts.nbytes, facts.values, rows, codec, codes, prefix, refused, kind.layout)
        for kind, facts, rows, content, start, codes, prefix, _, refused in requests
        if (codec := native.CODECS.get(facts.codec, _OURS.get(facts.codec))) is not None
    ]
    opened = iter(native.open_chunks(asked))
    outcomes = [next(opened) if request.facts.codec in DECOMPRESSORS else None for request in requests]
    return [
        None if found is None else _finished(request, found) for request, found in zip(requests, outcomes, strict=True)
    ]


def _finished(request: Request, opened: OpenedChunk) -> ChunkDecoder | None:
    decoder = ChunkDecoder(request, opened)
    try:
        if not decoder.finds_pages:
            decoder.advance(None)
        return decoder if decoder.finish() else None
    except ChunkError:
        return None
    except pa.ArrowInvalid:
        [again] = open_chunks([request._replace(codes=False)])
        return again


class JointLayout(NamedTuple):
    """In which order chunks are handed out together, how many of them in the first batch, and the schemas of both."""

    names: tuple[str, ...]
    flat: int
    schemas: tuple[pa.Schema, pa.Schema]


def joint_layout(decoders: Mapping[str, ChunkDecoder]) -> JointLayout:
    """That of these chunks; the same of others with the same columns and bytes of codes."""
    flat = {name: decoder.stored_type for name, decoder in decoders.items() if decoder.is_flat}
    others = {name: decoder.stored_type for name, decoder in decoders.items() if name not in flat}
    return JointLayout((*flat, *others), len(flat), (pa.schema(flat.items()), pa.schema(others.items())))


class JointChunks:
    """Chunks whose rows are handed out together, by name, in two batches: those of a fixed size, and lists and strings.
    Batches are freed as a whole, and views of the small columns of the first one live longest.

    dictionaries: of those that come as codes.
    """

    def __init__(self, decoders: Mapping[str, ChunkDecoder], layout: JointLayout) -> None:
        self._layout = layout
        self._cursors = [decoders[name].cursor for name in layout.names]
        self.dictionaries = {
            name: decoder.dictionary for name, decoder in decoders.items() if decoder.dictionary is not None
        }

    def take(self, rows: int) -> tuple[pa.RecordBatch, ...] | dict[str, ChunkError]:
        """The next rows of each, of coded ones the codes; or what is wrong with some chunks."""
        if not self._cursors:  # as always without the kernel
            return ()
        taken = native.take_rows(self._cursors, self._layout.flat, rows)
        if isinstance(taken, list):
            if None in taken:
                raise MemoryError("there is no memory for a column of the chunk")
            pairs = zip(self._layout.names, taken, strict=True)
            return {
                name: ChunkError(why) if isinstance(why, str) else _too_few(why, rows)
                for name, why in pairs
                if why is not False
            }
        pairs = zip(self._layout.schemas, taken, strict=True)
        return tuple(pa.record_batch(_Exported(schema, array)) for schema, array in pairs if len(schema))


class _Exported:
    """A batch of the kernel, for pyarrow to import."""

    __slots__ = ("_array", "_schema")

    def __init__(self, schema: pa.Schema, array: Any) -> None:
        self._schema, self._array = schema, array

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._schema.__arrow_c_schema__(), self._array


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


def _too_few(got: int | None, rows: int) -> ChunkError:
    return ChunkError(f"its pages hold fewer rows than its footer says: got {got}, expected {rows}")


def _outcomes(decoders: Sequence[ChunkDecoder], rows: int) -> list[bool | str]:
    """Decode until there are so many rows of each: in one call where the cursors find the pages.

    Whether there are so many; a text is what is wrong with the chunk.
    """
    cursors = [decoder.cursor for decoder in decoders if decoder.finds_pages]
    outcomes = native.read_chunks(cursors, rows) if cursors else ()
    if None in outcomes:
        raise MemoryError("there is no memory for a column of the chunk")
    results = [outcome for outcome in outcomes if outcome is not None]
    if len(results) == len(decoders):
        return results
    remaining = iter(results)
    return [next(remaining) if decoder.finds_pages else _advance(decoder, rows) for decoder in decoders]


def _advance(decoder: ChunkDecoder, rows: int) -> bool | str:
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
_OURS = dict.fromkeys(_DECOMPRESSORS, -1)  # where the kernel does not decompress
DECOMPRESSORS = frozenset({*native.CODECS, *_DECOMPRESSORS})  # pyarrow's names of the codecs
