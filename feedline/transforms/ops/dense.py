"""Ops that normalise numbers: fill_null, fill_nonfinite, clip, log, log1p, logit, box_cox, cast.

Built in every process, run on the workers. Integers widen to int64 before any arithmetic; decimals become float64.
Where numpy is several times faster than Polars, an op is a kernel (see `arrays`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from feedline.errors import SpecError
from feedline.expressions.types import (
    BOOLEAN,
    CAST_TYPES,
    DECIMAL,
    FLOAT,
    INTEGER,
    INTEGER_RANGES,
    NUMBERS,
    STRING,
    type_name,
)
from feedline.transforms.learning.learner import Artifact
from feedline.transforms.registry.op import Parameters, example, op, same_ids
from feedline.transforms.values.arrays import NUMPY_TYPES, Values, conversion
from feedline.transforms.values.kinds import Value

Number = int | float
CastTarget = Literal[
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "bool", "string"
]  # fmt: skip

# Declares an op that makes floats of each number.
floats_of_numbers = partial(
    op, per_value=True, takes=NUMBERS, gives="floats: float32 of a float32 column, else float64"
)


def widen(value: Value, *, floats: bool = False) -> Value:
    """Numbers in a type for safe arithmetic: int64 or uint64, float32 or float64; `floats`: no integers."""
    dtype: pl.DataType
    if value.dtype.is_integer():
        dtype = pl.Float64() if floats else pl.UInt64() if value.dtype == pl.UInt64() else pl.Int64()
    else:
        dtype = pl.Float32() if value.dtype in (pl.Float16(), pl.Float32()) else pl.Float64()
    return value.convert(dtype)


def as_float(number: Number, dtype: pl.DataType, what: str) -> float:
    """A parameter as a finite value of a float type. Raises SpecError beyond its range."""
    with np.errstate(over="ignore"):
        try:
            bound = float(NUMPY_TYPES[dtype].type(number))
        except OverflowError:
            bound = math.inf
    if math.isinf(bound):
        raise SpecError(f"{what} does not fit the column: got {number}, expected type {type_name(dtype)}")
    return bound


class FillNull(Parameters):
    value: Annotated[int | float | bool | str, Field(description="The value for nulls.")]


def _filled_ids(parameters: FillNull, _: Artifact | None, inputs: Sequence[int | None]) -> int | None:
    bound, fill = inputs[0], parameters.value
    return None if bound is None or not isinstance(fill, int) or fill < 0 else max(bound, fill + 1)


@op(
    per_value=True,
    ids=_filled_ids,
    takes=NUMBERS | {STRING, BOOLEAN},
    gives="the same type",
    parameters=FillNull,
    examples=(
        example("fill_null", 0, pl.Float32(), [1.5, None], [1.5, 0.0]),
        example("fill_null", "unknown", pl.String(), ["a", None], ["a", "unknown"]),
        example("fill_null", -1, pl.List(pl.Int64()), [[1, None], None, []], [[1, -1], None, []]),
    ),
)
def fill_null(x: Value, parameters: FillNull) -> Value:
    """Replaces nulls by a value of the column's type.

    In lists it replaces null elements; a null list stays null. NaN is a value, not a null, and stays. An integer column
    takes integers within its type's range, a float column any number; decimals become float64. Like `FillMissing` in
    NVTabular.
    """
    fill: Any = parameters.value
    kind = x.kind.element
    fill_kind = {bool: BOOLEAN, str: STRING}.get(type(fill), "number")
    if fill_kind != ("number" if kind in NUMBERS else kind):
        raise SpecError(f"the value must be of the column's type: got {fill!r}, expected type {kind}")
    if kind == INTEGER:
        if isinstance(fill, float):
            raise SpecError(
                f"the value must be of the column's type: got {fill!r}, expected an integer. "
                f"Write {{fill_null: {math.floor(fill)}}}, or put {{cast: float64}} before it"
            )
        if not _within(fill, x.dtype):
            raise SpecError(f"the value does not fit the column: got {fill}, expected type {type_name(x.dtype)}")
    elif kind in NUMBERS:
        x = widen(x)
        fill = as_float(fill, x.dtype, "the value")
    if kind in NUMBERS:
        return x.fill_nulls(fill)
    return Value(expr=x.expr.fill_null(pl.lit(fill, dtype=x.dtype)), dtype=x.dtype)


class FillNonfinite(Parameters):
    value: Annotated[Number, Field(description="The number for NaN and infinities.")]


@op(
    per_value=True,
    takes={FLOAT},
    gives="the same type",
    parameters=FillNonfinite,
    examples=(
        example(
            "fill_nonfinite", 0, pl.Float32(), [1.5, math.nan, math.inf, -math.inf, None], [1.5, 0.0, 0.0, 0.0, None]
        ),
        example("fill_nonfinite", -1, pl.List(pl.Float64()), [[math.nan, 2.0], [], None], [[-1.0, 2.0], [], None]),
    ),
)
def fill_nonfinite(x: Value, parameters: FillNonfinite) -> Value:
    """Replaces NaN and infinities by a number.

    Nulls stay null: fill_null replaces those.
    """
    x = widen(x)
    fill = NUMPY_TYPES[x.dtype].type(as_float(parameters.value, x.dtype, "the value"))

    def kernel(values: Values, out: Values) -> None:
        np.copyto(out, values)
        np.copyto(out, fill, where=~np.isfinite(values))

    return x.apply_kernel(kernel, x.dtype)


def _within(number: int, dtype: pl.DataType) -> bool:
    low, high = INTEGER_RANGES[type(dtype)]
    return low <= number <= high


class Clip(Parameters):
    min: Annotated[Number | None, Field(description="The lower bound (default: none).")] = None
    max: Annotated[Number | None, Field(description="The upper bound (default: none).")] = None

    @model_validator(mode="after")
    def _order(self) -> Clip:
        if self.min is None and self.max is None:
            raise ValueError("min, max or both must be given: got neither. Write {clip: {min: 0, max: 1}}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min must not be above max: got min {self.min}, max {self.max}")
        return self


@op(
    per_value=True,
    takes=NUMBERS,
    gives="integers where column and bounds are integers, else floats",
    parameters=Clip,
    examples=(
        example("clip", {"min": 0, "max": 1}, pl.Float32(), [-2.5, 0.5, 7.0, None], [0.0, 0.5, 1.0, None]),
        example("clip", {"max": 3}, pl.List(pl.Int64()), [[1, 5], None], [[1, 3], None]),
    ),
)
def clip(x: Value, parameters: Clip) -> Value:
    """Limits numbers to a range: min(max(value, lower bound), upper bound).

    Nulls stay null, NaN stays NaN, infinities become the bounds. Bounds are rounded to a float column's type; an
    integer column with a float bound becomes float64. Like `clamp` in TorchArrow.
    """
    bounds = (parameters.min, parameters.max)
    x = widen(x, floats=any(isinstance(bound, float) for bound in bounds))
    if x.dtype.is_integer():
        smallest, largest = INTEGER_RANGES[type(x.dtype)]
        low = None if bounds[0] is None else max(int(bounds[0]), smallest)
        high = None if bounds[1] is None else min(int(bounds[1]), largest)
        if (low is not None and low > largest) or (high is not None and high < smallest):
            raise SpecError(f"a bound does not fit the column: got {bounds}, expected type {type_name(x.dtype)}")
        least, most = low, high
    else:
        number = NUMPY_TYPES[x.dtype].type
        least, most = (None if bound is None else number(as_float(bound, x.dtype, "a bound")) for bound in bounds)

    def kernel(values: Values, out: Values) -> None:
        np.clip(values, least, most, out=out)

    return x.apply_kernel(kernel, x.dtype)


@floats_of_numbers(
    examples=(
        example("log1p", None, pl.Float64(), [0.0, 1.0, None], [0.0, 0.6931471805599453, None]),
        example("log1p", None, pl.Float64(), [-1.0, -2.0], [-math.inf, math.nan]),
        example("log1p", None, pl.List(pl.Int64()), [[0, 1], []], [[0.0, 0.6931471805599453], []]),
    ),
)
def log1p(x: Value, _: Parameters) -> Value:
    """The natural logarithm of 1 + x, exact for small x.

    Defined for x > -1. As in IEEE 754, -1 becomes -inf and anything below becomes NaN: put `{clip: {min: 0}}` before it
    if a column may hold such values. Nulls stay null, NaN stays NaN, +inf stays +inf. The last bit of a float32 may
    differ between processors with different instruction sets. `LogOp` in NVTabular.
    """
    x = widen(x, floats=True)
    return x.apply_kernel(np.log1p, x.dtype)


@floats_of_numbers(
    examples=(
        example("log", None, pl.Float64(), [1.0, math.e, None], [0.0, 1.0, None]),
        example("log", None, pl.List(pl.Int64()), [[0, 1], [-1]], [[-math.inf, 0.0], [math.nan]]),
    ),
)
def log(x: Value, _: Parameters) -> Value:
    """The natural logarithm.

    Defined for x > 0. As in IEEE 754, 0 becomes -inf and anything below becomes NaN. Nulls stay null, NaN stays NaN,
    +inf stays +inf. The last bit of a float32 may differ between processors with different instruction sets.
    """
    x = widen(x, floats=True)
    return x.apply_kernel(np.log, x.dtype)


class Logit(Parameters):
    eps: Annotated[float, Field(ge=0, lt=0.5, description="Probabilities are limited to [eps, 1 - eps] first.")] = 1e-6


@floats_of_numbers(
    parameters=Logit,
    examples=(
        example("logit", None, pl.Float64(), [0.5, None, math.nan], [0.0, None, math.nan]),
        example(
            "logit",
            0.25,
            pl.List(pl.Float64()),
            [[0.0, 0.25], [7.0]],
            [[-1.0986122886681098] * 2, [1.0986122886681098]],
        ),
        example("logit", {"eps": 0}, pl.Float64(), [0.0, 1.0, 2.0], [-math.inf, math.inf, math.nan]),
    ),
)
def logit(x: Value, parameters: Logit) -> Value:
    """The logarithm of the odds of a probability: ln(p / (1 - p)), with p limited to [eps, 1 - eps].

    Values outside, infinities included, become a bound; with `eps: 0`, 0 and 1 become -inf and inf, and values outside
    [0, 1] become NaN. Nulls stay null, NaN stays NaN. Like `logit` in PyTorch.
    """
    x = widen(x, floats=True)
    number = NUMPY_TYPES[x.dtype].type
    least = number(parameters.eps)
    most = number(1) - least
    if parameters.eps and most == 1:
        raise SpecError(
            f"eps must change 1 in the column's type: got {parameters.eps}, expected more as {type_name(x.dtype)}"
        )

    def kernel(values: Values, out: Values) -> None:
        odds = np.clip(values, least, most, out=out) if parameters.eps else values
        np.divide(odds, np.subtract(number(1), odds), out=out)
        np.log(out, out=out)

    return x.apply_kernel(kernel, x.dtype)


class BoxCox(Parameters):
    power: Annotated[float, Field(description="Lambda; 0 is the logarithm.")]
    shift: Annotated[float, Field(description="Added to the value first.")] = 0.0


@floats_of_numbers(
    parameters=BoxCox,
    examples=(
        example("box_cox", 2, pl.Float64(), [1.0, 0.0, None, -1.0], [0.0, -0.5, None, math.nan]),
        example(
            "box_cox", {"power": 0, "shift": 1}, pl.List(pl.Int64()), [[0, 1], []], [[0.0, 0.6931471805599453], []]
        ),
    ),
)
def box_cox(x: Value, parameters: BoxCox) -> Value:
    """The power transformation of Box and Cox (1964): (y^power - 1) / power with y = x + shift, or ln(y) for power 0.

    Computed as expm1(power * ln(y)) / power, which is exact for small powers too. Defined for y > 0: 0 becomes the
    limit (-1 / power, or -inf for powers up to 0), anything below becomes NaN. Nulls stay null, NaN stays NaN.
    """
    x = widen(x, floats=True)
    number = NUMPY_TYPES[x.dtype].type
    power = number(as_float(parameters.power, x.dtype, "power"))
    shift = number(as_float(parameters.shift, x.dtype, "shift"))

    def kernel(values: Values, out: Values) -> None:
        np.log(np.add(values, shift, out=out), out=out)
        if power:
            np.expm1(np.multiply(out, power, out=out), out=out)
            np.divide(out, power, out=out)

    return x.apply_kernel(kernel, x.dtype)


class Cast(Parameters):
    to: Annotated[CastTarget, Field(description="The new type.")]
    strict: Annotated[
        bool, Field(description="Whether a value that does not fit is an error; otherwise it becomes a null.")
    ] = True


@op(
    per_value=True,
    ids=same_ids,
    takes=NUMBERS | {STRING, BOOLEAN},
    lists="whole",
    weighted=True,
    gives="the type named",
    parameters=Cast,
    examples=(
        example("cast", "float32", pl.Int64(), [1, None], [1.0, None]),
        example("cast", {"to": "int64", "strict": False}, pl.String(), ["12", "-3", "x"], [12, -3, None]),
        example("cast", "int64", pl.List(pl.Float64()), [[1.9, -1.9], None], [[1, -1], None]),
    ),
)
def cast(x: Value, parameters: Cast) -> Value:
    """Changes the type; in lists, that of the elements.

    Floats become integers by dropping the fraction. A value that does not fit (a number out of range, NaN as an
    integer, a string that is not a number) is an error that names the feature, or a null with `strict: false`; float64
    beyond float32 becomes an infinity. Booleans become 0 and 1; nonzero integers become true. Not supported, because
    they would depend on a library's version: floats or decimals to strings, strings or floats to booleans.
    """
    kind = x.kind
    unsupported = {"string": (FLOAT, DECIMAL), "bool": (STRING, FLOAT, DECIMAL)}.get(parameters.to, ())
    if kind.element in unsupported:
        others = ", ".join(f"{other}s" for other in (INTEGER, BOOLEAN, STRING) if other not in unsupported)
        raise SpecError(f"a {kind.element} cannot become {parameters.to}: got {kind}, expected {others}")
    target = CAST_TYPES[parameters.to]
    if not kind.listed and conversion(x.dtype, target) is not None:
        return x.convert(target)
    dtype = pl.List(target) if kind.listed else target
    return Value(expr=x.expr.cast(dtype, strict=parameters.strict), dtype=dtype, weights=x.weights)
