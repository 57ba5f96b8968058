"""Exclude row groups by the bloom filters in their files.

Runs in counting tasks, for row groups that partition values and statistics left open. pyarrow writes bloom filters and
gives their places, and reads none; the format is small (parquet-format, BloomFilter.md): a header in Thrift's compact
protocol (bytes of the bitset, algorithm, hash, compression), then blocks of 256 bits. A value's xxHash64 picks a block
with its upper half, and its lower half, times eight odd constants, one bit in each of the block's eight words. All
eight set: perhaps; else: certainly not.

The hash is of the value as it is stored (plain encoding, strings and bytes without their length), so the file's own
type decides, not the table's. A doubtful filter is unknown, and an unknown filter excludes nothing: a header that is
not understood, sizes that do not fit, an empty bitset, a type or a literal without one clear form. Booleans and INT96
have no filters.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
import xxhash

from feedline.expressions.predicates import And, Comparison, IsNull, Membership, Not, Opaque, Or, Predicate

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)
_BLOCK_BYTES = 32
_LARGEST_BYTES = 32 * 2**20  # no filter is larger
_HEADER_BYTES = 64  # more than any header that is understood
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PER_SECOND = {"milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}

Hashes = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class BloomHeader:
    """Where the bitset begins, counted from the header's first byte, and its bytes."""

    start: int
    bitset_bytes: int


def header_of(data: bytes) -> BloomHeader | None:
    """Read a filter's header; None for anything but uncompressed split blocks of xxHash."""
    try:
        place, field = 0, 0
        found: dict[int, int] = {}
        while data[place]:
            head = data[place]
            field, place = field + (head >> 4), place + 1
            if not head >> 4 or field > 4 or field in found:
                return None
            if field == 1 and head & 15 == 5:  # numBytes: i32
                found[1], place = _integer(data, place)
            elif field > 1 and head & 15 == 12 and data[place : place + 3] == b"\x1c\x00\x00":
                found[field], place = 1, place + 3  # a union whose first member, an empty structure, is set
            else:
                return None
    except IndexError:
        return None
    size = found.get(1, 0)
    if len(found) != 4 or not 0 < size <= _LARGEST_BYTES or size % _BLOCK_BYTES:
        return None
    return BloomHeader(place + 1, size)


def _integer(data: bytes, place: int) -> tuple[int, int]:
    """A number of the compact protocol, and the place behind it."""
    value = shift = 0
    while data[place] > 127:
        value |= (data[place] & 127) << shift
        place, shift = place + 1, shift + 7
    value |= data[place] << shift
    return (value >> 1) ^ -(value & 1), place + 1


def holds_one(bitset: Words, hashes: Hashes) -> bool:
    """Whether one of the hashed values may be in the filter; `bitset` is its words, eight to a block."""
    blocks = bitset.reshape(-1, 8)
    chosen = ((hashes >> np.uint64(32)) * np.uint64(len(blocks))) >> np.uint64(32)
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    bits = np.uint32(1) << ((low[:, None] * _SALT) >> np.uint32(27))
    return bool(np.all(blocks[chosen] & bits, axis=1).any())


def hashes_of(values: Sequence[object], kind: pa.DataType, physical: str, logical: str, width: int) -> Hashes | None:
    """The hashes under which a file would hold these values; None where one of them has no single form.

    `kind`: the file's Arrow type; `physical`, `logical` (JSON) and `width` (of fixed-length values): its Parquet type.
    """
    stored: list[bytes] = []
    for value in values:
        forms = _find_stored(value, kind, physical, logical, width)
        if forms is None:
            return None
        stored += forms
    return np.array([xxhash.xxh64_intdigest(form, seed=0) for form in stored], np.uint64)


def is_refuted(predicate: Predicate, absent: Callable[[Comparison | Membership], bool]) -> bool:
    """Whether no row can make the predicate true; `absent`: whether no row has the value of an `==` or `in`."""
    return not _possible(predicate, True, absent)


def _possible(predicate: Predicate, wanted: bool, absent: Callable[[Comparison | Membership], bool]) -> bool:
    """May some row make it true (`wanted`), or false?"""
    match predicate:
        case And(items=items) | Or(items=items):
            every = isinstance(predicate, And) == wanted
            return (all if every else any)(_possible(item, wanted, absent) for item in items)
        case Not(item=item):
            return _possible(item, not wanted, absent)
        case Membership() | Comparison(op="=="):
            return not wanted or not absent(predicate)
        case Comparison(op="!="):
            return wanted or not absent(Comparison(column=predicate.column, op="==", value=predicate.value))
        case Comparison() | IsNull() | Opaque():
            return True
    raise ValueError(f"predicate unknown: got {predicate!r}")


