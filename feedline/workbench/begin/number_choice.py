"""Choose the ops of numbers: fill, logarithm, limits, standardisation.

Pure. The order is: shape the numbers (`log1p`, `clip`), standardize, then fill: after standardisation 0 is the mean, so
that a null, which ops before leave alone, becomes the mean, in one pass of `feedline fit`.
"""

from __future__ import annotations

from feedline.workbench.begin.figures import number, percent
from feedline.workbench.begin.init_plan import PlannedFeature
from feedline.workbench.begin.quoting import column_expr
from feedline.workbench.profile.table_facts import ColumnProfile, NumberFacts

_SKEWED = 2.0  # the third standardised moment of an exponential distribution
_LONG_TAIL = 10.0  # the 99th percentile, by the median
_LARGE = 10.0  # below it log1p is nearly a straight line
_RARELY_NEGATIVE = 0.01  # such as -1 for "not known" among counts
_CLOSE, _WRITTEN_TOGETHER = 0.7, 0.8  # correlations with the label, and of nulls with its nulls
INDICATED = 0.01  # the share of nulls from which a feature of its own says where they are


def choose_number(column: ColumnProfile) -> PlannedFeature:
    """The dense feature of a numeric column."""
    shape, reason = shape_ops(column.numbers)
    ops = [*shape, "standardize"]
    reasons = [reason] if reason else []
    if "float" in column.type or column.type in ("double", "halffloat"):
        numbers = column.numbers
        if numbers is not None and numbers.nan_rate + numbers.inf_rate > 0:
            ops.append({"fill_nonfinite": 0})
            reasons.append(f"{percent(numbers.nan_rate + numbers.inf_rate)} NaN or infinite")
    if may_hold_nulls(column):
        ops.append({"fill_null": 0})
        reasons += null_reasons(column)
    return PlannedFeature(
        name=column.name,
        group="dense",
        column=column.name,
        ops=tuple(ops),
        reason="; ".join(reasons) or number_range(column.numbers),
        check=correlation_check(column),
    )


def choose_indicator(column: ColumnProfile) -> PlannedFeature | None:
    """Where a column is null, as a dense feature: a null that was filled looks like a number, and means something else.
    None where nulls are rare."""
    rate = column.null_rate or 0.0
    if not INDICATED <= rate <= 1 - INDICATED:
        return None
    return PlannedFeature(
        name=column.name,
        group="dense",
        column=column.name,
        expr=f"{column_expr(column.name)} is None",
        reason=f"{percent(rate)} null",
    )


def shape_ops(numbers: NumberFacts | None) -> tuple[list[object], str]:
    """The ops before `standardize`, and the reason."""
    if numbers is None or numbers.skewness is None or numbers.min is None or numbers.max is None:
        return [], ""
    low, high = numbers.quantiles[0], numbers.quantiles[-1]
    median = numbers.median or 0
    tails = f"median {number(median)}, maximum {number(numbers.max)}"
    has_tail = median > 0 and numbers.negative_rate <= _RARELY_NEGATIVE and high > _LONG_TAIL * median
    is_skewed = abs(numbers.skewness) > _SKEWED or has_tail
    if not is_skewed or low == high:
        return [], ""
    if numbers.skewness > 0 and numbers.max > _LARGE and numbers.negative_rate <= _RARELY_NEGATIVE:
        if numbers.min < 0:
            return [{"clip": {"min": 0}}, "log1p"], f"skewed: {tails}; {percent(numbers.negative_rate)} negative"
        return ["log1p"], f"skewed: {tails}"
    return [{"clip": {"min": _rounded(low), "max": _rounded(high)}}], f"long tails: {tails}"


def _rounded(bound: float) -> float:
    """A bound with three significant digits."""
    return bound if isinstance(bound, int) else float(f"{bound:.3g}")


def may_hold_nulls(column: ColumnProfile) -> bool:
    """Whether nulls have to be filled: a file with the first ones may come, unless the type has none."""
    return column.nullable


def null_reasons(column: ColumnProfile) -> list[str]:
    """The share of nulls, if any were seen."""
    return [f"{percent(column.null_rate)} null"] if column.null_rate else []


def number_range(numbers: NumberFacts | None) -> str:
    """The range of the numbers, in words."""
    if numbers is None or numbers.min is None or numbers.max is None:
        return ""
    return f"{number(numbers.min)} to {number(numbers.max)}"


def correlation_check(column: ColumnProfile) -> str | None:
    """A question about a column that is close to the label, or is null where the label is; None otherwise."""
    near = column.correlation is not None and abs(column.correlation) >= _CLOSE
    found = [f"correlates with the label ({column.correlation:+.2f})"] if near else []
    if column.shared_nulls is not None and column.shared_nulls >= _WRITTEN_TOGETHER:
        found.append("is null where the label is")
    return f"{', and '.join(found)}: is it known when the prediction is made?" if found else None
