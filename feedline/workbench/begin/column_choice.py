"""Choose what becomes of each column: a feature, some features, or none, with the reason.

Pure. Columns are left out that say nothing (constant, all null), that name the row, that say what the label is, or that
no op reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from feedline.workbench.begin.figures import distinct, number, percent
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature
from feedline.workbench.begin.quoting import column_expr, feature_name, string_literal
from feedline.workbench.profile.table_facts import (
    ColumnProfile,
    DistinctCount,
    ListLengths,
    NumberFacts,
    TableFacts,
    TimeCandidate,
)

# --------------------------------------------------------------------------------------------------------------------
# Choose the features of times: the hour and the day of the week, which come again; the date does not.

_WEEKDAY = "day of the week, 1 for Monday"
PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def choose_times(column: ColumnProfile, candidate: TimeCandidate | None) -> list[tuple[str, PlannedFeature]]:
    """The features of a date, a time or a count since 1970, each with the end of its name; none if it has no part that
    comes again."""
    name, kind = column_expr(column.name), column.type
    first, last = _moment(column.first), _moment(column.last)
    if kind.startswith("duration"):
        return [("", _number(column, f"{name}.dt.total_seconds()", "seconds"))]
    if kind.startswith(("time32", "time64")):
        return [("_hour", _part(column, f"{name}.dt.hour()", 24, "hour of the day"))]
    if column.role == "string":
        parts = [
            ("_hour", f'{name}.str.slice(11, 2).try_cast("int64")', 24, "hour of the day"),
            ("_weekday", f'{name}.str.head(10).str.to_date("%Y-%m-%d").dt.weekday()', 8, _WEEKDAY),
        ]
    elif kind.startswith(("int", "uint")):
        if candidate is None or candidate.unit is None:
            return []
        first, last = _moment(candidate.first), _moment(candidate.last)
        hour, day = 3600 * PER_S[candidate.unit], 86400 * PER_S[candidate.unit]
        parts = [
            ("_hour", f"{name} // {hour} % 24", 24, f"hour of the day, UTC, of {candidate.unit} since 1970"),
            ("_weekday", f"({name} // {day} + 3) % 7 + 1", 8, _WEEKDAY),
        ]
    else:
        parts = [
            ("_hour", f"{name}.dt.hour()", 24, "hour of the day"),
            ("_weekday", f"{name}.dt.weekday()", 8, _WEEKDAY),
        ]
    if kind.startswith("date") or (first is not None and last is not None and _is_day(first) and _is_day(last)):
        parts = [part for part in parts if part[0] != "_hour"]
    if first is not None and last is not None and last - first < timedelta(days=7):
        parts = [part for part in parts if part[0] != "_weekday"]
    return [(end, _part(column, expr, size, reason)) for end, expr, size, reason in parts]


def _part(column: ColumnProfile, expr: str, size: int, reason: str) -> PlannedFeature:
    """A number below `size` as an id; a null has the id 0 of weekdays, which begin at 1, and 24 of hours."""
    rows, null = (size, 0) if size == 8 else (size + 1, size)
    return PlannedFeature(
        name=column.name,
        group="categorical",
        column=column.name,
        expr=expr,
        ops=({"fill_null": null}, {"modulo": rows}),
        reason=reason,
    )


def _number(column: ColumnProfile, expr: str, reason: str) -> PlannedFeature:
    return PlannedFeature(
        name=column.name,
        group="dense",
        column=column.name,
        expr=expr,
        ops=("standardize", {"fill_null": 0}),
        reason=reason,
    )


def _is_day(moment: datetime) -> bool:
    return moment.time() == datetime.min.time()


def _moment(text: str | None) -> datetime | None:
    """The moment, without its zone; None for none, or one beyond Python's years."""
    try:
        return None if text is None else datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------------------------
# Choose the ops of ids, codes and strings: a vocabulary for few values, a hash for many.

