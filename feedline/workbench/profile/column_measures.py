"""Measure one column of sampled rows.

Runs in: the process that profiles, a thread per column. Pure. What Polars cannot hold is measured by Arrow: its nulls
and repeats. Of lists with very many elements, those of the first lists are counted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.expressions.moments import moment_text, python_values
from feedline.transforms.learning.statistics import finite_numbers
from feedline.transforms.values.kinds import WEIGHTED_FIELDS
from feedline.warehouse.parquet.repeated_rows import first_rows_of_table
from feedline.warehouse.parquet.schemas import is_list
from feedline.workbench.profile.roles import epoch_unit, is_id_like, role_of_integers, role_of_type
from feedline.workbench.profile.table_facts import (
    QUANTILES,
    ColumnProfile,
    DistinctCount,
    FrequentValue,
    Histogram,
    ListLengths,
    Number,
    NumberFacts,
)

# --------------------------------------------------------------------------------------------------------------------
# Count the distinct values of a sample, and estimate those of the table that it was taken of. A sample has runs of
# rows, and values that repeat within a run say little about the rest of the table. So the estimate is the one for
# samples of places. With T runs, S distinct values, Q1 of them in one run and Q2 in two, the values that any number
# of further runs would have are at least Q0 = (T - 1) / T * Q1 (Q1 - 1) / (2 (Q2 + 1)) (Chao 1987, "Estimating the
# population size for capture-recapture data with unequal catchability", Biometrics 43), and those of the table, which
# is as large as T + t runs, are table = S + Q0 (1 - (1 - Q1 / (T Q0 + Q1))^t) (Colwell et al. 2012, "Models and
# estimators linking individual-based and sample-based rarefaction, extrapolation and comparison of assemblages",
# Journal of Plant Ecology 5); where no run shares a value with another, it is as many times S as the table has rows
# of the sample. The standard error is Chao's of Q0, of the ratio Q1 / Q2, times the part of Q0 that is in the table,
# and at most 1.

_FREQUENT = 5  # values whose shares are kept
Runs = npt.NDArray[np.int64]


def count_distinct(values: pl.Series, runs: Runs | None, table_rows: int) -> tuple[DistinctCount, pl.DataFrame]:
    """Count the values that are not null; returns each with its count as well: `value`, `count`, in any order.

    runs: int64 [values], the run of the sample that each is of (None: all rows of the table were read); where all are
    of one run, rows are runs.
    """
    values, growth = values.alias("value"), max(table_rows / max(len(values), 1), 1.0)
    if values.null_count():
        runs = None if runs is None else runs[values.is_not_null().to_numpy()]
        values = values.drop_nulls()
    counts = values.value_counts(name="count")
    sample = counts.height
    once = int(np.count_nonzero(counts["count"].to_numpy() == 1))
    table, error = sample, 0.0
    if runs is not None and len(values):
        table, error = _estimate(values, runs if runs[0] != runs[-1] else np.arange(len(runs)), sample, growth)
    return DistinctCount(sample=sample, table=table, error=error, once=once / max(sample, 1)), counts


def frequent_values(counts: pl.DataFrame, *, shown: bool, most: int = _FREQUENT) -> tuple[FrequentValue, ...]:
    """The shares of the most frequent values, of `count_distinct`'s counts; equal ones in the order of values. shown:
    with the values, as text; most: how many."""
    if not counts.height:
        return ()
    sizes = counts["count"].to_numpy()
    total, rank = int(sizes.sum()), max(len(sizes) - most, 0)
    is_frequent = pl.Series(sizes >= np.partition(sizes, rank)[rank])  # a filter of series: frames take longer
    top = pl.DataFrame([each.filter(is_frequent) for each in counts]).sort("count", "value", descending=[True, False])
    top = top.head(most)
    names: list[str] | list[None] = [None] * top.height
    if shown and top["value"].dtype == pl.Binary:
        names = [value.decode(errors="replace") for value in top["value"].to_list()]
    elif shown:
        names = [str(value) for value in python_values(top["value"])]
    pairs = zip(names, top["count"].to_list(), strict=True)
    return tuple(FrequentValue(share=count / total, value=name) for name, count in pairs)


def _estimate(values: pl.Series, runs: Runs, sample: int, growth: float) -> tuple[int, float]:
    """The distinct values of a table that is so many times as large, and the relative standard error."""
    pairs = pl.DataFrame([values, pl.Series("run", runs)]).unique()
    counts = pairs.group_by("value").len()["len"]
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    places = int(np.unique(runs).size)
    if places < 2 or not ones:
        return sample, 0.0
    if ones == sample:
        return round(sample * growth), 1.0
    # runs [a b] and [b c] of a table of four: ones 2, twos 1 -> unseen 0.25, of which 0.96 are in the table -> 3.24
    share = (places - 1) / places
    unseen = share * ones * (ones - 1) / (2 * (twos + 1))
    part = 1 - (1 - ones / (places * unseen + ones)) ** (places * (growth - 1))
    found = sample + unseen * part
    ratio = ones / max(twos, 1)
    variance = max(twos, 1) * (0.5 * share * ratio**2 + share**2 * ratio**3 + 0.25 * share**2 * ratio**4)
    return round(found), min(math.sqrt(variance) * part / found, 1.0)


# --------------------------------------------------------------------------------------------------------------------
# Measure the numbers of a column: moments, quantiles, shares of zeros and of what is not finite, a histogram.
# Quantiles are numbers of the column: the smallest that is not below its share of all of them (the inverted
# distribution function).

BINS = 20
_FAR = 2.0  # widths of the middle 98 % of numbers from which on those beyond are far out
_SKEWED = 2.0  # from this skewness on, a histogram of positive numbers has edges that grow by a factor
Values = npt.NDArray[Any]


def number_facts(series: pl.Series) -> NumberFacts | None:
    """Measure a column of numbers or Booleans, or of lists of them; None without any value that is not null."""
    if series.dtype == pl.Boolean:
        series = series.cast(pl.Int8)
    numbers = finite_numbers(series)
    values, count, nans = numbers.values, len(numbers.values) + numbers.nonfinite, 0
    if not count:
        return None
    if numbers.nonfinite:
        is_nested = series.dtype.is_nested()
        single = series.explode(empty_as_null=False, keep_nulls=False) if is_nested else series
        nans = int(single.is_nan().sum())
    mean, std, skewness = moments(values)
    return NumberFacts(
        min=_number(values.min()) if len(values) else None,
        max=_number(values.max()) if len(values) else None,
        mean=mean,
        std=std,
        skewness=skewness,
        quantiles=quantiles_of(values, QUANTILES),
        zero_rate=np.count_nonzero(values == 0) / count,
        negative_rate=np.count_nonzero(values < 0) / count,
        nan_rate=nans / count,
        inf_rate=(numbers.nonfinite - nans) / count,
        histogram=histogram_of(values, skewness),
    )


def moments(values: Values) -> tuple[float | None, float | None, float | None]:
    """Mean, standard deviation (of the population) and skewness; None where they exceed float64."""
    if not len(values):
        return None, None, None
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        mean = float(wide.mean())
        off = wide - mean
        std = float(np.sqrt(np.mean(off * off)))
        if not math.isfinite(mean) or not math.isfinite(std):
            return (mean if math.isfinite(mean) else None), None, None
        # a constant's deviations are rounding errors of its mean
        if std <= 1e-12 * abs(mean):
            return mean, 0.0 if values.min() == values.max() else std, 0.0
        off /= std
        skewness = float(np.mean(off * (off * off)))  # `** 3` takes ten times as long
    return mean, std, skewness if math.isfinite(skewness) else None


def quantiles_of(values: Values, shares: tuple[float, ...]) -> tuple[Number, ...]:
    """The values at these shares of the sorted ones; none of no values."""
    if not len(values):
        return ()
    # a half of 4 values: the second; as 0.05 is a little more than a twentieth, its rank of 1,000 would be one too high
    ranks = [max(math.ceil(share * len(values) - 1e-9) - 1, 0) for share in shares]
    ordered = np.partition(values, sorted(set(ranks)))
    return tuple(_number(ordered[rank]) for rank in ranks)


def histogram_of(values: Values, skewness: float | None) -> Histogram | None:
    """Counts of finite numbers in `BINS` bins, or fewer for few integers; None where there is no range."""
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    width = high - low
    if not math.isfinite(width):
        return None
    if low == high:
        return Histogram(edges=(low, high), counts=(len(values),))
    positive = values[values > 0] if low >= 0 and (skewness or 0) > _SKEWED else values[:0]
    log = len(positive) > 0 and float(positive.max()) / float(positive.min()) > BINS
    if log:
        edges = np.geomspace(float(positive.min()), high, BINS if low == 0 else BINS + 1)
        edges = np.concatenate([[0.0], edges]) if low == 0 else edges
    else:
        whole = values.dtype.kind in "iu" and width < BINS
        edges = np.arange(low, high + 2) - 0.5 if whole else _edges(values, low, high)
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    edges = np.unique(edges)  # of numbers that are a few units of the last place apart, some edges are equal
    counts, _ = np.histogram(values.astype(np.float64), edges)
    return Histogram(edges=tuple(edges.tolist()), counts=tuple(counts.tolist()), log=bool(log))


def _edges(values: Values, low: float, high: float) -> npt.NDArray[np.float64]:
    """Edges of equal steps; where few numbers are far out, steps within the middle, and two bins for what is beyond."""
    first, last = (float(edge) for edge in quantiles_of(values, (0.01, 0.99)))
    if not first < last or high - low < _FAR * (last - first):
        return np.linspace(low, high, BINS + 1)
    return np.concatenate([[low], np.linspace(first, last, BINS - 1), [high]])


def _number(value: Any) -> Number:
    number: Number = value.item()
    return number + 0  # of -0.0 and 0.0, always 0.0


# --------------------------------------------------------------------------------------------------------------------

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
        element=str(field.type.value_type) if is_list(field.type) or pat.is_fixed_size_list(field.type) else None,
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


def length_percentiles(lengths: npt.NDArray[np.int64]) -> ListLengths:
    """Percentiles of lengths, of which there are some."""
    p50, p95, p99 = (int(number) for number in quantiles_of(lengths, (0.5, 0.95, 0.99)))
    low, high = int(lengths.min()), int(lengths.max())
    return ListLengths(
        mean=float(lengths.mean()),
        p50=p50,
        p95=p95,
        p99=p99,
        max=high,
        empty_rate=np.count_nonzero(lengths == 0) / len(lengths),
        fixed=low if low == high > 0 and len(lengths) >= _VECTOR_ROWS else None,
    )


def _repeated(column: SampledColumn) -> float | None:
    others = column.rows - len(column.borders)
    if others <= 0:
        return None
    starts = first_rows_of_table(pa.table({"value": column.values}), ["value"])
    starts[column.borders] = False
    return 1 - int(np.count_nonzero(starts)) / others
