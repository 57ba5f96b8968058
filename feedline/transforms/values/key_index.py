"""Find the row of a table that holds a key: an integer, a string, or several of them.

Runs wherever features are compiled, and on the workers inside the pass over a chunk. Each column numbers its values; a
key of several columns is one number, composed of those of its values. Integers are numbered by their distance from the
smallest, as long as the numbers of all columns fit one word; other integers, and strings, are looked up (`hash_table`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.expressions.types import BINARY, INTEGER, STRING, kind, language_type
from feedline.hashing import digest
from feedline.transforms.values.arrays import Values

# --------------------------------------------------------------------------------------------------------------------
# Look up ids and strings, millions per second and core. Tables are built once per process and then only read. Ids in a
# narrow range have a table with an entry for each number of the range. Other ids lie in one of two cells of a cuckoo
# hash table (Pagh and Rodler, "Cuckoo hashing", 2004), side by side with their results in 16 bytes. So do the 64-bit
# digests of strings: matches are compared byte by byte, and strings that share a digest are looked up by Polars.

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_LOAD = 0.45  # cuckoo tables with two cells per key fill to one half; at 0.45 few moves find an empty cell
CELL_BYTES = 16
_CELL = np.dtype("V16")  # numpy takes elements of 16 bytes without a call per element
_BLOCK_VALUES = 8192  # 128 KiB of cells: they stay in the cache until they are compared
_INSERT_BLOCK = 1 << 18  # ids inserted at a time: temporaries of a few MB
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_FIRST_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
_SECOND_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_DIRECT_BYTES = 4
_MOST_MOVES = 500  # rounds of moves; a table of this load needs a few dozen
LARGEST = 2**31 - 1  # the largest result: results fit four bytes, and tables have fewer than 2^32 cells


def bytes_of_integers(count: int, span: int) -> int:
    """The memory of a table of `count` ids, the largest of which is `span` - 1 above the smallest."""
    hashes = _cell_count(count) * CELL_BYTES
    return min(hashes, _DIRECT_BYTES * (span + 1)) if count else 0


def bytes_of_strings(count: int, text_bytes: int) -> int:
    """The memory of a table of `count` strings of `text_bytes` bytes in total: cells, views, characters."""
    return _cell_count(count) * CELL_BYTES + CELL_BYTES * count + text_bytes


def integer_table(keys: Values, results: Integers) -> DirectTable | CuckooTable:
    """A table of distinct int64 or uint64 `keys` [N], each with its result, from 1 to 2^31 - 1.

    The most frequent keys should come first: they are found fastest.
    """
    if not len(keys):
        return DirectTable(keys.dtype.type(0), np.zeros(1, dtype=np.int32))
    smallest, span = keys.min(), int(keys.max()) - int(keys.min()) + 1
    if _DIRECT_BYTES * (span + 1) > CELL_BYTES * _cell_count(len(keys)):
        return CuckooTable.of(keys.view(np.uint64), results)
    table = np.zeros(span + 1, dtype=np.int32)
    table[(keys - smallest).astype(np.int64)] = results
    return DirectTable(smallest, table)


@dataclass(frozen=True, slots=True)
class DirectTable:
    """The results of all numbers from `smallest` on; the last entry stands for numbers outside the range."""

    smallest: np.int64 | np.uint64
    table: npt.NDArray[np.int32]

    def find(self, values: Values, out: Integers) -> None:
        """Write each value's result into `out`, 0 for unknown values. `values` are of the keys' type."""
        for part in _blocks(len(values)):
            cell = np.subtract(values[part], self.smallest).view(np.uint64)  # smaller values wrap to huge ones
            np.minimum(cell, np.uint64(len(self.table) - 1), out=cell)
            out[part] = self.table.take(cell.view(np.int64), mode="clip")


@dataclass(frozen=True, slots=True)
class CuckooTable:
    """Cells [size, 2] of words, each a key and its result (0: an empty cell); `multiplier` is that of the hash.

    A key's cells are the two halves of its hash, each scaled to the size. The hash is one to one:
    `h = key * multiplier; h ^= h >> 32; h *= 0xC2B2AE3D27D4EB4F`, modulo 2^64.
    """

    cells: Words
    multiplier: np.uint64

    @classmethod
    def of(cls, keys: Words, results: Integers) -> CuckooTable:
        size = _cell_count(len(keys))
        while True:  # if no multiplier fits all keys, the table grows
            for multiplier in _FIRST_MULTIPLIERS:
                table = cls(np.zeros((size, 2), dtype=np.uint64), np.uint64(multiplier))
                if table._insert(keys, results):
                    return table
            size = size * 5 // 4 + 1

    def find(self, values: Values, out: Integers) -> None:
        """Write each value's result into `out`, 0 for unknown values. `values` are 64-bit integers, read as words."""
        cells = self.cells.view(_CELL).ravel()
        words, out_words = values.view(np.uint64), out.view(np.uint64)
        longest = min(len(words), _BLOCK_VALUES)
        hashes, cell = np.empty(longest, dtype=np.uint64), np.empty(longest, dtype=np.uint64)
        chosen_cells, misses = np.empty(longest, dtype=_CELL), np.empty(longest, dtype=np.bool_)
        for part in _blocks(len(words)):
            word = words[part]
            count = len(word)
            self._hash(word, hashes[:count], cell[:count])
            np.right_shift(hashes[:count], _HALF, out=cell[:count])
            self._scale(cell[:count])
            # "wrap" and "clip" write into `out` as they go, "raise" by way of a copy
            cells.take(cell[:count].view(np.int64), out=chosen_cells[:count], mode="clip")
            found = chosen_cells[:count].view(np.uint64).reshape(count, 2)
            out_words[part] = found[:, 1]
            np.not_equal(found[:, 0], word, out=misses[:count])
            rest = np.flatnonzero(misses[:count])
            if len(rest):
                second = hashes.take(rest)
                np.bitwise_and(second, _LOW, out=second)
                self._scale(second)
                found = cells.take(second.view(np.int64), mode="clip").view(np.uint64).reshape(-1, 2)
                out_words[part][rest] = found[:, 1] * (found[:, 0] == word.take(rest))

    def _hash(self, words: Words, out: Words, scratch: Words) -> None:
        np.multiply(words, self.multiplier, out=out)
        np.right_shift(out, _HALF, out=scratch)
        np.bitwise_xor(out, scratch, out=out)
        np.multiply(out, _SECOND_MULTIPLIER, out=out)

    def _scale(self, halves: Words) -> None:
        np.multiply(halves, np.uint64(len(self.cells)), out=halves)
        np.right_shift(halves, _HALF, out=halves)

    def _cell_pair(self, words: Words) -> tuple[Words, Words]:
        second, first = np.empty_like(words), np.empty_like(words)
        self._hash(words, second, first)
        np.right_shift(second, _HALF, out=first)
        np.bitwise_and(second, _LOW, out=second)
        self._scale(first)
        self._scale(second)
        return first, second

    def _insert(self, keys: Words, results: Integers) -> bool:
        """Insert keys; False if one finds no cell. The last, least frequent ones are first, and move most."""
        stops = range(len(keys), 0, -_INSERT_BLOCK)
        for stop in stops:
            part = slice(max(stop - _INSERT_BLOCK, 0), stop)
            moving = np.column_stack((keys[part], results[part].view(np.uint64)))[::-1]
            if not self._settle(moving):
                return False
        # An empty cell holds key 0: if it is the first cell of 0, it would hide a 0 in the second one.
        (home,) = self._cell_pair(np.zeros(1, dtype=np.uint64))[0]
        if not self.cells[home, 1]:
            others = np.arange(1, 65, dtype=np.uint64)
            self.cells[home, 0] = others[self._cell_pair(others)[0] != home][0] if len(self.cells) > 1 else 1
        return True

    def _settle(self, moving: Words) -> bool:
        """Write keys and results [N, 2] into their cells; evicted ones move to their other cell, and so on."""
        cell = self._cell_pair(np.ascontiguousarray(moving[:, 0]))[0].view(np.int64)
        for _ in range(_MOST_MOVES):
            before = self.cells[cell]
            self.cells[cell] = moving
            overwritten = self.cells[cell, 0] != moving[:, 0]  # of two keys written to one cell the last one stays
            evicted = ~overwritten & (before[:, 1] != 0)
            stay, leave = cell[overwritten], cell[evicted]
            moving = np.concatenate((moving[overwritten], before[evicted]))
            if not len(moving):
                return True
            first, second = (cells.view(np.int64) for cells in self._cell_pair(np.ascontiguousarray(moving[:, 0])))
            cell = first + second - np.concatenate((stay, leave))
        return False


