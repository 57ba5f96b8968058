"""Find the rows whose finished values break a rule: nulls, values that are not finite, bounds on single rows.

Runs in: processes that check rows. Pure. The rules are those of `encode`, which raises for the first such row, and of
the expectations that hold for rows exactly if they hold for each of them (`Expectation.per_row`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.config.features import Expectation
from feedline.dataclass import dataclass
from feedline.loader.encoding.layout import SlotColumn

Bools = NDArray[np.bool_]

NULL, NOT_FINITE = "holds a null", "holds a value that is not finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """Finished values of rows, laid end to end. offsets: int64 [rows + 1]. null, finite: bool [values]; finite is true
    of nulls. null_rows: bool [rows], scalars and vectors that are null."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    null: Bools
    finite: Bools
    null_rows: Bools

    def any_of_rows(self, marks: Bools) -> Bools:
        """bool [rows]: in which rows any value is marked."""
        # marks [F, T, F] of the offsets [0, 2, 2, 3]: sums [0, 0, 1, 1], at the offsets [0, 1, 1, 1] -> [T, F, F]
        ends = np.concatenate(([0], np.cumsum(marks, dtype=np.int64)))[self.offsets]
        result: Bools = np.diff(ends) > 0
        return result


def bad_rows_of(
    column: SlotColumn,
    finished: pl.Series | NDArray[Any],
    bounds: Sequence[Expectation],
    null_inputs: Bools,
    missed: Sequence[NDArray[Any]],
) -> dict[str, Bools]:
    """bool [rows] per reason: the rows of a finished feature that break a rule.

    bounds: those of its expectations that hold row by row. null_inputs: bool [rows], where a column that it reads is
    null. missed: per lookup of its chain, integers [rows], how many values of each row it did not find.
    """
    if column.group == "extra":  # passed through unchanged
        parts: list[_Values] = []
    elif column.weighted:
        assert isinstance(finished, pl.Series)
        parts = [_values(finished.struct.field(name), column) for name in ("values", "weights")]
    else:
        parts = [_values(finished, column)]
    bad_rows: dict[str, Bools] = {}
    for part in parts:
        _add(bad_rows, NULL, part.null_rows | part.any_of_rows(part.null))
        if column.on_nonfinite == "error":
            _add(bad_rows, NOT_FINITE, part.any_of_rows(~part.finite))
    for bound in bounds:
        _add(bad_rows, f"expected {bound.measure} {bound}", _breaks(bound, parts, null_inputs, missed))
    return bad_rows


def _add(bad_rows: dict[str, Bools], reason: str, rows: Bools) -> None:
    if rows.any():
        bad_rows[reason] = bad_rows[reason] | rows if reason in bad_rows else rows


def _breaks(bound: Expectation, parts: Sequence[_Values], null_inputs: Bools, missed: Sequence[NDArray[Any]]) -> Bools:
    """bool [rows]: which rows break a bound alone."""
    none = np.zeros(len(null_inputs), np.bool_)
    if bound.measure == "null_rate":
        return null_inputs
    if bound.measure == "oov_rate":
        return np.logical_or.reduce([counts > 0 for counts in missed]) if missed else none
    if bound.measure in ("nonfinite", "nonfinite_rate"):
        wrong: Bools = np.logical_or.reduce([part.any_of_rows(~part.finite) for part in parts])
        return wrong
    values = parts[0]  # of ids, not of their weights
    if bound.measure == "list_length_max":
        return ~_meets(np.diff(values.offsets), bound)
    return values.any_of_rows(~_meets(values.values, bound) & values.finite & ~values.null)


def _meets(values: NDArray[Any], bound: Expectation) -> Bools:
    """bool [values]: which meet a bound, compared as Python compares the measure: exactly."""
    limit: int | float = bound.value
    if values.dtype.kind in "iu":
        # Of integers, <= 2.5 and > 2.5 are <= 2 and > 2; >= 2.5 and < 2.5 are >= 3 and < 3.
        whole = math.ceil(limit) if bound.sign in (">=", "<") else math.floor(limit)
        comparable: NDArray[Any] = values
        limit = whole
    else:
        comparable = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        result: Bools = {
            "<=": np.less_equal,
            "<": np.less,
            ">=": np.greater_equal,
            ">": np.greater,
        }[bound.sign](comparable, limit)
    return result


def _values(finished: pl.Series | NDArray[Any], column: SlotColumn) -> _Values:
    if not isinstance(finished, pl.Series):
        return _flat(finished, np.zeros(len(finished), np.bool_), np.arange(len(finished) + 1), None)
    series = finished.rechunk()
    null_rows = series.is_null().to_numpy()
    if isinstance(series.dtype, pl.Array):
        array = series.to_arrow()
        width = array.type.list_size
        flat = pl.Series(array.values.slice(array.offset * width, len(array) * width))
        return _of_series(flat, np.arange(len(array) + 1) * width, null_rows)
    if isinstance(series.dtype, pl.List):  # a null list is an empty one
        lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        flat = series.drop_nulls().explode(empty_as_null=False, keep_nulls=False)
        return _of_series(flat, offsets, np.zeros(len(series), np.bool_))
    return _of_series(series, np.arange(len(series) + 1), np.zeros(len(series), np.bool_))


def _of_series(flat: pl.Series, offsets: NDArray[np.int64], null_rows: Bools) -> _Values:
    null = flat.is_null().to_numpy()
    values = flat.fill_null(0).to_numpy() if null.any() else flat.to_numpy()
    return _flat(values, null, offsets, null_rows)


def _flat(values: NDArray[Any], null: Bools, offsets: NDArray[np.int64], null_rows: Bools | None) -> _Values:
    finite = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), np.bool_)
    rows = len(offsets) - 1
    return _Values(
        values=values,
        offsets=offsets,
        null=null,
        finite=finite | null,
        null_rows=np.zeros(rows, np.bool_) if null_rows is None else null_rows,
    )
