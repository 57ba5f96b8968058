"""Choose what becomes of each column: a feature, some features, or none, with the reason.

Pure. Columns are left out that say nothing (constant, all null), that name the row, that say what the label is, or that
no op reads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from feedline.workbench.begin.figures import percent
from feedline.workbench.begin.id_choice import choose_boolean, choose_ids
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature
from feedline.workbench.begin.list_choice import choose_list
from feedline.workbench.begin.number_choice import choose_indicator, choose_number
from feedline.workbench.begin.quoting import column_expr, feature_name, string_literal
from feedline.workbench.begin.time_choice import choose_times
from feedline.workbench.profile.table_facts import ColumnProfile, TableFacts

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
