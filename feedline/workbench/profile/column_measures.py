"""Measure one column of sampled rows.

Runs in: the process that profiles, a thread per column. Pure. What Polars cannot hold is measured by Arrow: its nulls
and repeats. Of lists with very many elements, those of the first lists are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.expressions.moments import moment_text
from feedline.transforms.values.kinds import WEIGHTED_FIELDS
from feedline.warehouse.parquet.repeated_rows import first_rows_of_table
from feedline.warehouse.parquet.schemas import is_list
from feedline.workbench.profile.distinct_values import Runs, count_distinct, frequent_values
from feedline.workbench.profile.number_measures import number_facts, quantiles_of
from feedline.workbench.profile.roles import epoch_unit, is_id_like, role_of_integers, role_of_type
from feedline.workbench.profile.table_facts import ColumnProfile, ListLengths

_MOST_ELEMENTS = 1 << 20  # of lists, for their vocabulary and numbers: more would take most of the time
_ISO_DATE = r"^[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-5][0-9].*)?$"
_CHECKED_STRINGS = 100  # the most frequent, which all have to be dates
_MOST_TIMES = (0.1, 0.9)  # shares of the sorted times between which those lie that tell the unit
_VECTOR_ROWS = 2  # lists from which on equal lengths make a vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledColumn:
    """A column of a sample. runs: int64 [rows], the row group that each row is of; borders: int64, the first rows of
    pieces; whole: all rows of the table are there, which has `table_rows`. shown: strings may be in the facts."""

    field: pa.Field
    values: pa.ChunkedArray
    runs: Runs
    borders: npt.NDArray[np.int64]
    whole: bool
    table_rows: int
    shown: bool = False

    @property
    def rows(self) -> int:
        return len(self.values)


def measure_any(column: SampledColumn) -> ColumnProfile:
    """The facts of a column; of one whose values Polars or numpy cannot take, whatever the error, why: the table's
    other columns have facts."""
    try:
        return measure_column(column)
    except (Exception, pl.exceptions.PanicException) as error:
        cause = f"{type(error).__name__}: {error}".partition("\n")[0]
        profile = measure_column(replace(column, values=column.values[:0]))
        return replace(profile, rows=column.rows, role="unsupported", reason=f"its values cannot be measured: {cause}")


def measure_column(column: SampledColumn) -> ColumnProfile:
    """The facts of a column that its sampled values say."""
    field, values = column.field, column.values
    role, reason = role_of_type(field.type)
    profile = ColumnProfile(
        name=field.name,
        type=str(field.type),
        role=role,
        reason=reason,
        element=str(field.type.value_type) if _is_listed(field.type) else None,
        nullable=field.nullable,
        rows=column.rows,
        null_rate=values.null_count / column.rows if column.rows else None,
        repeated=_repeated(column),
    )
    if not column.rows or values.null_count == column.rows:
        return profile
    if role == "list":
        return _with_lists(profile, column)
    if role in ("numeric", "category", "string", "time"):
        return _with_values(profile, column)
    return profile


def _is_listed(kind: pa.DataType) -> bool:
    return bool(is_list(kind) or pat.is_fixed_size_list(kind))


def frame_column(values: pa.ChunkedArray) -> pl.Series:
    """A column as Polars holds it: short bytes as bytes, half floats as floats, times of any zone in UTC."""
    kind = values.type
    if pat.is_timestamp(kind) and kind.tz is not None:
        values = values.cast(pa.timestamp(kind.unit, "UTC"))
    if pat.is_float16(kind):
        values = values.cast(pa.float32())
    if pat.is_fixed_size_binary(kind) or pat.is_binary_view(kind):
        values = values.cast(pa.large_binary())
    return pl.Series(pl.from_arrow(values))


def _with_values(profile: ColumnProfile, column: SampledColumn) -> ColumnProfile:
    series = frame_column(column.values)
    vocabulary, counts = count_distinct(series, None if column.whole else column.runs, column.table_rows)
    count = len(series) - series.null_count()
    table_values = count if column.whole else count * column.table_rows / column.rows
    exact = series.dtype.is_integer() or profile.role == "string"
    facts: dict[str, Any] = {
        "vocabulary": vocabulary,
        "frequent": frequent_values(counts, shown=column.shown or profile.role != "string"),
        "constant": vocabulary.sample <= 1,
        "id_like": exact and is_id_like(vocabulary, count, table_values),
    }
    if profile.role == "time":
        facts |= _time_range(series)
    elif profile.role == "string":
        facts |= _string_facts(series, counts)
    elif (numbers := number_facts(series)) is not None:
        facts["numbers"] = numbers
        if series.dtype.is_integer():
            facts["role"], facts["reason"] = role_of_integers(profile.name, numbers, vocabulary, count)
    return replace(profile, **facts)


def _time_range(series: pl.Series) -> dict[str, Any]:
    """The ends, of any zone in UTC, and the unit that most of the values fit better than their own."""
    counts = np.sort(series.drop_nulls().to_physical().to_numpy())
    unit = series.dtype.time_unit if isinstance(series.dtype, pl.Datetime) else "D"
    first, last = (moment_text(int(end), unit, getattr(series.dtype, "time_zone", None)) for end in counts[[0, -1]])
    low, high = (int(counts[int(share * (len(counts) - 1))]) for share in _MOST_TIMES)
    other = None if unit == "D" or epoch_unit(low, high, (unit,)) else epoch_unit(low, high)
    if other is None:
        return {"first": first, "last": last}
    ends = (moment_text(each, other)[:10] for each in (low, high))
    reason = f"its unit may be wrong: as {other} since 1970, most values lie between {' and '.join(ends)}"
    return {"first": first, "last": last, "reason": reason}


def _string_facts(series: pl.Series, counts: pl.DataFrame) -> dict[str, Any]:
    is_text = series.dtype == pl.String
    sizes = (series.str.len_bytes() if is_text else series.bin.size()).drop_nulls().to_numpy()
    facts: dict[str, Any] = {"string_bytes": (float(sizes.mean()), int(sizes.max()))}
    if is_text and counts["value"].head(_CHECKED_STRINGS).str.contains(_ISO_DATE).all():
        facts |= {"time_like": "strings in the form of ISO 8601"}
        facts |= {"first": counts["value"].min(), "last": counts["value"].max()}
    return facts


def _with_lists(profile: ColumnProfile, column: SampledColumn) -> ColumnProfile:
    series = frame_column(column.values)
    if isinstance(series.dtype, pl.Array):
        series = series.cast(pl.List(series.dtype.inner))
    lists = series.drop_nulls()
    lengths = lists.list.len().to_numpy().astype(np.int64)
    profile = replace(profile, lengths=length_percentiles(lengths))
    ends = np.cumsum(lengths)
    first = max(int(np.searchsorted(ends, _MOST_ELEMENTS, side="right")), 1)
    runs = column.runs[series.is_not_null().to_numpy()][:first]
    elements = lists.head(first).explode(empty_as_null=False, keep_nulls=False)
    if isinstance(elements.dtype, pl.Struct):
        elements = elements.struct.field(WEIGHTED_FIELDS[0])
    if not len(elements):
        return replace(profile, constant=len(lists) > 0 and not lengths.any())
    runs = np.repeat(runs, lengths[:first])
    share = column.table_rows / column.rows * (len(lists) / first)
    whole = column.whole and first >= len(lists)
    vocabulary, counts = count_distinct(elements, None if whole else runs, round(len(elements) * share))
    is_number = elements.dtype.is_numeric() or elements.dtype == pl.Boolean
    return replace(
        profile,
        element_null_rate=elements.null_count() / len(elements),
        vocabulary=vocabulary,
        frequent=frequent_values(counts, shown=column.shown or is_number),
        numbers=number_facts(elements) if is_number else None,
    )


def length_percentiles(lengths: npt.NDArray[np.int64]) -> ListLengths | None:
    """Percentiles of lengths; None without any."""
    if not len(lengths):
        return None
    p50, p95, p99 = (int(number) for number in quantiles_of(lengths, (0.5, 0.95, 0.99)))
    low, high = int(lengths.min()), int(lengths.max())
    return ListLengths(
        mean=float(lengths.mean()),
        p50=p50,
        p95=p95,
        p99=p99,
        max=high,
        empty_rate=int(np.count_nonzero(lengths == 0)) / len(lengths),
        fixed=low if low == high and high > 0 and len(lengths) >= _VECTOR_ROWS else None,
    )


def _repeated(column: SampledColumn) -> float | None:
    others = column.rows - len(column.borders)
    if others <= 0:
        return None
    starts = first_rows_of_table(pa.table({"value": column.values}), ["value"])
    starts[column.borders] = False
    return 1 - int(np.count_nonzero(starts)) / others
