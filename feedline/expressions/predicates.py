"""Describe a `where` to the code that prunes by partition values and statistics.

Pure values, built by `binder` and evaluated by `warehouse/selection`: a tree of `And`, `Or` and `Not` over leaves, with
the three truth values of SQL. A leaf names a column and holds literals that are already bound to that column's type.

- `Comparison`: null for a null value; for a NaN `!=` is true and every other operator is false.
- `Membership`: null for a null value; its values hold no null and no NaN.
- `IsNull`: true or false, never null. A NaN is not null.
- `Opaque`: anything else; true, false or null for any row, whatever the statistics say.

`IS NOT NULL` is `Not(IsNull(...))`, a chained comparison is an `And`, a boolean column alone is `== True`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from feedline.dataclass import dataclass

Operator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`column op value`: an int, float, str, bool, bytes, date, Decimal, or datetime (aware iff the column is)."""

    column: str
    op: Operator
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """`column in values`; never empty, values as in `Comparison`."""

    column: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    """`column is None`."""

    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """A condition that statistics cannot judge, and the columns that it reads."""

    columns: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class And:
    """True where all items are, false where one is, else null."""

    items: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Or:
    """True where one item is, false where all are, else null."""

    items: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Not:
    """True for false, false for true, null for null."""

    item: Predicate


Predicate: TypeAlias = Comparison | Membership | IsNull | Opaque | And | Or | Not


def conjunction(items: Iterable[Predicate]) -> Predicate:
    """All of the items: nested `And`s joined into one, a single item as it is."""
    flat = [part for item in items for part in (item.items if isinstance(item, And) else (item,))]
    return flat[0] if len(flat) == 1 else And(items=tuple(flat))


def disjunction(items: Iterable[Predicate]) -> Predicate:
    """Any of the items: nested `Or`s joined into one, a single item as it is."""
    flat = [part for item in items for part in (item.items if isinstance(item, Or) else (item,))]
    return flat[0] if len(flat) == 1 else Or(items=tuple(flat))
