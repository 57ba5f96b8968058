"""Choose the ops of lists: bags of ids, cut at the 95th percentile of lengths, and vectors of numbers.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedline.workbench.begin.figures import percent
from feedline.workbench.begin.id_choice import id_ops
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature
from feedline.workbench.begin.quoting import column_expr
from feedline.workbench.profile.table_facts import ColumnProfile, ListLengths

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
