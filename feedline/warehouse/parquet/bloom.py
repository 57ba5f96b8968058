"""Exclude row groups by the bloom filters in their files.

Runs in counting tasks, for row groups that partition values and statistics did not decide. The format is that of
parquet-format's BloomFilter.md: a header in Thrift's compact protocol, then blocks of 256 bits. The upper half of a
value's xxHash64 picks a block; its lower half, times eight odd constants, picks one bit in each of the block's eight
words. If all eight are set, the value may be present; else it is not.

The hash is of the value as the file stores it. A doubtful filter (an unsupported header, sizes that do not fit, an
empty bitset, a type or literal with several forms) excludes nothing.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
import xxhash

from feedline.expressions.predicates import And, Comparison, IsNull, Membership, Not, Opaque, Or, Predicate
from feedline.warehouse.parquet.bounds import day_of, instant_of
from feedline.warehouse.parquet.schemas import is_bytes, is_text
from feedline.warehouse.parquet.thrift import MalformedError, integer

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)
_BLOCK_BYTES = 32
_LARGEST_BYTES = 32 * 2**20  # larger filters are ignored
_HEADER_BYTES = 64  # more than any supported header
_PER_SECOND = {"milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}

Hashes = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint32]


def header_of(data: bytes) -> tuple[int, int] | None:
    """Where a filter's bitset starts and stops, behind its header's first byte; None for anything but uncompressed
    split blocks of xxHash."""
    try:
        position, field = 0, 0
        fields: dict[int, int] = {}
        while data[position]:
            head = data[position]
            field, position = field + (head >> 4), position + 1
            if not head >> 4 or field > 4 or field in fields:
                return None
            if field == 1 and head & 15 == 5:  # numBytes: i32
                fields[1], position = integer(data, position)
            elif field > 1 and head & 15 == 12 and data[position : position + 3] == b"\x1c\x00\x00":
                fields[field], position = 1, position + 3  # a union whose first member, an empty structure, is set
            else:
                return None
    except (IndexError, MalformedError):
        return None
    size = fields.get(1, 0)
    if len(fields) != 4 or not 0 < size <= _LARGEST_BYTES or size % _BLOCK_BYTES:
        return None
    return position + 1, position + 1 + size


def may_hold_any(bitset: Words, hashes: Hashes) -> bool:
    """Whether any of the hashed values may be in the filter. `bitset`: its words, eight to a block."""
    # a hash whose upper half is 2**31 picks block 2 of 4; the highest 5 bits of a product pick one of the 32 of a word
    blocks = bitset.reshape(-1, 8)
    picks = ((hashes >> np.uint64(32)) * np.uint64(len(blocks))) >> np.uint64(32)
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    bits = np.uint32(1) << ((low[:, None] * _SALT) >> np.uint32(27))
    return bool(np.all(blocks[picks] & bits, axis=1).any())


def hashes_of(values: Sequence[object], kind: pa.DataType, physical: str, logical: str, width: int) -> Hashes | None:
    """The hashes of these values as a file stores them; None if one of them may be stored in several forms.

    `kind`: the file's Arrow type; `physical`, `logical` (JSON) and `width` (of fixed-length values): its Parquet type.
    """
    stored: list[bytes] = []
    for value in values:
        forms = _stored_forms(value, kind, physical, logical, width)
        if forms is None:
            return None
        stored += forms
    return np.array([xxhash.xxh64_intdigest(form, seed=0) for form in stored], np.uint64)


def is_refuted(predicate: Predicate, absent: Callable[[Comparison | Membership], bool]) -> bool:
    """Whether the predicate is true for no row. `absent`: whether no row has the value of an `==` or `in`."""
    return not _possible(predicate, True, absent)


def _possible(predicate: Predicate, outcome: bool, absent: Callable[[Comparison | Membership], bool]) -> bool:
    """Whether the predicate may have this outcome for some row."""
    match predicate:
        case And(items=items) | Or(items=items):
            every = isinstance(predicate, And) == outcome
            return (all if every else any)(_possible(item, outcome, absent) for item in items)
        case Not(item=item):
            return _possible(item, not outcome, absent)
        case Membership() | Comparison(op="=="):
            return not outcome or not absent(predicate)
        case Comparison(op="!="):
            return outcome or not absent(Comparison(column=predicate.column, op="==", value=predicate.value))
        case Comparison() | IsNull() | Opaque():
            return True
    raise ValueError(f"predicate unknown: got {predicate!r}")


class RowGroupFilters:
    """The bloom filters of one file of `file_bytes`; `read_at(bytes, offset)` reads it.

    `types`, `stored`: for each column of the table its type and its Parquet columns in the file. `partition`: the
    file's keys and values.
    """

    def __init__(
        self,
        metadata: pq.FileMetaData,
        types: pa.Schema,
        stored: dict[str, range],
        partition: dict[str, object],
        read_at: Callable[[int, int], bytes],
        file_bytes: int,
    ) -> None:
        self._metadata = metadata
        self._types = types
        self._stored = stored
        self._partition = partition
        self._read_at = read_at
        self._file_bytes = file_bytes
        self._hashes: dict[Comparison | Membership, Hashes | None] = {}

    def refute(self, predicate: Predicate, row_group: int, *, worth: int = _LARGEST_BYTES) -> tuple[bool, int]:
        """Whether the filters exclude every row of a row group, and how many bytes of filters were read.

        Filters of more than `worth` bytes are not read: they could not save as much.
        """
        read: dict[int, Words | None] = {}
        nbytes = 0

        def absent(leaf: Comparison | Membership) -> bool:
            nonlocal nbytes
            if leaf.column in self._partition:
                return _differs(self._partition[leaf.column], leaf)
            columns = self._stored.get(leaf.column)
            if columns is None or len(columns) != 1:
                return False
            column = columns.start
            hashes = self._hashes_for(leaf, column)
            if hashes is None:
                return False
            if column not in read:
                read[column], size = self._bitset(row_group, column, worth)
                nbytes += size
            bitset = read[column]
            return bitset is not None and not may_hold_any(bitset, hashes)

        return is_refuted(predicate, absent), nbytes

    def _hashes_for(self, leaf: Comparison | Membership, column: int) -> Hashes | None:
        if leaf not in self._hashes:
            kind = self._types.field(self._types.get_field_index(leaf.column)).type
            about = self._metadata.schema.column(column)
            values = leaf.values if isinstance(leaf, Membership) else (leaf.value,)
            logical = about.logical_type.to_json()
            self._hashes[leaf] = hashes_of(values, kind, about.physical_type, logical, about.length)
        return self._hashes[leaf]

    def _bitset(self, row_group: int, column: int, worth: int) -> tuple[Words | None, int]:
        """The words of a filter (None if there is none to be trusted), and the bytes read."""
        chunk = self._metadata.row_group(row_group).column(column)
        offset, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
        if offset is None or offset < 4 or (length is not None and not 0 < length <= worth):
            return None, 0
        available = self._file_bytes - offset  # a read beyond the end would count as the store's failure
        if available < (length or 1):
            return None, 0
        content = self._read_at(length or min(_HEADER_BYTES, available), offset)
        read = len(content)
        start, stop = header_of(content) or (0, 0)
        if not 0 < stop - start <= worth or stop > available or length not in (None, stop):
            return None, read
        if stop > read:  # older writers do not state the length
            content += self._read_at(stop - read, offset + read)
            read = len(content)
        bitset = content[start:stop]
        words = np.frombuffer(bitset[: len(bitset) // _BLOCK_BYTES * _BLOCK_BYTES], "<u4")
        return (words if len(bitset) == stop - start and words.any() else None), read


def _differs(key: object, leaf: Comparison | Membership) -> bool:
    """Whether a partition's value is none of the literals; True only if both are of one plain type."""
    values = leaf.values if isinstance(leaf, Membership) else (leaf.value,)
    if key is None:
        return True
    return type(key) in (int, str, datetime.date) and all(type(value) is type(key) and value != key for value in values)


