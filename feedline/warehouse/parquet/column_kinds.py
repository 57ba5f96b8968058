"""Decide from a footer what the compiled kernel decodes: kinds of columns, and files of programs without known bugs.

Runs in every process that reads. Pure. pyarrow decodes all else, and works around bugs of writers. What needs no entry
among these: the deprecated statistics are only read of types that all programs compared alike (see `footer`); bounds
that were compared as other numbers are out of order, and unknown, where that matters; and strings of parquet-mr before
1.8.0 that begin as the last one of the page before does (PARQUET-246) are refused, as by pyarrow.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.native.parquet import DATA_PAGE_V2
from feedline.warehouse.parquet.schemas import is_bytes, is_list, is_text, is_unchecked
from feedline.warehouse.parquet.thrift import PHYSICAL

_SIZES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}
_PROGRAM = re.compile(r"([^\s(]+)(?:\s+version\s+(\d+)(?:\.(\d+))?(?:\.(\d+))?)?", re.IGNORECASE)
_MOST_SIZE = 65536  # bytes of a value of a fixed size; of longer ones a block of rows may not fit in memory


@dataclass(frozen=True, kw_only=True)
class ColumnKind:
    """How the values of a Parquet column are laid out, and the Arrow type that they become.

    lists: 0 for a flat column, 1 for lists that are never null, 2 for lists that may be. element: the type of a value.
    narrow: numpy's type of integers of fewer than 32 bits, empty for all else. long_strings, long_lists: whether their
    offsets have 64 bits. is_text: whether values must be UTF-8. is_nullable: whether rows may be null.
    """

    physical: int
    size: int
    lists: int
    max_def: int
    type: pa.DataType
    element: pa.DataType
    narrow: str
    long_strings: bool
    long_lists: bool
    is_decimal: bool
    is_text: bool
    is_nullable: bool

    @cached_property
    def layout(self) -> tuple[int, ...]:
        """As the kernel is told of it; see `ChunkRequest`."""
        narrow = int(self.narrow[1:] or 0)
        return (self.physical, self.size, self.lists, self.max_def, narrow, self.long_strings, self.long_lists)


def column_kind(field: pa.Field, column: pq.ColumnSchema) -> ColumnKind | str:
    """The kind of a column that is stored as one Parquet column; or why the kernel does not decode it."""
    kind, lists, nullable = field.type, 0, field.nullable
    if is_list(kind):
        lists, nullable = 1 + field.nullable, kind.value_field.nullable
        kind = kind.value_type
    if column.max_repetition_level != (lists > 0) or column.max_definition_level != lists + nullable:
        return "nested"
    physical = column.physical_type
    if physical not in PHYSICAL or not _is_stored_as(kind, physical, column.length):
        return f"{physical.lower()} as {kind}"
    size = column.length if physical == "FIXED_LEN_BYTE_ARRAY" else _SIZES[physical]
    is_narrow = pat.is_integer(kind) and kind.bit_width < 32
    return ColumnKind(
        physical=PHYSICAL[physical],
        size=size,
        lists=lists,
        max_def=column.max_definition_level,
        type=field.type,
        element=kind,
        narrow=f"i{kind.bit_width // 8}" if is_narrow else "",
        long_strings=pat.is_large_string(kind) or pat.is_large_binary(kind),
        long_lists=pat.is_large_list(field.type),
        is_decimal=pat.is_decimal(kind),
        is_text=is_unchecked(kind),
        is_nullable=field.nullable,
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
        return is_text(kind) or is_bytes(kind)
    if pat.is_decimal128(kind):
        return 0 < length <= 16
    short = 0 < length <= _MOST_SIZE
    return bool((pat.is_fixed_size_binary(kind) and short) or (pat.is_float16(kind) and length == 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterBug:
    """What a program wrote wrong before a version.

    page_kinds: of the pages that only pyarrow reads right, as bits. decimal_bounds: whether those of decimals that are
    stored as bytes are wrong. padding_bytes: how far a column chunk may go on behind the end that its footer says.
    """

    program: str
    fixed: tuple[int, int, int]
    page_kinds: int = 0
    decimal_bounds: bool = False
    padding_bytes: int = 0


_BUGS = (
    # Compressed pages of version 2 say that they are not (ARROW-10353). Arrow before 3.0 called itself parquet-cpp, the
    # last time 1.5.1; since then it is parquet-cpp-arrow.
    WriterBug(program="parquet-cpp", fixed=(2, 0, 0), page_kinds=1 << DATA_PAGE_V2, decimal_bounds=True),
    # Bytes of decimals were compared as signed numbers, one by one (PARQUET-1655): 383 was more than 384.
    WriterBug(program="parquet-cpp-arrow", fixed=(4, 0, 0), decimal_bounds=True),
    # A column chunk's size lacks the header of its dictionary's page (PARQUET-816), for which pyarrow allows so many
    # bytes.
    WriterBug(program="parquet-mr", fixed=(1, 2, 9), padding_bytes=100),
)


@lru_cache(maxsize=64)
def writer_bugs(created_by: str | None) -> tuple[WriterBug, ...]:
    """The bugs of the program that a footer names; a version that it does not tell is older than any."""
    match = _PROGRAM.match(created_by or "")
    if match is None:
        return ()
    program, *numbers = match.groups()
    version = tuple(int(number or 0) for number in numbers)  # "1.2" -> 1.2.0
    return tuple(bug for bug in _BUGS if program.lower() == bug.program and version < bug.fixed)
