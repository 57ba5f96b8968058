"""Declare the functions and methods of scalars: numbers, nulls, choices, casts.

Pure. Each method can also be written as a function of its receiver (`log1p(price)`). Mathematical functions compute in
float64 whatever the input; functions that choose among values keep float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import polars as pl

from feedline.expressions import literals
from feedline.expressions.nodes import Constant, Fault, Span
from feedline.expressions.operators import BOOL, FLOAT64, INT64, UINT64, Operand, common_type, result
from feedline.expressions.signatures import Function, Parameter
from feedline.expressions.types import (
    BOOLEAN,
    DATE,
    DECIMAL,
    FLOAT,
    INTEGER,
    NUMBERS,
    STRING,
    TIMESTAMP,
    kind,
    type_name,
)

_SCALARS = NUMBERS | {BOOLEAN, STRING, DATE, TIMESTAMP}
_ORDERED = NUMBERS | {DATE, TIMESTAMP}


def _mathematical(name: str, compute: Callable[[pl.Expr], pl.Expr], summary: str) -> Function:
    def build(x: Operand, *, span: Span) -> Operand:
        return result(compute(x.cast(FLOAT64).expr), FLOAT64, span, [x])

    return Function(name, NUMBERS, build, f"{summary}; float64")


def _rounding(name: str, compute: Callable[[pl.Expr], pl.Expr], summary: str) -> Function:
    def build(x: Operand, *, span: Span) -> Operand:
        wide = x.widen()
        return wide if wide.kind == INTEGER else result(compute(wide.expr), FLOAT64, span, [wide])

    return Function(name, NUMBERS, build, f"{summary}; an integer is unchanged")


def _float_test(name: str, compute: Callable[[pl.Expr], pl.Expr], summary: str) -> Function:
    def build(x: Operand, *, span: Span) -> Operand:
        return result(compute(x.widen().expr), BOOL, span, [x], extra=2)

    return Function(name, NUMBERS, build, f"{summary}; null stays null")


def _abs(x: Operand, *, span: Span) -> Operand:
    wide = x if x.kind == FLOAT else x.widen()
    return wide if x.dtype == UINT64 else result(wide.expr.abs(), wide.dtype, span, [wide])


def _sign(x: Operand, *, span: Span) -> Operand:
    wide = x.widen()
    sign = result(wide.expr.sign(), wide.dtype, span, [wide])
    return sign.cast(INT64) if wide.kind == INTEGER else sign


def _log(x: Operand, base: float | None, *, span: Span) -> Operand:
    if base is not None and (base <= 0 or base == 1):
        raise Fault(f"the base of a logarithm must be positive and not 1: got {base}", span)
    return result(x.cast(FLOAT64).expr.log(math.e if base is None else float(base)), FLOAT64, span, [x])


def _round(x: Operand, decimals: int, *, span: Span) -> Operand:
    if not 0 <= decimals <= 15:
        raise Fault(f"decimals must be between 0 and 15: got {decimals}", span)
    wide = x.widen()
    return wide if wide.kind == INTEGER else result(wide.expr.round(decimals), FLOAT64, span, [wide])


def _clip(x: Operand, lower: Constant, upper: Constant, *, span: Span) -> Operand:
    if x.kind == DECIMAL:
        x = x.widen()
    (expr, *_), dtype = common_type([x, lower, upper], span)
    low, high = (None if c.value is None else literals.value_of(c, dtype) for c in (lower, upper))
    if low is None and high is None:
        raise Fault("`clip` needs a lower or an upper bound", span)
    if low is not None and high is not None and low > high:  # type: ignore[operator]
        raise Fault(f"the bounds of `clip` are reversed: got {lower.value!r} above {upper.value!r}", span)
    bounds = [None if bound is None else literals.literal(bound, dtype) for bound in (low, high)]
    return result(expr.clip(*bounds), dtype, span, [x], extra=4)


def _fill_null(x: Operand, value: Constant, *, span: Span) -> Operand:
    if value.value is None:
        raise Fault("`fill_null` needs a value: got None", value.span)
    (expr, filling), dtype = common_type([x, value], span)
    return result(expr.fill_null(filling), dtype, span, [x], extra=3)


def _fill_nan(x: Operand, value: Constant, *, span: Span) -> Operand:
    filling = literals.literal(literals.value_of(value, x.dtype), x.dtype)
    return result(x.expr.fill_nan(filling), x.dtype, span, [x], extra=3)


def _coalesce(values: Sequence[Operand | Constant], *, span: Span) -> Operand:
    expressions, dtype = common_type(values, span)
    return result(pl.coalesce(expressions), dtype, span, _operands(values, span), extra=len(values) + 1)


def _when(
    condition: Operand | Constant, value: Operand | Constant, otherwise: Operand | Constant, *, span: Span
) -> Operand:
    if isinstance(condition, Constant) or condition.dtype != BOOL:
        got = "a literal" if isinstance(condition, Constant) else type_name(condition.dtype)
        raise Fault(f"the condition of `when` must be a boolean expression: got {got}", condition.span)
    (then, other), dtype = common_type([value, otherwise], span)
    expr = pl.when(condition.expr).then(then).otherwise(other)
    return result(expr, dtype, span, _operands([condition, value, otherwise], span), extra=4)


def _horizontal(name: str, compute: Callable[..., pl.Expr], summary: str, *, computes: bool) -> Function:
    def build(values: Sequence[Operand | Constant], *, span: Span) -> Operand:
        allowed = NUMBERS if computes else _ORDERED
        parts = _operands(values, span)
        for part in parts:
            if part.kind not in allowed:
                raise Fault(f"`{name}` works on {' or '.join(sorted(allowed))}: got {type_name(part.dtype)}", part.span)
        if computes:
            values = [value.widen() if isinstance(value, Operand) else value for value in values]
        expressions, dtype = common_type(values, span)
        if computes and name == "mean_horizontal":
            dtype = FLOAT64
            expressions = [expr.cast(dtype) for expr in expressions]
        if computes and dtype == UINT64:
            raise Fault(f'uint64 has no `{name}`: cast it first, as in `x.cast("int64")`', span)
        return result(compute(expressions), dtype, span, parts, extra=2 * len(values))

    return Function(name, None, build, summary, many=True)


def _operands(values: Sequence[Operand | Constant], span: Span) -> list[Operand]:
    parts = [value for value in values if isinstance(value, Operand)]
    if not parts:
        raise Fault("only literals: expected at least one column", span)
    return parts


def _cast(strict: bool) -> Callable[..., Operand]:
    def build(x: Operand, dtype: pl.DataType, *, span: Span) -> Operand:
        source, target = x.kind, kind(dtype)
        if target == STRING and source in (FLOAT, DECIMAL):
            raise Fault(f"{type_name(x.dtype)} has no fixed form as a string: cast it to an integer first", x.span)
        if source == STRING and target == BOOLEAN:
            raise Fault('a string is not a boolean: compare it, as in `x == "true"`', x.span)
        if source in (DATE, TIMESTAMP) and target != STRING:
            raise Fault(f'{type_name(x.dtype)} is not a number: write `.dt.epoch("s")`', x.span)
        expr = x.widen().expr if source == DECIMAL else x.expr
        return result(expr.cast(dtype, strict=strict), dtype, span, [x], extra=2)

    return build


_TO = (Parameter("dtype", "type"),)
_VALUE = (Parameter("value", "literal"),)
FUNCTIONS: tuple[Function, ...] = (
    Function(
        "when",
        None,
        _when,
        "`value` where the condition is true, `otherwise` where it is false or null; either may be None",
        tuple(Parameter(name, "value") for name in ("condition", "value", "otherwise")),
    ),
    Function("coalesce", None, _coalesce, "the first value that is not null", many=True),
    _horizontal("min_horizontal", pl.min_horizontal, "the smallest; nulls and NaN are ignored", computes=False),
    _horizontal("max_horizontal", pl.max_horizontal, "the largest; nulls and NaN are ignored", computes=False),
    _horizontal("sum_horizontal", pl.sum_horizontal, "the sum; a null counts as 0; int64 or float64", computes=True),
    _horizontal("mean_horizontal", pl.mean_horizontal, "the mean of those that are not null; float64", computes=True),
)
METHODS: tuple[Function, ...] = (
    Function("abs", NUMBERS, _abs, "the absolute value; int64, or the column's own float type"),
    Function("sign", NUMBERS, _sign, "-1, 0 or 1; int64 or float64"),
    _mathematical("sqrt", pl.Expr.sqrt, "the square root, NaN below 0"),
    Function(
        "log",
        NUMBERS,
        _log,
        "the logarithm, natural without a base; -inf at 0, NaN below; float64",
        (Parameter("base", "number", None),),
    ),
    _mathematical("log10", pl.Expr.log10, "the decimal logarithm; -inf at 0, NaN below"),
    _mathematical("log1p", pl.Expr.log1p, "log(1 + x), exact near 0; -inf at -1, NaN below"),
    _mathematical("exp", pl.Expr.exp, "e to the power x"),
    _mathematical("sin", pl.Expr.sin, "the sine of radians"),
    _mathematical("cos", pl.Expr.cos, "the cosine of radians"),
    _mathematical("tan", pl.Expr.tan, "the tangent of radians"),
    _mathematical("tanh", pl.Expr.tanh, "the hyperbolic tangent"),
    _rounding("floor", pl.Expr.floor, "rounded down to an integer; float64"),
    _rounding("ceil", pl.Expr.ceil, "rounded up to an integer; float64"),
    Function(
        "round",
        NUMBERS,
        _round,
        "rounded to that many decimals, ties to the even digit; float64; an integer is unchanged",
        (Parameter("decimals", "integer", 0),),
    ),
    Function(
        "clip",
        _ORDERED,
        _clip,
        "limited to the bounds; null and NaN stay; int64, or the column's own type",
        (Parameter("lower_bound", "literal", None), Parameter("upper_bound", "literal", None)),
    ),
    Function(
        "cast",
        _SCALARS,
        _cast(True),
        "as another type; floats are truncated; a value that does not fit is an error when data is read",
        _TO,
    ),
    Function("try_cast", _SCALARS, _cast(False), "as `cast`, but a value that does not fit is null", _TO),
    _float_test("is_nan", pl.Expr.is_nan, "whether it is NaN"),
    _float_test("is_finite", pl.Expr.is_finite, "whether it is neither NaN nor infinite"),
    _float_test("is_infinite", pl.Expr.is_infinite, "whether it is infinite"),
    Function("fill_null", _SCALARS, _fill_null, "the literal instead of a null", _VALUE),
    Function("fill_nan", frozenset({FLOAT}), _fill_nan, "the literal, or null for None, instead of a NaN", _VALUE),
)
