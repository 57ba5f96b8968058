"""At which row of a table does a key stand, be it a number, a string or several of them?

Runs wherever features are compiled, and on the workers inside the pass over a chunk. The lookup structures are made
once per process (`lookup`). A key of several columns is looked up column by column: what is found numbers the values of
each column, and the numbers together name the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.errors import SpecError
from feedline.expression_types import BINARY, INTEGER, STRING, kind, spoken
from feedline.transforms.lookup import CuckooTable, DirectTable, StringTable, integer_table

Places = npt.NDArray[np.int64]

_ROW = "\0row"


@dataclass(frozen=True, slots=True)
class _Column:
    """One column's values, numbered from 1; 0 stands for what is none of them.

    dtype: in which values are looked up. null: the number of null, 0 where it is no value.
    """

    dtype: pl.DataType
    table: DirectTable | CuckooTable | StringTable
    null: int

    def find(self, series: pl.Series) -> Places:
        """int64 [N], 0 where a value is unknown."""
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
class KeyIndex:
    """Keys of some columns; `rows`: of the table, those that are found, in the order of their numbers less 1.

    sizes: how many values each column has; `whole`: of keys of several columns, their numbers.
    """

    columns: tuple[_Column, ...]
    rows: Places
    sizes: tuple[int, ...]
    whole: DirectTable | CuckooTable | None

    def find(self, keys: Sequence[pl.Series]) -> Places:
        """1 + the place in `rows` of each key, int64 [N]; 0 where there is none."""
        found = [column.find(series) for column, series in zip(self.columns, keys, strict=True)]
        if self.whole is None:
            return found[0]
        words = _words(found, self.sizes)
        out = np.zeros(len(words), dtype=np.int64)
        self.whole.find(words, out)
        for numbers in found:
            out[numbers == 0] = 0
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

    `nulls`: null is a value like others; else rows with a null key are left out, and nulls are found nowhere. Raises
    SpecError where a column and its values are not both integers, strings or binary values, and, unless the `first` row
    of a key is to count, where a key stands in two rows (`none`: it is known that none does). `name`: of the table, for
    messages.
    """
    fitting = [
        _fitting(keys[column], dtype, name).alias(column) for column, dtype in zip(keys.columns, dtypes, strict=True)
    ]
    lost = [made.is_null() & (keys[made.name].is_not_null() | (not nulls)) for made in fitting]
    frame = pl.DataFrame(fitting).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_ROW))
    frame = frame.filter(~pl.any_horizontal(lost))
    alone = len(keys.columns) == 1
    distinct = frame if duplicates == "none" else frame.unique(keys.columns, keep="first", maintain_order=True)
    if alone:
        distinct = distinct.sort(pl.first().is_null(), maintain_order=True)  # the number of null is the last one
    if distinct.height != frame.height and duplicates == "error":
        raise SpecError(_duplicate(frame, keys.columns, name))
    columns = []
    for column in keys.columns:
        values = distinct[column] if alone else distinct[column].unique(maintain_order=True)
        columns.append(_column(values))
    sizes = (distinct.height,) if alone else tuple(distinct[column].n_unique() for column in keys.columns)
    if np.prod([size + 1 for size in sizes], dtype=np.float64) >= 2**63:
        raise SpecError(f"{name} has too many keys: got columns of {sizes} values, expected fewer than 2^63 together")
    whole = None
    if len(columns) > 1:
        words = _words([column.find(distinct[name]) for column, name in zip(columns, keys.columns, strict=True)], sizes)
        whole = integer_table(words, np.arange(1, len(words) + 1, dtype=np.int64))
    return KeyIndex(tuple(columns), distinct[_ROW].to_numpy(), sizes, whole)


def _fitting(column: pl.Series, dtype: pl.DataType, name: str) -> pl.Series:
    """A key column in the type in which values of `dtype` are looked up; null where no value can be equal to it."""
    stored, given = kind(spoken(column.dtype)), kind(spoken(dtype))
    if stored != given or stored not in (INTEGER, STRING, BINARY):
        raise SpecError(
            f"keys must be integers or strings on both sides: got {given} ({dtype}) here and {stored} ({column.dtype}) "
            f"in column {column.name!r} of {name}. Put a cast before it"
        )
    if stored != INTEGER:
        return column.cast(pl.String if stored == STRING else pl.Binary)
    wide = pl.UInt64() if dtype == pl.UInt64() else pl.Int64()
    return column.cast(wide, strict=False)


def _column(values: pl.Series) -> _Column:
    null = len(values) if values.null_count() else 0
    values = values.drop_nulls().rechunk()
    if not values.dtype.is_integer():
        return _Column(values.dtype, StringTable.of(values, 1), null)
    numbers = np.arange(1, len(values) + 1, dtype=np.int64)
    return _Column(values.dtype, integer_table(values.to_numpy(), numbers), null)


def _words(numbers: Sequence[Places], sizes: Sequence[int]) -> Places:
    """One number for each key of several columns."""
    words = numbers[0].copy()
    for more, size in zip(numbers[1:], sizes[1:], strict=True):
        np.multiply(words, size + 1, out=words)
        np.add(words, more, out=words)
    return words


def _duplicate(frame: pl.DataFrame, columns: Sequence[str], name: str) -> str:
    found = frame.group_by(columns, maintain_order=True).agg(pl.col(_ROW)).filter(pl.col(_ROW).list.len() > 1)
    *key, rows = found.row(0)
    shown = ", ".join(f"{column} {value!r}" for column, value in zip(columns, key, strict=True))
    return (
        f"{name} has {len(found):,} keys in several rows: got {shown} in rows {rows[0]:,} and {rows[1]:,}, expected "
        "each key once. Make its keys unique, or write `duplicates: first`"
    )
