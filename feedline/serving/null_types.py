"""Give columns that hold nothing but nulls the type that the features' ops fix.

Runs in: the processes that serve, for rows without recorded types. Pure, but for what `outcome` does. A request of
Python values says nothing of the type of `[None]` or `[[]]`. Where every type that a column's features take makes the
same of such values, the first of them is as good as any; where they make different things, or none is taken, the type
has to be given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import SpecError

_SCALARS = (pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.binary(), pa.timestamp("us"), pa.date32())
_ELEMENTS = (pa.int64(), pa.float64(), pa.string(), pa.struct({"id": pa.int64(), "weight": pa.float32()}))
_LISTS = (pat.is_list, pat.is_large_list, pat.is_fixed_size_list)
# What a feature makes of rows in which these columns hold nothing; None where it does not take their types.
Outcome: TypeAlias = Callable[[int, pa.Schema, pa.Table], object | None]


@dataclass(frozen=True, slots=True)
class AmbiguousType:
    """A column whose type nothing fixes: `made` of it, by type, by the first feature where that differs."""

    column: str
    feature: int
    made: Mapping[str, object]


def without_type(kind: pa.DataType) -> bool:
    """Whether values of a type are nulls, or lists of such."""
    return pat.is_null(kind) or (any(test(kind) for test in _LISTS) and pat.is_null(kind.value_type))


def resolve_types(schema: pa.Schema, uses: Sequence[frozenset[str]], outcome: Outcome) -> pa.Schema | AmbiguousType:
    """The schema with a type for each column without one that features use, if one is fixed.

    uses: the columns of each feature. Columns that come together in a feature, and in no other alone, get one type.
    """
    while True:
        left = {field.name for field in schema if without_type(field.type)}
        groups = {use & left for use in uses if use & left}
        if not groups:
            return schema
        group = min(groups, key=lambda group: (len(group), sorted(group)))
        places = [place for place, use in enumerate(uses) if use & left and use & left <= group]
        found = _choice(schema, sorted(group), places, outcome)
        if isinstance(found, AmbiguousType):
            return found
        schema = found


def _choice(
    schema: pa.Schema, columns: Sequence[str], places: Sequence[int], outcome: Outcome
) -> pa.Schema | AmbiguousType:
    lists = [pa.list_(element) for element in _ELEMENTS]
    scalars = _SCALARS if all(pat.is_null(schema.field(name).type) for name in columns) else ()
    taken: list[tuple[pa.Schema, list[object]]] = []
    for kind in (*scalars, *lists):
        tried = _with(schema, dict.fromkeys(columns, kind))
        rows = _empty_rows(tried, columns)
        made = list(itertools.takewhile(lambda one: one is not None, (outcome(at, tried, rows) for at in places)))
        if len(made) == len(places):
            taken.append((tried, made))
    if not taken:
        return AmbiguousType(columns[0], places[0], {})
    for index, place in enumerate(places):
        made_of = {str(tried.field(columns[0]).type): made[index] for tried, made in taken}
        if any(one != taken[0][1][index] for one in made_of.values()):
            return AmbiguousType(columns[0], place, made_of)
    return taken[0][0]


def _with(schema: pa.Schema, kinds: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in schema])


def _empty_rows(schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """Rows in which these columns hold nothing: null, and where they are lists an empty one, and one of a null."""
    values: dict[str, list[Any]] = {name: [None] * 3 for name in schema.names}
    for name in columns:
        if any(test(schema.field(name).type) for test in _LISTS):
            values[name] = [None, [], [None]]
    return pa.table({field.name: pa.array(values[field.name], field.type) for field in schema})


def ambiguous_type_error(found: AmbiguousType, feature: str, chain: str, remedy: str) -> SpecError:
    """The error for a column whose type has to be given."""
    made = [f"{one} of {kind}" for kind, one in found.made.items()]
    got = f"its ops ({chain}) make {made[0]} and {made[-1]}" if made else f"no type is taken by its ops ({chain})"
    return SpecError(
        f"column {found.column!r} holds nulls only and its type is not known: feature {feature!r}: {got}. {remedy}"
    )