class RowGroupFilters:
    """The filters of one file of `file_bytes`, asked row group by row group; `read_at(bytes, offset)` reads it.

    `stored`: which of the file's Parquet columns hold a column of the table; `partition`: the file's keys and values.
    """

    def __init__(
        self,
        parquet: pq.ParquetFile,
        stored: dict[str, range],
        partition: dict[str, object],
        read_at: Callable[[int, int], bytes],
        file_bytes: int,
    ) -> None:
        self._parquet = parquet
        self._types = parquet.schema_arrow
        self._stored = stored
        self._partition = partition
        self._read_at = read_at
        self._file_bytes = file_bytes
        self._hashes: dict[Comparison | Membership, Hashes | None] = {}

    def refute(self, predicate: Predicate, row_group: int, *, worth: int = _LARGEST_BYTES) -> tuple[bool, int]:
        """Whether the filters exclude every row of a row group, and how many bytes of filters were read.

        A filter of more than `worth` bytes is not read: an answer would not save as much.
        """
        read: dict[int, Words | None] = {}
        nbytes = 0

        def absent(leaf: Comparison | Membership) -> bool:
            nonlocal nbytes
            if leaf.column in self._partition:
                return _differs(self._partition[leaf.column], leaf)
            place = self._stored.get(leaf.column)
            if place is None or len(place) != 1:
                return False
            hashes = self._hashes_for(leaf, place.start)
            if hashes is None:
                return False
            if place.start not in read:
                read[place.start], size = self._bitset(row_group, place.start, worth)
                nbytes += size
            bitset = read[place.start]
            return bitset is not None and not holds_one(bitset, hashes)

        return is_refuted(predicate, absent), nbytes

    def _hashes_for(self, leaf: Comparison | Membership, column: int) -> Hashes | None:
        if leaf not in self._hashes:
            kind = self._types.field(self._types.get_field_index(leaf.column)).type
            about = self._parquet.metadata.schema.column(column)
            values = leaf.values if isinstance(leaf, Membership) else (leaf.value,)
            logical = about.logical_type.to_json()
            self._hashes[leaf] = hashes_of(values, kind, about.physical_type, logical, about.length)
        return self._hashes[leaf]

    def _bitset(self, row_group: int, column: int, worth: int) -> tuple[Words | None, int]:
        """The words of a filter, None where there is none that can be trusted, and the bytes read."""
        chunk = self._parquet.metadata.row_group(row_group).column(column)
        offset, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
        if offset is None or offset < 4 or (length is not None and not 0 < length <= worth):
            return None, 0
        left = self._file_bytes - offset  # a store takes what lies behind the end for its own failure
        if left < (length or 1):
            return None, 0
        content = self._read_at(length or min(_HEADER_BYTES, left), offset)
        header = header_of(content)
        if header is None or header.bitset_bytes > worth:
            return None, len(content)
        if length is not None and header.start + header.bitset_bytes != length:
            return None, len(content)
        read = len(content)
        if header.start + header.bitset_bytes > left:
            return None, read
        if (rest := header.start + header.bitset_bytes - read) > 0:  # older writers do not say the length
            content += self._read_at(rest, offset + read)
            read = len(content)
        bitset = content[header.start : header.start + header.bitset_bytes]
        words = np.frombuffer(bitset[: len(bitset) // _BLOCK_BYTES * _BLOCK_BYTES], "<u4")
        return (words if len(bitset) == header.bitset_bytes and words.any() else None), read


def _differs(key: object, leaf: Comparison | Membership) -> bool:
    """Whether a partition's value is none of the literals; True only where both are of one plain type."""
    values = leaf.values if isinstance(leaf, Membership) else (leaf.value,)
    if key is None:
        return True
    return type(key) in (int, str, datetime.date) and all(type(value) is type(key) and value != key for value in values)


def _find_stored(value: object, kind: pa.DataType, physical: str, logical: str, width: int) -> list[bytes] | None:
    """The forms in which a file may hold a value; usually one, two for zero, None where that is doubtful."""
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
        number = value.toordinal() - _EPOCH.toordinal() if type(value) is datetime.date else None
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
    if pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind):
        form = value.encode() if isinstance(value, str) else None
    elif any(test(kind) for test in (pat.is_binary, pat.is_large_binary, pat.is_binary_view, pat.is_fixed_size_binary)):
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
    aware = kind.tz is not None
    if per_second is None or type(value) is not datetime.datetime or (value.tzinfo is not None) != aware:
        return None
    since = (value if aware else value.replace(tzinfo=datetime.UTC)) - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    units, rest = divmod(micros * per_second, 10**6)
    return None if rest else units


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