@dataclass(frozen=True, slots=True)
class StringTable:
    """Strings (or binary values) in the order of their results, from `first` on, and the table of their digests.

    twins: strings that share their digest with another string of the vocabulary, with their results.
    """

    strings: pl.Series
    first: int
    table: DirectTable | CuckooTable
    twins: pl.DataFrame

    @classmethod
    def of(cls, strings: pl.Series, first: int) -> StringTable:
        """A table of distinct strings; the first one's result is `first`, at least 1."""
        digests = digest(strings)
        results = np.arange(first, first + len(strings), dtype=np.int64)
        _, ours = np.unique(digests, return_index=True)
        twins = np.ones(len(strings), dtype=np.bool_)
        twins[ours] = False
        ours.sort()
        others = pl.DataFrame({"string": strings.filter(pl.Series(twins)), "result": results[twins]})
        return cls(strings, first, integer_table(digests[ours], results[ours]), others)

    def find(self, series: pl.Series, out: Integers) -> None:
        """Write each string's result into `out`, 0 for unknown strings, arbitrary for nulls."""
        self.table.find(digest(series), out)
        if not len(self.strings):
            return
        # `gather` and `fill_null` of a series are plans that Polars makes and collects: 50 us, however few the values
        equal = self.strings[pl.Series(np.maximum(out - self.first, 0).astype(np.uint32))] == series
        same = (equal.fill_null(value=False) if equal.null_count() else equal).to_numpy()
        np.multiply(out, same, out=out)
        if len(self.twins):
            wrong = np.flatnonzero(~same)
            string, result = self.twins
            out[wrong] = series.gather(wrong).replace_strict(string, result, default=0, return_dtype=pl.Int64())


