"""Find the row of a table that holds a key: an integer, a string, or several of them.

Runs wherever features are compiled, and on the workers inside the pass over a chunk. Each column numbers its values; a
key of several columns is one number, composed of those of its values. Integers are numbered by their distance from the
smallest, as long as the numbers of all columns fit one word; other integers, and strings, are looked up (`hash_table`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.errors import SpecError
from feedline.expressions.types import BINARY, INTEGER, STRING, kind, language_type
from feedline.transforms.kernels.hash_table import CuckooTable, DirectTable, StringTable, integer_table

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
        """int64 [N], 0 for unknown values."""
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
        """From a column with at least one integer."""
        least, most = values.min(), values.max()
        assert isinstance(least, int)
        assert isinstance(most, int)
        span = most - least + 1
        return cls(values.dtype, least, span, span + 1 if values.null_count() else 0)

    @property
    def size(self) -> int:
        """The largest number."""
        return max(self.span, self.null)

    def find(self, series: pl.Series) -> Positions:
        """int64 [N], 0 for values outside the span."""
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
    """Number the values of each column; also the largest number of each."""
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
    """One number for each key of several columns."""
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
