"""Parse expression text, as in `where` and `expr`, and bind it to a schema: a Polars expression and its predicate.

Text and schema travel between processes, never a Polars expression (`BoundExpression` pickles as its text). The text is
never evaluated as Python or as SQL: `parse` rebuilds it from an allow-list (`syntax`, `parser`); `bind_expression`
types the tree against a schema (`binder`, `operators`, `functions`) and binds literals to the types they meet
(`literals`). The reference of the language is `docs/expressions.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from feedline.errors import ExpressionError
from feedline.expressions.binder import Binder
from feedline.expressions.column_parts import has_column, over_parts, part_field, part_of
from feedline.expressions.nodes import Node, column_names
from feedline.expressions.operators import BOOL, Operand
from feedline.expressions.parser import parse_tree
from feedline.expressions.predicates import Opaque, Predicate
from feedline.expressions.row_preservation import is_row_preserving, offending_node
from feedline.expressions.spans import Fault, Span, render
from feedline.expressions.types import type_name

__all__ = [
    "BoundExpression",
    "Expression",
    "bind_expression",
    "bind_where",
    "is_row_preserving",
    "offending_node",
    "parse",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expression:
    """A parsed expression. Equal texts are equal expressions.

    Attributes:
        text: as written.
        columns: the names of the columns that it reads; at least one.
        tree: its nodes.
    """

    text: str
    columns: frozenset[str]
    tree: Node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundExpression:
    """An expression over the columns of one schema. Equal texts over equal columns are equal.

    Attributes:
        text: as written.
        columns: the names of the columns that it reads; at least one.
        schema: the Arrow fields of those columns, in the table's order.
        polars: the row-preserving expression over a frame of them, as `pl.from_arrow` converts them.
        parts: the same columns, as column parts (see `column_parts`) where only parts of them are used.
        narrow: the expression over a frame of `parts` (see `extraction.project`).
        dtype: the type of the result.
        predicate: the condition that statistics can judge; `Opaque` where the expression is not boolean.
    """

    text: str
    columns: frozenset[str]
    schema: pa.Schema
    polars: pl.Expr
    parts: frozenset[str]
    narrow: pl.Expr
    dtype: pl.DataType
    predicate: Predicate

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundExpression) and self.text == other.text and self.schema.equals(other.schema)

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebind, (self.text, self.schema)


def parse(text: str) -> Expression:
    """Parse an expression's text. Raises ExpressionError where the text is not of the language; the message shows the
    position."""
    if not isinstance(text, str):
        raise ExpressionError(f"an expression must be a string: got {type(text).__name__}")
    try:
        tree = parse_tree(text)
        columns = _columns(tree, Span(0, len(text)))
    except Fault as fault:
        raise ExpressionError(render(text, fault)) from None
    return Expression(text=text, columns=columns, tree=tree)


def bind_expression(expression: Expression, schema: pa.Schema) -> BoundExpression:
    """Bind an expression to the columns of a schema. Raises ExpressionError for a column that the schema lacks, and for
    types that do not fit; the message shows the position."""
    try:
        operand = Binder(schema).operand(expression.tree)
    except Fault as fault:
        raise ExpressionError(render(expression.text, fault)) from None
    present = {name for name in expression.columns if has_column(schema, name)}
    columns = operand.columns.union(present)
    indices = sorted(index for name in columns for index in schema.get_all_field_indices(name))
    fields = pa.schema([schema.field(index) for index in indices])
    _check_polars(expression.text, operand, fields)
    parts, narrow = _narrow(expression, schema, operand)
    return BoundExpression(
        text=expression.text,
        columns=columns,
        schema=fields,
        polars=operand.expr,
        parts=parts,
        narrow=narrow,
        dtype=operand.dtype,
        predicate=operand.predicate or Opaque(columns=operand.columns),
    )


def bind_where(text: str, schema: pa.Schema) -> BoundExpression:
    """Parse and bind a condition on rows.

    Raises:
        ExpressionError: as `parse` and `bind`, and where the result is not boolean.
    """
    bound = bind_expression(parse(text), schema)
    if bound.dtype != BOOL:
        message = f"a condition must be boolean: got {type_name(bound.dtype)}. Compare it, as in `x > 0`"
        raise ExpressionError(render(text, Fault(message, Span(0, len(text)))))
    return bound


def _rebind(text: str, schema: pa.Schema) -> BoundExpression:
    return bind_expression(parse(text), schema)


def _narrow(expression: Expression, schema: pa.Schema, whole: Operand) -> tuple[frozenset[str], pl.Expr]:
    """The column parts that it reads, and the expression over them, bound as if each were a column."""
    tree, fields = bind_parts(expression, schema)
    if all(has_column(schema, name) for name in fields.names):
        return frozenset(fields.names), whole.expr
    narrow = Binder(fields).operand(tree)
    assert narrow.dtype == whole.dtype
    _check_polars(expression.text, narrow, fields)
    return frozenset(fields.names), narrow.expr


def bind_parts(expression: Expression, schema: pa.Schema) -> tuple[Node, pa.Schema]:
    """The tree over column parts as if each were a column, and the fields of these."""
    tree, parts = over_parts(expression.tree, schema)
    fields = [schema.field(name) if has_column(schema, name) else _part_field(schema, name) for name in sorted(parts)]
    return tree, pa.schema(fields)


def _part_field(schema: pa.Schema, name: str) -> pa.Field:
    part = part_of(name)
    assert part is not None
    return part_field(schema, part)


def _check_polars(text: str, operand: Operand, schema: pa.Schema) -> None:
    """Check, before any data is read, that Polars gives the type that the rules of the language give."""
    try:
        frame = pl.DataFrame(schema.empty_table())
        dtype = frame.lazy().select(operand.expr.alias("result")).collect_schema()["result"]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ExpressionError(f"Polars refuses the expression: {error}\n  {text}") from error
    if dtype != operand.dtype:
        raise ExpressionError(f"Polars gives {dtype}, the language {operand.dtype}: a bug in Feedline\n  {text}")


def _columns(tree: Node, whole: Span) -> frozenset[str]:
    names = column_names(tree)
    if not names:
        raise Fault("the expression names no column: its value would be the same in every row", whole)
    return names