def _cell_count(count: int) -> int:
    return max(int(count / _LOAD), count + 2)


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK_VALUES) for start in range(0, count, _BLOCK_VALUES))


# --------------------------------------------------------------------------------------------------------------------

Positions = npt.NDArray[np.int64]

_ROW = "\0row"
_WORD = 2**64 - 1
_MOST_NUMBERS = 2**63


@dataclass(frozen=True, slots=True)
class _KeyColumn:
    """The values of one column, numbered from 1; 0 stands for any other value.

    dtype: the type in which values are looked up. null: the number of null, 0 if null is not a value.
    """

    dtype: pl.DataType
    table: DirectTable | CuckooTable | StringTable
    null: int

    def find(self, series: pl.Series) -> Positions:
        out = np.zeros(len(series), dtype=np.int64)
        nulls = series.null_count()
        if isinstance(self.table, StringTable):
            self.table.find(series if series.dtype == self.dtype else series.cast(self.dtype), out)
        else:
            filled = series.fill_null(0) if nulls else series
            self.table.find(filled.cast(self.dtype).to_numpy(), out)
        if nulls:
            out[series.is_null().to_numpy()] = self.null
        return out


@dataclass(frozen=True, slots=True)
class _KeySpan:
    """The integers of one column, numbered from 1 by their distance from `smallest`; `span`: the largest number.

    dtype: the type in which values are looked up. null: the number of null, 0 if null is not a value.
    """

    dtype: pl.DataType
    smallest: int
    span: int
    null: int

    @classmethod
    def of(cls, values: pl.Series) -> _KeySpan:
        least, most = values.min(), values.max()
        assert isinstance(least, int)
        assert isinstance(most, int)
        span = most - least + 1
        return cls(values.dtype, least, span, span + 1 if values.null_count() else 0)

    @property
    def size(self) -> int:
        return max(self.span, self.null)

    def find(self, series: pl.Series) -> Positions:
        nulls = series.null_count()
        filled = series.fill_null(0) if nulls else series
        words = filled.cast(self.dtype).to_numpy().view(np.uint64) - np.uint64((self.smallest - 1) & _WORD)
        np.multiply(words, words <= np.uint64(self.span), out=words)
        if nulls:
            words[series.is_null().to_numpy()] = self.null
        return words.view(np.int64)


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Keys of some columns. rows: the row of the table for each key's number, from 1.

    sizes: the largest number of each column; `whole`: the numbers of keys of several columns.
    """

    columns: tuple[_KeyColumn | _KeySpan, ...]
    rows: Positions
    sizes: tuple[int, ...]
    whole: DirectTable | CuckooTable | None

    def find(self, keys: Sequence[pl.Series]) -> Positions:
        """1 + the position in `rows` of each key, int64 [N]; 0 for unknown keys."""
        numbers = [column.find(series) for column, series in zip(self.columns, keys, strict=True)]
        if self.whole is None:
            return numbers[0]
        words = _words(numbers, self.sizes)
        out = np.zeros(len(words), dtype=np.int64)
        self.whole.find(words, out)  # a key with an unknown value has a number that no key of the table has
        return out


def key_index(
    keys: pl.DataFrame,
    dtypes: Sequence[pl.DataType],
    duplicates: Literal["error", "first", "none"],
    name: str,
    *,
    nulls: bool = False,
) -> KeyIndex:
    """An index of a table's keys for values of `dtypes`.

    `nulls`: null is a value like any other; otherwise rows with a null key are left out, and nulls are never found.
    Raises SpecError for a column and values that are not both integers, both strings or both binary values, and for a
    key in two rows, unless `duplicates` is `first` (`none`: the caller guarantees that there are none). `name`: the
    table, for messages.
    """
    converted_keys = [
        _convert_keys(keys[column], dtype, name).alias(column)
        for column, dtype in zip(keys.columns, dtypes, strict=True)
    ]
    unmatchable = [key.is_null() & (keys[key.name].is_not_null() | (not nulls)) for key in converted_keys]
    frame = pl.DataFrame(converted_keys).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_ROW))
    frame = frame.filter(~pl.any_horizontal(unmatchable))
    alone = len(keys.columns) == 1
    distinct = frame if duplicates == "none" else frame.unique(keys.columns, keep="first", maintain_order=True)
    if alone:
        distinct = distinct.sort(pl.first().is_null(), maintain_order=True)  # so that null has the last number
    if distinct.height != frame.height and duplicates == "error":
        raise SpecError(_duplicate_message(frame, keys.columns, name))
    columns, sizes = _number(distinct.drop(_ROW), name)
    whole = None
    if len(columns) > 1:
        words = _words([column.find(distinct[name]) for column, name in zip(columns, keys.columns, strict=True)], sizes)
        whole = integer_table(words, np.arange(1, len(words) + 1, dtype=np.int64))
    return KeyIndex(tuple(columns), distinct[_ROW].to_numpy(), sizes, whole)


def _convert_keys(column: pl.Series, dtype: pl.DataType, name: str) -> pl.Series:
    """A key column in the type in which values of `dtype` are looked up; null for keys that no value can equal."""
    key_kind, value_kind = kind(language_type(column.dtype)), kind(language_type(dtype))
    if key_kind != value_kind or key_kind not in (INTEGER, STRING, BINARY):
        raise SpecError(
            f"keys must be integers or strings on both sides: got {value_kind} ({dtype}) here and {key_kind} "
            f"({column.dtype}) in column {column.name!r} of {name}. Put a cast before it"
        )
    if key_kind != INTEGER:
        return column.cast(pl.String if key_kind == STRING else pl.Binary)
    wide = pl.UInt64() if dtype == pl.UInt64() else pl.Int64()
    return column.cast(wide, strict=False)


def _number(distinct: pl.DataFrame, name: str) -> tuple[list[_KeyColumn | _KeySpan], tuple[int, ...]]:
    if distinct.width == 1:
        return [_column(distinct.to_series())], (distinct.height,)
    sizes = [series.n_unique() for series in distinct]
    columns: list[_KeyColumn | _KeySpan | None] = [None] * len(sizes)
    for index, series in enumerate(distinct):
        if series.dtype.is_integer() and series.count():
            span = _KeySpan.of(series)
            others = [size + 1 for other, size in enumerate(sizes) if other != index]
            if math.prod(others, start=span.size + 1) < _MOST_NUMBERS:
                columns[index], sizes[index] = span, span.size
    if math.prod(size + 1 for size in sizes) >= _MOST_NUMBERS:
        raise SpecError(f"{name} has too many keys: got columns of {sizes} values, expected fewer than 2^63 together")
    looked_up = [
        _column(series.unique(maintain_order=True)) if column is None else column
        for series, column in zip(distinct, columns, strict=True)
    ]
    return looked_up, tuple(sizes)


def _column(values: pl.Series) -> _KeyColumn:
    null = len(values) if values.null_count() else 0
    values = values.drop_nulls().rechunk()
    if not values.dtype.is_integer():
        return _KeyColumn(values.dtype, StringTable.of(values, 1), null)
    numbers = np.arange(1, len(values) + 1, dtype=np.int64)
    return _KeyColumn(values.dtype, integer_table(values.to_numpy(), numbers), null)


def _words(numbers: Sequence[Positions], sizes: Sequence[int]) -> Positions:
    # number 2 of a column and 1 of one with up to 5 values -> 2 * 6 + 1
    words = numbers[0].copy()
    for more, size in zip(numbers[1:], sizes[1:], strict=True):
        np.multiply(words, size + 1, out=words)
        np.add(words, more, out=words)
    return words


def _duplicate_message(frame: pl.DataFrame, columns: Sequence[str], name: str) -> str:
    duplicates = frame.group_by(columns, maintain_order=True).agg(pl.col(_ROW)).filter(pl.col(_ROW).list.len() > 1)
    *key, rows = duplicates.row(0)
    key_text = ", ".join(f"{column} {value!r}" for column, value in zip(columns, key, strict=True))
    return (
        f"{name} has {len(duplicates):,} keys in several rows: got {key_text} in rows {rows[0]:,} and {rows[1]:,}, "
        "expected each key once. Make its keys unique, or write `duplicates: first`"
    )
