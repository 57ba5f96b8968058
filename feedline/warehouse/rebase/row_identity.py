"""The hash of `source.row_key` that identifies a row after its file has been rewritten.

Runs in every process that computes blocks, and where a rebase is planned. Pure. Each value of the key columns becomes a
64-bit word (of a list its length and first value), the words are summed, each times an odd constant derived from its
column's name, and the sum is mixed once per row (`hashing.mix`, `hashing.digest`). The hash of a row with a null in its
key is `NAMELESS`. See docs/decisions/0007-row-identity-for-rebase.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.hashing import Words, digest, mix
from feedline.warehouse.parquet.schemas import is_bytes, is_list, is_text

NAMELESS = np.uint64(2**64 - 1)  # values hash to it only by chance (a key of zeros hashes to 0)
LENGTHS = "lengths"  # the kind of a list column whose lengths order rows
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What identifies a row: the columns of a row key and their kinds; `by`: the column that orders rows, with the
    kind `LENGTHS` one whose lists' lengths do. `kept`: whatever else decides which rows are kept."""

    columns: tuple[tuple[str, str], ...]
    by: tuple[str, str] | None
    kept: str

    @cached_property
    def id(self) -> str:
        """The digest of all fields: 32 hexadecimal digits."""
        parts = [_VERSION, sorted(self.columns), self.by, self.kept]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """Every column that is hashed, with its kind."""
        by = [self.by] if self.by is not None and self.by[1] != LENGTHS else []
        return tuple(dict((*self.columns, *by)).items())

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the row key, which features need not read."""
        return tuple(name for name, _ in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        names = [name for name, _ in self.kinds]
        return tuple(dict.fromkeys(names if self.by is None else [*names, self.by[0]]))

    def rows(self, frame: pl.DataFrame) -> Words:
        """uint64 [rows]: the identity of each row of a frame that has the columns."""
        words = _hash(frame, self.columns)
        for name in self.key:
            if frame.get_column(name).null_count():
                words[frame.get_column(name).is_null().to_numpy()] = NAMELESS
        return words

    def runs(self, frame: pl.DataFrame) -> Words:
        """uint64 [rows]: a hash of each row's `shuffle.by`, equal where the values are (nulls to each other); or the
        lengths of the lists that order rows."""
        assert self.by is not None
        if self.by[1] == LENGTHS:
            lengths: Words = frame.get_column(self.by[0]).list.len().fill_null(0).to_numpy().astype(np.uint64)
            return lengths
        return _hash(frame, (self.by,))


def identity_of(
    schema: pa.Schema, key: Sequence[str], *, by: str | None = None, by_length: bool = False, kept: str = ""
) -> Identity | None:
    """Return the identity over the columns of a row key; None if files store none of them.

    `schema`: the columns and column parts that files store (no partition keys: one value per file identifies no row).
    `by`: the column that orders rows, `by_length` of lists; `kept`: what decides which rows are kept.
    """
    columns = tuple(_kinds(schema, key).items())
    return Identity(columns=columns, by=_by(schema, by, by_length), kept=kept) if columns else None


def _kinds(schema: pa.Schema, names: Sequence[str]) -> dict[str, str]:
    """Map the stored columns among `names`, in that order, to how each is hashed, without those that cannot be."""
    stored = set(schema.names)
    kinds = {name: identity_kind(schema.field(name).type) for name in dict.fromkeys(names) if name in stored}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _by(schema: pa.Schema, by: str | None, by_length: bool) -> tuple[str, str] | None:
    """The column that orders rows, and its kind; None where files do not store it."""
    if by_length:
        return (by, LENGTHS) if by is not None and by in schema.names else None
    return next(iter(_kinds(schema, () if by is None else (by,)).items()), None)


def identity_kind(kind: pa.DataType) -> str | None:
    """Return how a type is hashed; None for structs, maps and fixed-size lists, which are not."""
    if pat.is_integer(kind) or pat.is_boolean(kind) or pat.is_date(kind):
        return "integer"
    if pat.is_timestamp(kind) or pat.is_time(kind) or pat.is_duration(kind):
        return f"time {kind.unit}"
    if pat.is_floating(kind):
        return "float64" if kind.bit_width == 64 else "float32"
    if pat.is_decimal128(kind):
        return f"decimal {kind.scale}"
    if is_text(kind) or is_bytes(kind):
        return "text"
    if is_list(kind):
        inner = identity_kind(kind.value_type)
        return f"list of {inner}" if inner is not None and inner.split()[0] in ("integer", "float32") else "list"
    return None


def _hash(frame: pl.DataFrame, columns: Sequence[tuple[str, str]]) -> Words:
    total, word = np.zeros(frame.height, np.uint64), np.empty(frame.height, np.uint64)
    for name, kind in columns:
        series = frame.get_column(name)
        if kind == "text":
            _add(total, word, digest(series), name, series.is_null().to_numpy() if series.null_count() else None)
            continue
        array = series.rechunk().to_arrow()
        if kind.startswith("list"):
            _add_list(total, word, array, name, kind)
        elif kind.startswith("decimal"):
            halves = _numbers(array, np.uint64, 2).reshape(-1, 2)
            for half in range(2):
                _add(total, word, halves[:, half], f"{name}/{half}", _nulls(array))
        else:
            _add(total, word, _bits(array, word), name, _nulls(array))
    mix(total, word)
    return total


def _add(total: Words, word: Words, values: npt.NDArray[Any], name: str, nulls: npt.NDArray[np.bool_] | None) -> None:
    """Add values * (the name's constant) to `total`, or a constant for nulls.

    `word`: scratch memory, which may hold the values themselves.
    """
    if values.dtype == np.uint64:
        np.multiply(values, _factor(name), out=word)
    else:
        word[:] = values  # twice as fast as multiplying into another type; keeps the sign of integers
        np.multiply(word, _factor(name), out=word)
    if nulls is not None:
        np.copyto(word, _factor(f"{name}/null"), where=nulls)
    np.add(total, word, out=total)


def _bits(array: pa.Array, word: Words) -> npt.NDArray[Any]:
    """View a column of numbers as integers of its bits; values at nulls are arbitrary."""
    kind = array.type
    if pat.is_boolean(kind):
        return _numbers(array.cast(pa.uint8()), np.uint8)
    if pat.is_floating(kind) and kind.bit_width == 64:
        bits = _numbers(array, np.uint64)
        np.right_shift(bits, np.uint64(32), out=word)  # whole numbers differ in the high bits only,
        np.bitwise_xor(word, bits, out=word)  # which do not affect the low bits of a product
        return word
    if pat.is_floating(kind):
        return _numbers(array.cast(pa.float32()), np.uint32)
    signed = not pat.is_unsigned_integer(kind) and kind.bit_width < 64
    return _numbers(array, f"{'i' if signed else 'u'}{kind.bit_width // 8}")


def _numbers(array: pa.Array, dtype: npt.DTypeLike, words: int = 1) -> npt.NDArray[Any]:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) * words, dtype)
    size = np.dtype(dtype).itemsize * words
    return np.frombuffer(buffer, dtype, count=len(array) * words, offset=array.offset * size)


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    valid = np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :]
    nulls: npt.NDArray[np.bool_] = valid == 0
    return nulls


def _add_list(total: Words, word: Words, array: pa.Array, name: str, kind: str) -> None:
    offsets = array.offsets.to_numpy()
    lengths = np.diff(offsets)
    _add(total, word, lengths.view(np.uint64), name, _nulls(array))
    values = array.values
    if kind == "list" or not len(values):
        return
    first = _bits(values, word).take(offsets[:-1], mode="clip")
    nulls = _nulls(values)
    if nulls is not None:
        first[nulls.take(offsets[:-1], mode="clip")] = 0
    first[lengths == 0] = 0
    _add(total, word, first, f"{name}/first", None)


@lru_cache(maxsize=4096)
def _factor(name: str) -> np.uint64:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little") | 1)
