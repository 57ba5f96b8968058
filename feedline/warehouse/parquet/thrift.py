"""Parse a footer's column chunks and their statistics from its bytes.

Pure; runs where snapshots are taken. A footer is one Thrift structure in the compact protocol (FileMetaData of
parquet-format's `parquet.thrift`): a field starts with one byte (the step from the last field's id, and a type), an
integer is a varint, a string its length and bytes, and a structure ends with a zero byte. pyarrow's accessors are not
used for chunks: on some damaged footers they abort the process, and they do not return whether a bound is exact. Loops
over chunks are inlined (7 microseconds a chunk).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from feedline.dataclass import dataclass

_NAMES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
PHYSICAL = {name: index for index, name in enumerate(_NAMES)}  # pyarrow's names of physical types
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)  # parquet.thrift's enum Type

_TRUE, _BINARY, _LIST, _SET, _STRUCT = 1, 8, 9, 10, 12  # types of the compact protocol
_CODECS = 8  # parquet.thrift's enum CompressionCodec
_DEEPEST = 16  # nested structures and lists; parquet.thrift needs half of it
_WIDEST_BITS = 70  # the longest varint: ten bytes

_NO_SIZES = (False, 0, 0)

_Bytes: TypeAlias = bytes  # `ColumnChunk.bytes` hides the type of that name
_Statistics: TypeAlias = tuple[_Bytes | None, _Bytes | None, _Bytes | None, _Bytes | None, int, bool]
_NO_STATISTICS: _Statistics = (None, None, None, None, -1, False)


class MalformedError(ValueError):
    """The bytes are not a footer. Internal: `footer` adds the file's name."""


class ColumnChunk(NamedTuple):
    """One column chunk: physical type, compressed bytes, and statistics as stored.

    `low`, `high`: bounds (None: absent). `old_low`, `old_high`: the deprecated pair, compared as signed values whatever
    the column's order is. `nulls`: -1 if absent. `exact`: both bounds are marked as values of the column. `sizes`: of
    its size statistics, whether they count bytes of strings, and how many repetition and definition levels they count.
    """

    type: int
    bytes: int
    low: _Bytes | None = None
    high: _Bytes | None = None
    old_low: _Bytes | None = None
    old_high: _Bytes | None = None
    nulls: int = -1
    exact: bool = False
    sizes: tuple[bool, int, int] = _NO_SIZES


@dataclass(frozen=True, slots=True)
class Structure:
    """A footer's row groups: the rows of each, and its chunks in the order of the file's leaf columns.

    `ordered`: the file declares the order of its bounds. `encrypted`: parts of it cannot be read.
    """

    rows: list[int]
    chunks: list[list[ColumnChunk]]
    ordered: bool
    encrypted: bool


def structure_of(footer: bytes) -> Structure:
    """Parse a footer without its trailer. Raises MalformedError."""
    try:
        return _file(footer)
    except IndexError:
        raise MalformedError("it ends in the middle of a field") from None


def offset_index_places(footer: bytes) -> list[list[tuple[int, int]]]:
    """Where the offset index of each column chunk lies, and its bytes, by row group; (0, 0) of chunks without one.

    footer: without its trailer. Raises MalformedError.
    """
    groups, position, field = [], 0, 0
    try:
        while footer[position]:
            position, field, kind = field_at(footer, position, field)
            if field != 4 or kind != _LIST:  # row_groups
                position = skip(footer, position, kind)
                continue
            count, position = _list_of_structures(footer, position)
            for _ in range(count):
                places, position = _places_of_group(footer, position)
                groups.append(places)
    except IndexError:
        raise MalformedError("it ends in the middle of a field") from None
    return groups


def _places_of_group(data: bytes, position: int) -> tuple[list[tuple[int, int]], int]:
    places, field = [], 0
    while data[position]:
        position, field, kind = field_at(data, position, field)
        if field != 1 or kind != _LIST:  # columns
            position = skip(data, position, kind)
            continue
        count, position = _list_of_structures(data, position)
        for _ in range(count):
            own, inner = {4: 0, 5: 0}, 0  # offset_index_offset, offset_index_length
            while data[position]:
                position, inner, kind = field_at(data, position, inner)
                if inner in own:
                    own[inner], position = integer(data, position)
                else:
                    position = skip(data, position, kind)
            position += 1
            places.append((own[4], own[5]))
    return places, position + 1


