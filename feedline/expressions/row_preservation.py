"""Check that every value of a Polars expression depends on its own row only.

Pure. Polars answers for the root of an expression alone (`meta.is_row_separable` says yes to `x - x.mean()`), so the
whole tree is walked with `meta.pop`: each node must be separable by rows and must preserve the number of rows, or be a
single literal. Polars cannot judge a node above a `list.eval` without a schema: the expression inside sees the elements
of one list only, so each `list.eval` is replaced by `list.drop_nulls`, which also gives one list per row.
"""

from __future__ import annotations

import io
import json
from typing import Any

import polars as pl

_LOOKUPS = ("is_in", "replace", "replace_strict", "search_sorted")
_LIST_EVALUATIONS = {"List", "ListAgg", "Array", "ArrayAgg"}  # over the elements of one row, unlike "Cumulative"


def offending_node(expr: pl.Expr) -> str | None:
    """The first node (in Polars' notation) that mixes, drops or adds rows, or cannot be judged; None without one."""
    if expr.meta.has_multiple_outputs():
        return str(expr)
    node = _walk(expr)
    if isinstance(node, Exception):
        try:
            without_evaluations = _without_list_evaluations(expr)
        except _UnjudgedError as error:
            return error.node
        except pl.exceptions.PolarsError:  # another version of Polars may serialize expressions differently
            return str(expr)
        node = _walk(without_evaluations)
    if isinstance(node, Exception):
        return str(expr)
    if node is None and not expr.meta.root_names():
        return str(expr)  # a literal gives one value, not one per row
    return node


class _UnjudgedError(Exception):
    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


def _walk(expr: pl.Expr) -> str | Exception | None:
    """The offending node; an exception where Polars needs a schema to judge one."""
    todo = [expr]
    while todo:
        node = todo.pop()
        try:
            separable = node.meta.is_row_separable()
            keeps = node.meta.is_length_preserving() or node.meta.is_scalar()
        except pl.exceptions.PolarsError as error:
            return error
        parts = node.meta.pop()
        lookup = _lookup(node, parts)
        if lookup == "search_sorted" and parts[-1].meta.is_literal():
            todo.extend(parts[:-1])
        elif not separable or not keeps or (lookup == "is_in" and parts[0].meta.root_names()):
            return str(node)
        elif lookup is None:
            todo.extend(parts)
        else:
            todo.extend(part for part in parts if not part.meta.is_literal())
    return None


def _lookup(node: pl.Expr, parts: list[pl.Expr]) -> str | None:
    """The name of a node that looks its input up in a table; a literal table may have any number of rows. Polars calls
    `x.is_in(y)` separable although it may ask all rows of y, and a search in a literal inseparable."""
    for name in _LOOKUPS:
        if len(parts) > 1 and str(node).startswith(f"{parts[-1]}.{name}(["):
            return name
    return None


def _without_list_evaluations(expr: pl.Expr) -> pl.Expr:
    def rewrite(node: dict[str, Any]) -> dict[str, Any]:
        if "AnonymousFunction" in node:
            raise _UnjudgedError("python_udf()")
        evaluation = node.get("Eval")
        if evaluation is None:
            return node
        if not set(_names(evaluation["variant"])) <= _LIST_EVALUATIONS:
            raise _UnjudgedError(f"{'_'.join(_names(evaluation['variant'])).lower()}_eval()")
        return {"Function": {**stand_in["Function"], "input": [evaluation["expr"]]}}

    stand_in = json.loads(pl.col("").list.drop_nulls().meta.serialize(format="json"))
    content = json.loads(expr.meta.serialize(format="json"), object_hook=rewrite)
    return pl.Expr.deserialize(io.StringIO(json.dumps(content)), format="json")


def _names(variant: str | dict[str, Any]) -> list[str]:
    """The name of a variant, which Polars serializes as a string or as a map from the name to options."""
    return [variant] if isinstance(variant, str) else list(variant)
