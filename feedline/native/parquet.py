"""Decode the pages of Parquet column chunks: flat columns and lists of one level, to values or to codes.

Runs in: every process that reads. The functions are compiled (`_parquet.c`) when the package is installed, if there is
a C compiler. Without them, `COMPILED` is False, nothing else here may be used, and pyarrow decodes. All input is
checked: what is not of the format raises ValueError, whatever its bytes are.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_compiled: Any = None
with suppress(ImportError):  # installed without a compiler
    from feedline.native import _parquet as _compiled  # type: ignore[attr-defined,no-redef]

VERSION = 10  # of the functions: of an older build, left in a checkout, nothing is called
COMPILED = _compiled is not None and getattr(_compiled, "VERSION", 0) == VERSION

# For tests: what is read after its last view has died is wrong for certain.
if COMPILED and os.environ.get("FEEDLINE_DEBUG_MEMORY") == "1":
    _compiled.overwrite_freed()

# The codecs that cursors decompress, by pyarrow's names: "UNKNOWN" is Hadoop's LZ4, and LZO, which does not decompress
# so. zstd is decompressed by its library, where the system has it.
CODECS = {"UNCOMPRESSED": 0, "LZ4": 2, "LZ4_RAW": 2, "UNKNOWN": 3, "SNAPPY": 4}
_ZSTD = ("ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_decompressDCtx")
for _name in ("libzstd.so.1", "libzstd.1.dylib") if COMPILED else ():
    with suppress(OSError, AttributeError):
        _library = ctypes.CDLL(_name)
        _compiled.use_zstd(*(ctypes.cast(getattr(_library, each), ctypes.c_void_p).value for each in _ZSTD))
        CODECS["ZSTD"] = 1
        break

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
RLE = 3


class Page(NamedTuple):
    """A page's header. start: of its bytes in the chunk. -1: the header does not say; rows, def_bytes, rep_bytes: only
    pages of version 2 do.
    """

    kind: int
    start: int
    compressed: int
    uncompressed: int
    values: int
    encoding: int
    def_encoding: int
    rep_encoding: int
    rows: int
    nulls: int
    def_bytes: int
    rep_bytes: int
    is_compressed: int
    crc: int


class PageTable(Protocol):
    """The pages of a column chunk, as bytes (see `pages_of`), and what they have in common.

    kinds: a bit for each, by their numbers. encodings: of the values of data pages, as kinds, those above 61 as bit 62.
    def_encodings, rep_encodings: of their levels; only pages of version 1 choose them. entries: of the dictionary.
    """

    pages: Any
    kinds: int
    encodings: int
    def_encodings: int
    rep_encodings: int
    entries: int


class Decoded(Protocol):
    """Some rows of a column. Objects have the buffer protocol, as Arrow lays arrays out.

    values: of `elements` slots, little-endian values, codes, a bitmap (BOOLEAN), or int32 offsets into `bytes`
    (BYTE_ARRAY). valid: a bitmap, None without nulls. starts: int32 offsets of `rows` lists, None for flat columns,
    whose elements are its rows. list_valid: a bitmap, None where no list is null. In slots of nulls, values are 0, and
    codes are the number of the dictionary's entries. passed: how many more rows were read, see `Cursor.set_flags`.
    """

    rows: int
    elements: int
    values: Any
    bytes: Any
    valid: Any
    nulls: int
    starts: Any
    list_valid: Any
    null_lists: int
    passed: int


class DictionaryStrings(Protocol):
    """Int32 offsets of strings, their bytes, the length of the longest, and whether all are ASCII."""

    offsets: Any
    bytes: Any
    longest: int
    is_ascii: bool


def page_table(chunk: Any, values: int) -> PageTable:
    """The pages of a column chunk: its dictionary, if it has one, and data pages, which hold as many values as the
    footer says and end where it says. Raises ValueError for all else.
    """
    table: PageTable = _compiled.page_table(chunk, values)
    return table


def pages_of(pages: Any) -> list[Page]:
    """The pages of a table."""
    rows: NDArray[np.int64] = np.frombuffer(pages, np.int64)
    return [Page._make(row) for row in rows.reshape(-1, len(Page._fields)).tolist()]


def crc32(content: Any) -> int:
    """The CRC-32 of bytes, as of zlib; 17 GB/s, or 4 without carry-less multiplication."""
    checksum: int = _compiled.crc32(content)
    return checksum


def look_up(codes: Any, size: int, valid: Any, offset: int, count: int, truths: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool [count]: the truth of codes of `size` bytes, 2 or 4, from the one at `offset` on.

    valid: a bitmap, None without nulls. truths: of each entry, and of null as the last. Raises ValueError.
    """
    return np.frombuffer(_compiled.look_up(codes, size, valid, offset, count, truths), np.bool_)


