"""Expression text, as in `where` and `expr`, to a Polars expression and the part of it that statistics can judge.

Runs in the process that plans and in every worker: text and schema travel, never a Polars expression, and each
process builds its own (`BoundExpression` pickles as its text). Nothing of the text is ever evaluated as Python or as
SQL.

Two steps. `parse` needs no table: the text is checked, parsed with `ast` and rebuilt from an allow-list
(`expression_tokens`, `expression_syntax`). `bind` types the tree against a schema (`expression_operands`, the
functions' modules), binds literals to the types they meet (`expression_literals`) and yields the Polars expression,
its type, and its predicate. `docs/expressions.md` is the reference of the language.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from feedline.errors import ExpressionError
from feedline.expressions import literals
from feedline.expressions import operators as operands
from feedline.expressions.column_parts import Part, PartError, flattened_column, has_column, part_field, part_of
from feedline.expressions.expression_parts import over_parts
from feedline.expressions.functions.catalogue import FUNCTIONS, METHODS, OPERATOR_METHODS, SIGNATURES
from feedline.expressions.functions.signatures import Argument
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
from feedline.expressions.operators import BOOL, Operand, result
from feedline.expressions.parser import parse_tree
from feedline.expressions.predicates import Comparison, IsNull, Not, Opaque, Predicate, conjunction, disjunction
from feedline.expressions.row_preservation import is_row_preserving, offending_node
from feedline.expressions.tokens import Fault, Span, render
from feedline.expressions.types import (
    BOOLEAN,
    INTEGER,
    LIST,
    MAP,
    MAX_DECIMAL_PRECISION,
    STRING,
    STRUCT,
    column_type,
    describe,
    instance,
    kind,
    nearest,
    quoted,
    spoken,
)

__all__ = ["BoundExpression", "Expression", "bind", "bind_where", "is_row_preserving", "offending_node", "parse"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expression:
    """A parsed text. Equal texts are equal expressions.

    Attributes:
        text: as written.
        columns: the names of the columns that it reads; one at least.
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
        columns: the names of the columns that it reads; one at least.
        schema: the Arrow fields of those columns, in the table's order.
        polars: the expression over a frame that holds them as `pl.from_arrow` gives them; row-preserving.
        parts: the same columns, but by their parts (see `projection`) where only parts of them are used.
        narrow: the expression over a frame that holds those (see `extraction.project`).
        dtype: the type of the result.
        predicate: what statistics can judge of a boolean expression, `Opaque` for any other.
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
    """The expression of a text.

    Raises:
        ExpressionError: where the text is not of the language; the message shows the place.
    """
    if not isinstance(text, str):
        raise ExpressionError(f"an expression is a text: got {type(text).__name__}")
    try:
        tree = parse_tree(text)
        columns = _columns(tree, Span(0, len(text)))
    except Fault as fault:
        raise ExpressionError(render(text, fault)) from None
    return Expression(text=text, columns=columns, tree=tree)


def bind(expression: Expression, schema: pa.Schema) -> BoundExpression:
    """The expression over the columns of a schema.

    Raises:
        ExpressionError: for a column that the schema does not have, and for types that do not fit; the message shows
            the place.
    """
    try:
        operand = _Binder(schema).operand(expression.tree)
    except Fault as fault:
        raise ExpressionError(render(expression.text, fault)) from None
    named = {name for name in expression.columns if has_column(schema, name)}
    columns = operand.columns.union(named)
    places = sorted(place for name in columns for place in schema.get_all_field_indices(name))
    used = pa.schema([schema.field(place) for place in places])
    _check_polars(expression.text, operand, used)
    parts, narrow = _narrowed(expression, schema, operand)
    return BoundExpression(
        text=expression.text,
        columns=columns,
        schema=used,
        polars=operand.expr,
        parts=parts,
        narrow=narrow,
        dtype=operand.dtype,
        predicate=operand.predicate or Opaque(columns=operand.columns),
    )


