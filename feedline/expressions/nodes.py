"""Define the nodes of an expression's tree, each with its position in the text.

Pure values, built by `parser` and turned into Polars expressions by `binder`. A tree does not depend on a table: it
is parsed once and bound to any number of schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
    """A literal; `None` only as an argument of functions that accept it."""

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
    """A function of the allow-list; a method's receiver is its first argument. Only arguments may be lists."""

    name: str  # as in the catalogue: `clip`, `dt.hour`
    arguments: tuple[Node | tuple[Constant, ...], ...]
    keywords: Mapping[str, Node | tuple[Constant, ...]]
    span: Span


Node: TypeAlias = (
    ColumnRef | Constant | Field | Negative | Arithmetic | Compare | Member | NullTest | Negation | Logic | Call
)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below a node; lists of literals are left out."""
    match node:
        case ColumnRef() | Constant():
            return ()
        case Arithmetic(left=left, right=right) | Compare(left=left, right=right):
            return left, right
        case Logic(items=items):
            return items
        case Call(arguments=arguments, keywords=keywords):
            return tuple(value for value in (*arguments, *keywords.values()) if not isinstance(value, tuple))
    return (node.item,)


def column_names(tree: Node) -> frozenset[str]:
    """The names of the columns that a tree reads."""
    names: set[str] = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ColumnRef):
            names.add(node.name)
        nodes.extend(children(node))
    return frozenset(names)


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with each node of `children` changed."""

    def argument(value: Node | tuple[Constant, ...]) -> Node | tuple[Constant, ...]:
        return value if isinstance(value, tuple) else change(value)

    match node:
        case ColumnRef() | Constant():
            return node
        case Arithmetic(left=left, right=right) | Compare(left=left, right=right):
            return replace(node, left=change(left), right=change(right))
        case Logic(items=items):
            return replace(node, items=tuple(change(item) for item in items))
        case Call(arguments=arguments, keywords=keywords):
            return replace(
                node,
                arguments=tuple(argument(value) for value in arguments),
                keywords={name: argument(value) for name, value in keywords.items()},
            )
    return replace(node, item=change(node.item))
