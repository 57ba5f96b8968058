"""Parse expression text, as in `where` and `expr`, and bind it to a schema: a Polars expression and its predicate.

Text and schema travel between processes, never a Polars expression (`BoundExpression` pickles as its text). The text is
never evaluated as Python or as SQL: `parse` rebuilds it from an allow-list (`syntax`, `parser`); `bind_expression`
types the tree against a schema (`binder`, `operators`, `functions`) and binds literals to the types they meet
(`literals`). The reference of the language is `docs/expressions.md`.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import ExpressionError
from feedline.expressions import literals, nodes, operators
from feedline.expressions.column_parts import (
    ColumnPart,
    PartError,
    flattened_column,
    has_column,
    over_parts,
    part_field,
    part_of,
)
from feedline.expressions.nodes import Fault, Node, Span, column_names, render
from feedline.expressions.operators import BOOL, Operand, result
from feedline.expressions.parser import parse_tree
from feedline.expressions.predicates import Comparison, IsNull, Not, Opaque, Predicate, conjunction, disjunction
from feedline.expressions.reference import FUNCTIONS, METHODS, OPERATOR_METHODS, SIGNATURES
from feedline.expressions.signatures import Argument
from feedline.expressions.types import (
    BOOLEAN,
    INTEGER,
    LIST,
    MAP,
    STRING,
    STRUCT,
    column_type,
    instance,
    kind,
    language_type,
    nearest,
    quote_name,
    type_name,
    unknown_type_hint,
)

# --------------------------------------------------------------------------------------------------------------------
# Type a tree against a schema, from the leaves up: nodes become operands, which hold Polars expressions.

_CONSTANTS = {
    "null": "is None",
    "none": "is None",
    "nil": "is None",
    "na": "is None",
    "nan": "x.is_nan()",
    "inf": "x.is_infinite()",
    "true": "True",
    "false": "False",
}


class Binder:
    """Types a tree against a schema, from the leaves up."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._operands: dict[str, Operand] = {}

    def operand(self, node: nodes.Node) -> Operand:
        """The node as a typed expression. Raises Fault for a literal alone."""
        side = self._side(node)
        if isinstance(side, nodes.Constant):
            raise Fault("a literal alone is not an expression: expected a column or an expression of one", side.span)
        return side

    def _side(self, node: nodes.Node) -> Operand | nodes.Constant:
        match node:
            case nodes.Constant():
                return node
            case nodes.ColumnRef():
                return self._column(node)
            case nodes.Field():
                return self._field(node)
            case nodes.Negative(item=item):
                return operators.negative(self.operand(item), node.span)
            case nodes.Arithmetic(op=op, left=left, right=right):
                return operators.arithmetic(op, self._side(left), self._side(right), node.span)
            case nodes.Compare(op=op, left=left, right=right):
                return operators.compare_operands(op, self._side(left), self._side(right), node.span)
            case nodes.Member(item=item, values=values):
                return operators.member(self.operand(item), values, node.span)
            case nodes.NullTest(item=item):
                return self._null_test(self.operand(item), node.span)
            case nodes.Negation(item=item):
                inner = self._condition(item)
                operand = result(~inner.expr, BOOL, node.span, [inner])
                return replace(operand, predicate=Not(item=_predicate(inner)))
            case nodes.Logic():
                return self._logic(node)
            case nodes.Call():
                return self._call(node)

    def _column(self, node: nodes.ColumnRef) -> Operand:
        operand = self._operands.get(node.name)
        if operand is None:
            operand = self._operands[node.name] = self._new_column(node)
        return replace(operand, span=node.span)

    def _new_column(self, node: nodes.ColumnRef) -> Operand:
        name = node.name
        indices = self._schema.get_all_field_indices(name)
        if not indices:
            names = self._schema.names
            constant = _CONSTANTS.get(name.lower())
            remedy = f": write `{constant}`" if constant else nearest(name, names) or _sample(names)
            raise Fault(f"unknown column {quote_name(name)}{remedy}", node.span)
        if len(indices) > 1:
            raise Fault(f"the table has {len(indices)} columns {quote_name(name)}", node.span)
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise Fault(
                f"the column {quote_name(name)} is named like a pattern of Polars: rename it to use it", node.span
            )
        field = self._schema.field(indices[0])
        dtype = column_type(field)
        if dtype is None:
            hint = unknown_type_hint(field.type)
            raise Fault(f"the column {quote_name(name)} has a type outside the language: {field.type}{hint}", node.span)
        return _column_operand(
            pl.col(name), dtype, node.span, frozenset({name}), None if pa.types.is_date64(field.type) else name
        )

    def _field(self, node: nodes.Field) -> Operand:
        part = ColumnPart(node.item.name, (_key(node),)) if isinstance(node.item, nodes.ColumnRef) else None
        flattened = flattened_column(self._schema, part) if part is not None else None
        if part is not None and flattened is not None and not has_column(self._schema, part.column):
            return self._column(nodes.ColumnRef(name=flattened, span=node.span))
        item, key = self.operand(node.item), node.key
        if item.kind == STRUCT and isinstance(key.value, str):
            assert isinstance(item.dtype, pl.Struct)
            types = dict(item.dtype.to_schema())
            if key.value not in types:
                near = nearest(key.value, types) or _sample(list(types))
                raise Fault(f"the struct has no field {quote_name(key.value)}{near}", key.span)
            dtype = instance(types[key.value])
            expr = item.expr.struct.field(key.value)
        elif item.kind == MAP:
            assert isinstance(item.dtype, pl.Map)
            key_type, dtype = instance(item.dtype.key), instance(item.dtype.value)
            if kind(key_type) not in (STRING, INTEGER):
                raise Fault(f"a map's key must be a string or an integer: got {type_name(item.dtype)}", item.span)
            expr = item.expr.map.get(literals.literal(literals.value_of(key, key_type), key_type))
            if part is not None and flattened is not None:
                expr, dtype = self._coalesce(part, flattened, expr, node.span)
                item = replace(item, columns=item.columns | {flattened}, size=item.size + 3)
        else:
            remedy = {LIST: ". Write `.list.get(position)`", STRING: ". Write `.str.slice(start, length)`"}
            expected = "a string as key" if item.kind == STRUCT else "a struct or a map"
            got = f"{type_name(item.dtype)}{remedy.get(item.kind, '')}"
            raise Fault(
                f"`[...]` reads a field of a struct or a key of a map: expected {expected}, got {got}", node.span
            )
        operand = _column_operand(expr, dtype, node.span, item.columns, None)
        return replace(operand, size=item.size + operand.size + 1)

    def _coalesce(self, part: ColumnPart, flattened: str, expr: pl.Expr, span: Span) -> tuple[pl.Expr, pl.DataType]:
        try:
            dtype = column_type(part_field(self._schema, part))
        except PartError as error:
            raise Fault(str(error), span) from None
        assert dtype is not None
        return pl.coalesce([pl.col(flattened).cast(dtype), expr.cast(dtype)]), dtype

    def _null_test(self, item: Operand, span: Span) -> Operand:
        operand = result(item.expr.is_null(), BOOL, span, [item])
        if item.column is None or item.kind in (LIST, STRUCT, MAP):  # statistics count the nulls of leaf columns only
            return operand
        return replace(operand, predicate=IsNull(column=item.column))

    def _condition(self, node: nodes.Node) -> Operand:
        side = self._side(node)
        if isinstance(side, Operand) and side.kind == BOOLEAN:
            return side
        got = f"the literal {side.value!r}" if isinstance(side, nodes.Constant) else type_name(side.dtype)
        raise Fault(f"a condition must be boolean: got {got[:80]}. Compare it, as in `x > 0`", side.span)

    def _logic(self, node: nodes.Logic) -> Operand:
        items = [self._condition(item) for item in node.items]
        expressions = [item.expr for item in items]
        # [a, b, c] -> [a & b, c] -> [(a & b) & c]: in pairs, so that a thousand conditions are only ten levels deep
        while len(expressions) > 1:
            pairs = [expressions[i : i + 2] for i in range(0, len(expressions), 2)]
            expressions = [_join(node.op, pair) for pair in pairs]
        operand = result(expressions[0], BOOL, node.span, items, extra=len(items))
        join = conjunction if node.op == "and" else disjunction
        return replace(operand, predicate=join(_predicate(item) for item in items))

    def _call(self, node: nodes.Call) -> Operand:
        if node.name in OPERATOR_METHODS:
            return self.operand(_as_operator(node))
        function = METHODS.get(node.name) or FUNCTIONS[node.name]
        arguments = [self._argument(argument) for argument in node.arguments]
        keywords = {name: self._argument(argument) for name, argument in node.keywords.items()}
        return function.apply(arguments, keywords, node.span)

    def _argument(self, argument: nodes.Node | tuple[nodes.Constant, ...]) -> Argument:
        return argument if isinstance(argument, tuple) else self._side(argument)


