"""Random tables, and random expressions written twice: in the language, and in DuckDB's SQL.

The SQL is written here, beside the expression, from the rules of docs/expressions.md alone: NaN with `isnan`, floor
division with a correction, literals and widening with casts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

NAN, INF = float("nan"), float("inf")
SCHEMA = pa.schema(
    [
        ("tiny", pa.int8()),
        ("big", pa.int64()),
        ("count", pa.uint32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("name", pa.string()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us")),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(8, 2)),
        ("items", pa.list_(pa.int16())),
    ]
)
TEXTS = ["", "a", "ab", "Ab", "b a", "é€", "Zz"]
POOLS: dict[str, list[object]] = {
    "tiny": [-128, -100, -7, -1, 0, 1, 2, 3, 50, 127],
    "big": [-100, -99, -3, -2, -1, 0, 1, 2, 3, 7, 100],
    "count": [0, 1, 2, 3, 99, 100],
    "single": [NAN, INF, -INF, -1.5, -0.0, 0.0, 0.1, 0.5, 2.0, 2.5, 100.0],
    "double": [NAN, INF, -INF, -1.5, -0.0, 0.0, 0.1, 0.5, 2.0, 2.5, 100.0],
    "name": TEXTS,
    "kind": TEXTS,
    "day": [date(1969, 12, 31), date(2024, 2, 29), date(2026, 1, 1), date(2026, 1, 2)],
    "moment": [
        datetime(1969, 12, 31, 23, 59, 59, 500_000),
        datetime(2024, 12, 31, 23, 0, 1),
        datetime(2026, 1, 1),
        datetime(2026, 1, 1, 0, 0, 0, 1),
        datetime(2026, 1, 2, 12, 30),
    ],
    "flag": [True, False],
    "price": [Decimal("-1.50"), Decimal("0.00"), Decimal("0.10"), Decimal("2.50"), Decimal("99.99")],
    "items": [[], [None], [1], [0, 0], [3, None, -2], [300, 1, 300, None], [-2, 0, 1, 3]],
}
INTEGERS, FLOATS = ("tiny", "big", "count"), ("single", "double")
WHOLE = ["-200", "-129", "-3", "-1", "0", "1", "2", "3", "100", "127", "128", "300", "99999999999999999999"]
BROKEN = ["-1.5", "0.1", "0.5", "2.0", "2.5", "99.99", "0.105", "1e300"]
DAYS = ["1969-12-31", "2024-02-29", "2026-01-01", "2026-01-02"]
MOMENTS = [*DAYS, "2024-12-31T23:00:01", "2026-01-01 00:00:00.000001", "2026-01-02T12:30"]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]
FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Sides:
    """One expression in both languages. Type: int, float, text, day, moment, bool, list; `bits` for float32."""

    text: str
    sql: str
    type: str
    bits: int = 64


def random_table(seed: int, rows: int = 400) -> pa.Table:
    """Draw rows from the pools, with some nulls, so many that nearly every pair of values occurs in some row."""
    draws = random.Random(seed)
    columns = {
        name: pa.array([None if draws.random() < 0.15 else draws.choice(pool) for _ in range(rows)], kind)
        for (name, pool), kind in zip(POOLS.items(), SCHEMA.types, strict=True)
    }
    return pa.table(columns)


TABLES = [random_table(seed) for seed in range(3)]


# --- the two languages side by side -----------------------------------------------------------------------------------


def compared(op: str, left: str, right: str, *, floats: bool) -> str:
    """Return a comparison in SQL, by IEEE rules where NaN may occur: DuckDB orders NaN above infinity."""
    plain = f"({left} {'=' if op == '==' else op} {right})"
    if not floats:
        return plain
    null = f"({left}) IS NULL OR ({right}) IS NULL"
    nan = f"isnan({left}::DOUBLE) OR isnan({right}::DOUBLE)"
    return f"(CASE WHEN {null} THEN NULL WHEN {nan} THEN {str(op == '!=').lower()} ELSE {plain} END)"


def column(name: str) -> Sides:
    kind = SCHEMA.field(name).type
    type_ = {"name": "text", "kind": "text", "day": "day", "moment": "moment", "flag": "bool", "items": "list"}.get(
        name
    )
    if type_ is None:
        type_ = "int" if pa.types.is_integer(kind) else "float" if pa.types.is_floating(kind) else "decimal"
    sql = f"{name}::BIGINT" if type_ == "int" else f"{name}::VARCHAR" if name == "kind" else name
    return Sides(f'col("{name}")' if name == "kind" else name, f"({sql})", type_, 32 if name == "single" else 64)


def number_for(item: Sides, literal: str) -> tuple[str, str]:
    """Return the SQL of column and literal in a type that compares exactly, or as floats of the column's type."""
    if item.type == "float":
        if item.bits == 64 or abs(float(literal)) > 3e38:  # beyond float32: compared as the literal written
            return f"({item.sql})::DOUBLE", f"CAST('{literal}' AS DOUBLE)"
        return item.sql, f"(CAST('{literal}' AS DOUBLE)::FLOAT)"
    if abs(float(literal)) > 1e25:  # beyond DuckDB's decimals, hence beyond any column here
        literal = f"{'-' if literal[0] == '-' else ''}1{'0' * 25}"
    return f"CAST({item.sql} AS DECIMAL(38, 6))", f"CAST('{literal}' AS DECIMAL(38, 6))"