def read_chunks(cursors: Sequence[Cursor], rows: int) -> Sequence[bool | str | None]:
    """Decode each cursor's chunk (see `Cursor.set_source`) until there are `rows` rows; -1: take the
    dictionary. The interpreter's lock is released once.

    Whether there are so many rows, or a dictionary; a text is what is wrong with the chunk, None a want of memory.
    """
    outcomes: Sequence[bool | str | None] = _compiled.read_chunks(tuple([each.compiled for each in cursors]), rows)
    return outcomes


# A column chunk to open: the bytes that it lies in, where it begins there, and its bytes; its values, and rows; its
# codec, of `CODECS`, or -1 for one that the caller decompresses; whether codes are wanted, and how many elements of
# each list (0: all); kinds of pages, as bits, that are not read here; and its layout: physical, size, lists and max_def
# as of a `Cursor`, the bytes, 1 or 2, of integers that have fewer than 4 (0: others), and whether offsets of strings,
# and of lists, have 64 bits.
ChunkRequest = tuple[Any, int, int, int, int, int, bool, int, int, tuple[int, ...]]
# A cursor, the entries of its dictionary, the bytes of its codes (0: values), and its pages, if it does not find them.
OpenedChunk = tuple[Any, int, int, Any]


def open_chunks(requests: list[ChunkRequest]) -> list[OpenedChunk | None]:
    """Open column chunks: find their pages, and take their dictionaries. None: not decoded here.

    Codes are delivered of values that are all codes of a dictionary with less than half as many entries. Lists are cut
    where they are more than twice as long on average as what is needed of them. The lock is released once.
    """
    opened: list[OpenedChunk | None] = _compiled.open_chunks(requests)
    return opened


def take_rows(cursors: Sequence[Cursor], flat: int, rows: int) -> tuple[Any, Any] | list[str | int | None]:
    """Decode the next `rows` rows of chunks that `open_chunks` opened, to two capsules of Arrow's C
    data interface, each of a structure of arrays, one of the first `flat` cursors and one of the others. The arrays are
    those of `Decoded`, codes without a dictionary. The interpreter's lock is released once.

    If any fails, a list instead: for each, a text that says what is wrong with the chunk, the number of rows that there
    are if they are too few, None for a want of memory, or False. None may have flags (`Cursor.set_flags`).
    """
    found: tuple[Any, Any] | list[str | int | None] = _compiled.take_rows(
        tuple([each.compiled for each in cursors]), flat, rows
    )
    return found


class Cursor:
    """A position in a column chunk. Rows are appended page by page, and taken.

    physical, size: the Parquet type's number, and the bytes of a value (0: of BYTE_ARRAY; 1: of BOOLEAN). lists: 0 for
    a flat column, 1 for lists that are never null, 2 for lists that may be. max_def: the definition level of values.
    codes: the bytes of a code of a dictionary, 2 or 4, to deliver those, not its values; or 0. prefix: of lists, but
    not of lists of strings: how many elements of each to deliver at most; or 0 for all.
    """

    __slots__ = ("compiled",)

    def __init__(self, physical: int, size: int, lists: int, max_def: int, *, codes: int, prefix: int = 0) -> None:
        self.compiled = _compiled.Cursor(physical, size, lists, max_def, codes, prefix)

    @classmethod
    def over(cls, compiled: Any) -> Cursor:
        """A cursor that `open_chunks` made."""
        cursor = object.__new__(cls)
        cursor.compiled = compiled
        return cursor

    def set_source(self, chunk: Any, pages: Any, codec: int) -> None:
        """Give it a chunk whose pages it finds itself. pages: of a `PageTable`; codec: of `CODECS`."""
        self.compiled.source(chunk, pages, codec)

    def set_flags(self, flags: NDArray[np.bool_]) -> None:
        """Deliver only rows whose flag is set, and others that hold a value. flags: of all rows of the chunk."""
        self.compiled.flags(flags)

    def dictionary_bytes(self) -> Any:
        """The plain values of a dictionary that it found itself."""
        return self.compiled.dictionary_bytes()

    def set_dictionary(self, content: Any, count: int) -> None:
        """Set the dictionary: `count` plain values."""
        self.compiled.dictionary(content, count)

    def dictionary_strings(self) -> DictionaryStrings:
        """The strings of the dictionary."""
        strings: DictionaryStrings = self.compiled.dictionary_strings()
        return strings

    def begin(self, page: Page, levels: Any, values: Any) -> None:
        """Begin a page. levels: those of a page of version 2; values: its decompressed rest, of others all of it."""
        self.compiled.begin(levels, values, page.values, page.encoding, page.rep_bytes, page.def_bytes)

    def advance(self, rows: int) -> bool:
        """Decode until there are `rows` rows, counted since they were last taken. False: the page has ended; of lists,
        the last one may go on in the next page.
        """
        done: bool = self.compiled.advance(rows)
        return done

    def take(self) -> Decoded:
        """The rows so far; the next ones are counted from 0."""
        decoded: Decoded = self.compiled.take()
        return decoded