# --------------------------------------------------------------------------------------------------------------------
# Choose the ops of numbers: fill, logarithm, limits, standardisation. The order is: shape the numbers (`log1p`,
# `clip`), standardize, then fill: after standardisation 0 is the mean, so that a null, which ops before leave alone,
# becomes the mean, in one pass of `feedline fit`.

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


# --------------------------------------------------------------------------------------------------------------------

MOST_IN_VOCABULARY = 100_000  # values: more make a table that every process holds, and learn little each
MOST_BUCKETS = 1 << 20
_FEWEST_BUCKETS = 1 << 10
_MANY, _SOME = 1_000, 20  # values, of which those that fewer than 3 or 2 rows have share the id of unknown ones
_TEXT_BYTES = 64  # the mean length of strings that are no category
_REQUEST = re.compile(r"(session|request|impression|trace|event|row|transaction|order)[ _-]?(id|key|uuid|no|num)", re.I)


def choose_ids(column: ColumnProfile) -> PlannedFeature | LeftOut:
    """The categorical feature of a column of ids, codes or strings; left out where each row has a value of its own."""
    values = column.vocabulary
    if column.id_like:
        return LeftOut(
            column=column.name,
            reason="nearly every row has a value of its own: it names the row",
            enable=_hashed(column, "categorical", _FEWEST_BUCKETS, ""),
        )
    if column.string_bytes is not None and column.string_bytes[0] > _TEXT_BYTES and is_open(values):
        mean = number(column.string_bytes[0])
        return LeftOut(
            column=column.name,
            reason=f"text of {mean} bytes on average: needs an encoder of its own, as `extra` it passes through",
            enable=PlannedFeature(name=column.name, group="extra", column=column.name),
        )
    if _REQUEST.search(column.name) and is_open(values):
        return LeftOut(
            column=column.name,
            reason=f"an id of the event, {_count(values)}: new rows have new ones",
            enable=_hashed(column, "categorical", buckets_for(values), ""),
        )
    ops, reason = id_ops(values, has_nulls=may_hold_nulls(column))
    reasons = [reason, *null_reasons(column)]
    return PlannedFeature(
        name=column.name,
        group="categorical",
        column=column.name,
        ops=ops,
        reason="; ".join(reasons),
        check=correlation_check(column),
    )


def choose_boolean(column: ColumnProfile) -> PlannedFeature:
    """The feature of a Boolean: a number, or three ids where there are nulls."""
    if column.null_rate:
        return PlannedFeature(
            name=column.name,
            group="categorical",
            column=column.name,
            ops=({"cast": "int64"}, {"fill_null": 2}, {"modulo": 3}),
            reason=f"{percent(column.null_rate)} null: an id of its own",
            check=correlation_check(column),
        )
    ops = ({"fill_null": False},) if may_hold_nulls(column) else ()
    share = "" if column.numbers is None or column.numbers.mean is None else f"{percent(column.numbers.mean)} true"
    return PlannedFeature(
        name=column.name, group="dense", column=column.name, ops=ops, reason=share, check=correlation_check(column)
    )


def id_ops(values: DistinctCount | None, *, has_nulls: bool) -> tuple[tuple[object, ...], str]:
    """The ops that turn values into ids of an embedding, and the reason."""
    if values is None or values.table <= MOST_IN_VOCABULARY:
        if values is None or values.table <= _SOME or not values.once:
            return ("vocabulary",), f"{_count(values)}: vocabulary"
        rows = 3 if values.table > _MANY else 2
        reason = f"{_count(values)}: vocabulary; those of fewer than {rows} rows teach the id of unknown ones"
        return ({"vocabulary": {"min_count": rows}},), reason
    buckets = buckets_for(values)
    return (hash_op(buckets, has_nulls=has_nulls),), f"{_count(values)}: hash_bucket"


def hash_op(buckets: int, *, has_nulls: bool) -> object:
    """The op `hash_bucket`, nulls with an id of their own where there may be some."""
    return {"hash_bucket": {"buckets": buckets, "null_bucket": True} if has_nulls else buckets}


