"""Values at a point of a chain: their kind, weighted lists, and fused steps over them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from feedline.transforms.values.arrays import FusedKernels, Values
from feedline.transforms.values.kinds import WEIGHTS, Value, weighted_value

PAIRS = pl.List(pl.Struct({"id": pl.Int32(), "weight": pl.Float64()}))


def value(dtype: pl.DataType) -> Value:
    return Value(expr=pl.col("x"), dtype=dtype)


def evaluated(expr: pl.Expr, series: pl.Series) -> list[object]:
    return series.alias("x").to_frame().lazy().select(expr).collect(engine="in-memory").to_series().to_list()


def plus_one(values: Values, out: Values) -> None:
    np.add(values, 1, out=out)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (pl.Int8(), "integer"),
        (pl.Categorical(), "string"),
        (pl.List(pl.Float32()), "float list"),
        (pl.List(pl.Categorical()), "string list"),
        (pl.Array(pl.Float32(), 4), "float vector of 4"),
        (PAIRS, "weighted integer list"),
        (pl.List(pl.Struct({"id": pl.Int32(), "weight": pl.String()})), "struct list"),
        (pl.Struct({"id": pl.Int32()}), "struct"),
    ],
    ids=str,
)
def test_kinds_in_messages(dtype: pl.DataType, kind: str):
    assert str(value(dtype).kind) == kind


def test_lists_of_id_and_weight_are_split():
    series = pl.Series([[{"id": 1, "weight": 0.5}, {"id": 2, "weight": None}], None, []], dtype=PAIRS)
    plain = value(PAIRS).plain()
    assert plain.dtype == pl.List(pl.Int32())
    assert evaluated(plain.expr, series) == [[1, 2], None, []]
    assert plain.weights is not None
    assert evaluated(plain.weights, series) == [[0.5, None], None, []]
    other = weighted_value(pl.col("x"), PAIRS, "weight", "id")
    assert other.dtype == pl.List(pl.Float64())
    assert other.weights is not None
    assert series.alias("x").to_frame().select(other.weights).to_series().dtype == WEIGHTS


def test_kernels_in_a_row_are_fused_as_long_as_the_expression_is_theirs():
    once = value(pl.Int64()).apply_kernel(plus_one, pl.Int64())
    twice = once.fill_nulls(5).apply_kernel(plus_one, pl.Float64())
    assert isinstance(twice.ending, FusedKernels)
    assert len(twice.ending.steps) == 3
    assert evaluated(twice.expr, pl.Series([1, None])) == [3.0, 6.0]
    changed = Value(expr=twice.expr + 1, dtype=twice.dtype, last=twice.last)
    assert changed.ending is None