def literal_for(item: Sides, draw: st.DrawFn) -> tuple[str, str, str]:
    """Return a literal, its SQL, and the SQL of the operand beside it."""
    if item.type in ("int", "float", "decimal"):
        literal = draw(st.sampled_from(WHOLE + BROKEN))
        left, right = number_for(item, literal)
        return literal, right, left
    if item.type == "text":
        value = draw(st.sampled_from(TEXTS))
        return f'"{value}"', f"'{value}'", item.sql
    if item.type == "bool":
        value = draw(st.sampled_from(["True", "False"]))
        return value, value.lower(), item.sql
    value = draw(st.sampled_from(MOMENTS))
    return f'"{value}"', f"TIMESTAMP '{value}'", f"CAST({item.sql} AS TIMESTAMP)"


@st.composite
def comparisons(draw: st.DrawFn, items: st.SearchStrategy[Sides]) -> Sides:
    """Compare an operand with a literal, on either side, by `in` with a list of them, or by `is None`."""
    item = draw(items)
    shape = draw(st.sampled_from(["left", "right", "in", "not in", "null", "chain"]))
    floats = item.type == "float"
    if shape == "null" or item.type == "list":
        negated = draw(st.booleans())
        word, sql = ("is not None", "IS NOT NULL") if negated else ("is None", "IS NULL")
        return Sides(f"({item.text} {word})", f"({item.sql} {sql})", "bool")
    op = draw(st.sampled_from(COMPARISONS if item.type != "bool" else COMPARISONS[:2]))
    literal, right, left = literal_for(item, draw)
    if shape == "right":
        return Sides(f"({literal} {FLIPPED[op]} {item.text})", compared(op, left, right, floats=floats), "bool")
    if shape in ("in", "not in"):
        pairs = [(literal, left, right)]
        for _ in range(draw(st.integers(0, 2))):
            other, other_right, other_left = literal_for(item, draw)
            pairs.append((other, other_left, other_right))
        any_of = " OR ".join(compared("==", a, b, floats=floats) for _, a, b in pairs)
        values = ", ".join(pair[0] for pair in pairs)
        return Sides(f"({item.text} {shape} [{values}])", f"({'NOT ' * (shape != 'in')}({any_of}))", "bool")
    text, sql = f"{item.text} {op} {literal}", compared(op, left, right, floats=floats)
    if shape == "chain" and item.type != "bool":
        other, other_right, other_left = literal_for(item, draw)
        text, sql = f"{other} < {text}", f"({compared('>', other_left, other_right, floats=floats)} AND {sql})"
    return Sides(f"({text})", sql, "bool")


