"""Give columns that hold only nulls the type that the features' ops require.

Runs in: processes that serve, for rows without recorded types. Pure, except for `outcome`. The type of `[None]` or
`[[]]` in a request of Python values is unknown. If all types that a column's features accept give the same result for
such values, the first is used; if results differ, or no type is accepted, the caller has to give the type.
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
# Result of a feature, by index, for rows whose columns of a schema are null or empty; None if it refuses the types.
Outcome: TypeAlias = Callable[[int, pa.Schema, pa.Table], object | None]


@dataclass(frozen=True, slots=True)
class AmbiguousType:
    """A column whose type is not determined. outcomes: by type, of the first feature where they differ."""

    column: str
    feature: int
    outcomes: Mapping[str, object]


def without_type(kind: pa.DataType) -> bool:
    """Whether a type is null, or a list of nulls."""
    return pat.is_null(kind) or (any(test(kind) for test in _LISTS) and pat.is_null(kind.value_type))


def resolve_types(schema: pa.Schema, uses: Sequence[frozenset[str]], outcome: Outcome) -> pa.Schema | AmbiguousType:
    """Add types to the columns without one that features use; the ambiguous column if there is one.

    uses: the columns of each feature. Columns that occur only together in features get one common type.
    """
    while True:
        untyped = {field.name for field in schema if without_type(field.type)}
        groups = {use & untyped for use in uses if use & untyped}
        if not groups:
            return schema
        group = min(groups, key=lambda group: (len(group), sorted(group)))
        features = [index for index, use in enumerate(uses) if use & untyped and use & untyped <= group]
        chosen = _choose_type(schema, sorted(group), features, outcome)
        if isinstance(chosen, AmbiguousType):
            return chosen
        schema = chosen


def _choose_type(
    schema: pa.Schema, columns: Sequence[str], features: Sequence[int], outcome: Outcome
) -> pa.Schema | AmbiguousType:
    lists = [pa.list_(element) for element in _ELEMENTS]
    scalars = _SCALARS if all(pat.is_null(schema.field(name).type) for name in columns) else ()
    accepted: list[tuple[pa.Schema, list[object]]] = []
    for kind in (*scalars, *lists):
        candidate = pa.schema([field.with_type(kind) if field.name in columns else field for field in schema])
        rows = _empty_rows(candidate, columns)
        results = (outcome(feature, candidate, rows) for feature in features)
        outcomes = list(itertools.takewhile(lambda one: one is not None, results))
        if len(outcomes) == len(features):
            accepted.append((candidate, outcomes))
    if not accepted:
        return AmbiguousType(columns[0], features[0], {})
    for index, feature in enumerate(features):
        by_type = {str(candidate.field(columns[0]).type): outcomes[index] for candidate, outcomes in accepted}
        if any(one != accepted[0][1][index] for one in by_type.values()):
            return AmbiguousType(columns[0], feature, by_type)
    return accepted[0][0]


def _empty_rows(schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """Three rows in which these columns are null; lists are null, empty, and a list of one null."""
    values: dict[str, list[Any]] = {name: [None] * 3 for name in schema.names}
    for name in columns:
        if any(test(schema.field(name).type) for test in _LISTS):
            values[name] = [None, [], [None]]
    return pa.table({field.name: pa.array(values[field.name], field.type) for field in schema})


def ambiguous_type_error(ambiguous: AmbiguousType, feature: str, chain: str, remedy: str) -> SpecError:
    """The error for a column whose type has to be given."""
    results = [f"{one} of {kind}" for kind, one in ambiguous.outcomes.items()]
    got = f"its ops ({chain}) make {results[0]} and {results[-1]}" if results else f"its ops ({chain}) accept no type"
    return SpecError(
        f"column {ambiguous.column!r} holds nulls only and its type is not known: feature {feature!r}: {got}. {remedy}"
    )
