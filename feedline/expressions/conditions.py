"""Split a condition into terms that read one column each, as far as its `and`, `or` and `not` allow.

Pure. A term over one column may be evaluated on the column's distinct values; `Joint` says how terms are joined. Only
the rows for which a condition is true matter. So `not` is taken into the terms: `not (a and b)` is true where `a` is
false or `b` is, and a term is true or false for each row, never null. Terms are over a frame of column parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, TypeAlias

import polars as pl

from feedline.dataclass import dataclass
from feedline.expressions.bind import Binder, BoundExpression, bind_parts, parse
from feedline.expressions.nodes import Logic, Negation, Node, column_names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Term:
    """A condition that is evaluated as a whole. columns: that it reads. expr: never null."""

    columns: frozenset[str]
    expr: pl.Expr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joint:
    """All (`and`) or any (`or`) of the items."""

    op: Literal["and", "or"]
    items: tuple[Condition, ...]


Condition: TypeAlias = Term | Joint


@lru_cache(maxsize=64)
def condition_of(where: BoundExpression) -> Condition:
    """The terms of a boolean expression; the same objects for equal expressions, as long as they are cached."""
    tree, fields = bind_parts(parse(where.text), where.schema)
    return _split(tree, Binder(fields))


def terms(condition: Condition) -> Iterator[Term]:
    match condition:
        case Term():
            yield condition
        case Joint(items=items):
            for item in items:
                yield from terms(item)


def _split(node: Node, binder: Binder, truth: bool = True) -> Condition:
    """The condition that a node is true, or that it is false."""
    columns = column_names(node)
    if len(columns) > 1 and isinstance(node, Negation):
        return _split(node.item, binder, not truth)
    if len(columns) > 1 and isinstance(node, Logic):
        alone: dict[frozenset[str], list[Node]] = {}  # items over one column are one term
        items = []
        for item in node.items:
            read = column_names(item)
            if len(read) > 1:
                items.append(_split(item, binder, truth))
            else:
                alone.setdefault(read, []).append(item)
        joined = [
            each[0] if len(each) == 1 else Logic(op=node.op, items=tuple(each), span=node.span)
            for each in alone.values()
        ]
        op: Literal["and", "or"] = "and" if (node.op == "and") is truth else "or"
        return Joint(op=op, items=(*(_split(item, binder, truth) for item in joined), *items))
    expr = binder.operand(node).expr
    return Term(columns=columns, expr=(expr if truth else ~expr).fill_null(False))