COLUMNS = st.sampled_from(SCHEMA.names).map(column)
PRUNABLE = comparisons(COLUMNS) | st.just(column("flag"))


def conditions(leaves: st.SearchStrategy[Sides]) -> st.SearchStrategy[Sides]:
    """Combine conditions by `and`, `or` and `not`."""

    def joined(inner: st.SearchStrategy[Sides]) -> st.SearchStrategy[Sides]:
        pairs = st.tuples(st.sampled_from(["and", "or"]), inner, inner)
        both = pairs.map(
            lambda p: Sides(f"({p[1].text} {p[0]} {p[2].text})", f"({p[1].sql} {p[0]} {p[2].sql})", "bool")
        )
        return both | inner.map(lambda side: Sides(f"(not {side.text})", f"(NOT {side.sql})", "bool"))

    return st.recursive(leaves, joined, max_leaves=5)


DAY_PARTS = {
    "year": "year({})",
    "month": "month({})",
    "day": "day({})",
    "weekday": "isodow({})",
    "week": "week({})",
    "ordinal_day": "dayofyear({})",
    "quarter": "quarter({})",
    "iso_year": "isoyear({})",
    'epoch("us")': "epoch_us(CAST({} AS TIMESTAMP))",
}
CLOCK_PARTS = {"hour": "hour({})", "minute": "minute({})", "second": "second({})"}


@st.composite
def leaf_numbers(draw: st.DrawFn) -> Sides:
    """Draw a column, or an integer derived from a column that is not a number."""
    shape = draw(st.sampled_from(["int", "int", "float", "float", "decimal", "day", "clock", "text", "list"]))
    if shape in ("int", "float"):
        return column(draw(st.sampled_from(INTEGERS if shape == "int" else FLOATS)))
    if shape == "decimal":
        return column("price")
    if shape == "day":
        part, sql = draw(st.sampled_from([*DAY_PARTS.items()]))
        item = draw(st.sampled_from(["day", "moment"]))
        call = part if part.endswith(")") else f"{part}()"
        return Sides(f"{item}.dt.{call}", f"({sql.format(item)})::BIGINT", "int")
    if shape == "clock":
        part, sql = draw(st.sampled_from([*CLOCK_PARTS.items()]))
        return Sides(f"moment.dt.{part}()", f"({sql.format('moment')})::BIGINT", "int")
    if shape == "text":
        method, sql = draw(st.sampled_from([("len_chars", "length"), ("len_bytes", "strlen")]))
        return Sides(f"name.str.{method}()", f"({sql}(name))::BIGINT", "int")
    method, sql = draw(
        st.sampled_from(
            [
                ("len", "len(items)"),
                ("sum", "CASE WHEN items IS NULL THEN NULL ELSE coalesce(list_sum(items), 0) END"),
                ("min", "list_min(items)"),
                ("max", "list_max(items)"),
                ("first", "items[1]"),
                ("last", "items[-1]"),
                ("get(1)", "items[2]"),
                ("get(-2)", "items[-2]"),
            ]
        )
    )
    call = method if method.endswith(")") else f"{method}()"
    return Sides(f"items.list.{call}", f"({sql})::BIGINT", "int")


def as_double(side: Sides) -> str:
    return f"({side.sql})::DOUBLE"