def _file(data: bytes) -> Structure:
    rows: list[int] = []
    chunks: list[list[ColumnChunk]] = []
    ordered = encrypted = False
    position, field = 0, 0
    while data[position]:
        position, field, kind = field_at(data, position, field)
        if field == 4 and kind == _LIST:  # row_groups
            count, position = _list_of_structures(data, position)
            for _ in range(count):
                row_count, group, position = _row_group(data, position)
                rows.append(row_count)
                chunks.append(group)
            continue
        ordered = ordered or field == 7  # column_orders
        encrypted = encrypted or field == 8  # encryption_algorithm
        position = skip(data, position, kind)
    encrypted = encrypted or any(chunk.type < 0 for group in chunks for chunk in group)
    return Structure(rows, chunks, ordered, encrypted)


def _row_group(data: bytes, position: int) -> tuple[int, list[ColumnChunk], int]:
    rows, chunks, field = -1, [], 0
    while data[position]:
        position, field, kind = field_at(data, position, field)
        if field == 1 and kind == _LIST:  # columns
            count, position = _list_of_structures(data, position)
            for _ in range(count):
                chunk, position = _chunk(data, position)
                chunks.append(chunk)
        elif field == 3:  # num_rows
            rows, position = integer(data, position)
        else:
            position = skip(data, position, kind)
    return rows, chunks, position + 1


def _chunk(data: bytes, position: int) -> tuple[ColumnChunk, int]:
    chunk = ColumnChunk(-1, 0)
    field = 0
    while True:
        head = data[position]
        position += 1
        if not head:
            return chunk, position
        if head > 15:
            field += head >> 4
        else:
            field, position = integer(data, position)
        if field == 3 and head & 15 == _STRUCT:  # meta_data
            chunk, position = _column(data, position)
        else:
            position = skip(data, position, head & 15)
        if field in (8, 9):  # crypto_metadata, encrypted_column_metadata
            return ColumnChunk(-1, 0), _end(data, position, field)


def _column(data: bytes, position: int) -> tuple[ColumnChunk, int]:
    kind, codec, size, statistics, sizes = -1, -1, 0, _NO_STATISTICS, _NO_SIZES
    field = 0
    while True:
        head = data[position]
        position += 1
        if not head:
            break
        if head > 15:
            field += head >> 4
        else:
            field, position = integer(data, position)
        head &= 15
        if field == 7:  # total_compressed_size
            size, position = integer(data, position)
        elif field == 12 and head == _STRUCT:  # statistics
            statistics, position = _statistics(data, position)
        elif field == 1:  # type
            kind, position = integer(data, position)
        elif field == 16 and head == _STRUCT:  # size_statistics
            sizes, position = _size_statistics(data, position)
        elif field == 4:  # codec
            codec, position = integer(data, position)
        elif 4 <= head <= 6:
            while data[position] > 127:
                position += 1
            position += 1
        else:
            position = skip(data, position, head)
    if size < 0 or not 0 <= kind <= FIXED or not 0 <= codec < _CODECS:
        raise MalformedError(f"a column chunk has type {kind}, codec {codec} and {size} bytes")
    return ColumnChunk(kind, size, *statistics, sizes), position


def _size_statistics(data: bytes, position: int) -> tuple[tuple[bool, int, int], int]:
    counts_bytes, levels, field = False, {2: 0, 3: 0}, 0
    while data[position]:
        position, field, kind = field_at(data, position, field)
        if field in levels and kind == _LIST:  # repetition_level_histogram, definition_level_histogram
            levels[field] = list_at(data, position)[0]
        counts_bytes = counts_bytes or field == 1  # unencoded_byte_array_data_bytes
        position = skip(data, position, kind)
    return (counts_bytes, levels[2], levels[3]), position + 1


