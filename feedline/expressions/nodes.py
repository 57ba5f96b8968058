"""The tree of an expression: the nodes that the language has, each with its place in the text.

Pure values, made by `expression_syntax` and turned into Polars expressions by `expressions.bind`. Nothing here
depends on a table, so a tree is made once and bound to as many schemas as one likes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from feedline.expressions.predicates import Operator
from feedline.expressions.spans import Span

ArithmeticOperator: TypeAlias = Literal["+", "-", "*", "/", "//", "%", "**"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRef:
    """A column of the table, by name."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A literal; `None` only where a function takes it."""

    value: int | float | str | bytes | bool | None
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A struct's field or a map's value: `item["key"]`."""

    item: Node
    key: Constant
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Negative:
    """`-item`."""

    item: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """`left op right`."""

    op: ArithmeticOperator
    left: Node
    right: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """`left op right`; a chain is an `and` of these."""

    op: Operator
    left: Node
    right: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """`item in [literals]`."""

    item: Node
    values: tuple[Constant, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class NullTest:
    """`item is None`."""

    item: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Negation:
    """`not item`."""

    item: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Logic:
    """All (`and`) or any (`or`) of at least two items."""

    op: Literal["and", "or"]
    items: tuple[Node, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function of the allow-list; a method's receiver is its first argument. Lists are arguments only."""

    name: str  # as in the catalogue: `clip`, `dt.hour`
    arguments: tuple[Node | tuple[Constant, ...], ...]
    keywords: Mapping[str, Node | tuple[Constant, ...]]
    span: Span


Node: TypeAlias = (
    ColumnRef | Constant | Field | Negative | Arithmetic | Compare | Member | NullTest | Negation | Logic | Call
)
