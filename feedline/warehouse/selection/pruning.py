"""Judge which row groups a `where` can keep, from partition values and statistics alone.

Pure: numpy arrays in, numpy arrays out; runs wherever a plan is made. For every row group and every node of the
predicate, the set of truth values that a row *may* have is computed, {true, false, null} as three boolean arrays. A
leaf's set follows from the bounds, the null count and the type of the column; `Not` swaps true and false; `And` and
`Or` combine the sets as if the items were independent, which can only enlarge the actual set. A row group without true
in its set is NONE (no row can be kept), one with only true is ALL, any other is SOME and has to be counted. NONE and
ALL are proofs:

- bounds need not be values, so truncated strings are safe for NONE; ALL is never concluded from bounds that may be
  truncated (not `exact`);
- float statistics omit NaN, for which `!=` is true and every other operator false: both are always in the set;
- a partition key that is NaN is its own bound; -0.0 and 0.0 are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.dataclass import dataclass
from feedline.expressions.predicates import And, Comparison, IsNull, Membership, Not, Or, Predicate

NONE, SOME, ALL = np.int8(0), np.int8(1), np.int8(2)

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """The bounds and null counts of one column, per row group.

    `low`, `high`: comparable numpy values (int64, uint64, float64, or objects: str, bytes, Decimal); valid where
    `bounded`. `nulls`: int64, below 0 if unknown. `unit`: converts a literal before comparison (None: not
    comparable with these statistics). `exact`: bounds are values of the column, not truncated ones. `floating`: NaN may
    be among the values; a bound that is NaN is the only value. `partition`: the column is a partition key.
    """

    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    bounded: Bools
    nulls: npt.NDArray[np.int64]
    unit: Callable[[object], Any]
    exact: Bools
    floating: bool = False
    partition: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Rows per row group (int64) and statistics by column; a column not among them is unknown."""

    rows: npt.NDArray[np.int64]
    columns: Mapping[str, ColumnStatistics]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """`outcome`: int8 per row group, NONE, SOME or ALL; `by_partition`: NONE because of partition keys alone."""

    outcome: npt.NDArray[np.int8]
    by_partition: Bools

    @property
    def by_statistics(self) -> Bools:
        """Row groups that are NONE, but not because of partition keys alone."""
        return np.asarray(self.outcome == NONE) & ~self.by_partition


@dataclass(frozen=True, slots=True)
class _Truths:
    """Per row group: may a row be true, false, null? `sure`: not derived from a truncated bound."""

    true: Bools
    false: Bools
    null: Bools
    sure: Bools


def prune(predicate: Predicate, statistics: Statistics) -> Pruning:
    """Judge every row group; one without rows is NONE."""
    empty = statistics.rows == 0
    keys = {name: column for name, column in statistics.columns.items() if column.partition}
    by_partition = ~_truths(predicate, Statistics(rows=statistics.rows, columns=keys)).true
    truths = _truths(predicate, statistics)
    outcome = np.full(len(empty), SOME)
    outcome[truths.true & ~truths.false & ~truths.null & truths.sure] = ALL
    outcome[~truths.true | by_partition | empty] = NONE
    return Pruning(outcome=outcome, by_partition=by_partition)


def _truths(predicate: Predicate, statistics: Statistics) -> _Truths:
    match predicate:
        case And(items=items):
            return _conjunction([_truths(item, statistics) for item in items])
        case Or(items=items):
            return _negation(_conjunction([_negation(_truths(item, statistics)) for item in items]))
        case Not(item=item):
            return _negation(_truths(item, statistics))
        case Comparison(column=name) | Membership(column=name) | IsNull(column=name) if name in statistics.columns:
            return _leaf(predicate, statistics.columns[name], statistics.rows)
    anything = np.ones(len(statistics.rows), np.bool_)
    return _Truths(anything, anything, anything, anything)


def _negation(truths: _Truths) -> _Truths:
    return _Truths(truths.false, truths.true, truths.null, truths.sure)