def _column_operand(
    expr: pl.Expr, dtype: pl.DataType, span: Span, columns: frozenset[str], column: str | None
) -> Operand:
    """A column or field in its language type; `column`: its name, where statistics describe it in that type."""
    visible_type = language_type(dtype)
    if visible_type != dtype:
        expr = expr.arr.to_list() if isinstance(dtype, pl.Array) else expr.cast(visible_type)
    predicate: Predicate | None = None
    if visible_type == BOOL:
        predicate = Opaque(columns=columns) if column is None else Comparison(column=column, op="==", value=True)
    return Operand(
        expr=expr, dtype=visible_type, span=span, columns=columns, size=2, column=column, predicate=predicate
    )


def _key(node: nodes.Field) -> str | int:
    assert isinstance(node.key.value, str | int)
    return node.key.value


def _join(op: str, pair: list[pl.Expr]) -> pl.Expr:
    if len(pair) == 1:
        return pair[0]
    return pair[0] & pair[1] if op == "and" else pair[0] | pair[1]


def _predicate(item: Operand) -> Predicate:
    return item.predicate or Opaque(columns=item.columns)


def _sample(names: list[str]) -> str:
    shown = ", ".join(quote_name(name) for name in names[:8])
    return f": expected one of {shown}{', ...' if len(names) > 8 else ''}"


