"""Choose the ops of ids, codes and strings: a vocabulary for few values, a hash for many.

Pure.
"""

from __future__ import annotations

import re

from feedline.workbench.begin.figures import distinct, number, percent
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature
from feedline.workbench.begin.number_choice import correlation_check, may_hold_nulls, null_reasons
from feedline.workbench.profile.table_facts import ColumnProfile, DistinctCount

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