def bind_where(text: str, schema: pa.Schema) -> BoundExpression:
    """A condition on rows: a text parsed, bound, and known to be boolean.

    Raises:
        ExpressionError: as `parse` and `bind`, and where the result is no boolean.
    """
    bound = bind(parse(text), schema)
    if bound.dtype != BOOL:
        message = f"a condition is boolean: got {describe(bound.dtype)}. Compare it, as in `x > 0`"
        raise ExpressionError(render(text, Fault(message, Span(0, len(text)))))
    return bound


def _rebind(text: str, schema: pa.Schema) -> BoundExpression:
    return bind(parse(text), schema)


def _narrowed(expression: Expression, schema: pa.Schema, whole: Operand) -> tuple[frozenset[str], pl.Expr]:
    """The parts of columns that it reads, and the expression over them, bound as if each were a column."""
    tree, parts = over_parts(expression.tree, schema)
    if all(has_column(schema, name) for name in parts):
        return parts, whole.expr
    fields = [schema.field(name) if has_column(schema, name) else _part(schema, name) for name in sorted(parts)]
    narrow = _Binder(pa.schema(fields)).operand(tree)
    assert narrow.dtype == whole.dtype
    _check_polars(expression.text, narrow, pa.schema(fields))
    return parts, narrow.expr


def _part(schema: pa.Schema, name: str) -> pa.Field:
    part = part_of(name)
    assert part is not None
    return part_field(schema, part)


def _check_polars(text: str, operand: Operand, schema: pa.Schema) -> None:
    """Polars agrees with the type that the rules of the language gave, before any data are read."""
    try:
        frame = pl.from_arrow(schema.empty_table())
        assert isinstance(frame, pl.DataFrame)
        dtype = frame.lazy().select(operand.expr.alias("result")).collect_schema()["result"]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ExpressionError(f"Polars refuses the expression: {error}\n  {text}") from error
    if dtype != operand.dtype:
        raise ExpressionError(f"Polars gives {dtype}, the language {operand.dtype}: a fault of Feedline\n  {text}")


def _columns(tree: Node, whole: Span) -> frozenset[str]:
    found: set[str] = set()
    todo: list[Node | tuple[Constant, ...]] = [tree]
    while todo:
        match todo.pop():
            case Column(name=name):
                found.add(name)
            case Field(item=item) | Negative(item=item) | Member(item=item) | NullTest(item=item) | Negation(item=item):
                todo.append(item)
            case Arithmetic(left=left, right=right) | Compare(left=left, right=right):
                todo.extend((left, right))
            case Logic(items=items):
                todo.extend(items)
            case Call(arguments=arguments, keywords=keywords):
                todo.extend((*arguments, *keywords.values()))
    if not found:
        raise Fault("the expression names no column: its value would be the same in every row", whole)
    return frozenset(found)


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


