"""The public interface of expressions: `parse`, `bind` and `bind_where`."""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from feedline.errors import ExpressionError, SpecError
from feedline.expressions import BoundExpression, Expression, bind_expression, bind_where, parse
from feedline.expressions.predicates import (
    And,
    Comparison,
    IsNull,
    Membership,
    Not,
    Opaque,
    Or,
    Predicate,
    conjunction,
    disjunction,
)
from feedline.expressions.row_preservation import is_row_preserving, offending_node

TABLE = pa.table(
    {
        "ds": pa.array([date(2025, 12, 31), date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 3)]),
        "country": pa.array(["US", "DE", None, "FR"]).dictionary_encode(),
        "dwell": pa.array([1.0, None, float("nan"), 2.5], pa.float32()),
        "clicked": pa.array([True, False, None, True]),
        "n": pa.array([1, 2, None, -4], pa.int16()),
        "m": pa.array([1, -2, 3, None], pa.int64()),
        "price": pa.array([Decimal("0.10"), Decimal("1.00"), None, Decimal("2.00")], pa.decimal128(5, 2)),
        "history": pa.array([[1], [], None, [2, 3]]),
        "user": pa.array([{"country": "US", "vip": True}, {"country": None, "vip": False}, None, {"vip": None}]),
        "odd name": pa.array([1, 2, 3, 4]),
    }
)
FRAME = pl.DataFrame(TABLE)
SCHEMA = TABLE.schema


def values(text: str) -> list[object]:
    bound = bind_expression(parse(text), SCHEMA)
    return FRAME.lazy().select(bound.polars).collect(engine="in-memory").to_series().to_list()


def test_the_example_of_the_design():
    text = 'ds >= "2026-01-01" and country in ["US", "DE"] and dwell is not None'
    bound = bind_where(text, SCHEMA)
    assert bound.text == text
    assert bound.columns == {"ds", "country", "dwell"}
    assert bound.schema.names == ["ds", "country", "dwell"]
    assert bound.dtype == pl.Boolean
    assert bound.predicate == And(
        items=(
            Comparison(column="ds", op=">=", value=date(2026, 1, 1)),
            Membership(column="country", values=("US", "DE")),
            Not(item=IsNull(column="dwell")),
        )
    )
    assert values(text) == [False, False, None, False]
    assert FRAME.filter(bind_where('ds >= "2026-01-01" and country != "FR"', SCHEMA).polars)["n"].to_list() == [2]


def test_the_error_in_the_reference():
    reference = (Path(__file__).parents[2] / "docs" / "expressions.md").read_text(encoding="utf-8")
    schema = pa.schema([("ds", pa.date32()), ("price", pa.float32())])
    with pytest.raises(ExpressionError) as caught:
        bind_where('ds >= "2026-01-01" and pricee > 3', schema)
    assert f"```\n{caught.value}\n```" in reference


def test_columns_are_known_without_a_table():
    text = 'when(a.dt.hour() > 1, -b, user["x"]) + clip(c, upper_bound=2) * f not in [1] or not (1 < d <= e is None)'
    expression = parse(text)
    assert isinstance(expression, Expression)
    assert expression.columns == {"a", "b", "c", "d", "e", "f", "user"}
    assert parse('col("a") > col("odd name")').columns == {"a", "odd name"}


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


def test_conjunction_and_disjunction_flatten():
    a, b, c = IsNull(column="a"), IsNull(column="b"), IsNull(column="c")
    assert conjunction([a]) == a
    assert conjunction([And(items=(a, b)), c]) == And(items=(a, b, c))
    assert disjunction([Or(items=(a, b)), And(items=(b, c))]) == Or(items=(a, b, And(items=(b, c))))


def test_three_valued_logic():
    assert values("clicked and n > 0") == [True, False, None, False]
    assert values("clicked or n > 1") == [True, True, None, True]
    assert values("not clicked") == [False, True, None, False]
    assert values("clicked and clicked is not None") == [True, False, False, True]
    assert values("clicked or clicked is None") == [True, False, True, True]


def test_nan_fails_every_comparison_but_unequal():
    assert values("dwell > 1") == [False, None, False, True]
    assert values("not (dwell > 1)") == [True, None, True, False]
    assert values("dwell <= 5") == [True, None, False, True]
    assert values("dwell != 1") == [False, None, True, True]
    assert values("dwell == dwell") == [True, None, False, True]
    assert values("dwell != dwell") == [False, None, True, False]
    assert values("not (dwell < dwell)") == [True, None, True, True]
    assert values("n < dwell") == [False, None, None, True]
    assert values("dwell not in [1, 2.5]") == [False, None, True, False]
    assert values("0 < dwell < 2") == [True, None, False, False]


def test_a_null_beside_nan_is_null():
    frame = pl.DataFrame({"a": [float("nan"), None], "b": [None, float("nan")]})
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64())])
    for op in ("==", "!=", "<", "<=", ">", ">="):
        assert frame.select(bind_where(f"a {op} b", schema).polars).to_series().to_list() == [None, None]


