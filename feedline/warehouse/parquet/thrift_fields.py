"""Take structures of Thrift's compact protocol apart, and put them together again, as bytes.

Pure; runs where files are copied with other offsets. A field keeps its bytes as they were stored unless it is replaced,
so what this release does not know of a footer is kept. `thrift` has the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from feedline.warehouse.parquet.thrift import MalformedError, field_at, integer, list_at, skip, varint

_I16, _I32, _I64, _BINARY, _LIST, _STRUCT = 4, 5, 6, 8, 9, 12  # types of the compact protocol
_SHORT_LIST = 15  # elements from which a list's header has its count behind it
_LONGEST_STEP = 15  # of a field's id that fits its header


class Field(NamedTuple):
    """A value as it is stored: its type, and its bytes, which a boolean has none of."""

    kind: int
    content: bytes


Fields = Mapping[int, Field]


def fields_of(structure: bytes) -> dict[int, Field]:
    """The fields of a structure by their ids. Raises MalformedError."""
    fields: dict[int, Field] = {}
    position, number = 0, 0
    try:
        while structure[position]:
            start, number, kind = field_at(structure, position, number)
            position = skip(structure, start, kind)
            fields[number] = Field(kind, structure[start:position])
    except IndexError:
        raise MalformedError("it ends in the middle of a field") from None
    return fields


def items_of(field: Field | None) -> list[bytes]:
    """The structures of a list; none of a field that is absent. Raises MalformedError."""
    if field is None:
        return []
    count, kind, position = list_at(field.content, 0)
    if kind != _STRUCT:
        raise MalformedError(f"a list holds type {kind}, expected structures")
    items = []
    for _ in range(count):
        start, position = position, skip(field.content, position, _STRUCT)
        items.append(field.content[start:position])
    return items


def number_of(field: Field | None) -> int:
    """An integer; 0 for a field that is absent."""
    return 0 if field is None else integer(field.content, 0)[0]


def bytes_of(field: Field | None) -> bytes:
    """A string's bytes; none of a field that is absent."""
    if field is None:
        return b""
    length, position = varint(field.content, 0)
    return field.content[position : position + length]


def structure_of_fields(fields: Fields) -> bytes:
    """A structure of these fields."""
    # ids 1 and 20 -> a step of 1 in a header of one byte; of 19, which needs an integer behind it
    parts: list[bytes] = []
    last = 0
    for number in sorted(fields):
        kind, content = fields[number]
        step = number - last
        head = bytes([step << 4 | kind]) if step <= _LONGEST_STEP else bytes([kind]) + _zigzag(number)
        parts += head, content
        last = number
    return b"".join([*parts, b"\0"])


def i16(value: int) -> Field:
    return Field(_I16, _zigzag(value))


def i32(value: int) -> Field:
    return Field(_I32, _zigzag(value))


def i64(value: int) -> Field:
    return Field(_I64, _zigzag(value))


def binary(value: bytes) -> Field:
    return Field(_BINARY, _varint_of(len(value)) + value)


def structure(fields: Fields) -> Field:
    return Field(_STRUCT, structure_of_fields(fields))


def list_of(items: Sequence[bytes]) -> Field:
    """A list of structures."""
    count = len(items)
    head = bytes([count << 4 | _STRUCT]) if count < _SHORT_LIST else bytes([0xF0 | _STRUCT]) + _varint_of(count)
    return Field(_LIST, b"".join([head, *items]))


def _zigzag(value: int) -> bytes:
    return _varint_of(value << 1 ^ value >> 63)


def _varint_of(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