class _Binder:
    """Types a tree against a schema, from the leaves up."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._known: dict[str, Operand] = {}

    def operand(self, node: Node) -> Operand:
        """The node as a typed expression; a literal alone is none."""
        side = self._side(node)
        if isinstance(side, Constant):
            raise Fault("a literal cannot stand here alone: expected a column or an expression of one", side.span)
        return side

    def _side(self, node: Node) -> Operand | Constant:
        match node:
            case Constant():
                return node
            case Column():
                return self._column(node)
            case Field():
                return self._field(node)
            case Negative(item=item):
                return operands.negative(self.operand(item), node.span)
            case Arithmetic(op=op, left=left, right=right):
                return operands.arithmetic(op, self._side(left), self._side(right), node.span)
            case Compare(op=op, left=left, right=right):
                return operands.compare(op, self._side(left), self._side(right), node.span)
            case Member(item=item, values=values):
                return operands.member(self.operand(item), values, node.span)
            case NullTest(item=item):
                return self._null_test(self.operand(item), node.span)
            case Negation(item=item):
                inner = self._condition(item)
                made = result(~inner.expr, BOOL, node.span, [inner])
                return replace(made, predicate=Not(item=_predicate(inner)))
            case Logic():
                return self._logic(node)
            case Call():
                return self._call(node)

    def _column(self, node: Column) -> Operand:
        known = self._known.get(node.name)
        if known is None:
            known = self._known[node.name] = self._new_column(node)
        return replace(known, span=node.span)

    def _new_column(self, node: Column) -> Operand:
        name = node.name
        places = self._schema.get_all_field_indices(name)
        if not places:
            names = self._schema.names
            meant = _CONSTANTS.get(name.lower())
            remedy = f": write `{meant}`" if meant else nearest(name, names) or _sample(names)
            raise Fault(f"unknown column {quoted(name)}{remedy}", node.span)
        if len(places) > 1:
            raise Fault(f"the table has {len(places)} columns {quoted(name)}", node.span)
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise Fault(f"the column {quoted(name)} is named like a pattern of Polars: rename it to use it", node.span)
        field = self._schema.field(places[0])
        dtype = column_type(field)
        if dtype is None or (isinstance(dtype, pl.Decimal) and (dtype.precision or 0) > MAX_DECIMAL_PRECISION):
            raise Fault(f"the column {quoted(name)} has a type outside the language: {field.type}", node.span)
        return _spoken(
            pl.col(name), dtype, node.span, frozenset({name}), None if pa.types.is_date64(field.type) else name
        )

    def _field(self, node: Field) -> Operand:
        part = Part(node.item.name, (_key(node),)) if isinstance(node.item, Column) else None
        flattened = flattened_column(self._schema, part) if part is not None else None
        if part is not None and flattened is not None and not has_column(self._schema, part.column):
            return self._column(Column(name=flattened, span=node.span))
        item, key = self.operand(node.item), node.key
        if item.kind == STRUCT and isinstance(key.value, str):
            assert isinstance(item.dtype, pl.Struct)
            types = dict(item.dtype.to_schema())
            if key.value not in types:
                near = nearest(key.value, types) or _sample(list(types))
                raise Fault(f"the struct has no field {quoted(key.value)}{near}", key.span)
            dtype = instance(types[key.value])
            expr = item.expr.struct.field(key.value)
        elif item.kind == MAP:
            assert isinstance(item.dtype, pl.Map)
            key_type, dtype = instance(item.dtype.key), instance(item.dtype.value)
            if kind(key_type) not in (STRING, INTEGER):
                raise Fault(f"a map's key is a text or an integer: got {describe(item.dtype)}", item.span)
            expr = item.expr.map.get(literals.literal(literals.value_of(key, key_type), key_type))
            if part is not None and flattened is not None:
                expr, dtype = self._coalesced(part, flattened, expr, node.span)
                item = replace(item, columns=item.columns | {flattened}, size=item.size + 3)
        else:
            remedy = {LIST: ". Write `.list.get(position)`", STRING: ". Write `.str.slice(start, length)`"}
            expected = "a text as key" if item.kind == STRUCT else "a struct or a map"
            got = f"{describe(item.dtype)}{remedy.get(item.kind, '')}"
            raise Fault(
                f"`[...]` reads a field of a struct or a key of a map: expected {expected}, got {got}", node.span
            )
        made = _spoken(expr, dtype, node.span, item.columns, None)
        return replace(made, size=item.size + made.size + 1)

    def _coalesced(self, part: Part, flattened: str, expr: pl.Expr, span: Span) -> tuple[pl.Expr, pl.DataType]:
        """The value at a map's key, of which the table has a column as well."""
        try:
            dtype = column_type(part_field(self._schema, part))
        except PartError as error:
            raise Fault(str(error), span) from None
        assert dtype is not None
        return pl.coalesce([pl.col(flattened).cast(dtype), expr.cast(dtype)]), dtype

    def _null_test(self, item: Operand, span: Span) -> Operand:
        made = result(item.expr.is_null(), BOOL, span, [item])
        if item.column is None or item.kind in (LIST, STRUCT, MAP):  # statistics count the nulls of leaves
            return made
        return replace(made, predicate=IsNull(column=item.column))

    def _condition(self, node: Node) -> Operand:
        side = self._side(node)
        if isinstance(side, Operand) and side.kind == BOOLEAN:
            return side
        got = f"the literal {side.value!r}" if isinstance(side, Constant) else describe(side.dtype)
        raise Fault(f"a condition is boolean: got {got[:80]}. Compare it, as in `x > 0`", side.span)

    def _logic(self, node: Logic) -> Operand:
        items = [self._condition(item) for item in node.items]
        expressions = [item.expr for item in items]
        while len(expressions) > 1:  # joined in pairs, so that a thousand conditions are ten levels deep
            pairs = [expressions[i : i + 2] for i in range(0, len(expressions), 2)]
            expressions = [_join(node.op, pair) for pair in pairs]
        made = result(expressions[0], BOOL, node.span, items, extra=len(items))
        join = conjunction if node.op == "and" else disjunction
        return replace(made, predicate=join(_predicate(item) for item in items))

    def _call(self, node: Call) -> Operand:
        if node.name in OPERATOR_METHODS:
            return self.operand(_as_operator(node))
        function = METHODS.get(node.name) or FUNCTIONS[node.name]
        arguments = [self._argument(argument) for argument in node.arguments]
        keywords = {name: self._argument(argument) for name, argument in node.keywords.items()}
        return function.apply(arguments, keywords, node.span)

    def _argument(self, argument: Node | tuple[Constant, ...]) -> Argument:
        return argument if isinstance(argument, tuple) else self._side(argument)


