"""Trees are typed against a schema; conditions get the predicate that statistics can judge."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from clicks_of_days import SCHEMA, values
from typed_columns import assert_evaluates, assert_refused

from feedline.errors import ExpressionError, SpecError
from feedline.expressions import bind_expression, bind_where, parse
from feedline.expressions.predicates import (
    And,
    Comparison,
    IsNull,
    Membership,
    Not,
    Opaque,
    Or,
    Predicate,
)

PREDICATES: dict[str, Predicate] = {
    "n > 1": Comparison(column="n", op=">", value=1),
    "1 < n": Comparison(column="n", op=">", value=1),
    "1 >= n": Comparison(column="n", op="<=", value=1),
    "-1 < n <= 60 * 60": And(
        items=(Comparison(column="n", op=">", value=-1), Comparison(column="n", op="<=", value=3600))
    ),
    "n < 2.5": Comparison(column="n", op="<=", value=2),
    "price == 0.1": Comparison(column="price", op="==", value=Decimal("0.10")),
    "clicked": Comparison(column="clicked", op="==", value=True),
    "not clicked": Not(item=Comparison(column="clicked", op="==", value=True)),
    "clicked == False": Comparison(column="clicked", op="==", value=False),
    "clicked in [True]": Membership(column="clicked", values=(True,)),
    "n not in [1, 2]": Not(item=Membership(column="n", values=(1, 2))),
    "n is None": IsNull(column="n"),
    "n.is_between(1, 2)": And(
        items=(Comparison(column="n", op=">=", value=1), Comparison(column="n", op="<=", value=2))
    ),
    "n > 1 or (n < 0 or n is None)": Or(
        items=(Comparison(column="n", op=">", value=1), Comparison(column="n", op="<", value=0), IsNull(column="n"))
    ),
    "n > 1 and (n > m or clicked)": And(
        items=(
            Comparison(column="n", op=">", value=1),
            Or(
                items=(
                    Opaque(columns=frozenset({"n", "m"})),
                    Comparison(column="clicked", op="==", value=True),
                )
            ),
        )
    ),
    "n == m": Opaque(columns=frozenset({"n", "m"})),
    "n + 1 > 2": Opaque(columns=frozenset({"n"})),
    "-n > 2": Opaque(columns=frozenset({"n"})),
    'n.cast("float64") > 2': Opaque(columns=frozenset({"n"})),
    'user["vip"]': Opaque(columns=frozenset({"user"})),
    'user["country"] == "US"': Opaque(columns=frozenset({"user"})),
    'user["country"] is None': Opaque(columns=frozenset({"user"})),
    "user is None": Opaque(columns=frozenset({"user"})),
    "history is None": Opaque(columns=frozenset({"history"})),
    "clicked == clicked": Opaque(columns=frozenset({"clicked"})),
    "when(clicked, clicked, clicked)": Opaque(columns=frozenset({"clicked"})),
    "n.is_finite()": Opaque(columns=frozenset({"n"})),
}


@pytest.mark.parametrize("text", PREDICATES)
def test_predicates_of_conditions_that_statistics_can_judge(text: str):
    assert bind_where(text, SCHEMA).predicate == PREDICATES[text]


def test_a_value_has_no_predicate():
    assert bind_expression(parse("n + m"), SCHEMA).predicate == Opaque(columns=frozenset({"n", "m"}))
    assert bind_expression(parse("n"), SCHEMA).predicate == Opaque(columns=frozenset({"n"}))


def test_a_date64_column_has_no_predicate():
    bound = bind_where('x > "2026-01-01"', pa.schema([("x", pa.date64())]))
    assert bound.predicate == Opaque(columns=frozenset({"x"}))


def test_columns_may_bear_the_names_of_functions_and_keywords():
    assert values('col("odd name") + 1') == [2, 3, 4, 5]
    schema = pa.schema([("col", pa.int8()), ("clip", pa.int8()), ("from", pa.int8()), ("__index__", pa.int8())])
    for text in ("col > 1", "clip > 1", 'col("from") > 1', "__index__ > 1", "clip(clip, 1) > col"):
        assert bind_expression(parse(text), schema).dtype == pl.Boolean


SAID: list[tuple[Callable[[], object], str]] = [
    (lambda: bind_expression(parse("dwel > 1"), SCHEMA), "unknown column `dwel`. Did you mean `dwell`?"),
    (
        lambda: bind_expression(parse("zzz > 1"), SCHEMA),
        "unknown column `zzz`: expected one of `ds`, `country`, `dwell`,",
    ),
    (lambda: bind_expression(parse("n == null"), SCHEMA), "unknown column `null`: write `is None`"),
    (lambda: bind_expression(parse("clicked == true"), SCHEMA), "unknown column `true`: write `True`"),
    (lambda: bind_expression(parse("n" * 5_000), SCHEMA), "unknown column `" + "n" * 57 + "...`"),
    (lambda: bind_where("n + 1", SCHEMA), "a condition must be boolean: got int64. Compare it, as in `x > 0`"),
    (lambda: bind_where("n and m", SCHEMA), "a condition must be boolean: got int16"),
    (lambda: bind_where("not n", SCHEMA), "a condition must be boolean: got int16"),
    (lambda: bind_where("clicked and True", SCHEMA), "a condition must be boolean: got the literal True"),
    (lambda: bind_where("clicked > False", SCHEMA), "booleans have no order"),
    (lambda: bind_where("clicked > clicked", SCHEMA), "booleans have no order"),
    (lambda: bind_where("country == n", SCHEMA), "string cannot be compared with int16"),
    (lambda: bind_where("history == history", SCHEMA), "list<int64> cannot be compared"),
    (lambda: bind_where("n in ['a']", SCHEMA), "the literal does not fit int16: got the string 'a'"),
    (
        lambda: bind_expression(parse("x"), pa.schema([("x", pa.int8()), ("x", pa.int8())])),
        "the table has 2 columns `x`",
    ),
    (
        lambda: bind_expression(parse('col("^x.*$")'), pa.schema([("^x.*$", pa.int8())])),
        "named like a pattern of Polars",
    ),
    (lambda: bind_expression(parse('col("*")'), pa.schema([("*", pa.int8())])), "named like a pattern of Polars"),
    (
        lambda: bind_expression(parse("x"), pa.schema([("x", pa.dense_union([pa.field("a", pa.int8())]))])),
        "has a type outside the language: dense_union",
    ),
    (lambda: bind_expression(parse("x"), pa.schema([("x", pa.decimal256(50, 2))])), "has a type outside the language"),
    (lambda: parse(5), "an expression must be a string: got int"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("act", "message"), SAID, ids=[message[:30] for _, message in SAID])
def test_errors_show_cause_and_position(act: Callable[[], object], message: str):
    with pytest.raises(ExpressionError) as caught:
        act()
    assert message in str(caught.value)
    assert isinstance(caught.value, SpecError)
    assert type(pickle.loads(pickle.dumps(caught.value))) is ExpressionError


def test_only_used_columns_need_a_type_of_the_language():
    schema = pa.schema([("x", pa.int8()), ("u", pa.dense_union([pa.field("a", pa.int8())]))])
    assert bind_expression(parse("x + 1"), schema).schema.names == ["x"]


EXPECTED: dict[str, tuple[pl.DataType, list[object]]] = {
    'y["a"] + 1': (pl.Int64(), [2, None, None]),
    'y["c"]["e"]': (pl.String(), ["v", None, None]),
    'p["a"]': (pl.Float32(), [1.5, None, None]),
    'p["none"]': (pl.Float32(), [None, None, None]),
    "q[-1]": (pl.String(), ["v", None, None]),
}


@pytest.mark.parametrize("text", EXPECTED)
def test_values_and_types_of_parts_of_columns(text: str):
    assert_evaluates(text, *EXPECTED[text])


WRONG = {
    "i.cast(int64)": "unknown column `int64`",
    'y["b"]': "the struct has no field `b`: expected one of `a`, `c`",
    "y[1]": "expected a string as key, got struct<a: int64, c: struct<e: string>>",
    'q["a"]': "the literal does not fit int16: got the string 'a'",
    "q[40000]": "the literal does not fit int16: got 40000",
    "l[0]": "got list<int8>. Write `.list.get(position)`",
}


@pytest.mark.parametrize("text", WRONG)
def test_errors_of_parts_of_columns(text: str):
    assert_refused(text, WRONG[text])
