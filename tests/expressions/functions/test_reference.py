"""Every function of the language gives what its line in the reference says, in edge cases, too.

The expected values are written by hand from docs/expressions.md, which is checked to list exactly the catalogue.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from feedline.errors import ExpressionError
from feedline.expressions import bind_expression, parse
from feedline.expressions.functions.reference import FUNCTIONS, METHODS, OPERATOR_METHODS, SIGNATURES
from feedline.expressions.row_preservation import is_row_preserving

NAN, INF = float("nan"), float("inf")
REFERENCE = Path(__file__).parents[3] / "docs" / "expressions.md"
TABLE = pa.table(
    {
        "i": pa.array([-128, 5, None], pa.int8()),
        "u": pa.array([2**64 - 1, 7, None], pa.uint64()),
        "f": pa.array([-1.5, NAN, None], pa.float32()),
        "g": pa.array([2.5, INF, None], pa.float64()),
        "m": pa.array([Decimal("1.25"), Decimal("-0.50"), None], pa.decimal128(6, 2)),
        "b": pa.array([True, False, None]),
        "s": pa.array([" Éa-a", "b12", None]),
        "n": pa.array(["12", "1.5", None]),
        "w": pa.array(["20260102 030405", "2026-01-02", None]),
        "d": pa.array([date(2024, 12, 30), date(1969, 12, 31), None]),
        "t": pa.array([datetime(2024, 2, 29, 23, 4, 5, 678_901), datetime(1969, 12, 31, 23, 59, 59, 500_000), None]),
        "z": pa.array([datetime(2026, 7, 1, 22, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), None]).cast(
            pa.timestamp("ms", "Europe/Berlin")
        ),
        "l": pa.array([[100, 100, None, -3], [], None], pa.list_(pa.int8())),
        "k": pa.array([[1.5, NAN, None], [NAN], None], pa.list_(pa.float32())),
        "x": pa.array([[1, 2], [3, None], None], pa.list_(pa.uint16(), 2)),
        "y": pa.array([{"a": 1, "c": {"e": "v"}}, {"a": None, "c": None}, None]),
        "p": pa.array([[("a", 1.5), ("a", 2.5)], [("b", None)], None], pa.map_(pa.string(), pa.float32())),
        "q": pa.array([[(-1, "v")], [], None], pa.map_(pa.int16(), pa.string())),
    }
)
FRAME = pl.DataFrame(TABLE)

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
    "i.is_null()": (pl.Boolean(), [False, False, True]),
    "i.is_not_null()": (pl.Boolean(), [True, True, False]),
    "i.is_in([5, 7.5])": (pl.Boolean(), [False, True, None]),
    "i.is_between(-128, 4)": (pl.Boolean(), [True, False, None]),
    "d.dt.year()": (pl.Int64(), [2024, 1969, None]),
    "d.dt.iso_year()": (pl.Int64(), [2025, 1970, None]),
    "t.dt.quarter()": (pl.Int64(), [1, 4, None]),
    "t.dt.month()": (pl.Int64(), [2, 12, None]),
    "d.dt.week()": (pl.Int64(), [1, 1, None]),
    "d.dt.day()": (pl.Int64(), [30, 31, None]),
    "z.dt.day()": (pl.Int64(), [2, 1, None]),
    "d.dt.weekday()": (pl.Int64(), [1, 3, None]),
    "t.dt.ordinal_day()": (pl.Int64(), [60, 365, None]),
    "t.dt.days_in_month()": (pl.Int64(), [29, 31, None]),
    "t.dt.is_leap_year()": (pl.Boolean(), [True, False, None]),
    "z.dt.hour()": (pl.Int64(), [0, 1, None]),
    "t.dt.hour() * 100": (pl.Int64(), [2300, 2300, None]),
    "t.dt.minute()": (pl.Int64(), [4, 59, None]),
    "t.dt.second()": (pl.Int64(), [5, 59, None]),
    "t.dt.millisecond()": (pl.Int64(), [678, 500, None]),
    "t.dt.microsecond()": (pl.Int64(), [678_901, 500_000, None]),
    "z.dt.date()": (pl.Date(), [date(2026, 7, 2), date(2026, 1, 1), None]),
    "t.dt.epoch('s')": (pl.Int64(), [1_709_247_845, -1, None]),
    "d.dt.epoch('d')": (pl.Int64(), [20_087, -1, None]),
    "z.dt.epoch()": (pl.Int64(), [1_782_943_200_000_000, 1_767_225_600_000_000, None]),
    "t.dt.truncate('1h')": (pl.Datetime("us"), [datetime(2024, 2, 29, 23), datetime(1969, 12, 31, 23), None]),
    "d.dt.truncate('1mo')": (pl.Date(), [date(2024, 12, 1), date(1969, 12, 1), None]),
    "z.dt.convert_time_zone('America/New_York').dt.hour()": (pl.Int64(), [18, 19, None]),
    "t.dt.replace_time_zone('Asia/Tokyo').dt.epoch('s')": (pl.Int64(), [1_709_215_445, -32401, None]),
    "(t - t.dt.truncate('1d')).dt.total_days()": (pl.Int64(), [0, 0, None]),
    "(t - t.dt.truncate('1d')).dt.total_hours()": (pl.Int64(), [23, 23, None]),
    "(t - t.dt.truncate('1d')).dt.total_minutes()": (pl.Int64(), [23 * 60 + 4, 24 * 60 - 1, None]),
    "(t.dt.truncate('1d') - t).dt.total_seconds()": (pl.Int64(), [-83045, -86399, None]),
    "(t - t.dt.truncate('1m')).dt.total_milliseconds()": (pl.Int64(), [5678, 59500, None]),
    "(t - t.dt.truncate('1m')).dt.total_microseconds()": (pl.Int64(), [5_678_901, 59_500_000, None]),
    "d - d": (pl.Duration("us"), [timedelta(0), timedelta(0), None]),
    "s.str.len_chars()": (pl.Int64(), [5, 3, None]),
    "s.str.len_bytes()": (pl.Int64(), [6, 3, None]),
    "s.str.to_lowercase()": (pl.String(), [" éa-a", "b12", None]),
    "s.str.to_uppercase()": (pl.String(), [" ÉA-A", "B12", None]),
    "s.str.starts_with('b')": (pl.Boolean(), [False, True, None]),
    "s.str.ends_with('-a')": (pl.Boolean(), [True, False, None]),
    "s.str.contains('.')": (pl.Boolean(), [False, False, None]),
    "s.str.slice(1, 2)": (pl.String(), ["Éa", "12", None]),
    "s.str.slice(-2)": (pl.String(), ["-a", "12", None]),
    "s.str.head(2)": (pl.String(), [" É", "b1", None]),
    "s.str.tail(2)": (pl.String(), ["-a", "12", None]),
    "s.str.strip_chars()": (pl.String(), ["Éa-a", "b12", None]),
    "s.str.strip_chars('b 2')": (pl.String(), ["Éa-a", "1", None]),
    "s.str.strip_prefix('b')": (pl.String(), [" Éa-a", "12", None]),
    "s.str.strip_suffix('a')": (pl.String(), [" Éa-", "b12", None]),
    "s.str.replace('a', '$1')": (pl.String(), [" É$1-a", "b12", None]),
    "s.str.replace_all('a', '')": (pl.String(), [" É-", "b12", None]),
    "n.str.zfill(4)": (pl.String(), ["0012", "01.5", None]),
    "s.str.split('-')": (pl.List(pl.String()), [[" Éa", "a"], ["b12"], None]),
    "w.str.to_date('%Y-%m-%d')": (pl.Date(), [None, date(2026, 1, 2), None]),
    "w.str.to_datetime('%Y%m%d %H%M%S')": (pl.Datetime("us"), [datetime(2026, 1, 2, 3, 4, 5), None, None]),
    "s + '/' + n": (pl.String(), [" Éa-a/12", "b12/1.5", None]),
    "l.list.len()": (pl.Int64(), [4, 0, None]),
    "x.list.len()": (pl.Int64(), [2, 2, None]),
    "l.list.n_unique()": (pl.Int64(), [3, 0, None]),
    "l.list.sum()": (pl.Int64(), [197, 0, None]),
    "x.list.sum()": (pl.Int64(), [3, 3, None]),
    "k.list.sum()": (pl.Float64(), [NAN, NAN, None]),
    "l.list.mean()": (pl.Float64(), [197 / 3, None, None]),
    "l.list.min()": (pl.Int64(), [-3, None, None]),
    "l.list.max()": (pl.Int64(), [100, None, None]),
    "k.list.min()": (pl.Float32(), [1.5, NAN, None]),
    "k.list.max()": (pl.Float32(), [1.5, NAN, None]),
    "l.list.first()": (pl.Int64(), [100, None, None]),
    "l.list.last()": (pl.Int64(), [-3, None, None]),
    "l.list.get(-2)": (pl.Int64(), [None, None, None]),
    "l.list.get(1)": (pl.Int64(), [100, None, None]),
    "l.list.contains(100)": (pl.Boolean(), [True, False, None]),
    "l.list.contains(1000)": (pl.Boolean(), [False, False, None]),
    "k.list.contains(1.5)": (pl.Boolean(), [True, False, None]),
    "l.list.head(2)": (pl.List(pl.Int8()), [[100, 100], [], None]),
    "l.list.tail(1)": (pl.List(pl.Int8()), [[-3], [], None]),
    "l.list.slice(1, 2)": (pl.List(pl.Int8()), [[100, None], [], None]),
    "l.list.slice(-1)": (pl.List(pl.Int8()), [[-3], [], None]),
    "l.list.reverse()": (pl.List(pl.Int8()), [[-3, None, 100, 100], [], None]),
    "l.list.sort()": (pl.List(pl.Int8()), [[None, -3, 100, 100], [], None]),
    "k.list.sort(descending=True)": (pl.List(pl.Float32()), [[None, NAN, 1.5], [NAN], None]),
    "l.list.unique()": (pl.List(pl.Int8()), [[100, None, -3], [], None]),
    "l.list.drop_nulls()": (pl.List(pl.Int8()), [[100, 100, -3], [], None]),
    'y["a"] + 1': (pl.Int64(), [2, None, None]),
    'y["c"]["e"]': (pl.String(), ["v", None, None]),
    'p["a"]': (pl.Float32(), [1.5, None, None]),
    'p["none"]': (pl.Float32(), [None, None, None]),
    "q[-1]": (pl.String(), ["v", None, None]),
    "u % 10": (pl.UInt64(), [5, 7, None]),
    "u // 2": (pl.UInt64(), [2**63 - 1, 3, None]),
    "u / 2": (pl.Float64(), [2.0**63, 3.5, None]),
    "i // -3": (pl.Int64(), [42, -2, None]),
    "i % -3": (pl.Int64(), [-2, -1, None]),
    "i // (i - 5)": (pl.Int64(), [0, None, None]),
    "i / (i - 5)": (pl.Float64(), [128 / 133, INF, None]),
    "g % 2": (pl.Float64(), [0.5, NAN, None]),
    "i ** 2": (pl.Float64(), [16384.0, 25.0, None]),
    "2 ** i": (pl.Float64(), [2.0**-128, 32.0, None]),
    "-i": (pl.Int64(), [128, -5, None]),
    "m * 2": (pl.Float64(), [2.5, -1.0, None]),
}


def matches(value: object, expected: object) -> bool:
    if isinstance(expected, list) and isinstance(value, list):
        return len(value) == len(expected) and all(map(matches, value, expected))
    if isinstance(expected, float) and isinstance(value, float):
        return (math.isnan(expected) and math.isnan(value)) or math.isclose(value, expected, rel_tol=1e-14)
    return type(value) is type(expected) and value == expected


@pytest.mark.parametrize("text", EXPECTED)
def test_value_and_type(text: str):
    dtype, expected = EXPECTED[text]
    bound = bind_expression(parse(text), TABLE.schema)
    series = FRAME.lazy().select(bound.polars.alias("result")).collect(engine="in-memory")["result"]
    assert bound.dtype == dtype
    assert series.dtype == dtype
    assert matches(series.to_list(), expected), series.to_list()
    assert is_row_preserving(bound.polars)


def test_every_function_has_an_expected_value():
    written = " ".join(EXPECTED)
    missing = [name for name in [*FUNCTIONS, *METHODS, *OPERATOR_METHODS] if not re.search(rf"\b{name}\(", written)]
    assert not missing


@pytest.mark.parametrize("name", [name for name in METHODS if "." not in name])
def test_a_method_is_a_function_of_its_receiver(name: str):
    column = "f" if name in ("is_nan", "is_finite", "is_infinite", "fill_nan") else "i"
    rest = {"clip": "0", "cast": "'int64'", "try_cast": "'int64'", "fill_null": "0", "fill_nan": "0"}.get(name, "")
    method = bind_expression(parse(f"{column}.{name}({rest})"), TABLE.schema)
    function = bind_expression(parse(f"{name}({column}{', ' if rest else ''}{rest})"), TABLE.schema)
    assert str(method.polars) == str(function.polars)


def test_the_reference_lists_exactly_the_catalogue():
    reference = REFERENCE.read_text(encoding="utf-8")
    declared = {f"| `{f.usage()}` | {f.summary} |" for f in {**FUNCTIONS, **METHODS}.values()}
    declared |= {f"| `{SIGNATURES[name]}` | the same as `{OPERATOR_METHODS[name]}` |" for name in OPERATOR_METHODS}
    listed = set(re.findall(r"^\| `[^`]*\)` \| .* \|$", reference[reference.index("## Functions") :], re.MULTILINE))
    assert listed == declared


WRONG = {
    "i.cast('int46')": "`int46` is not a type: expected the name of a type as a string: one of int8,",
    "i.cast(int64)": "unknown column `int64`",
    "i.cast()": "an argument is missing: expected `x.cast(dtype)`",
    "i.clip(0, 1, 2)": "too many arguments for `x.clip(lower_bound=None, upper_bound=None)`",
    "i.clip(0, uper_bound=1)": "has no argument `uper_bound`. Did you mean `upper_bound`?",
    "i.clip(0, lower_bound=1)": "the argument `lower_bound` is given twice",
    "i.clip(1, 0)": "the bounds of `clip` are reversed: got 1 above 0",
    "i.clip()": "`clip` needs a lower or an upper bound",
    "i > clip()": "`clip` needs the column that it works on: write `x.clip(",
    "i > clip(1, 2)": "`clip` works on a column, not on a literal",
    "i.fill_null(g)": "for another column write `coalesce(x, y)`",
    "i.fill_null(None)": "`fill_null` needs a value: got None",
    "i.fill_null([1])": "expects a literal",
    "i.fill_null('x')": "the literal does not fit int64: got the string 'x', expected a number",
    "f.fill_nan('x')": "the literal does not fit float32",
    "i.fill_nan(0)": "`fill_nan` works on float: got int8",
    "i.fill_null(strategy='mean')": "a strategy looks at other rows",
    "s.abs()": "`abs` works on decimal or float or integer: got string",
    "s.str.slice('a')": "expects a literal integer here",
    "s.str.slice(True)": "expects a literal integer here",
    "s.str.slice(0, -1)": "`length` must be at least 0: got -1",
    "s.str.zfill(1000)": "the length must be at most 256",
    "s.str.head(3000000000)": "the argument is too large",
    "s.str.contains(n)": "expects a literal string here",
    "s.str.replace('', 'x')": "the pattern to replace must not be empty",
    "s.str.split('')": "the separator must not be empty",
    "s.str.to_date('%Q')": "the format is unknown",
    "s.str.to_datetime('%H')": "the format does not make a full timestamp",
    "f.cast('string')": "float32 has no fixed form as a string",
    "s.cast('bool')": "a string is not a boolean",
    "t.cast('int64')": 'timestamp[us] is not a number: write `.dt.epoch("s")`',
    "i.dt.hour()": "`dt.hour` works on time or timestamp: got int8",
    "d.dt.hour()": "`dt.hour` works on time or timestamp: got date",
    "t.dt.epoch('h')": '`time_unit` must be one of "d", "s", "ms", "us", "ns"',
    "t.dt.truncate('1 hour')": "not a duration: got '1 hour', expected one like \"15m\"",
    "t.dt.convert_time_zone('Berlin')": "unknown time zone: got 'Berlin'",
    "z.dt.replace_time_zone('UTC')": "has a time zone: write `.dt.convert_time_zone(...)`",
    "when(i, 1, 0)": "the condition of `when` must be a boolean expression: got int8",
    "when(True, i, 0)": "the condition of `when` must be a boolean expression: got a literal",
    "when(b, 1, 'x')": "the values have no common type",
    "when(b, None, None)": "the type of the result is undetermined",
    "when(b, i, s)": "the values have no common type: got int8 and string",
    "coalesce(i)": "`coalesce` takes at least two values: got 1",
    "coalesce(i, u)": "uint64 and signed integers have no common type",
    "sum_horizontal(i, s)": "`sum_horizontal` works on decimal or float or integer: got string",
    "sum_horizontal(u, u)": "uint64 has no `sum_horizontal`",
    "min_horizontal(a=i)": "`min_horizontal` takes no named arguments",
    "i.log(1)": "the base of a logarithm must be positive and not 1",
    "i.round(16)": "decimals must be between 0 and 15",
    "l.list.contains('x')": "the literal does not fit int8",
    "l.list.contains(None)": "`list.contains` needs a value: got None",
    "i.list.len()": "`list.len` works on list: got int8",
    "i.is_in(5)": "expected `x.is_in([literals])`, which is `x in [...]`",
    "i.is_between(1)": "expected `x.is_between(lower_bound, upper_bound)`",
    "u + 1": 'uint64 has no `+` here: cast it first, as in `x.cast("int64")`',
    "u % -1": "uint64 has no `%` here",
    "-u": "`-` needs a signed number: got uint64",
    "b + 1": '`+` needs numbers: got bool. Write `.cast("int64")`',
    "s + 1": "the literal does not fit string: got the integer 1",
    "i + 99999999999999999999": "the literal does not fit int64",
    "i / 0": "`/` by the literal zero",
    "i ** 2000": "the exponent is too large: got 2000, expected at most 1024",
    "t - z": "a timestamp with a time zone meets one without",
    "t + t": '`+` needs numbers: got timestamp[us]. Write `.dt.epoch("s")`',
    "l + 1": "`+` needs numbers: got list<int8>. A list has methods",
    'y["b"]': "the struct has no field `b`: expected one of `a`, `c`",
    "y[1]": "expected a string as key, got struct<a: int64, c: struct<e: string>>",
    'q["a"]': "the literal does not fit int16: got the string 'a'",
    "q[40000]": "the literal does not fit int16: got 40000",
    "l[0]": "got list<int8>. Write `.list.get(position)`",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments_are_refused_with_a_reason(text: str):
    with pytest.raises(ExpressionError, match=re.escape(WRONG[text])) as caught:
        bind_expression(parse(text), TABLE.schema)
    assert "^" in str(caught.value).splitlines()[-1]


MIXING = """
all any append approx_n_unique arg_max arg_min arg_sort backward_fill bottom_k count cum_count cum_max cum_min
cum_prod cum_sum cumulative_eval diff drop_nans drop_nulls ewm_mean explode extend_constant filter first forward_fill
gather get head implode interpolate is_duplicated is_first_distinct is_unique item last len limit max mean median min
mode n_unique null_count over pct_change peak_max product quantile rank reshape reverse rle rolling_mean rolling_sum
sample shift shuffle skew slice sort sort_by std sum tail top_k unique value_counts var
""".split()  # noqa: SIM905  a table of names


@pytest.mark.parametrize("name", MIXING)
def test_methods_that_mix_rows_are_refused_by_name(name: str):
    assert hasattr(pl.Expr, name)
    for text in (f"g.{name}()", f"{name}(g)"):
        with pytest.raises(ExpressionError, match=f"`{name}` mixes rows, and transforms are row-preserving"):
            parse(text)


def test_methods_of_polars_that_the_language_lacks_are_refused():
    for namespace in ("", "dt", "str", "list"):
        holder = getattr(pl.col("x"), namespace) if namespace else pl.col("x")
        prefix = f"{namespace}." if namespace else ""
        for name in dir(holder):
            known = f"{prefix}{name}" in METHODS or name in OPERATOR_METHODS
            if not name.startswith("_") and not known:
                with pytest.raises(ExpressionError):
                    parse(f"x.{prefix}{name}()")
