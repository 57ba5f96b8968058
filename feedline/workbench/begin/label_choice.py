"""Choose the label: its feature, what the model predicts, and which rows have one.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from feedline.errors import PlanError, SpecError
from feedline.workbench.begin.init_plan import LabelChoice, PlannedFeature
from feedline.workbench.begin.quoting import column_expr, feature_name, number, percent
from feedline.workbench.profile.table_facts import ColumnProfile, TableFacts

CERTAIN = 0.5  # the score of a candidate from which it is taken without a person
MOST_CLASSES = 100
_CLASS_NAME = re.compile(r"class|categor|species|type|kind|target|label|grade|intent|language", re.IGNORECASE)
_SHOWN = 12
_FLOATS = ("float", "double", "halffloat")


def guess_label(facts: TableFacts) -> str | None:
    """The column that is the label without a doubt; None if a person has to say."""
    return next((each.column for each in facts.labels if each.score >= CERTAIN), None)


def require_label(facts: TableFacts, label: str | None) -> str:
    """The label's column. Raises SpecError where none is named, or one that cannot be a label."""
    if label is None:
        names = [each.column for each in facts.labels] or [each.name for each in facts.columns if _says_something(each)]
        raise SpecError(
            f"no column of {facts.uri} is a label without a doubt: expected one, such as `clicked` or `label`. "
            f"Name it with --label{_one_of(names)}"
        )
    require_column(facts, label, "--label")
    column = facts.column(label)
    if not _can_be_label(column):
        raise SpecError(
            f"--label must name numbers, Booleans or a few classes: got {label!r} of type {column.type}. "
            "Name another column, or compute one first"
        )
    if not column.rows:
        why = f": {facts.skipped[0][1]}" if facts.skipped else ""
        raise PlanError(f"no value of the label {label!r} could be read: expected some{why}. Name another column")
    if column.all_null or column.constant:
        value = "nulls alone" if column.all_null else "a constant"
        raise SpecError(f"the label {label!r} has one value only: got {value}. Name another column")
    return label


def require_column(facts: TableFacts, name: str, option: str) -> None:
    """Raise SpecError where the table has no such column."""
    names = [column.name for column in facts.columns]
    if name not in names:
        near = get_close_matches(name, names, n=1)
        raise SpecError(
            f"{option} names no column of {facts.uri}: got {name!r}"
            + (f". Did you mean {near[0]!r}?" if near else _one_of(names, ", expected one of "))
        )


def choose_label(facts: TableFacts, label: str) -> LabelChoice:
    """What the model predicts of a column. Raises SpecError where it has too many classes."""
    column = facts.column(label)
    reason = next((each.reason for each in facts.labels if each.column == label), "named by --label")
    name, numbers = column_expr(label), column.numbers
    where = f"{name} is not None" if column.null_rate or (column.nullable and not column.null_exact) else None
    feature = PlannedFeature(
        name=feature_name(label, set()), group="label", column=label, strict=column.type in _FLOATS
    )
    choice = LabelChoice(column=label, feature=feature, task="binary", reason=reason, where=where)
    if column.type == "bool":
        return _binary(choice, None if numbers is None else numbers.mean)
    if numbers is None:
        return _of_classes(choice, column, [each.value for each in column.frequent])
    if numbers.nan_rate + numbers.inf_rate > 0:
        choice = replace(choice, where=f"{name}.is_finite()")
    count = None if column.vocabulary is None else column.vocabulary.table
    low, high, is_integer = numbers.min, numbers.max, column.type.startswith(("int", "uint"))
    if is_integer and count == 2 and low is not None and high is not None:
        share = sum(each.share for each in column.frequent if each.value is not None and float(each.value) == high)
        expr = None if (low, high) == (0, 1) else f"{name} > {low}"
        return _binary(replace(choice, feature=replace(feature, expr=expr)), share)
    if (low, high) == (0, 1) and count == 2:
        return _binary(choice, numbers.mean)
    if is_integer and count is not None and count <= MOST_CLASSES and _CLASS_NAME.search(label):
        values = sorted(int(float(each.value)) for each in column.frequent if each.value is not None)
        if len(values) == count:
            return _of_classes(choice, column, values)
    mean, std = numbers.mean or 0.0, numbers.std or 1.0
    reason = f"{reason}; mean {number(mean)}, deviation {number(std)}"
    return _because(replace(choice, task="regression", mean=mean, std=std), reason)


def _because(choice: LabelChoice, reason: str, ops: tuple[object, ...] = ()) -> LabelChoice:
    return replace(choice, reason=reason, feature=replace(choice.feature, reason=reason, ops=ops))


def _binary(choice: LabelChoice, share: float | None) -> LabelChoice:
    """A label of zeros and ones. share: of ones, which the reason names unless it does already."""
    is_named = share is None or "ones" in choice.reason
    reason = choice.reason if is_named else f"{choice.reason}; {percent(share)} are 1"
    return _because(replace(choice, share=share), reason)


def _of_classes(choice: LabelChoice, column: ColumnProfile, values: Sequence[object]) -> LabelChoice:
    """A label of a few classes, or of two strings."""
    keys = [value for value in values if value is not None]
    count = 0 if column.vocabulary is None else column.vocabulary.table
    if not 2 <= len(keys) <= MOST_CLASSES or count > MOST_CLASSES:
        raise SpecError(
            f"the label {column.name!r} has too many classes: got {number(count)}, expected 2 to {MOST_CLASSES}. "
            "Name another column, or map its values to a few classes first"
        )
    keys = sorted(keys, key=str) if isinstance(keys[0], str) else keys
    mapping: dict[str, object] = {"keys": keys, "values": list(range(len(keys)))}
    if len(keys) == 2 and count == 2:
        share = next((each.share for each in column.frequent if each.value == keys[1]), None)
        reason = f"{choice.reason}; {keys[1]!r} is 1: {percent(share)} of the rows"
        return _because(replace(choice, share=share), reason, ({"map_id": mapping},))
    mapping["default"] = len(keys)
    reason = f"{choice.reason}; {len(keys)} classes, and {len(keys)} for values that the sample lacks"
    return _because(replace(choice, task="classes", classes=len(keys) + 1), reason, ({"map_id": mapping},))


def _can_be_label(column: ColumnProfile) -> bool:
    return column.role in ("numeric", "category", "string") and not column.type.startswith(("binary", "large_binary"))


def _says_something(column: ColumnProfile) -> bool:
    values = column.vocabulary
    few = values is not None and values.table <= MOST_CLASSES
    return (
        _can_be_label(column)
        and not (column.all_null or column.constant or column.is_index)
        and (few or column.role != "string")
    )


def _one_of(names: Sequence[str], before: str = ": one of ") -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return before + ", ".join(repr(each) for each in names[:_SHOWN]) + more
