"""The public interface of expressions: `parse`, `bind` and `bind_where`."""

from __future__ import annotations

import copyreg
import pickle
from datetime import date
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from clicks_of_days import FRAME, SCHEMA, TABLE, values

from feedline.errors import ExpressionError
from feedline.expressions import BoundExpression, bind_where, parse
from feedline.expressions.predicates import (
    And,
    Comparison,
    IsNull,
    Membership,
    Not,
)


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
