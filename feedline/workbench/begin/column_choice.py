"""Choose what becomes of each column: a feature, some features, or none, with the reason.

Pure. Columns are left out that say nothing (constant, all null), that name the row, that say what the label is, or that
no op reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, time, timedelta
from typing import Any

from feedline.config.features import Group
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature
from feedline.workbench.begin.quoting import column_expr, distinct, feature_name, number, percent, string_literal
from feedline.workbench.profile.roles import EPOCH_UNITS
from feedline.workbench.profile.table_facts import (
    ColumnProfile,
    DistinctCount,
    ListLengths,
    NumberFacts,
    TableFacts,
    TimeCandidate,
)

_MEAN = ("standardize", {"fill_null": 0})  # nulls become the mean


def _feature(column: ColumnProfile, group: Group, *ops: object, **others: Any) -> PlannedFeature:
    """A feature of a column, with its name unless `others` has another."""
    return PlannedFeature(**{"name": column.name, "column": column.name, "group": group, "ops": ops, **others})


# --------------------------------------------------------------------------------------------------------------------
# Choose the features of times: the hour and the day of the week, which come again; the date does not.


def choose_times(column: ColumnProfile, candidate: TimeCandidate | None) -> list[PlannedFeature]:
    """The features of a date, a time or a count since 1970; none if it has no part that comes again."""
    name, kind, hour_of = column_expr(column.name), column.type, "hour of the day"
    first, last = _moment(column.first), _moment(column.last)
    hour, weekday = f"{name}.dt.hour()", f"{name}.dt.weekday()"
    if kind.startswith("duration"):
        return [_feature(column, "dense", *_MEAN, expr=f"{name}.dt.total_seconds()", reason="seconds")]
    if column.role == "string":
        hour = f'{name}.str.slice(11, 2).try_cast("int64")'
        weekday = f'{name}.str.head(10).str.to_date("%Y-%m-%d").dt.weekday()'
    elif kind.startswith(("int", "uint")):
        if candidate is None or candidate.unit is None:
            return []
        first, last = _moment(candidate.first), _moment(candidate.last)
        per_s, hour_of = EPOCH_UNITS[candidate.unit], f"{hour_of}, UTC, of {candidate.unit} since 1970"
        # day 0 of 1970 was a Thursday: (0 + 3) % 7 + 1 = 4
        hour, weekday = f"{name} // {3600 * per_s} % 24", f"({name} // {86400 * per_s} + 3) % 7 + 1"
    width = None if first is None or last is None else last - first
    has_days = {each and each.time() for each in (first, last)} == {time()}
    features = []
    if not (kind.startswith("date") or has_days):
        features.append(_part(column, "_hour", hour, 24, hour_of))
    if not (kind.startswith(("time32", "time64")) or (width is not None and width < timedelta(days=7))):
        features.append(_part(column, "_weekday", weekday, 8, "day of the week, 1 for Monday"))
    return features


def _part(column: ColumnProfile, end: str, expr: str, size: int, reason: str) -> PlannedFeature:
    """A number below `size` as an id; a null has the id 0 of weekdays, which begin at 1, and 24 of hours."""
    rows, null = (size, 0) if size == 8 else (size + 1, size)
    ops = {"fill_null": null}, {"modulo": rows}
    return _feature(column, "categorical", *ops, name=column.name + end, expr=expr, reason=reason)


def _moment(text: str | None) -> datetime | None:
    """The moment, without its zone; None for none, or one beyond Python's years."""
    try:
        return None if text is None else datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


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