def _as_operator(node: nodes.Call) -> nodes.Node:
    """`x.is_in([...])` and the other operator methods as their operators."""
    usage = SIGNATURES[node.name]
    first, *rest = node.arguments or (None,)
    if first is None or isinstance(first, tuple) or node.keywords:
        raise Fault(f"expected `{usage}`, which is `{OPERATOR_METHODS[node.name]}`", node.span)
    match node.name, rest:
        case "is_null", []:
            return nodes.NullTest(item=first, span=node.span)
        case "is_not_null", []:
            return nodes.Negation(item=nodes.NullTest(item=first, span=node.span), span=node.span)
        case "is_in", [tuple(values)]:
            return nodes.Member(item=first, values=values, span=node.span)
        case "is_between", [lower, upper] if not isinstance(lower, tuple) and not isinstance(upper, tuple):
            above = nodes.Compare(op=">=", left=first, right=lower, span=node.span)
            below = nodes.Compare(op="<=", left=first, right=upper, span=node.span)
            return nodes.Logic(op="and", items=(above, below), span=node.span)
    raise Fault(f"expected `{usage}`, which is `{OPERATOR_METHODS[node.name]}`", node.span)


# --------------------------------------------------------------------------------------------------------------------

__all__ = [
    "BoundExpression",
    "Expression",
    "bind_expression",
    "bind_where",
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
    except Fault as fault:
        raise ExpressionError(render(text, fault)) from None
    columns = column_names(tree)
    if not columns:
        message = "the expression names no column: its value would be the same in every row"
        raise ExpressionError(render(text, Fault(message, Span(0, len(text)))))
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
