"""Parquet files of one column chunk, whose pages may be any bytes: written without a library."""

from __future__ import annotations

from typing import NamedTuple

from page_bytes import varint, zigzag

from feedline.native import parquet as native

BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = 0, 1, 2, 4, 5, 6, 7
SIZES = {BOOLEAN: 1, INT32: 4, INT64: 8, FLOAT: 4, DOUBLE: 8, BYTE_ARRAY: 0, FIXED: 3}
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_LIST = 3  # parquet.thrift's ConvertedType
_NUMBER, _LONG, _BYTES, _LIST_OF, _STRUCT = 5, 6, 8, 9, 12  # types of Thrift's compact protocol


class Column(NamedTuple):
    """lists: 0 for a flat column, 1 for lists that are never null, 2 for lists that may be. nullable: the values."""

    physical: int
    lists: int
    nullable: bool

    @property
    def max_def(self) -> int:
        return self.lists + self.nullable

    @property
    def layout(self) -> tuple[int, ...]:
        """As `native.open_chunks` takes it."""
        return (self.physical, SIZES[self.physical], self.lists, self.max_def, 0, False, False)


def _field(step: int, kind: int, content: bytes) -> bytes:
    return bytes([step << 4 | kind]) + content


def _number(step: int, value: int, kind: int = _NUMBER) -> bytes:
    return _field(step, kind, zigzag(value))


def _name(step: int, name: bytes) -> bytes:
    return _field(step, _BYTES, varint(len(name)) + name)


def _items(step: int, kind: int, items: list[bytes]) -> bytes:
    return _field(step, _LIST_OF, bytes([len(items) << 4 | kind]) + b"".join(items))


def data_page(values: int, body: bytes, encoding: int, *, size: int | None = None) -> bytes:
    """A page of the first version. size: of its bytes before they were compressed (None: they are not)."""
    own = b"".join(_number(1, each) for each in (values, encoding, native.RLE, native.RLE)) + b"\0"
    sizes = _number(1, native.DATA_PAGE) + _number(1, len(body) if size is None else size) + _number(1, len(body))
    return sizes + _field(2, _STRUCT, own) + b"\0" + body


def data_page_v2(values: int, rows: int, reps: bytes, defs: bytes, body: bytes, encoding: int) -> bytes:
    """A page of the second version, not compressed."""
    numbers = (values, 0, rows, encoding, len(defs), len(reps))
    own = b"".join(_number(1, each) for each in numbers) + _field(1, 2, b"") + b"\0"
    content = reps + defs + body
    sizes = _number(1, native.DATA_PAGE_V2) + _number(1, len(content)) + _number(1, len(content))
    return sizes + _field(5, _STRUCT, own) + b"\0" + content


def dictionary_page(entries: int, body: bytes) -> bytes:
    own = _number(1, entries) + _number(1, 0) + b"\0"
    sizes = _number(1, native.DICTIONARY_PAGE) + _number(1, len(body)) + _number(1, len(body))
    return sizes + _field(4, _STRUCT, own) + b"\0" + body


def _element(
    name: bytes, repetition: int, *, physical: int | None = None, children: int = 0, is_list: bool = False
) -> bytes:
    content, last = b"", 0
    if physical is not None:
        content, last = _number(1, physical), 1
        if physical == FIXED:
            content, last = content + _number(1, SIZES[FIXED]), 2
    content += _number(3 - last, repetition) + _name(1, name)
    if children:
        content += _number(1, children)
    if is_list:
        content += _number(6 - (5 if children else 4), _LIST)
    return content + b"\0"


def _schema(column: Column) -> list[bytes]:
    values = _OPTIONAL if column.nullable else _REQUIRED
    root = _element(b"schema", _REQUIRED, children=1)
    if not column.lists:
        return [root, _element(b"v", values, physical=column.physical)]
    return [
        root,
        _element(b"v", _OPTIONAL if column.lists == 2 else _REQUIRED, children=1, is_list=True),
        _element(b"list", _REPEATED, children=1),
        _element(b"element", values, physical=column.physical),
    ]


def file_of(column: Column, chunk: bytes, first_data_page: int, values: int, rows: int, codec: int) -> bytes:
    """A file of a chunk of pages, the first with data of which begins at a byte of it (0: there is no dictionary)."""
    path = [b"v", b"list", b"element"] if column.lists else [b"v"]
    metadata = _number(1, column.physical) + _items(1, _NUMBER, [zigzag(native.RLE)])
    metadata += _items(1, _BYTES, [varint(len(each)) + each for each in path]) + _number(1, codec)
    metadata += _number(1, values, _LONG) + _number(1, len(chunk), _LONG) + _number(1, len(chunk), _LONG)
    metadata += _number(2, 4 + first_data_page, _LONG) + (_number(2, 4, _LONG) if first_data_page else b"") + b"\0"
    of_chunk = _number(2, 4, _LONG) + _field(1, _STRUCT, metadata) + b"\0"
    group = _items(1, _STRUCT, [of_chunk]) + _number(1, len(chunk), _LONG) + _number(1, rows, _LONG) + b"\0"
    footer = _number(1, 1) + _items(1, _STRUCT, _schema(column)) + _number(1, rows, _LONG)
    footer += _items(1, _STRUCT, [group]) + b"\0"
    return b"PAR1" + chunk + footer + len(footer).to_bytes(4, "little") + b"PAR1"