def buckets_for(values: DistinctCount | None) -> int:
    """A power of two that is at least as large as the number of values, within limits."""
    if values is None:
        return _FEWEST_BUCKETS
    return min(MOST_BUCKETS, max(_FEWEST_BUCKETS, 1 << max(0, values.table - 1).bit_length()))


def is_open(values: DistinctCount | None) -> bool:
    """Whether the values have no end: many, of which the sample has most only once."""
    return values is not None and values.table > _MANY and values.once > 0.5


def _count(values: DistinctCount | None) -> str:
    if values is None:
        return "values not counted"
    return distinct(values.table, exact=values.error == 0 and values.table == values.sample)


def _hashed(column: ColumnProfile, group: str, buckets: int, reason: str) -> PlannedFeature:
    assert group in ("categorical", "sparse")
    return PlannedFeature(
        name=column.name,
        group="categorical" if group == "categorical" else "sparse",
        column=column.name,
        ops=(hash_op(buckets, has_nulls=True),),
        reason=reason,
    )


# --------------------------------------------------------------------------------------------------------------------
# Choose the ops of lists: bags of ids, cut at the 95th percentile of lengths, and vectors of numbers.

_WIDEST = 1_024  # a vector of more numbers is no row of `dense`
_INTEGERS = ("int", "uint")
_STRINGS = ("string", "large_string", "string_view", "binary", "large_binary", "dictionary", "fixed_size_binary")
_FLOATS = ("float", "double", "halffloat", "decimal")


def choose_list(column: ColumnProfile) -> PlannedFeature | LeftOut:
    """The sparse or dense feature of a list."""
    lengths, element = column.lengths, column.element or ""
    if lengths is None or lengths.max == 0:
        return LeftOut(column=column.name, reason="all lists are empty")
    if element.startswith(_FLOATS):
        return _numbers(column, lengths)
    if element.startswith("bool"):
        return _booleans(column, lengths)
    if element.startswith((*_INTEGERS, *_STRINGS)):
        return _bag(column, lengths, ())
    if element.startswith("struct"):
        return _bag(column, lengths, ("ids",), "; weights are left out: without `ids` they are used")
    return LeftOut(column=column.name, reason=f"a list of {element}: take it apart with an expression")


def limit_lengths(lengths: ListLengths) -> tuple[tuple[object, ...], str]:
    """The op that limits lengths, and the reason; the first elements are kept."""
    keep = max(1, lengths.p95)
    if lengths.max <= keep:
        return ({"first_x": max(1, lengths.max)},), f"at most {lengths.max} elements"
    return ({"first_x": keep},), f"95 % have at most {keep} elements, the longest {lengths.max}"


def _bag(column: ColumnProfile, lengths: ListLengths, first: Sequence[object], note: str = "") -> PlannedFeature:
    limits, reason = limit_lengths(lengths)
    ops, values = id_ops(column.vocabulary, has_nulls=column.element_null_rate != 0)
    return PlannedFeature(
        name=column.name,
        group="sparse",
        column=column.name,
        ops=(*first, *limits, *ops),
        reason=f"{reason}; {values}{note}",
    )


def _numbers(column: ColumnProfile, lengths: ListLengths) -> PlannedFeature | LeftOut:
    fill: tuple[object, ...] = ({"fill_null": 0},)
    width = lengths.fixed
    if width is not None and width <= _WIDEST:
        return PlannedFeature(
            name=column.name,
            group="dense",
            column=column.name,
            ops=(*fill, {"pad": width}),
            reason=f"a vector of {width} numbers"
            + (f"; {percent(column.null_rate)} null: zeros" if column.null_rate else ""),
        )
    if width is not None:
        return LeftOut(column=column.name, reason=f"a vector of {width:,} numbers: wider than a row of features")
    return PlannedFeature(
        name=column.name,
        group="dense",
        column=column.name,
        expr=f"{column_expr(column.name)}.list.mean()",
        ops=("standardize", {"fill_nonfinite": 0}, *fill),
        reason=f"{lengths.max} numbers at most: their mean. `pad` makes a vector of them",
    )


