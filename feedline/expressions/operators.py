"""Apply operators to typed operands: widening, arithmetic, comparisons, the common type of several values.

Pure: from operands to operands, each a Polars expression with its type. The rules:

- integers widen to int64 and floats to float64 before anything is computed. Functions that only *choose* a value
  (`fill_null`, `clip`, `when` ...) keep float32;
- uint64 does not fit int64: `//` and `%` work in uint64, `+ - *` require a cast;
- decimals compute as float64 and compare exactly;
- two columns are compared in a type that holds both; NaN fails every comparison but `!=`.

An operand counts the nodes of its expression: a rule that uses an operand twice doubles it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import polars as pl

from feedline.dataclass import dataclass
from feedline.expressions import literals
from feedline.expressions.literals import LiteralComparison
from feedline.expressions.nodes import ArithmeticOperator, Constant, Fault, Span
from feedline.expressions.predicates import (
    Comparison,
    Membership,
    Opaque,
    Operator,
    Predicate,
    conjunction,
    disjunction,
)
from feedline.expressions.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT,
    INTEGER,
    LIST,
    MAX_DECIMAL_PRECISION,
    NULL,
    NUMBERS,
    STRING,
    TIMESTAMP,
    kind,
    type_name,
)

MAX_SIZE = 60_000  # nodes of the Polars expression; 60,000 plan in about 0.3 s
MAX_EXPONENT = 1024
INT64 = pl.Int64()
UINT64 = pl.UInt64()
FLOAT64 = pl.Float64()
BOOL = pl.Boolean()
_NANOSECONDS: dict[Literal["ms", "us", "ns"], int] = {"ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operand:
    """A typed expression. `column`: the name, if it is an unchanged column; booleans carry their predicate."""

    expr: pl.Expr
    dtype: pl.DataType
    span: Span
    columns: frozenset[str]
    size: int = 1
    column: str | None = None
    predicate: Predicate | None = None

    @property
    def kind(self) -> str:
        return kind(self.dtype)

    def widen(self) -> Operand:
        """An integer as int64 (uint64 stays), a float or decimal as float64, anything else unchanged."""
        if self.kind == INTEGER and self.dtype != UINT64:
            return self.cast(INT64)
        return self.cast(FLOAT64) if self.kind in (FLOAT, DECIMAL) else self

    def cast(self, dtype: pl.DataType) -> Operand:
        """The same values in a wider type."""
        if self.dtype == dtype:
            return self
        return replace(self, expr=self.expr.cast(dtype), dtype=dtype, size=self.size + 1, column=None)


def result(expr: pl.Expr, dtype: pl.DataType, span: Span, parts: Sequence[Operand], *, extra: int = 1) -> Operand:
    """An operand computed from others; `parts` lists each as often as the expression uses it. Raises Fault where the
    expression grows beyond `MAX_SIZE`."""
    size = sum(part.size for part in parts) + extra
    if size > MAX_SIZE:
        raise Fault(f"the expression grows too large: more than {MAX_SIZE:,} operations", span)
    columns = frozenset().union(*(part.columns for part in parts))
    predicate = Opaque(columns=columns) if dtype == BOOL else None
    return Operand(expr=expr, dtype=dtype, span=span, columns=columns, size=size, predicate=predicate)


# --- arithmetic ---------------------------------------------------------------------------------------------

ARITHMETIC: dict[ArithmeticOperator, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def negative(item: Operand, span: Span) -> Operand:
    """`-item`, in int64 or float64."""
    if item.kind not in NUMBERS or item.dtype == UINT64:
        raise Fault(f"`-` needs a signed number: got {type_name(item.dtype)}{_number_remedy(item)}", item.span)
    wide = item.widen()
    return result(-wide.expr, wide.dtype, span, [wide])


def arithmetic(op: ArithmeticOperator, left: Operand | Constant, right: Operand | Constant, span: Span) -> Operand:
    """`left op right`; at least one of them an operand."""
    sides = (left, right)
    parts = [side for side in sides if isinstance(side, Operand)]
    kinds = {part.kind for part in parts}
    if op == "+" and kinds == {STRING}:
        return _compute(op, [_as(side, pl.String()) for side in sides], pl.String(), span, parts)
    if op == "-" and len(parts) == 2 and kinds in ({DATE}, {TIMESTAMP}):
        return _elapsed_time(*parts, span=span)
    for part in parts:
        if part.kind not in NUMBERS:
            raise Fault(f"`{op}` needs numbers: got {type_name(part.dtype)}{_number_remedy(part)}", part.span)
    for side in sides:
        if isinstance(side, Constant) and (isinstance(side.value, bool) or not isinstance(side.value, int | float)):
            raise Fault(f"`{op}` needs numbers: got {side.value!r}", side.span)
    if isinstance(right, Constant):
        _check_right(op, right)
    dtype = _arithmetic_type(op, sides, span)
    return _compute(op, [_as(side, dtype) for side in sides], dtype, span, parts)


def _check_right(op: str, right: Constant) -> None:
    if op in ("/", "//", "%") and right.value == 0:
        raise Fault(f"`{op}` by the literal zero", right.span)
    if op == "**" and isinstance(right.value, int | float) and abs(right.value) > MAX_EXPONENT:
        raise Fault(f"the exponent is too large: got {right.value}, expected at most {MAX_EXPONENT}", right.span)


def _arithmetic_type(op: str, sides: Iterable[Operand | Constant], span: Span) -> pl.DataType:
    # int8 + uint8 -> int64, int8 + 0.5 -> float64, uint64 // 2 -> uint64; uint64 + 1 is refused
    dtypes = [side.dtype if isinstance(side, Operand) else side.value for side in sides]
    if op in ("/", "**") or any(isinstance(dtype, float) or _is_float(dtype) for dtype in dtypes):
        return FLOAT64
    if UINT64 not in [dtype for dtype in dtypes if isinstance(dtype, pl.DataType)]:
        return INT64
    fits = all(dtype >= 0 if isinstance(dtype, int) else dtype == UINT64 for dtype in dtypes)
    if op in ("//", "%") and fits:
        return UINT64
    raise Fault(f'uint64 has no `{op}` here: cast it first, as in `x.cast("int64")` or `x.cast("float64")`', span)


def _is_float(dtype: object) -> bool:
    return isinstance(dtype, pl.DataType) and kind(dtype) in (FLOAT, DECIMAL)


def _as(side: Operand | Constant, dtype: pl.DataType) -> pl.Expr:
    """The side as an expression of exactly that type."""
    if isinstance(side, Operand):
        return side.cast(dtype).expr
    return literals.literal(literals.value_of(side, dtype), dtype)


def _compute(
    op: ArithmeticOperator, sides: Sequence[pl.Expr], dtype: pl.DataType, span: Span, parts: Sequence[Operand]
) -> Operand:
    return result(ARITHMETIC[op](*sides), dtype, span, parts, extra=4)


def _elapsed_time(left: Operand, right: Operand, *, span: Span) -> Operand:
    """The duration between two dates or timestamps, in the finer of their units."""
    if left.kind == DATE:
        return result(left.expr - right.expr, pl.Duration("us"), span, [left, right])
    clocks = _clocks(left, right, span)
    unit = min((clock.time_unit for clock in clocks), key=lambda unit: _NANOSECONDS[unit])
    sides = [side.cast(pl.Datetime(unit, clock.time_zone)) for side, clock in zip((left, right), clocks, strict=True)]
    expressions = [_in_utc(side) for side in sides]
    return result(expressions[0] - expressions[1], pl.Duration(unit), span, sides, extra=3)


def _number_remedy(item: Operand) -> str:
    remedies = {
        BOOLEAN: '. Write `.cast("int64")`',
        DURATION: ". Write `.dt.total_seconds()`",
        DATE: '. Write `.dt.epoch("s")`',
        TIMESTAMP: '. Write `.dt.epoch("s")`',
        LIST: ". A list has methods, as in `.list.len()` or `.list.sum()`",
    }
    return remedies[BOOLEAN] if item.dtype == UINT64 else remedies.get(item.kind, "")


# --- comparisons --------------------------------------------------------------------------------------------

_MIRRORED_OPERATORS: dict[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_COMPARABLE = NUMBERS | {BOOLEAN, STRING, BINARY, DATE, TIMESTAMP, DURATION}


def compare_operands(op: Operator, left: Operand | Constant, right: Operand | Constant, span: Span) -> Operand:
    """`left op right` with SQL's nulls and IEEE's NaN."""
    if isinstance(left, Constant):
        if isinstance(right, Constant):
            raise Fault("two literals are compared: expected a column on one side", span)
        return compare_operands(_MIRRORED_OPERATORS[op], right, left, span)
    if left.kind not in _COMPARABLE:
        raise _incomparable_fault(left)
    if isinstance(right, Constant):
        return _compare_literal(left, literals.compare_literal(op, right, left.dtype), span)
    if right.kind not in _COMPARABLE:
        raise _incomparable_fault(right)
    return _compare_columns(op, left, right, span)


def member(item: Operand, values: Sequence[Constant], span: Span) -> Operand:
    """`item in values`: null for null, false for NaN."""
    if item.kind not in _COMPARABLE - {DURATION}:
        raise _incomparable_fault(item)
    bound = literals.list_members(values, item.dtype)
    if isinstance(bound, LiteralComparison):
        return _compare_literal(item, bound, span)
    operand = result(literals.evaluate_members(bound, item.expr, item.dtype), BOOL, span, [item], extra=2)
    if item.column is None:
        return operand
    return replace(operand, predicate=Membership(column=item.column, values=bound))


def _compare_literal(item: Operand, bound: LiteralComparison, span: Span) -> Operand:
    """Compare an operand with a bound literal; prunable where the operand is a column."""
    expressions = [literals.evaluate(leaf, item.expr, item.dtype) for leaf in bound.leaves]
    expr = expressions[0]
    for expression in expressions[1:]:
        expr = expr & expression if bound.connective == "and" else expr | expression
    operand = result(expr, BOOL, span, [item] * len(expressions), extra=3 * len(expressions))
    if item.column is None:
        return operand
    leaves = [Comparison(column=item.column, op=leaf.op, value=leaf.value) for leaf in bound.leaves]
    return replace(operand, predicate=conjunction(leaves) if bound.connective == "and" else disjunction(leaves))


def _incomparable_fault(item: Operand) -> Fault:
    remedy = {
        LIST: ". Write `.list.contains(value)` or compare `.list.len()`",
        NULL: ": the column holds only nulls",
    }.get(item.kind, "")
    return Fault(f"{type_name(item.dtype)} cannot be compared{remedy}", item.span)


def _compare_columns(op: Operator, left: Operand, right: Operand, span: Span) -> Operand:
    if left.kind != right.kind and not {left.kind, right.kind} <= NUMBERS:
        raise Fault(f"{type_name(left.dtype)} cannot be compared with {type_name(right.dtype)}", span)
    if left.kind == BOOLEAN and op not in ("==", "!="):
        raise Fault("booleans have no order: compare with `==` or `!=`", span)
    left, right = _same_type(left, right, span)
    compared = literals.OPERATORS[op](left.expr, right.expr)
    if left.dtype != FLOAT64 and left.kind != FLOAT:
        return result(compared, BOOL, span, [left, right])
    # Polars orders NaN as the largest number and equal to itself. One side is enough: where it is NaN and the other is
    # not null the answer is fixed, and where the other side is NaN that order gives the right answer by itself.
    nan_side, other = (left, right) if op in ("==", "!=", ">", ">=") else (right, left)
    is_nan = nan_side.expr.is_nan() & other.expr.is_not_null()
    expr = pl.when(is_nan).then(pl.lit(op == "!=")).otherwise(compared)
    return result(expr, BOOL, span, [left, right, left, right], extra=6)


def _same_type(left: Operand, right: Operand, span: Span) -> tuple[Operand, Operand]:
    """Both sides in a type in which they compare: exact, except for integers and decimals with floats (float64)."""
    if left.dtype == right.dtype:
        return left, right
    if left.kind == TIMESTAMP:
        return _same_clock(left, right, span)
    if left.kind == right.kind == DECIMAL and _decimal_digits(left, right) <= MAX_DECIMAL_PRECISION:
        return left, right
    if left.kind == right.kind == INTEGER:
        both = UINT64 in (left.dtype, right.dtype)
        return (left, right) if both else (left.cast(INT64), right.cast(INT64))
    return (left.cast(FLOAT64), right.cast(FLOAT64)) if left.kind in NUMBERS else (left, right)


def _decimal_digits(left: Operand, right: Operand) -> int:
    dtypes = [side.dtype for side in (left, right) if isinstance(side.dtype, pl.Decimal)]
    return max((dtype.precision or 38) - dtype.scale for dtype in dtypes) + max(dtype.scale for dtype in dtypes)


def _same_clock(left: Operand, right: Operand, span: Span) -> tuple[Operand, Operand]:
    """Timestamps as nanoseconds in 128 bits: Polars would truncate the finer one to the coarser unit."""
    wide = pl.Int128()
    sides = []
    for side, clock in zip((left, right), _clocks(left, right, span), strict=True):
        factor = pl.lit(_NANOSECONDS[clock.time_unit], dtype=wide)
        expr = side.expr.cast(INT64).cast(wide) * factor
        sides.append(replace(side, expr=expr, dtype=wide, size=side.size + 4, column=None))
    return sides[0], sides[1]


def _clocks(left: Operand, right: Operand, span: Span) -> list[pl.Datetime]:
    clocks = [side.dtype for side in (left, right) if isinstance(side.dtype, pl.Datetime)]
    if len({clock.time_zone is None for clock in clocks}) > 1:
        remedy = 'Give it one with `.dt.replace_time_zone("UTC")`'
        raise Fault(f"a timestamp with a time zone meets one without. {remedy}", span)
    return clocks


def _in_utc(item: Operand) -> pl.Expr:
    zone = item.dtype.time_zone if isinstance(item.dtype, pl.Datetime) else None
    return item.expr if zone in (None, "UTC") else item.expr.dt.convert_time_zone("UTC")


# --- a common type ------------------------------------------------------------------------------------------


def common_type(sides: Sequence[Operand | Constant], span: Span) -> tuple[list[pl.Expr], pl.DataType]:
    """The sides as expressions of their common type; literals take the type of the columns.

    Integers become int64; float32 columns alone stay float32.

    Raises:
        Fault: where there is no such type.
    """
    parts = [side for side in sides if isinstance(side, Operand) and side.kind != NULL]
    constants = [side for side in sides if isinstance(side, Constant) and side.value is not None]
    if not parts and not constants:
        raise Fault("the type of the result is undetermined: every value is None", span)
    dtype = _common_type(parts, constants, span)
    return [_as(side, dtype) for side in sides], dtype


def _common_type(parts: Sequence[Operand], constants: Sequence[Constant], span: Span) -> pl.DataType:
    kinds = {part.kind for part in parts}
    if not parts:
        return _constants_type(constants, span)
    first = parts[0].dtype
    if all(part.dtype == first for part in parts) and kinds not in ({INTEGER}, {FLOAT}):
        return first
    if not kinds <= NUMBERS:
        types = " and ".join(dict.fromkeys(type_name(part.dtype) for part in parts))
        raise Fault(f"the values have no common type: got {types}", span)
    if kinds != {INTEGER}:
        narrow = kinds == {FLOAT} and all(part.dtype != FLOAT64 for part in parts)
        return pl.Float32() if narrow else FLOAT64
    if any(isinstance(constant.value, float) for constant in constants):
        return FLOAT64
    if all(part.dtype == UINT64 for part in parts):
        return UINT64
    if UINT64 in [part.dtype for part in parts]:
        raise Fault('uint64 and signed integers have no common type: cast one, as in `x.cast("int64")`', span)
    return INT64


def _constants_type(constants: Sequence[Constant], span: Span) -> pl.DataType:
    types = {type(constant.value) for constant in constants}
    if types <= {int, float}:
        return FLOAT64 if float in types else INT64
    if len(types) > 1:
        raise Fault("the values have no common type", span)
    dtypes: dict[type, pl.DataType] = {str: pl.String(), bool: BOOL, bytes: pl.Binary()}
    return dtypes[types.pop()]