def _spoken(expr: pl.Expr, dtype: pl.DataType, span: Span, columns: frozenset[str], column: str | None) -> Operand:
    """A column or field in the type that the language sees; `column` names one that statistics know in that type."""
    seen = spoken(dtype)
    if seen != dtype:
        expr = expr.arr.to_list() if isinstance(dtype, pl.Array) else expr.cast(seen)
    predicate: Predicate | None = None
    if seen == BOOL:
        predicate = Opaque(columns=columns) if column is None else Comparison(column=column, op="==", value=True)
    return Operand(expr=expr, dtype=seen, span=span, columns=columns, size=2, column=column, predicate=predicate)


def _key(node: Field) -> str | int:
    assert isinstance(node.key.value, str | int)
    return node.key.value


def _join(op: str, pair: list[pl.Expr]) -> pl.Expr:
    if len(pair) == 1:
        return pair[0]
    return pair[0] & pair[1] if op == "and" else pair[0] | pair[1]


def _predicate(item: Operand) -> Predicate:
    return item.predicate or Opaque(columns=item.columns)


def _sample(names: list[str]) -> str:
    shown = ", ".join(quoted(name) for name in names[:8])
    return f": expected one of {shown}{', ...' if len(names) > 8 else ''}"


def _as_operator(node: Call) -> Node:
    """`x.is_in([...])` and its like as the operators that they are another name for."""
    usage = SIGNATURES[node.name]
    first, *rest = node.arguments or (None,)
    if first is None or isinstance(first, tuple) or node.keywords:
        raise Fault(f"expected `{usage}`, which is `{OPERATOR_METHODS[node.name]}`", node.span)
    match node.name, rest:
        case "is_null", []:
            return NullTest(item=first, span=node.span)
        case "is_not_null", []:
            return Negation(item=NullTest(item=first, span=node.span), span=node.span)
        case "is_in", [tuple(values)]:
            return Member(item=first, values=values, span=node.span)
        case "is_between", [lower, upper] if not isinstance(lower, tuple) and not isinstance(upper, tuple):
            above = Compare(op=">=", left=first, right=lower, span=node.span)
            below = Compare(op="<=", left=first, right=upper, span=node.span)
            return Logic(op="and", items=(above, below), span=node.span)
    raise Fault(f"expected `{usage}`, which is `{OPERATOR_METHODS[node.name]}`", node.span)