def choose_numbers(column: ColumnProfile) -> list[PlannedFeature]:
    """The dense feature of a numeric column, and one that says where it is null, unless nulls are rare: a null that was
    filled looks like a number, and means something else."""
    numbers, rate = column.numbers, column.null_rate or 0.0
    shape, reason = shape_ops(numbers)
    ops, reasons = [*shape, "standardize"], [reason] if reason else []
    is_float = "float" in column.type or column.type in ("double", "halffloat")
    if is_float and numbers is not None and numbers.nan_rate + numbers.inf_rate > 0:
        ops.append({"fill_nonfinite": 0})
        reasons.append(f"{percent(numbers.nan_rate + numbers.inf_rate)} NaN or infinite")
    if column.nullable:
        ops.append({"fill_null": 0})
        reasons += _null_reasons(column)
    if not reasons and numbers is not None and numbers.min is not None and numbers.max is not None:
        reasons.append(f"{number(numbers.min)} to {number(numbers.max)}")
    features = [_feature(column, "dense", *ops, reason="; ".join(reasons), check=_check(column))]
    if INDICATED <= rate <= 1 - INDICATED:
        name, expr = f"{column.name}_is_null", f"{column_expr(column.name)} is None"
        features.append(_feature(column, "dense", name=name, expr=expr, reason=f"{percent(rate)} null"))
    return features


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


def _null_reasons(column: ColumnProfile) -> list[str]:
    return [f"{percent(column.null_rate)} null"] if column.null_rate else []


def _check(column: ColumnProfile) -> str | None:
    """A question about a column that is close to the label, or is null where the label is; None otherwise."""
    near = column.correlation is not None and abs(column.correlation) >= _CLOSE
    doubts = [f"correlates with the label ({column.correlation:+.2f})"] if near else []
    if column.shared_nulls is not None and column.shared_nulls >= _WRITTEN_TOGETHER:
        doubts.append("is null where the label is")
    return f"{', and '.join(doubts)}: is it known when the prediction is made?" if doubts else None


# --------------------------------------------------------------------------------------------------------------------
# Choose the ops of ids, codes and strings: a vocabulary for few values, a hash for many.

MOST_IN_VOCABULARY = 100_000  # values: more make a table that every process holds, and learn little each
MOST_BUCKETS = 1 << 20
_FEWEST_BUCKETS = 1 << 10
_MANY, _SOME = 1_000, 20  # values, of which those that fewer than 3 or 2 rows have share the id of unknown ones
_TEXT_BYTES = 64  # the mean length of strings that are no category
_REQUEST = re.compile(r"(session|request|impression|trace|event|row|transaction|order)[ _-]?(id|key|uuid|no|num)", re.I)
_THREE_IDS = ({"cast": "int64"}, {"fill_null": 2}, {"modulo": 3})  # of a Boolean with nulls


def choose_ids(column: ColumnProfile) -> PlannedFeature | LeftOut:
    """The categorical feature of a column of ids, codes or strings; left out where each row has a value of its own."""
    values = column.vocabulary
    is_open = values is not None and values.table > _MANY and values.once > 0.5  # most are seen only once
    if column.id_like:
        hashed = _feature(column, "categorical", hash_op(_FEWEST_BUCKETS, has_nulls=True))
        reason = "nearly every row has a value of its own: it names the row"
        return LeftOut(column=column.name, reason=reason, enable=hashed)
    if column.string_bytes is not None and column.string_bytes[0] > _TEXT_BYTES and is_open:
        mean = number(column.string_bytes[0])
        reason = f"text of {mean} bytes on average: needs an encoder of its own, as `extra` it passes through"
        return LeftOut(column=column.name, reason=reason, enable=_feature(column, "extra"))
    if _REQUEST.search(column.name) and is_open:
        hashed = _feature(column, "categorical", hash_op(buckets_for(values), has_nulls=True))
        reason = f"an id of the event, {_count(values)}: new rows have new ones"
        return LeftOut(column=column.name, reason=reason, enable=hashed)
    ops, reason = id_ops(values, has_nulls=column.nullable)
    reason = "; ".join([reason, *_null_reasons(column)])
    return _feature(column, "categorical", *ops, reason=reason, check=_check(column))