def _booleans(column: ColumnProfile, lengths: ListLengths) -> PlannedFeature:
    limits, reason = limit_lengths(lengths)
    return PlannedFeature(
        name=column.name,
        group="sparse",
        column=column.name,
        ops=(*limits, {"cast": "int64"}, {"fill_null": 2}, {"modulo": 3}),
        reason=reason,
    )


# --------------------------------------------------------------------------------------------------------------------

_MOSTLY_NULL = 0.98
_NUMBERED = 2  # integers of their own within so many times the rows number them; measures are further apart
_MOSTLY_UNKNOWN, _OFTEN_UNKNOWN = 0.5, 0.1  # shares of held-out rows
_OTHER_LABEL = 0.7  # the score from which another candidate for the label is taken for one


def choose_columns(
    facts: TableFacts, *, label: str, time: str | None, split_by: Collection[str]
) -> tuple[list[PlannedFeature], list[LeftOut]]:
    """The features and the columns left out, in the table's order. label, time: their columns. split_by: the
    partition keys that tell held-out rows from others."""
    taken = {feature_name(label, set())}
    outcomes = {each.column: each.reason for each in facts.labels if each.score >= _OTHER_LABEL}
    features: list[PlannedFeature] = []
    left_out: list[LeftOut] = []
    for column in facts.columns:
        if column.name == label:
            continue
        reason = _uninformative(column) or _beside(column, time, split_by) or _telltale(column, outcomes)
        reason = reason or _moving(column, facts.rows) or _not_shared(column)
        found = _choose(column, facts, taken)
        if reason is not None:
            enable = next(iter(found), None) if isinstance(found, list) else found.enable
            left_out.append(LeftOut(column=column.name, reason=reason, enable=None if column.all_null else enable))
        elif isinstance(found, LeftOut):
            left_out.append(found)
        else:
            features += [replace(each, rank=_rank(column)) for each in found]
    return features, left_out


def _uninformative(column: ColumnProfile) -> str | None:
    if column.is_index:
        return "an index of pandas: it numbers rows"
    if column.same_moment is not None:
        return f"the moment of {column.same_moment}, whose features are enough"
    if column.all_null:
        return "null in every row to learn from"
    if column.constant and not column.null_rate:
        return "constant"
    if column.constant and column.role in ("nested", "unsupported"):
        return "constant, or null"
    if column.numbers is not None and column.numbers.min is None:
        return "no finite number"
    if column.null_rate is not None and column.null_rate >= _MOSTLY_NULL:
        return f"null in {percent(column.null_rate)} of the rows"
    return None


def _beside(column: ColumnProfile, time: str | None, split_by: Collection[str]) -> str | None:
    if column.name == time and column.role in ("numeric", "category", "string") and column.time_like is None:
        return "the time: later rows have values never seen in training"
    if column.name in split_by:
        return "separates training from held-out rows, whose values are never seen in training"
    return None


def _moving(column: ColumnProfile, rows: int) -> str | None:
    """Why the values of later rows are unlike those that a model learns from."""
    numbers, values = column.numbers, column.vocabulary
    if column.role not in ("numeric", "category", "string") or values is None or column.partition or column.time_like:
        return None
    low, high = (None, None) if numbers is None or column.role != "numeric" else (numbers.min, numbers.max)
    if column.id_like and low is not None and high is not None and high - low < _NUMBERED * rows:
        return "numbers the rows: each has a value of its own"
    if column.time_order:
        verb = "rises" if column.time_order > 0 else "falls"
        return f"{verb} with time: later rows have values never seen in training"
    return None


def _not_shared(column: ColumnProfile) -> str | None:
    """Why values are of no use to held-out rows, which have others."""
    if column.unknown is None or (column.role == "numeric" and column.as_ids is None):
        return None
    if column.unknown > _MOSTLY_UNKNOWN:
        return f"{percent(column.unknown)} of the held-out rows have values that no row to learn from has"
    if column.unknown > _OFTEN_UNKNOWN and (column.gain or 0.0) < 0:
        return (
            f"{percent(column.unknown)} of the held-out rows have values that no row to learn from has, and the "
            "others predict worse than a constant"
        )
    return None


