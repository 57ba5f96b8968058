"""Parse a footer's column chunks and their statistics from its bytes.

Pure; runs where snapshots are taken. A footer is one Thrift structure in the compact protocol (FileMetaData of
parquet-format's `parquet.thrift`). pyarrow parses it too, and its schema is used; but column chunks and their
statistics are read here, because pyarrow's accessors for them

- let C++ exceptions escape: of 3,600 footers with a flipped byte 11 ended the process with SIGABRT, where a chunk has
  another type than its column or a bound the wrong length, or is encrypted. Here damage is a Python exception;
- do not show whether a string's bound is a value of the column or was truncated.

In the compact protocol a field is one byte (the step from the last field's id, and a type), a number is a varint, a
string its length and bytes, and a structure ends with a zero. Other fields are skipped. A chunk takes about 7
microseconds; the loops that see every chunk are written out for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

PHYSICAL_NAMES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)  # parquet.thrift's enum Type

_TRUE, _BINARY, _LIST, _SET, _STRUCT = 1, 8, 9, 10, 12  # types of the compact protocol
_DEEPEST = 16  # nested structures and lists; parquet.thrift needs half of it
_WIDEST_BITS = 70  # of a varint: ten bytes

_Bytes: TypeAlias = bytes  # `ColumnChunk.bytes` hides the type of that name


class MalformedError(ValueError):
    """The bytes do not spell a footer; internal: `footer` adds the file's name."""


class ColumnChunk(NamedTuple):
    """One column chunk: physical type, compressed bytes, and statistics as they are stored.

    `low`, `high`: bounds (None: not given). `old_low`, `old_high`: the deprecated pair, taken by signed order whatever
    the column's order is. `nulls`: -1 where not given. `exact`: both bounds are marked as values of the column.
    """

    type: int
    bytes: int
    low: _Bytes | None = None
    high: _Bytes | None = None
    old_low: _Bytes | None = None
    old_high: _Bytes | None = None
    nulls: int = -1
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Structure:
    """A footer's row groups: rows of each, and its chunks in the order of the file's leaf columns.

    `ordered`: the file says by which order its bounds were taken. `encrypted`: some of it cannot be read.
    """

    rows: list[int]
    chunks: list[list[ColumnChunk]]
    ordered: bool
    encrypted: bool


def structure_of(footer: bytes) -> Structure:
    """Read a footer, without its trailer. Raises MalformedError."""
    try:
        return _file(footer)
    except IndexError:
        raise MalformedError("it ends in the middle of a field") from None


def _file(data: bytes) -> Structure:
    rows: list[int] = []
    chunks: list[list[ColumnChunk]] = []
    ordered = encrypted = False
    place, field = 0, 0
    while data[place]:
        place, field, kind = _field(data, place, field)
        if field == 4 and kind == _LIST:  # row_groups
            count, place = _list_of_structures(data, place)
            for _ in range(count):
                group_rows, group, place = _row_group(data, place)
                rows.append(group_rows)
                chunks.append(group)
            continue
        ordered = ordered or field == 7  # column_orders
        encrypted = encrypted or field == 8  # encryption_algorithm
        place = _skip(data, place, kind)
    encrypted = encrypted or any(chunk.type < 0 for group in chunks for chunk in group)
    return Structure(rows, chunks, ordered, encrypted)


def _row_group(data: bytes, place: int) -> tuple[int, list[ColumnChunk], int]:
    rows, chunks, field = -1, [], 0
    while data[place]:
        place, field, kind = _field(data, place, field)
        if field == 1 and kind == _LIST:  # columns
            count, place = _list_of_structures(data, place)
            for _ in range(count):
                chunk, place = _chunk(data, place)
                chunks.append(chunk)
        elif field == 3:  # num_rows
            rows, place = _integer(data, place)
        else:
            place = _skip(data, place, kind)
    return rows, chunks, place + 1


def _chunk(data: bytes, place: int) -> tuple[ColumnChunk, int]:
    chunk = ColumnChunk(-1, 0)
    field = 0
    while True:
        head = data[place]
        place += 1
        if not head:
            return chunk, place
        if head > 15:
            field += head >> 4
        else:
            field, place = _integer(data, place)
        if field == 3 and head & 15 == _STRUCT:  # meta_data
            chunk, place = _column(data, place)
        else:
            place = _skip(data, place, head & 15)
        if field in (8, 9):  # crypto_metadata, encrypted_column_metadata
            return ColumnChunk(-1, 0), _end(data, place, field)