def _conjunction(items: list[_Truths]) -> _Truths:
    """True needs all true; false one false; null one null and the others true or null."""
    result = items[0]
    for item in items[1:]:
        result = _Truths(
            true=result.true & item.true,
            false=result.false | item.false,
            null=(result.null & (item.null | item.true)) | (item.null & result.true),
            sure=result.sure & item.sure,
        )
    return result


def _leaf(leaf: Comparison | Membership | IsNull, column: ColumnStatistics, rows: npt.NDArray[np.int64]) -> _Truths:
    some_null = column.nulls != 0
    some_value = (column.nulls < 0) | (column.nulls < rows)
    if isinstance(leaf, IsNull):
        return _Truths(some_null, some_value, np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_))
    if isinstance(leaf, Comparison):
        true, false = _compare(leaf.op, column.unit(leaf.value), column)
    else:
        true, false = _contain([column.unit(value) for value in leaf.values], column)
    nan, unequal = _is_nan(column.low), isinstance(leaf, Comparison) and leaf.op == "!="
    true, false = np.where(nan, unequal, true), np.where(nan, not unequal, false)
    unknown = ~column.bounded
    return _Truths((true | unknown) & some_value, (false | unknown) & some_value, some_null, column.exact | unknown)


def _compare(op: str, value: Any, column: ColumnStatistics) -> tuple[Bools, Bools]:
    """bool [row groups], twice: may a value of the column make the comparison true; false? Valid where bounded."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        may = np.ones(len(column.bounded), np.bool_)
        return may, may
    at_low, at_high = _order(column.low, value, column.bounded), _order(column.high, value, column.bounded)
    match op:
        case "==" | "!=":
            equal = (at_low <= 0) & (at_high >= 0)
            differs = (at_low != 0) | (at_high != 0) | column.floating
            return (equal, differs) if op == "==" else (differs, equal)
        case "<":
            return at_low < 0, (at_high >= 0) | column.floating
        case "<=":
            return at_low <= 0, (at_high > 0) | column.floating
        case ">":
            return at_high > 0, (at_low <= 0) | column.floating
        case ">=":
            return at_high >= 0, (at_low < 0) | column.floating
    raise ValueError(f"comparison operator unknown: got {op!r}")


def _contain(values: list[Any], column: ColumnStatistics) -> tuple[Bools, Bools]:
    """As `_compare`, for membership: true if the smallest listed value not below `low` is at most `high`."""
    if any(value is None or (isinstance(value, float) and math.isnan(value)) for value in values):
        may = np.ones(len(column.bounded), np.bool_)
        return may, may
    members = np.empty(len(values), object)
    members[:] = sorted(values)
    bounded = np.flatnonzero(column.bounded & ~_is_nan(column.low))
    low, high = column.low[bounded].astype(object), column.high[bounded].astype(object)
    index = np.searchsorted(members, low)  # of 1, 4, 10 and values from 5 to 9 the nearest is 10: no value is listed
    inside = index < len(members)
    nearest = members[np.minimum(index, len(members) - 1)] if len(members) else low
    hit = inside & (nearest <= high).astype(np.bool_)
    true = np.ones(len(column.bounded), np.bool_)
    false = true.copy()
    true[bounded] = hit
    if not column.floating:
        false[bounded] = ~(hit & (low == high).astype(np.bool_))
    return true, false


def _is_nan(bounds: npt.NDArray[Any]) -> Bools:
    return np.isnan(bounds) if bounds.dtype.kind == "f" else np.zeros(len(bounds), np.bool_)


def _order(bounds: npt.NDArray[Any], value: Any, bounded: Bools) -> npt.NDArray[np.int8]:
    """Return -1, 0 or 1 per row group as the bound is below, equal to or above the value; 0 without a bound."""
    order = np.zeros(len(bounds), np.int8)
    bounds_there = bounds[bounded]
    order[bounded] = (bounds_there > value).astype(np.int8) - (bounds_there < value).astype(np.int8)
    return order
