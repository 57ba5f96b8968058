"""Give outcomes to the impressions before them, and make labels of them.

Pure. An impression is a touch of the outcomes that share its key and follow within a time:

    touch.time < outcome.time <= touch.time + within

The outcome counts for its last touch, its first, or all. Touches at one time are in the order of the impressions' key,
ascending. Several touches may be of one row of the table (`row`), where an impression was logged twice; an outcome
counts once for a row. Of labels, nulls are skipped; `first` and `last` order outcomes by time, then by the value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.config.build_spec import Label
from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.warehouse.histories.join import bisect

Int64s = NDArray[np.int64]

TIME, ROW, DIGEST, ORDER = "time", "row", "digest", "order"
KEY = "key:"  # the prefix of columns of keys
VALUE = "value:"  # of columns that labels are made of
_MOST_SUM = 2.0**63


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which outcomes go to which rows: int64 [pairs] each, the row, and the outcome's index; ascending.

    touched: bool [outcomes], whether an outcome has a touch, of these rows or others.
    """

    rows: Int64s
    outcomes: Int64s
    touched: NDArray[np.bool_]


def distinct_outcomes(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The outcomes without those that equal another one in all columns, by (key, time, digest)."""
    return frame.unique(subset=[*keys, TIME, DIGEST], keep="any", maintain_order=False)


def attribute(
    touches: pl.DataFrame, outcomes: pl.DataFrame, keys: Sequence[str], order: Sequence[str], *, within: int, rule: str
) -> Attribution:
    """Find the touches of outcomes. touches: keys, `time`, `row` (< 0: of another partition) and the columns `order`;
    outcomes: keys and `time`. rule: last, first or all."""
    codes = outcomes.select(keys).unique().with_row_index("code")
    coded = touches.join(codes, on=list(keys), how="inner").sort("code", TIME, *order, ROW)  # few have outcomes
    code, times, row = (coded[name].to_numpy().astype(np.int64) for name in ("code", TIME, ROW))
    starts = np.searchsorted(code, np.arange(codes.height + 1)).astype(np.int64)
    of = outcomes.select(keys).join(codes, on=list(keys), how="left", maintain_order="left")["code"].to_numpy()
    first, stop = starts[of], starts[of + 1]
    at = outcomes[TIME].to_numpy()
    end = bisect(times, first, stop, at)  # the first touch that is not before the outcome
    begin = bisect(times, first, end, at - within)
    touched = begin < end
    which = np.flatnonzero(touched)
    if rule == "all":
        counts = (end - begin)[which]
        places = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        pairs = np.stack([row[np.repeat(begin[which], counts) + places], np.repeat(which, counts)])
    else:
        pairs = np.stack([row[end[which] - 1 if rule == "last" else begin[which]], which])
    pairs = np.unique(pairs[:, pairs[0] >= 0], axis=1)
    return Attribution(rows=pairs[0], outcomes=pairs[1], touched=touched)


def label_type(label: Label, column: pa.DataType | None) -> pa.DataType:
    """The type of a label's column, of a column of that type."""
    if label.function == "exists":
        return pa.bool_()
    if label.function == "count" or column is None:
        return pa.int64()
    if label.function != "sum":
        return column
    return pa.float64() if pat.is_floating(column) else pa.int64()


def labels_of(
    pairs: Attribution, outcomes: pl.DataFrame, labels: Sequence[Label]
) -> tuple[Int64s, dict[str, pl.Series]]:
    """The rows that outcomes were given to, ascending, and their labels. outcomes: `time`, and `value:x` of columns."""
    rows, starts = np.unique(pairs.rows, return_index=True)
    counts = np.diff(np.append(starts, len(pairs.rows)))
    values: dict[str, pl.Series] = {}
    for label in labels:
        if label.function == "exists":
            values[label.name] = pl.Series(np.ones(len(rows), np.bool_))
        elif label.function == "count":
            values[label.name] = pl.Series(counts.astype(np.int64))
        else:
            assert label.column is not None
            frame = pl.DataFrame(
                {
                    ROW: pairs.rows,
                    TIME: outcomes[TIME].gather(pairs.outcomes),
                    VALUE: outcomes[VALUE + label.column].gather(pairs.outcomes),
                }
            )
            values[label.name] = _aggregate(label, frame.drop_nulls(VALUE), rows)
    return rows, values


def _aggregate(label: Label, frame: pl.DataFrame, rows: Int64s) -> pl.Series:
    """One value of each row; null where it has none. In an order of its own, so that sums of floats are the same."""
    if frame.schema[VALUE].is_float():
        frame = frame.with_columns(pl.col(VALUE) + 0.0)  # -0.0 and 0.0 have no order
    by_value = label.function in ("sum", "max", "min")
    frame = frame.sort([ROW, VALUE, TIME] if by_value else [ROW, TIME, VALUE])
    own, starts = np.unique(frame[ROW].to_numpy(), return_index=True)
    if label.function == "sum":
        series = pl.Series(_sums(label, frame[VALUE], starts))
    else:
        ends = np.append(starts, frame.height)[1:] - 1
        series = frame[VALUE].gather(ends if label.function in ("max", "last") else starts)
    values = pl.DataFrame({ROW: own, VALUE: series})
    return pl.DataFrame({ROW: rows}).join(values, on=ROW, how="left", maintain_order="left")[VALUE]


def _sums(label: Label, column: pl.Series, starts: Int64s) -> NDArray[np.generic]:
    values = column.cast(pl.Float64 if column.dtype.is_float() else pl.Int64).to_numpy()
    if not len(starts):
        return values
    sums = np.add.reduceat(values, starts)
    if values.dtype == np.int64 and (abs(np.add.reduceat(values.astype(np.float64), starts)) >= _MOST_SUM).any():
        raise DataError(
            f"label {label.name!r} is too large: got a sum of {label.column!r} beyond 64 bits. Store it as float64"
        )
    return sums