def choose_boolean(column: ColumnProfile) -> PlannedFeature:
    """The feature of a Boolean: a number, or three ids where there are nulls."""
    if column.null_rate:
        reason = f"{percent(column.null_rate)} null: an id of its own"
        return _feature(column, "categorical", *_THREE_IDS, reason=reason, check=_check(column))
    ops = ({"fill_null": False},) if column.nullable else ()
    share = "" if column.numbers is None or column.numbers.mean is None else f"{percent(column.numbers.mean)} true"
    return _feature(column, "dense", *ops, reason=share, check=_check(column))


def id_ops(values: DistinctCount | None, *, has_nulls: bool) -> tuple[tuple[object, ...], str]:
    """The ops that turn values into ids of an embedding, and the reason."""
    if values is not None and values.table > MOST_IN_VOCABULARY:
        return (hash_op(buckets_for(values), has_nulls=has_nulls),), f"{_count(values)}: hash_bucket"
    if values is None or values.table <= _SOME or not values.once:
        return ("vocabulary",), f"{_count(values)}: vocabulary"
    rows = 3 if values.table > _MANY else 2
    reason = f"{_count(values)}: vocabulary; those of fewer than {rows} rows teach the id of unknown ones"
    return ({"vocabulary": {"min_count": rows}},), reason


def hash_op(buckets: int, *, has_nulls: bool) -> object:
    """The op `hash_bucket`, nulls with an id of their own where there may be some."""
    return {"hash_bucket": {"buckets": buckets, "null_bucket": True} if has_nulls else buckets}


def buckets_for(values: DistinctCount | None) -> int:
    """A power of two that is at least as large as the number of values, within limits."""
    if values is None:
        return _FEWEST_BUCKETS
    # 131,072 values are numbered below 2^17 -> 2^17 buckets; one more -> 2^18
    return min(MOST_BUCKETS, max(_FEWEST_BUCKETS, 1 << max(0, values.table - 1).bit_length()))


def _count(values: DistinctCount | None) -> str:
    if values is None:
        return "values not counted"
    return distinct(values.table, exact=values.error == 0 and values.table == values.sample)


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
        return _list_of_numbers(column, lengths)
    keep = max(1, min(lengths.p95, lengths.max))
    limit = {"first_x": keep}
    some = f"95 % have at most {keep} elements, the longest {lengths.max}"
    reason = f"at most {lengths.max} elements" if keep == lengths.max else some
    if element.startswith("bool"):
        return _feature(column, "sparse", limit, *_THREE_IDS, reason=reason)
    ops, values = id_ops(column.vocabulary, has_nulls=column.element_null_rate != 0)
    if element.startswith((*_INTEGERS, *_STRINGS)):
        return _feature(column, "sparse", limit, *ops, reason=f"{reason}; {values}")
    if element.startswith("struct"):
        note = "weights are left out: without `ids` they are used"
        return _feature(column, "sparse", "ids", limit, *ops, reason=f"{reason}; {values}; {note}")
    return LeftOut(column=column.name, reason=f"a list of {element}: take it apart with an expression")