@st.composite
def arithmetic(draw: st.DrawFn, inner: st.SearchStrategy[Sides]) -> Sides:
    """Draw an operator or a function over numbers, with explicit widening."""
    shape = draw(st.sampled_from(["binary", "binary", "literal", "negative", "function", "chosen"]))
    left = draw(inner)
    if shape == "negative":
        return Sides(f"(-{left.text})", f"(-{left.sql if left.type == 'int' else as_double(left)})", kept(left))
    if shape == "function":
        return function(draw, left)
    if shape == "chosen":
        return chosen(draw, left, draw(inner))
    if shape == "binary":
        return operated(draw(st.sampled_from(["+", "-", "*", "/", "//", "%"])), left, draw(inner))
    text = draw(st.sampled_from(["2", "3", "-7", "0.5", "100"]))
    literal = Sides(text, f"({text}::{'DOUBLE' if '.' in text else 'BIGINT'})", "float" if "." in text else "int")
    pair = (left, literal) if draw(st.booleans()) else (literal, left)
    return operated(draw(st.sampled_from(["+", "-", "*", "/", "//", "%"])), *pair)


def kept(*sides: Sides) -> str:
    return "int" if all(side.type == "int" for side in sides) else "float"


def operated(op: str, left: Sides, right: Sides) -> Sides:
    text, type_ = f"({left.text} {op} {right.text})", kept(left, right)
    if type_ == "float" or op == "/":
        a, b = as_double(left), as_double(right)
        quotient = f"floor({a} / {b})"
        sql = {"//": quotient, "%": f"({a} - {b} * {quotient})"}.get(op, f"({a} {op} {b})")
        return Sides(text, f"({sql})", "float")
    a, b = left.sql, f"nullif({right.sql}, 0)"
    towards_zero = f"({a} // {b})"
    down = f"({towards_zero} - CASE WHEN {a} % {b} <> 0 AND (({a} < 0) <> ({b} < 0)) THEN 1 ELSE 0 END)"
    sql = {"//": down, "%": f"({a} - {b} * {down})"}.get(op, f"({a} {op} {right.sql})")
    return Sides(text, sql, "int")


def function(draw: st.DrawFn, item: Sides) -> Sides:
    name = draw(st.sampled_from(["abs", "sign", "floor", "ceil", "round", "cast", "is_nan", "fill_nan"]))
    double = as_double(item)
    if item.type == "int":
        sql = {"abs": f"abs({item.sql})", "sign": f"sign({item.sql})::BIGINT"}.get(name, item.sql)
        if name == "cast":
            return Sides(f'{item.text}.cast("float64")', double, "float")
        if name in ("is_nan", "fill_nan"):
            return item
        return Sides(f"{name}({item.text})", sql, "int")
    if name == "is_nan":
        return Sides(f"when({item.text}.is_nan(), 1, 0)", f"(CASE WHEN isnan({double}) THEN 1 ELSE 0 END)", "int")
    if name == "fill_nan":
        if item.type == "decimal":
            return item
        return Sides(f"({item.text} * 1).fill_nan(7)", f"(CASE WHEN isnan({double}) THEN 7 ELSE {double} END)", "float")
    if name == "abs" and item.bits == 32:
        return Sides(f"{item.text}.abs()", f"abs({item.sql})", "float", 32)
    if name == "cast":
        return Sides(f'{item.text}.cast("float64")', double, "float")
    nan = f"isnan({double})"
    sql = {
        "round": f"round_even({double}, 0)",
        "sign": f"CASE WHEN {nan} OR {double} = 0 THEN {double} ELSE sign({double}) END",
    }
    return Sides(f"{item.text}.{name}()", f"({sql.get(name, f'{name}({double})')})", "float")


