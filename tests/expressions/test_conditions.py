"""Conditions split into terms of one column select the rows that the whole condition selects."""

from __future__ import annotations

import itertools

import polars as pl
import pyarrow as pa
import pytest

from feedline.expressions import bind_where
from feedline.expressions.conditions import Condition, Joint, Term, condition_of, terms

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.bool_())])
FRAME = pl.DataFrame(
    list(itertools.product([None, 0, 1, 2], [None, 0, 1, 2], [None, True, False])),
    schema={"a": pl.Int64, "b": pl.Int64, "c": pl.Boolean},
    orient="row",
)
# a condition, and the columns of its terms
CONDITIONS: dict[str, list[set[str]]] = {
    "a > 0": [{"a"}],
    "not (a > 0 and a < 2)": [{"a"}],
    "a > 0 and b > 0": [{"a"}, {"b"}],
    "a > 0 and b > 0 and a < 2": [{"a"}, {"b"}],
    "not (a > 0 and b > 0)": [{"a"}, {"b"}],
    "not (a > 0 or not (b > 0 and c))": [{"a"}, {"b"}, {"c"}],
    "(a > 0 or b is None) and c": [{"c"}, {"a"}, {"b"}],
    "a > b or c": [{"c"}, {"a", "b"}],
    "not (a > b)": [{"a", "b"}],
    "a is not None and (b in [1, 2] or not c)": [{"a"}, {"b"}, {"c"}],
}


def selected(condition: Condition) -> pl.Series:
    if isinstance(condition, Term):
        return FRAME.select(condition.expr.alias("rows")).to_series()
    items = [selected(item) for item in condition.items]
    joined = items[0]
    for item in items[1:]:
        joined = joined & item if condition.op == "and" else joined | item
    return joined


@pytest.mark.parametrize("text", CONDITIONS)
def test_terms_select_the_rows_of_the_condition(text: str):
    where = bind_where(text, SCHEMA)
    rows = selected(condition_of(where))
    assert rows.null_count() == 0
    assert rows.to_list() == FRAME.select(where.polars.fill_null(False)).to_series().to_list()


@pytest.mark.parametrize("text", CONDITIONS)
def test_items_over_one_column_are_one_term(text: str):
    assert [set(term.columns) for term in terms(condition_of(bind_where(text, SCHEMA)))] == CONDITIONS[text]


def test_negation_turns_all_into_any():
    both = condition_of(bind_where("a > 0 and b > 0", SCHEMA))
    neither = condition_of(bind_where("not (a > 0 and b > 0)", SCHEMA))
    assert isinstance(both, Joint)
    assert isinstance(neither, Joint)
    assert (both.op, neither.op) == ("and", "or")


def test_equal_conditions_are_split_once():
    assert condition_of(bind_where("a > 1 and c", SCHEMA)) is condition_of(bind_where("a > 1 and c", SCHEMA))
