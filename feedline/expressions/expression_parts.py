"""Which parts of columns does an expression use, and how is it written over them?

Pure; runs wherever an expression is bound. The longest chains of subscripts on a column (`user["geo"]["lat"]`) become
columns that are named like the part, so that a frame need hold only `user["geo"]["lat"]`, and not `user`. A column that
stands anywhere without a subscript stays the column that it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from feedline.expressions.column_parts import Key, Part, flattened_column, has_column
from feedline.expressions.nodes import (
    Arithmetic,
    Call,
    Column,
    Compare,
    Constant,
    Field,
    Logic,
    Member,
    Negation,
    Negative,
    Node,
    NullTest,
)


def over_parts(tree: Node, schema: pa.Schema) -> tuple[Node, frozenset[str]]:
    """The tree with columns for parts, and the names of its columns. A part that is named like a column stays a chain.

    A part of a map that the schema lacks, and of which it has a column, is that column (or a part of it).
    """
    names: set[str] = set()

    def rewritten(node: Node) -> Node:
        if isinstance(node, Column | Field):
            part = _part(node, schema)
            if part is not None:
                names.add(part)
                return Column(name=part, span=node.span)
            if isinstance(node, Field):
                return replace(node, item=rewritten(node.item))
        return _mapped(node, rewritten)

    return rewritten(tree), frozenset(names)


def _part(node: Column | Field, schema: pa.Schema) -> str | None:
    """The name of the column, or of the part that a chain of subscripts on a column is."""
    keys: list[Key] = []
    item: Node = node
    while isinstance(item, Field):
        assert isinstance(item.key.value, str | int)
        keys.append(item.key.value)
        item = item.item
    if not isinstance(item, Column):
        return None
    if not keys:
        return item.name
    part = Part(item.name, tuple(reversed(keys)))
    if not has_column(schema, part.column) and (flattened := flattened_column(schema, part)) is not None:
        return str(Part(flattened, part.keys[1:])) if part.keys[1:] else flattened
    return None if has_column(schema, str(part)) else str(part)


def _mapped(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with its children changed."""

    def argument(value: Node | tuple[Constant, ...]) -> Node | tuple[Constant, ...]:
        return value if isinstance(value, tuple) else change(value)

    match node:
        case Negative(item=item) | Member(item=item) | NullTest(item=item) | Negation(item=item):
            return replace(node, item=change(item))
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
    return node