def _column(data: bytes, place: int) -> tuple[ColumnChunk, int]:
    kind, size, statistics = -1, 0, None
    field = 0
    while True:
        head = data[place]
        place += 1
        if not head:
            break
        if head > 15:
            field += head >> 4
        else:
            field, place = _integer(data, place)
        head &= 15
        if field == 7:  # total_compressed_size
            size, place = _integer(data, place)
        elif field == 12 and head == _STRUCT:  # statistics
            statistics, place = _statistics(data, place)
        elif field == 1:  # type
            kind, place = _integer(data, place)
        elif 4 <= head <= 6:
            while data[place] > 127:
                place += 1
            place += 1
        else:
            place = _skip(data, place, head)
    if size < 0 or not 0 <= kind <= FIXED:
        raise MalformedError(f"a column chunk has type {kind} and {size} bytes")
    return ColumnChunk(kind, size) if statistics is None else ColumnChunk(kind, size, *statistics), place


def _statistics(
    data: bytes, place: int
) -> tuple[tuple[_Bytes | None, _Bytes | None, _Bytes | None, _Bytes | None, int, bool], int]:
    found: dict[int, bytes] = {}
    nulls, exact, field = -1, 0, 0
    while True:
        head = data[place]
        place += 1
        if not head:
            bounds = (found.get(6), found.get(5), found.get(2), found.get(1))  # min_value, max_value, min, max
            return (*bounds, nulls, exact == 2), place
        if head > 15:
            field += head >> 4
        else:
            field, place = _integer(data, place)
        head &= 15
        if head == _BINARY:
            length, place = _varint(data, place)
            found[field] = data[place : place + length]
            place += length
        elif field == 3:  # null_count
            nulls, place = _integer(data, place)
        elif field in (7, 8):  # is_max_value_exact, is_min_value_exact
            exact += head == _TRUE
        else:
            place = _skip(data, place, head)


def _end(data: bytes, place: int, field: int) -> int:
    """Past the end of the structure whose next field starts here."""
    while data[place]:
        place, field, kind = _field(data, place, field)
        place = _skip(data, place, kind)
    return place + 1


def _field(data: bytes, place: int, last: int) -> tuple[int, int, int]:
    """A field's header: where its value starts, its id, and its type."""
    head = data[place]
    if head > 15:
        return place + 1, last + (head >> 4), head & 15
    field, place = _integer(data, place + 1)
    return place, field, head & 15


def _list_of_structures(data: bytes, place: int) -> tuple[int, int]:
    count, kind, place = _list(data, place)
    if kind != _STRUCT:
        raise MalformedError(f"a list holds type {kind} where structures belong")
    return count, place


def _list(data: bytes, place: int) -> tuple[int, int, int]:
    head = data[place]
    count, place = (head >> 4, place + 1) if head < 0xF0 else _varint(data, place + 1)
    return count, head & 15, place


def _integer(data: bytes, place: int) -> tuple[int, int]:
    value, place = _varint(data, place)
    return (value >> 1) ^ -(value & 1), place


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = data[place]
    if value < 128:
        return value, place + 1
    value &= 127
    shift = 7
    while shift < _WIDEST_BITS:
        place += 1
        part = data[place]
        value |= (part & 127) << shift
        if part < 128:
            return value, place + 1
        shift += 7
    raise MalformedError("a number is longer than ten bytes")


def _skip(data: bytes, place: int, kind: int, depth: int = 0) -> int:
    """Past a value: booleans lie in the header, i8 is a byte, i16 to i64 varints, double 8 bytes."""
    if 4 <= kind <= 6:
        return _skip_varints(data, place, 1)
    if kind == _STRUCT:
        return _skip_structure(data, place, depth)
    if kind in (_LIST, _SET):
        return _skip_list(data, place, depth)
    if kind == _BINARY:
        length, place = _varint(data, place)
        return place + length
    if 1 <= kind <= 7:
        return place + (0, 0, 0, 1, 0, 0, 0, 8)[kind]
    raise MalformedError(f"a field has type {kind}, which footers do not have")


def _skip_varints(data: bytes, place: int, count: int) -> int:
    for _ in range(count):
        while data[place] > 127:
            place += 1
        place += 1
    return place


def _skip_structure(data: bytes, place: int, depth: int) -> int:
    if depth > _DEEPEST:
        raise MalformedError(f"structures are nested deeper than {_DEEPEST}")
    while True:
        head = data[place]
        place += 1
        if not head:
            return place
        if head < 16:
            place = _skip_varints(data, place, 1)
        head &= 15
        if 4 <= head <= 6:
            while data[place] > 127:
                place += 1
            place += 1
        else:
            place = _skip(data, place, head, depth + 1)


def _skip_list(data: bytes, place: int, depth: int) -> int:
    if depth > _DEEPEST:
        raise MalformedError(f"lists are nested deeper than {_DEEPEST}")
    count, inner, place = _list(data, place)
    if 4 <= inner <= 6:
        return _skip_varints(data, place, count)
    if inner <= 2:
        return place + count  # a boolean in a list is a byte
    for _ in range(count):
        place = _skip(data, place, inner, depth + 1)
    return place