def chosen(draw: st.DrawFn, item: Sides, other: Sides) -> Sides:
    """Draw functions that select: the result is int64 if all are integers, else double (except floats of one width)."""
    type_ = kept(item, other)
    a, b = (item.sql, other.sql) if type_ == "int" else (as_double(item), as_double(other))
    shape = draw(st.sampled_from(["coalesce", "min", "max", "when", "fill_null", "clip"]))
    if "decimal" in (item.type, other.type):
        shape = "arithmetic"
    if shape == "coalesce":
        return Sides(f"coalesce({item.text}, {other.text})", f"coalesce({a}, {b})", type_)
    if shape == "when":
        condition = draw(PRUNABLE)
        sql = f"(CASE WHEN {condition.sql} THEN {a} ELSE {b} END)"
        return Sides(f"when({condition.text}, {item.text}, {other.text})", sql, type_)
    if shape == "fill_null":
        return Sides(f"{item.text}.fill_null(3)", f"coalesce({item.sql}, 3)", item.type, item.bits)
    if shape == "clip":
        clipped = f"greatest(least({item.sql}, 2), -1)"
        nan = f"isnan(({item.sql})::DOUBLE)" if item.type == "float" else "false"
        sql = f"(CASE WHEN {item.sql} IS NULL OR {nan} THEN {item.sql} ELSE {clipped} END)"
        return Sides(f"clip({item.text}, -1, upper_bound=2)", sql, item.type, item.bits)
    if shape in ("min", "max"):
        pick = "least" if shape == "min" else "greatest"
        if type_ == "float":  # a NaN is skipped like a null, and remains only if there is nothing else
            kept_a, kept_b = (f"(CASE WHEN isnan({x}) THEN NULL ELSE {x} END)" for x in (a, b))
            sql = f"coalesce({pick}({kept_a}, {kept_b}), {a}, {b})"
        else:
            sql = f"{pick}({a}, {b})"
        return Sides(f"{shape}_horizontal({item.text}, {other.text})", f"({sql})", type_)
    return operated("-", item, other)


NUMBERS = st.recursive(leaf_numbers(), arithmetic, max_leaves=4)


@st.composite
def pairs_compared(draw: st.DrawFn) -> Sides:
    """Compare two operands."""
    if draw(st.booleans()):
        left, right = draw(NUMBERS), draw(NUMBERS)
        op = draw(st.sampled_from(COMPARISONS))
        if {left.type, right.type} == {"decimal"} or kept(left, right) == "int":
            a, b = left.sql, right.sql
        else:
            a, b = as_double(left), as_double(right)
        sql = compared(op, a, b, floats="float" in (left.type, right.type) or left.type != right.type)
        return Sides(f"({left.text} {op} {right.text})", sql, "bool")
    left, right = (column(name) for name in draw(st.sampled_from([("name", "kind"), ("kind", "name"), ("day", "day")])))
    op = draw(st.sampled_from(COMPARISONS))
    return Sides(f"({left.text} {op} {right.text})", compared(op, left.sql, right.sql, floats=False), "bool")


@st.composite
def texts(draw: st.DrawFn) -> Sides:
    item = column(draw(st.sampled_from(["name", "kind"])))
    shape = draw(
        st.sampled_from(["starts_with", "ends_with", "contains", "lower", "upper", "slice", "join", "replace"])
    )
    value = draw(st.sampled_from(["a", "b", "é", " "]))
    a = item.sql
    match shape:
        case "starts_with":
            return Sides(f'{item.text}.str.starts_with("{value}")', f"starts_with({a}, '{value}')", "bool")
        case "ends_with":
            return Sides(f'{item.text}.str.ends_with("{value}")', f"suffix({a}, '{value}')", "bool")
        case "contains":
            return Sides(f'{item.text}.str.contains("{value}")', f"contains({a}, '{value}')", "bool")
        case "lower" | "upper":
            return Sides(f"{item.text}.str.to_{shape}case()", f"{shape}({a})", "text")
        case "slice":
            return Sides(f"{item.text}.str.slice(1, 2)", f"substring({a}, 2, 2)", "text")
        case "replace":
            return Sides(f'{item.text}.str.replace_all("{value}", "__")', f"replace({a}, '{value}', '__')", "text")
    return Sides(f'({item.text} + "-" + name)', f"({a} || '-' || name)", "text")


CONDITIONS = conditions(
    comparisons(COLUMNS | NUMBERS) | pairs_compared() | PRUNABLE | texts().filter(lambda s: s.type == "bool")
)
ANY = NUMBERS | CONDITIONS | texts()