def _list_of_numbers(column: ColumnProfile, lengths: ListLengths) -> PlannedFeature | LeftOut:
    width = lengths.fixed
    if width is None:
        expr = f"{column_expr(column.name)}.list.mean()"
        ops = "standardize", {"fill_nonfinite": 0}, {"fill_null": 0}
        reason = f"{lengths.max} numbers at most: their mean. `pad` makes a vector of them"
        return _feature(column, "dense", *ops, expr=expr, reason=reason)
    if width > _WIDEST:
        return LeftOut(column=column.name, reason=f"a vector of {width:,} numbers: wider than a row of features")
    nulls = f"; {percent(column.null_rate)} null: zeros" if column.null_rate else ""
    return _feature(column, "dense", {"fill_null": 0}, {"pad": width}, reason=f"a vector of {width} numbers{nulls}")


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
    times = {each.column: each for each in facts.times}
    features: list[PlannedFeature] = []
    left_out: list[LeftOut] = []
    for column in facts.columns:
        if column.name == label:
            continue
        reason = _uninformative(column) or _beside(column, time, split_by) or _telltale(column, outcomes)
        reason = reason or _moving(column, facts.rows) or _not_shared(column)
        choice = _choose(column, times.get(column.name))
        found = [choice] if isinstance(choice, PlannedFeature) else choice
        if isinstance(found, LeftOut):
            named = _with_free_names([found.enable] if found.enable else [], taken)
        else:
            named = _with_free_names(found, taken)
        enable = named[0] if named else None
        if reason is not None:
            left_out.append(LeftOut(column=column.name, reason=reason, enable=None if column.all_null else enable))
        elif isinstance(found, LeftOut):
            left_out.append(replace(found, enable=enable))
        else:
            features += [replace(each, rank=_rank(column)) for each in named]
    return features, left_out


def _with_free_names(features: Sequence[PlannedFeature], taken: set[str]) -> list[PlannedFeature]:
    """The features with names that no other has, which are taken from now on."""
    return [replace(each, name=feature_name(each.name, taken)) for each in features]


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


def _telltale(column: ColumnProfile, outcomes: Mapping[str, str]) -> str | None:
    if column.disguise is not None:
        return f"the label in disguise: {column.disguise}"
    if column.name in outcomes:
        return f"may be another outcome, known only after the label ({outcomes[column.name]})"
    return None


def _choose(column: ColumnProfile, candidate: TimeCandidate | None) -> PlannedFeature | list[PlannedFeature] | LeftOut:
    """What becomes of a column by its role. candidate: where it may be a time."""
    is_time = column.role == "time" or column.type.startswith(("time32", "time64", "duration"))
    is_time = is_time or (column.role == "string" and column.time_like is not None)
    if is_time or (candidate is not None and candidate.unit is not None and column.time_like):
        features = choose_times(column, candidate)
        return features or LeftOut(column=column.name, reason="a time without a part that comes again")
    if column.role == "nested":
        return _nested(column)
    if column.role == "unsupported":
        return LeftOut(column=column.name, reason=column.reason or f"no op reads {column.type}")
    if column.rows == 0:
        return LeftOut(column=column.name, reason="not sampled")
    if column.role == "list":
        return choose_list(column)
    if column.type == "bool":
        return choose_boolean(column)
    ids = choose_ids(column)
    if column.role != "numeric":
        return ids
    if column.as_ids is not None and isinstance(ids, PlannedFeature):
        return replace(ids, reason=f"{ids.reason}; {column.as_ids}")
    return choose_numbers(column)


def _nested(column: ColumnProfile) -> LeftOut:
    """A struct or a map, with the expression that would read a part of it."""
    kind, _, inner = column.type.partition("<")
    if kind == "struct":
        part = string_literal(inner.split(":", 1)[0])
    elif kind == "map":
        part = "1" if inner.startswith(("int", "uint")) else string_literal("KEY")
    else:
        return LeftOut(column=column.name, reason=column.reason or column.type)
    enable = _feature(column, "dense", *_MEAN, expr=f"{column_expr(column.name)}[{part}]")
    return LeftOut(column=column.name, reason=column.reason or column.type, enable=enable)


def _rank(column: ColumnProfile) -> float:
    """Columns that say more about the label come first, then those with fewer nulls."""
    said = max(abs(column.correlation or 0.0), math.sqrt(max(column.gain or 0.0, 0.0)))
    return (column.null_rate or 0.0) - 2 * said


def keep_best(features: Sequence[PlannedFeature], most: int) -> tuple[list[PlannedFeature], list[PlannedFeature]]:
    """The `most` features of the least rank, and the others, each in the table's order."""
    best = {each.name for each in sorted(features, key=lambda each: each.rank)[:most]}
    return [each for each in features if each.name in best], [each for each in features if each.name not in best]
