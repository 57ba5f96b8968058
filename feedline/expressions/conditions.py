"""Split a condition into terms that read one column each, as far as its `and`, `or` and `not` allow.

Pure; runs wherever rows are read. A term over one column may be evaluated on the column's distinct values; how terms
are joined is `Joint` and `Inverse`, in three-valued logic. Terms are over a frame of column parts, as
`BoundExpression.narrow` is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import polars as pl

from feedline.expressions.bind import BoundExpression, bind_parts, parse
from feedline.expressions.binder import Binder
from feedline.expressions.nodes import Logic, Negation, Node, column_names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Term:
    """A condition that is evaluated as a whole. columns: that it reads."""

    columns: frozenset[str]
    expr: pl.Expr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joint:
    """All (`and`) or any (`or`) of the items."""

    op: Literal["and", "or"]
    items: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inverse:
    """True for false, false for true, null for null."""

    item: Condition


Condition: TypeAlias = Term | Joint | Inverse


@lru_cache(maxsize=64)
def condition_of(where: BoundExpression) -> Condition:
    """The terms of a boolean expression; the same objects for equal expressions, as long as they are cached."""
    tree, fields = bind_parts(parse(where.text), where.schema)
    return _split(tree, Binder(fields))


def terms(condition: Condition) -> Iterator[Term]:
    """The terms of a condition."""
    match condition:
        case Term():
            yield condition
        case Joint(items=items):
            for item in items:
                yield from terms(item)
        case Inverse(item=item):
            yield from terms(item)


def _split(node: Node, binder: Binder) -> Condition:
    columns = column_names(node)
    if len(columns) > 1 and isinstance(node, Negation):
        return Inverse(item=_split(node.item, binder))
    if len(columns) > 1 and isinstance(node, Logic):
        alone: dict[frozenset[str], list[Node]] = {}  # items over one column are one term
        items = []
        for item in node.items:
            read = column_names(item)
            if len(read) > 1:
                items.append(_split(item, binder))
            else:
                alone.setdefault(read, []).append(item)
        joined = [
            each[0] if len(each) == 1 else Logic(op=node.op, items=tuple(each), span=node.span)
            for each in alone.values()
        ]
        return Joint(op=node.op, items=(*(_split(item, binder) for item in joined), *items))
    return Term(columns=columns, expr=binder.operand(node).expr)
