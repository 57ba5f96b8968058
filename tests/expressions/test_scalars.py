"""Functions of scalars give what their line in docs/expressions.md says, in edge cases, too."""

from __future__ import annotations

import math
import re
from datetime import date, datetime
from decimal import Decimal

import polars as pl
import pytest
from typed_columns import FRAME, INF, NAN, TABLE, assert_evaluates, assert_refused

from feedline.expressions import bind_expression, parse
from feedline.expressions.scalars import FUNCTIONS, METHODS

EXPECTED: dict[str, tuple[pl.DataType, list[object]]] = {
    "when(i > 0, 1, 0)": (pl.Int64(), [0, 1, 0]),
    "when(b, s, None)": (pl.String(), [" Éa-a", None, None]),
    "when(b, f, 0.1)": (pl.Float32(), [-1.5, 0.10000000149011612, 0.10000000149011612]),
    "when(b, i, g)": (pl.Float64(), [-128.0, INF, None]),
    "when(b, d, '2026-01-01')": (pl.Date(), [date(2024, 12, 30), date(2026, 1, 1), date(2026, 1, 1)]),
    "coalesce(i, 0)": (pl.Int64(), [-128, 5, 0]),
    "coalesce(i, g, 1)": (pl.Float64(), [-128.0, 5.0, 1.0]),
    "coalesce(l, l)": (pl.List(pl.Int8()), [[100, 100, None, -3], [], None]),
    "min_horizontal(i, g)": (pl.Float64(), [-128.0, 5.0, None]),
    "min_horizontal(f, 3)": (pl.Float32(), [-1.5, 3.0, 3.0]),
    "max_horizontal(d, d)": (pl.Date(), [date(2024, 12, 30), date(1969, 12, 31), None]),
    "sum_horizontal(i, i, 1)": (pl.Int64(), [-255, 11, 1]),
    "mean_horizontal(i, 1)": (pl.Float64(), [-63.5, 3.0, 1.0]),
    "abs(i)": (pl.Int64(), [128, 5, None]),
    "f.abs()": (pl.Float32(), [1.5, NAN, None]),
    "u.abs()": (pl.UInt64(), [2**64 - 1, 7, None]),
    "i.sign()": (pl.Int64(), [-1, 1, None]),
    "f.sign()": (pl.Float64(), [-1.0, NAN, None]),
    "i.sqrt()": (pl.Float64(), [NAN, math.sqrt(5), None]),
    "i.log()": (pl.Float64(), [NAN, math.log(5), None]),
    "log(i, 10)": (pl.Float64(), [NAN, math.log10(5), None]),
    "u.log10()": (pl.Float64(), [math.log10(2**64), math.log10(7), None]),
    "m.log1p()": (pl.Float64(), [math.log1p(1.25), math.log1p(-0.5), None]),
    "exp(m)": (pl.Float64(), [math.exp(1.25), math.exp(-0.5), None]),
    "sin(i)": (pl.Float64(), [math.sin(-128), math.sin(5), None]),
    "cos(i)": (pl.Float64(), [math.cos(-128), math.cos(5), None]),
    "tan(i)": (pl.Float64(), [math.tan(-128), math.tan(5), None]),
    "tanh(m)": (pl.Float64(), [math.tanh(1.25), math.tanh(-0.5), None]),
    "f.floor()": (pl.Float64(), [-2.0, NAN, None]),
    "m.ceil()": (pl.Float64(), [2.0, -0.0, None]),
    "i.floor()": (pl.Int64(), [-128, 5, None]),
    "g.round()": (pl.Float64(), [2.0, INF, None]),
    "m.round(1)": (pl.Float64(), [1.2, -0.5, None]),
    "i.clip(0, 1000)": (pl.Int64(), [0, 5, None]),
    "clip(f, -1)": (pl.Float32(), [-1.0, NAN, None]),
    "g.clip(upper_bound=3)": (pl.Float64(), [2.5, 3.0, None]),
    "d.clip('2000-01-01')": (pl.Date(), [date(2024, 12, 30), date(2000, 1, 1), None]),
    "i.cast('float32')": (pl.Float32(), [-128.0, 5.0, None]),
    "i.cast('string')": (pl.String(), ["-128", "5", None]),
    "b.cast('int8')": (pl.Int8(), [1, 0, None]),
    "m.cast('int64')": (pl.Int64(), [1, 0, None]),
    "i.cast('bool')": (pl.Boolean(), [True, True, None]),
    "d.cast('string')": (pl.String(), ["2024-12-30", "1969-12-31", None]),
    "n.try_cast('int64')": (pl.Int64(), [12, None, None]),
    "n.try_cast('float64')": (pl.Float64(), [12.0, 1.5, None]),
    "f.try_cast('int64')": (pl.Int64(), [-1, None, None]),
    "u.try_cast('int64')": (pl.Int64(), [None, 7, None]),
    "f.is_nan()": (pl.Boolean(), [False, True, None]),
    "i.is_nan()": (pl.Boolean(), [False, False, None]),
    "g.is_finite()": (pl.Boolean(), [True, False, None]),
    "g.is_infinite()": (pl.Boolean(), [False, True, None]),
    "i.fill_null(0)": (pl.Int64(), [-128, 5, 0]),
    "i.fill_null(0.5)": (pl.Float64(), [-128.0, 5.0, 0.5]),
    "s.fill_null('?')": (pl.String(), [" Éa-a", "b12", "?"]),
    "m.fill_null(0.05)": (pl.Decimal(6, 2), [Decimal("1.25"), Decimal("-0.50"), Decimal("0.05")]),
    "t.fill_null('2026-01-01')": (pl.Datetime("us"), [*FRAME["t"][:2], datetime(2026, 1, 1)]),
    "f.fill_nan(0.1)": (pl.Float32(), [-1.5, 0.10000000149011612, None]),
    "f.fill_nan(None)": (pl.Float32(), [-1.5, None, None]),
}