def _telltale(column: ColumnProfile, outcomes: dict[str, str]) -> str | None:
    if column.disguise is not None:
        return f"the label in disguise: {column.disguise}"
    if column.name in outcomes:
        return f"may be another outcome, known only after the label ({outcomes[column.name]})"
    return None


def _choose(column: ColumnProfile, facts: TableFacts, taken: set[str]) -> list[PlannedFeature] | LeftOut:
    """The features of a column by its role, with names that are free, and are taken from now on."""
    candidate = next((each for each in facts.times if each.column == column.name), None)
    is_time = column.role == "time" or column.type.startswith(("time32", "time64", "duration"))
    is_time = is_time or (column.role == "string" and column.time_like is not None)
    if is_time or (candidate is not None and candidate.unit is not None and column.time_like):
        found = choose_times(column, candidate)
        if not found:
            return LeftOut(column=column.name, reason="a time without a part that comes again")
        return [replace(each, name=feature_name(column.name + end, taken)) for end, each in found]
    if column.role == "nested":
        return _nested(column)
    if column.role == "unsupported":
        return LeftOut(column=column.name, reason=column.reason or f"no op reads {column.type}")
    if column.rows == 0:
        return LeftOut(column=column.name, reason="not sampled")
    if column.as_ids is not None:
        chosen = choose_ids(column)
        if isinstance(chosen, PlannedFeature):
            reason = f"{chosen.reason}; {column.as_ids}"
            return [replace(chosen, name=feature_name(column.name, taken), reason=reason)]
    if column.role == "numeric":
        number = replace(choose_number(column), name=feature_name(column.name, taken))
        indicator = choose_indicator(column)
        if indicator is None:
            return [number]
        return [number, replace(indicator, name=feature_name(f"{column.name}_is_null", taken))]
    chosen = _one(column)
    if isinstance(chosen, LeftOut):
        enable = chosen.enable
        return replace(chosen, enable=enable and replace(enable, name=feature_name(column.name, taken)))
    return [replace(chosen, name=feature_name(column.name, taken))]


def _one(column: ColumnProfile) -> PlannedFeature | LeftOut:
    if column.role == "list":
        return choose_list(column)
    return choose_boolean(column) if column.type == "bool" else choose_ids(column)


def _nested(column: ColumnProfile) -> LeftOut:
    """A struct or a map, with the expression that would read a part of it."""
    name = column_expr(column.name)
    reason = column.reason or column.type
    if column.type.startswith("struct<"):
        field = column.type.removeprefix("struct<").split(":", 1)[0]
        return LeftOut(column=column.name, reason=reason, enable=_part_of(column, f"{name}[{string_literal(field)}]"))
    if column.type.startswith("map<"):
        key = "1" if column.type.removeprefix("map<").startswith(("int", "uint")) else string_literal("KEY")
        return LeftOut(column=column.name, reason=reason, enable=_part_of(column, f"{name}[{key}]"))
    return LeftOut(column=column.name, reason=reason)


def _part_of(column: ColumnProfile, expr: str) -> PlannedFeature:
    return PlannedFeature(
        name=column.name, group="dense", column=column.name, expr=expr, ops=("standardize", {"fill_null": 0})
    )


def _rank(column: ColumnProfile) -> float:
    """Columns that say more about the label come first, then those with fewer nulls."""
    told = max(abs(column.correlation or 0.0), math.sqrt(max(column.gain or 0.0, 0.0)))
    return (column.null_rate or 0.0) - 2 * told


def keep_best(features: Iterable[PlannedFeature], most: int) -> tuple[list[PlannedFeature], list[PlannedFeature]]:
    """The `most` features of the least rank, and the others, each in the table's order."""
    listed = list(features)
    order = sorted(range(len(listed)), key=lambda index: (listed[index].rank, index))
    kept = set(order[:most])
    return (
        [each for index, each in enumerate(listed) if index in kept],
        [each for index, each in enumerate(listed) if index not in kept],
    )
