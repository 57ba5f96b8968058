"""Convert a snapshot's Arrow columns into what `pruning` compares: numpy bounds, and literals in the same unit.

Pure; runs wherever a plan is made. Dates and timestamps are compared as integers in the column's own unit, booleans as
0 and 1, float32 as float64 (exact, like a float32 literal as a Python float). Strings compare by code point in Python
and by UTF-8 bytes in Polars, which is the same order. A partition key is its own exact bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.expressions.moments import moment_text
from feedline.warehouse.parquet.bounds import day_of, has_bounds, instant_of, is_binary_like
from feedline.warehouse.parquet.schemas import is_bytes, is_text
from feedline.warehouse.selection.pruning import ColumnStatistics, Statistics
from feedline.warehouse.snapshot.snapshot import Snapshot

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def statistics_of(snapshot: Snapshot, columns: Iterable[str]) -> Statistics:
    """Return the snapshot's statistics of these columns, per row group."""
    statistics = {name: _column(snapshot, name) for name in columns}
    return Statistics(rows=snapshot.rows_per_row_group, columns=statistics)


def key_statistics(partition: Mapping[str, pa.Array], rows: npt.NDArray[np.int64]) -> Statistics:
    """Return statistics of partition keys per file, from their values and the files' rows."""
    return Statistics(rows=rows, columns={name: _key(values, rows) for name, values in partition.items()})


def value_ranges(snapshot: Snapshot, columns: Iterable[str]) -> dict[str, tuple[object, object] | None]:
    """Return the least and greatest value of these columns where footers have them, dates and times as strings; None
    for a column of nulls."""
    ranges: dict[str, tuple[object, object] | None] = {}
    rows = snapshot.rows_per_row_group
    for name in columns:
        if name in snapshot.partition_columns:
            low = high = snapshot.partition_column(name).drop_null()
        else:
            facts = snapshot.column_facts(name)
            holds = (rows > 0) & (facts.field("nulls").to_numpy() != rows)
            sides = ("min", "max") if has_bounds(snapshot.schema.field(name).type) else ("nulls", "nulls")
            low, high = (facts.field(side).filter(pa.array(holds)) for side in sides)
            if sides == ("nulls", "nulls") and len(low):
                continue
        if not len(low):
            ranges[name] = None
        elif not low.null_count:  # a row group without bounds leaves the column without
            ranges[name] = end_value(pc.min_max(low)["min"]), end_value(pc.min_max(high)["max"])
    return ranges


def end_value(end: pa.Scalar) -> object:
    """A bound as a Python value; dates and times, of any year, as strings, and those with a zone in UTC."""
    kind = end.type
    if end.is_valid and pat.is_date32(kind):
        return moment_text(end.value, "D")
    if end.is_valid and pat.is_timestamp(kind):
        return moment_text(end.value, kind.unit, None if kind.tz is None else "UTC")
    return end.as_py()


def _column(snapshot: Snapshot, name: str) -> ColumnStatistics:
    kind = snapshot.schema.field(name).type
    if name in snapshot.partition_columns:
        values = snapshot.partition_column(name)
        return _key(values.take(pa.array(snapshot.file_of_row_group)), snapshot.rows_per_row_group)
    facts = snapshot.column_facts(name)
    nulls = facts.field("nulls").to_numpy()
    if not has_bounds(kind):
        nothing, never = np.zeros(len(nulls), np.int64), np.zeros(len(nulls), np.bool_)
        return ColumnStatistics(low=nothing, high=nothing, bounded=never, nulls=nulls, unit=_incomparable, exact=never)
    low, high = facts.field("min"), facts.field("max")
    return ColumnStatistics(
        low=_comparable(low),
        high=_comparable(high),
        bounded=low.is_valid().to_numpy(zero_copy_only=False) & high.is_valid().to_numpy(zero_copy_only=False),
        nulls=nulls,
        unit=_unit(kind),
        exact=np.asarray(facts.field("exact")) if is_binary_like(kind) else np.ones(len(nulls), np.bool_),
        floating=pat.is_floating(kind),
    )


def _key(values: pa.Array, rows: npt.NDArray[np.int64]) -> ColumnStatistics:
    """Return statistics of a partition key from its value per row group, or per file, and the rows there."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    bound = _comparable(values)
    nulls = np.where(valid, 0, rows)
    return ColumnStatistics(
        low=bound, high=bound, bounded=valid, nulls=nulls, unit=_unit(values.type), exact=valid, partition=True
    )


def _comparable(values: pa.Array) -> np.ndarray[Any, np.dtype[Any]]:
    """Convert bounds to numpy values; entries without a bound are arbitrary and never read."""
    kind = values.type
    if pat.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pat.is_date32(kind):
        values = values.view(pa.int32())
    elif pat.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pat.is_floating(kind):
        values = values.cast(pa.float64())
    if pat.is_integer(values.type):
        return np.asarray(values.fill_null(0).cast(pa.uint64() if pat.is_uint64(values.type) else pa.int64()))
    if pat.is_floating(values.type):
        return np.asarray(values.fill_null(0.0))
    objects = np.empty(len(values), object)
    objects[:] = values.to_pylist()
    return objects


def _unit(kind: pa.DataType) -> Callable[[object], Any]:
    if pat.is_timestamp(kind):
        return partial(instant_of, per_second=_PER_SECOND[kind.unit], aware=kind.tz is not None)
    tests: tuple[tuple[Callable[[pa.DataType], bool], Callable[[object], Any]], ...] = (
        (pat.is_date32, day_of),
        (pat.is_boolean, lambda value: int(value) if isinstance(value, bool) else None),
        (pat.is_integer, _integer),
        (pat.is_floating, _float),
        (pat.is_decimal, lambda value: value if isinstance(value, Decimal) else _integer(value)),
        (is_text, lambda value: value if isinstance(value, str) else None),
        (is_bytes, lambda value: value if isinstance(value, bytes) else None),
    )
    return next((unit for test, unit in tests if test(kind)), _incomparable)


def _incomparable(_: object) -> None:
    return None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: object) -> float | None:
    if isinstance(value, float):
        return value
    whole = _integer(value)
    return None if whole is None or abs(whole) > 2**53 else float(whole)