def _stored_forms(value: object, kind: pa.DataType, physical: str, logical: str, width: int) -> list[bytes] | None:
    """The bytes that a file may store for a value: usually one form, two for zero, None if it is not certain."""
    if pat.is_dictionary(kind):
        kind = kind.value_type
    if pat.is_floating(kind):
        return _floats(value, physical)
    if physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and not pat.is_decimal(kind):
        return _bytes(value, kind, width if physical == "FIXED_LEN_BYTE_ARRAY" else None)
    number: int | None = None
    if pat.is_integer(kind):
        number = _whole(value)
    elif pat.is_date32(kind):
        number = day_of(value)
    elif pat.is_timestamp(kind):
        number = _moment(value, kind, logical)
    elif pat.is_decimal(kind):
        number = _unscale(value, kind.scale)
    size = width if physical == "FIXED_LEN_BYTE_ARRAY" else {"INT32": 4, "INT64": 8}.get(physical, 0)
    if number is None or size <= 0:
        return None
    bits = kind.bit_width if pat.is_integer(kind) else 8 * size
    low, high = (0, 2**bits) if pat.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not low <= number < high:
        return None
    order: Any = "big" if physical == "FIXED_LEN_BYTE_ARRAY" else "little"
    return [number.to_bytes(size, order, signed=low < 0)]


def _floats(value: object, physical: str) -> list[bytes] | None:
    number = float(value) if isinstance(value, float | int) and not isinstance(value, bool) else None
    if number is None or number != value or number != number or physical not in ("FLOAT", "DOUBLE"):
        return None
    dtype: Any = "<f4" if physical == "FLOAT" else "<f8"
    with np.errstate(over="ignore"):
        stored = np.array([number], dtype)
    if float(stored[0]) != number:
        return None
    both = [stored, -stored] if number == 0 else [stored]
    return [form.tobytes() for form in both]


def _bytes(value: object, kind: pa.DataType, width: int | None) -> list[bytes] | None:
    if is_text(kind) or pat.is_string_view(kind):
        form = value.encode() if isinstance(value, str) else None
    elif is_bytes(kind) or pat.is_binary_view(kind) or pat.is_fixed_size_binary(kind):
        form = value if isinstance(value, bytes) else None
    else:
        form = None
    return None if form is None or width not in (None, len(form)) else [form]


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def _moment(value: object, kind: pa.DataType, logical: str) -> int | None:
    about = json.loads(logical)
    per_second = _PER_SECOND.get(about.get("timeUnit", "")) if about.get("Type") == "Timestamp" else None
    return None if per_second is None else instant_of(value, per_second=per_second, aware=kind.tz is not None)


def _unscale(value: object, scale: int) -> int | None:
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    if exponent + scale >= 0:
        return number * 10 ** (exponent + scale) if exponent + scale < 100 else None
    whole, rest = divmod(number, 10 ** -(exponent + scale))
    return None if rest else whole