def _statistics(data: bytes, position: int) -> tuple[_Statistics, int]:
    fields: dict[int, bytes] = {}
    nulls, exact, field = -1, 0, 0
    while True:
        head = data[position]
        position += 1
        if not head:
            bounds = (fields.get(6), fields.get(5), fields.get(2), fields.get(1))  # min_value, max_value, min, max
            return (*bounds, nulls, exact == 2), position
        if head > 15:
            field += head >> 4
        else:
            field, position = integer(data, position)
        head &= 15
        if head == _BINARY:
            length, position = varint(data, position)
            fields[field] = data[position : position + length]
            position += length
        elif field == 3:  # null_count
            nulls, position = integer(data, position)
        elif field in (7, 8):  # is_max_value_exact, is_min_value_exact
            exact += head == _TRUE
        else:
            position = skip(data, position, head)


def _end(data: bytes, position: int, field: int) -> int:
    """The position after the structure whose next field starts here."""
    while data[position]:
        position, field, kind = field_at(data, position, field)
        position = skip(data, position, kind)
    return position + 1


def field_at(data: bytes, position: int, last: int) -> tuple[int, int, int]:
    """Parse a field's header: the position of its value, its id, and its type."""
    head = data[position]
    if head > 15:
        return position + 1, last + (head >> 4), head & 15
    field, position = integer(data, position + 1)
    return position, field, head & 15


def _list_of_structures(data: bytes, position: int) -> tuple[int, int]:
    count, kind, position = list_at(data, position)
    if kind != _STRUCT:
        raise MalformedError(f"a list holds type {kind}, expected structures")
    return count, position


def list_at(data: bytes, position: int) -> tuple[int, int, int]:
    head = data[position]
    count, position = (head >> 4, position + 1) if head < 0xF0 else varint(data, position + 1)
    return count, head & 15, position


def integer(data: bytes, position: int) -> tuple[int, int]:
    """An integer of the compact protocol, and the position after it."""
    # 01 -> -1, 02 -> 1, 80 01 -> 64: signed by its lowest bit
    value, position = varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def varint(data: bytes, position: int) -> tuple[int, int]:
    value = data[position]
    if value < 128:
        return value, position + 1
    value &= 127
    shift = 7
    while shift < _WIDEST_BITS:
        position += 1
        part = data[position]
        value |= (part & 127) << shift
        if part < 128:
            return value, position + 1
        shift += 7
    raise MalformedError("an integer is longer than ten bytes")


def skip(data: bytes, position: int, kind: int, depth: int = 0) -> int:
    """The position after a value: booleans are in the header, i8 is a byte, i16 to i64 varints, double 8 bytes."""
    if 4 <= kind <= 6:
        return _skip_varints(data, position, 1)
    if kind == _STRUCT:
        return _skip_structure(data, position, depth)
    if kind in (_LIST, _SET):
        return _skip_list(data, position, depth)
    if kind == _BINARY:
        length, position = varint(data, position)
        return position + length
    if 1 <= kind <= 7:
        return position + (0, 0, 0, 1, 0, 0, 0, 8)[kind]
    raise MalformedError(f"a field has type {kind}, which footers do not have")


def _skip_varints(data: bytes, position: int, count: int) -> int:
    for _ in range(count):
        while data[position] > 127:
            position += 1
        position += 1
    return position


def _skip_structure(data: bytes, position: int, depth: int) -> int:
    if depth > _DEEPEST:
        raise MalformedError(f"structures are nested deeper than {_DEEPEST}")
    while True:
        head = data[position]
        position += 1
        if not head & 15:  # also where the byte names a field, as for Apache Thrift
            return position
        if head < 16:
            position = _skip_varints(data, position, 1)
        head &= 15
        if 4 <= head <= 6:
            while data[position] > 127:
                position += 1
            position += 1
        else:
            position = skip(data, position, head, depth + 1)


def _skip_list(data: bytes, position: int, depth: int) -> int:
    if depth > _DEEPEST:
        raise MalformedError(f"lists are nested deeper than {_DEEPEST}")
    count, inner, position = list_at(data, position)
    if 4 <= inner <= 6:
        return _skip_varints(data, position, count)
    if inner <= 2:
        return position + count  # a boolean in a list is a byte
    for _ in range(count):
        position = skip(data, position, inner, depth + 1)
    return position
