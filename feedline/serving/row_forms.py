"""Convert a caller's rows to a table: Arrow, Polars, pandas, columns by name, a list of dicts or one dict.

Runs in: the process that serves. Pure. A dict is one row if any of its values is a single value, such as a number, a
string or None, else columns by name. Values without a type of their own take that of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import DataError
from feedline.serving.request_types import is_pandas, series_array, table_of
from feedline.warehouse.parquet.schemas import relabel, storage_rows, storage_schema

Rows: TypeAlias = (
    pa.Table | pa.RecordBatch | pl.DataFrame | pl.LazyFrame | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Any
)
Frame: TypeAlias = pa.Table | pa.RecordBatch | pl.DataFrame

_SINGLE = (type(None), str, bytes, bool, int, float, Decimal, date, datetime, time, timedelta, np.generic, Mapping)
_EXPECTED = "Arrow, Polars or pandas, columns by name, a list of dicts, or one dict of one row's values"


def frame_of(rows: Rows, types: pa.Schema) -> Frame:
    """Convert rows to a table; `types`: the recorded columns of training.

    Raises DataError for what does not hold rows, for columns of different lengths, for rows of different columns, and
    for values that do not fit the type of their column.
    """
    if isinstance(rows, pl.DataFrame):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return relabel(rows, storage_schema(rows.schema))
    if isinstance(rows, pa.Table):
        return storage_rows(rows)
    if isinstance(rows, pl.LazyFrame):
        return rows.collect()
    if isinstance(rows, Mapping):
        return _of_row(rows, types) if _is_row(rows) else storage_rows(table_of(rows, types))
    if is_pandas(rows, "DataFrame"):
        return storage_rows(_of_pandas(rows, types))
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return _of_dicts(rows, types)
    if hasattr(rows, "__arrow_c_stream__"):
        return storage_rows(pa.table(rows))
    raise DataError(f"transform takes rows: got {type(rows).__name__}, expected {_EXPECTED}")


def _is_row(values: Mapping[str, Any]) -> bool:
    return any(isinstance(value, _SINGLE) for value in values.values())


def _of_row(row: Mapping[str, Any], types: pa.Schema) -> pa.Table:
    for name, value in row.items():
        kind = _training_type(types, name)
        if kind is not None and not isinstance(value, _SINGLE) and not _is_list(kind):
            single = next(name for name, value in row.items() if isinstance(value, _SINGLE))
            raise DataError(
                f"a dict with a single value ({single!r}) is one row: got {type(value).__name__} for column {name!r}, "
                f"expected {kind}. Give each column a list for several rows, or each column one value"
            )
    return table_of({name: [_plain(value)] for name, value in row.items()}, types)


def _of_dicts(rows: Sequence[Any], types: pa.Schema) -> pa.Table:
    if not rows:
        if not len(types):
            raise DataError("an empty list has no columns: got no row and no recorded types of training. Fit first")
        return types.empty_table()
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"a list holds rows as dicts: got {type(row).__name__} as row {index}, expected a dict")
        if row.keys() != rows[0].keys():
            name = min(row.keys() ^ rows[0].keys(), key=str)
            without = index if name not in row else 0
            raise DataError(
                f"rows have different columns: got no {name!r} in row {without}, expected it as in other rows. "
                "Write None where a value is missing"
            )
    return table_of({name: [_plain(row[name]) for row in rows] for name in rows[0]}, types)


def _of_pandas(rows: Any, types: pa.Schema) -> pa.Table:
    names = list(rows.columns)
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            fault = "twice" if isinstance(name, str) else f"of type {type(name).__name__}"
            raise DataError(f"a pandas frame has a column {fault}: got {name!r}, expected distinct strings as names")
    return pa.table({name: series_array(name, rows[name], _training_type(types, name)) for name in names})


def _plain(value: Any) -> Any:
    """Convert a value of a row to one that Arrow takes inside a list."""
    if isinstance(value, pl.Series | pa.Array | pa.ChunkedArray):
        return value.to_pylist() if isinstance(value, pa.Array | pa.ChunkedArray) else value.to_list()
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return value.tolist()
    return value


def _training_type(types: pa.Schema, name: str) -> pa.DataType | None:
    index = types.get_field_index(name)
    return types.field(index).type if index >= 0 else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind) or pat.is_map(kind))