CLOCKS: list[tuple[pa.DataType, int]] = [
    (pa.timestamp("s"), 10**9),
    (pa.timestamp("ms", "Europe/Berlin"), 10**6),
    (pa.timestamp("us", "Asia/Tokyo"), 10**3),
    (pa.timestamp("ns"), 1),
]


@pytest.mark.parametrize(("left", "right"), [(0, 3), (3, 0), (1, 2), (2, 1), (0, 0), (3, 3)])
def test_timestamps_of_different_units_and_zones_compare_as_moments(left: int, right: int):
    (a, a_ns), (b, b_ns) = CLOCKS[left], CLOCKS[right]
    pairs = [(0, 0), (0, 1), (1, 0), (1, a_ns), (-1, -1), (1, b_ns)]
    table = pa.table({"a": pa.array([p[0] for p in pairs], a), "b": pa.array([p[1] for p in pairs], b)})
    bound = bind_where("a < b", table.schema)
    found = pl.DataFrame(table).select(bound.polars).to_series().to_list()
    assert found == [p[0] * a_ns < p[1] * b_ns for p in pairs]


def test_unsigned_and_signed_integers_compare_exactly():
    table = pa.table({"u": pa.array([2**64 - 1, 0, 2**63], pa.uint64()), "i": pa.array([-1, 0, 2**63 - 1], pa.int64())})
    for text, expected in {
        "u == i": [False, True, False],
        "u > i": [True, False, True],
        "i <= u": [True, True, True],
    }.items():
        assert pl.DataFrame(table).select(bind_where(text, table.schema).polars).to_series().to_list() == expected


def test_decimals_of_different_scales_compare_exactly():
    kinds = [("a", pa.decimal128(5, 2)), ("b", pa.decimal128(20, 10)), ("c", pa.decimal128(38, 38))]
    table = pa.table([pa.array([Decimal("0.10")], kind) for _, kind in kinds], names=["a", "b", "c"])
    for text in ("a == b", "a >= b", "not a < b", "a == c"):
        assert pl.DataFrame(table).select(bind_where(text, table.schema).polars).to_series().to_list() == [True]


def test_a_bound_expression_pickles_as_its_text():
    bound = bind_where('country == "US" and n > 1', SCHEMA)
    maker, arguments = bound.__reduce__()
    assert arguments == (bound.text, pa.schema([SCHEMA.field("country"), SCHEMA.field("n")]))
    assert callable(maker)
    copy = pickle.loads(pickle.dumps(bound))
    assert isinstance(copy, BoundExpression)
    assert (copy.text, copy.columns, copy.dtype, copy.predicate) == (
        bound.text,
        bound.columns,
        bound.dtype,
        bound.predicate,
    )
    assert str(copy.polars) == str(bound.polars)
    assert copy == bound
    assert hash(copy) == hash(bound)
    assert b"polars" not in pickle.dumps(bound)
    assert copyreg.dispatch_table.get(BoundExpression) is None


def test_equality_is_of_texts_and_columns():
    assert parse("n > 1") == parse("n > 1") != parse("n > 2")
    assert len({parse("n > 1"), parse("n > 1")}) == 1
    assert pickle.loads(pickle.dumps(parse("n > clip(m, 1)"))) == parse("n > clip(m, 1)")
    wider = pa.schema([("n", pa.int64())])
    assert bind_where("n > 1", SCHEMA) == bind_where("n > 1", TABLE.select(["n"]).schema)
    assert bind_where("n > 1", SCHEMA) != bind_where("n > 1", wider)
    assert bind_where("n > 1", SCHEMA) != "n > 1"


def test_binding_in_threads_gives_equal_results():
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: str(bind_where("n > 1 and dwell <= 0.1", SCHEMA).polars), range(40)))
    assert len(set(found)) == 1


def test_names():
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


def test_a_column_alone_keeps_its_type():
    for name in ("n", "dwell", "history", "price"):
        assert bind_expression(parse(name), SCHEMA).dtype == FRAME.schema[name]
    assert bind_expression(parse("country"), SCHEMA).dtype == pl.String


def test_integers_widen_before_arithmetic():
    table = pa.table({"x": pa.array([127, -128], pa.int8()), "y": pa.array([255, 0], pa.uint8())})
    frame = pl.DataFrame(table)
    for text, expected in {"x + 1": [128, -127], "x * y": [32385, 0], "-x": [-127, 128], "y - 1": [254, -1]}.items():
        bound = bind_expression(parse(text), table.schema)
        assert bound.dtype == pl.Int64
        assert frame.select(bound.polars).to_series().to_list() == expected


def test_the_row_check_is_exported():
    assert is_row_preserving(pl.col("x") + 1)
    assert offending_node(pl.col("x") - pl.col("x").mean()) == 'col("x").mean()'
