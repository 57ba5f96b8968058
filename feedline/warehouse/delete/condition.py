"""Decide which rows a deletion means: those for which its condition is true, as a `where` with lists in files.

Runs in: the process of `delete`. A list's test (`expressions.file_lists`) is a Boolean column here, which is computed
by Arrow from the column and the list's values; of a null it is null, as SQL's `in` is. For pruning it is a membership
of the values, or, of long lists, of their range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.expressions import BoundExpression, bind_where
from feedline.expressions.file_lists import columns_text, take_file_lists
from feedline.expressions.nodes import Constant, Node, children, column_names
from feedline.expressions.parser import parse_tree
from feedline.expressions.predicates import And, Comparison, IsNull, Membership, Not, Opaque, Or, Predicate
from feedline.warehouse.delete.id_list import IdList, read_ids
from feedline.warehouse.reading.columns import expanded_frame
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.sample import Bools

_MOST_LISTED = 100_000  # values of which each is looked for in statistics and bloom filters: 0.05 s per row group
_HIDDEN = "…"  # in place of a literal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condition:
    """The rows to delete. text: as written. lists: the values of its files, by the column that stands for each. bound:
    over the table's columns and those. predicate: over the table's columns alone."""

    text: str
    lists: Mapping[str, IdList]
    bound: BoundExpression
    predicate: Predicate

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that it reads."""
        read = {name for name in self.bound.columns if name not in self.lists}
        return tuple(sorted(read | {each.column for each in self.lists.values()}))

    def true_rows(self, data: pa.RecordBatch) -> Bools:
        """bool [rows]: those that it means. data: its columns, in the table's types."""
        names = sorted(self.bound.columns)
        arrays = [self._listed(data, name) if name in self.lists else data.column(name) for name in names]
        frame = expanded_frame(pa.RecordBatch.from_arrays(arrays, names=names), names)
        found: Bools = frame.select(self.bound.polars).to_series().fill_null(False).to_numpy()
        return found

    def _listed(self, data: pa.RecordBatch, name: str) -> pa.Array:
        """Whether each row's value is in a list; null for a null."""
        ids = self.lists[name]
        column = data.column(ids.column)
        if pat.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return pc.if_else(column.is_valid(), pc.is_in(column, value_set=ids.values), pa.scalar(None, pa.bool_()))


def bind_condition(where: str, schema: pa.Schema) -> Condition:
    """Bind a condition to a table's columns, and read its lists. Raises ExpressionError and TableArgumentError."""
    text, tests = take_file_lists(where)
    lists = {each.name: read_ids(each.file, field_of(schema, each.column)) for each in tests}
    tested = [pa.field(name, pa.bool_()) for name in lists]
    bound = bind_where(text, pa.schema([*schema, *tested]))
    return Condition(text=where, lists=lists, bound=bound, predicate=_over_table(bound.predicate, lists))


def _over_table(predicate: Predicate, lists: Mapping[str, IdList]) -> Predicate:
    """The predicate with the memberships that its Boolean columns stand for."""
    match predicate:
        case And(items=items) | Or(items=items):
            return replace(predicate, items=tuple(_over_table(item, lists) for item in items))
        case Not(item=item):
            return Not(item=_over_table(item, lists))
        case Comparison(column=name, op=op, value=value) if name in lists:
            member = _member(lists[name])
            if op not in ("==", "!=") or not isinstance(value, bool):
                return Opaque(columns=frozenset({lists[name].column}))
            return member if (op == "==") is value else Not(item=member)
        case IsNull(column=name) if name in lists:
            return IsNull(column=lists[name].column)
        case Opaque(columns=columns):
            return Opaque(columns=frozenset(lists[name].column if name in lists else name for name in columns))
    return predicate


def _member(ids: IdList) -> Predicate:
    kind = ids.values.type
    if pat.is_timestamp(kind) and kind.unit == "ns":  # Python's datetimes have no nanoseconds
        return Opaque(columns=frozenset({ids.column}))
    if len(ids.values) <= _MOST_LISTED:
        return Membership(column=ids.column, values=tuple(ids.values.to_pylist()))
    ends: dict[str, Any] = pc.min_max(ids.values).as_py()
    within = And(
        items=(
            Comparison(column=ids.column, op=">=", value=ends["min"]),
            Comparison(column=ids.column, op="<=", value=ends["max"]),
        )
    )
    # within the range a value may be in the list or not, so that its negation proves nothing
    return And(items=(within, Opaque(columns=frozenset({ids.column}))))


def text_for_log(condition: Condition, open_columns: frozenset[str]) -> str:
    """The condition as a log may keep it: without the values that it names, but for those that are compared with
    `open_columns` alone, such as partition keys, which paths show."""
    # user_id == 17 and ds < "2026-01-05" -> user_id == … and ds < "2026-01-05"
    text, tests = take_file_lists(condition.text)
    spans = sorted((node.span.start, node.span.stop) for node in _closed_literals(parse_tree(text), open_columns))
    parts: list[str] = []
    stop = 0
    for start, end in spans:
        if start >= stop:
            parts += text[stop:start], _HIDDEN
            stop = end
    return columns_text("".join([*parts, text[stop:]]), tests)


def _closed_literals(node: Node, open_columns: frozenset[str]) -> list[Constant]:
    columns = column_names(node)
    if columns and columns <= open_columns:
        return []
    if isinstance(node, Constant):
        return [node]
    found = [literal for child in children(node) for literal in _closed_literals(child, open_columns)]
    for values in (getattr(node, "values", ()), *getattr(node, "arguments", ())):
        if isinstance(values, tuple):
            found += [value for value in values if isinstance(value, Constant)]
    return found