def test_values_and_types():
    for text, expected in EXPECTED.items():
        assert_evaluates(text, *expected)


WRONG = {
    "i.clip(1, 0)": "the bounds of `clip` are reversed: got 1 above 0",
    "i.clip()": "`clip` needs a lower or an upper bound",
    "i.fill_null(None)": "`fill_null` needs a value: got None",
    "i.fill_null('x')": "the literal does not fit int64: got the string 'x', expected a number",
    "f.fill_nan('x')": "the literal does not fit float32",
    "f.cast('string')": "float32 has no fixed form as a string",
    "s.cast('bool')": "a string is not a boolean",
    "t.cast('int64')": 'timestamp[us] is not a number: write `.dt.epoch("s")`',
    "when(i, 1, 0)": "the condition of `when` must be a boolean expression: got int8",
    "when(True, i, 0)": "the condition of `when` must be a boolean expression: got a literal",
    "when(b, 1, 'x')": "the values have no common type",
    "when(b, None, None)": "the type of the result is undetermined",
    "when(b, i, s)": "the values have no common type: got int8 and string",
    "coalesce(i, u)": "uint64 and signed integers have no common type",
    "sum_horizontal(i, s)": "`sum_horizontal` works on decimal or float or integer: got string",
    "sum_horizontal(u, u)": "uint64 has no `sum_horizontal`",
    "i.log(1)": "the base of a logarithm must be positive and not 1",
    "i.round(16)": "decimals must be between 0 and 15",
    # arguments that no signature accepts
    "i.cast('int46')": "`int46` is not a type: expected the name of a type as a string: one of int8,",
    "i.cast()": "an argument is missing: expected `x.cast(dtype)`",
    "i.clip(0, 1, 2)": "too many arguments for `x.clip(lower_bound=None, upper_bound=None)`",
    "i.clip(0, uper_bound=1)": "has no argument `uper_bound`. Did you mean `upper_bound`?",
    "i.clip(0, lower_bound=1)": "the argument `lower_bound` is given twice",
    "i > clip()": "`clip` needs the column that it works on: write `x.clip(",
    "i > clip(1, 2)": "`clip` works on a column, not on a literal",
    "i.fill_null(g)": "for another column write `coalesce(x, y)`",
    "i.fill_null([1])": "expects a literal",
    "i.fill_nan(0)": "`fill_nan` works on float: got int8",
    "i.fill_null(strategy='mean')": "a strategy looks at other rows",
    "s.abs()": "`abs` works on decimal or float or integer: got string",
    "s.str.slice('a')": "expects a literal integer here",
    "s.str.slice(True)": "expects a literal integer here",
    "s.str.slice(0, -1)": "`length` must be at least 0: got -1",
    "s.str.head(3000000000)": "the argument is too large",
    "s.str.contains(n)": "expects a literal string here",
    "i.dt.hour()": "`dt.hour` works on time or timestamp: got int8",
    "d.dt.hour()": "`dt.hour` works on time or timestamp: got date",
    "t.dt.epoch('h')": '`time_unit` must be one of "d", "s", "ms", "us", "ns"',
    "coalesce(i)": "`coalesce` takes at least two values: got 1",
    "min_horizontal(a=i)": "`min_horizontal` takes no named arguments",
    "i.list.len()": "`list.len` works on list: got int8",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments_are_refused_with_a_reason(text: str):
    assert_refused(text, WRONG[text])


def test_every_function_has_an_expected_value():
    written = " ".join(EXPECTED)
    names = [function.name for function in (*FUNCTIONS, *METHODS)]
    assert names
    assert not [name for name in names if not re.search(rf"\b{name}\(", written)]


@pytest.mark.parametrize("name", [method.name for method in METHODS])
def test_a_method_is_a_function_of_its_receiver(name: str):
    column = "f" if name in ("is_nan", "is_finite", "is_infinite", "fill_nan") else "i"
    rest = {"clip": "0", "cast": "'int64'", "try_cast": "'int64'", "fill_null": "0", "fill_nan": "0"}.get(name, "")
    method = bind_expression(parse(f"{column}.{name}({rest})"), TABLE.schema)
    function = bind_expression(parse(f"{name}({column}{', ' if rest else ''}{rest})"), TABLE.schema)
    assert str(method.polars) == str(function.polars)
