"""Fused chains of ops equal their ops one after the other, bit by bit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.features import FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features

FLOAT_OPS: tuple[tuple[str, Any], ...] = (
    ("fill_nonfinite", 0.5),
    ("fill_null", 2),
    ("clip", {"min": -3, "max": 40}),
    ("log1p", None),
    ("log", None),
    ("logit", 0.01),
    ("box_cox", {"power": 0.5, "shift": 4}),
    ("standardize", {"mean": 1.5, "std": 0.3}),
    ("min_max", {"min": -1, "max": 3}),
    ("bucketize", [0, 0.5, 2]),
    ("cast", "float64"),
    ("cast", "float32"),
)
ID_OPS: tuple[tuple[str, Any], ...] = (
    ("fill_null", 3),
    ("clip", {"min": 2, "max": 1000}),
    ("modulo", 700),
    ("hash_bucket", 900),
    ("sigrid_hash", {"salt": 2, "max_value": 5000}),
    ("bucketize", [5, 50, 300]),
    ("log1p", None),
    ("standardize", {"mean": 9, "std": 4}),
)


def feature(ops: list[tuple[str, Any]], group: Any) -> FeatureSpec:
    calls = []
    for name, arguments in ops:
        value = {} if arguments is None else arguments if isinstance(arguments, dict) else {"": arguments}
        calls.append(OpCall(op=name, arguments=json.dumps(value)))
    return FeatureSpec(name="x", group=group, column="x", ops=tuple(calls))


def run(series: pl.Series, *ops: tuple[str, Any], group: str = "extra") -> pl.Series:
    frame = series.alias("x").to_frame()
    return compile_features([feature(list(ops), group)], frame.to_arrow().schema).apply(frame)["x"]


def bits(series: pl.Series) -> list[Any]:
    """Its values, the sign of a zero and the null apart."""
    return [series.dtype, *map(repr, series.to_list())]


def check(series: pl.Series, ops: list[tuple[str, Any]], group: str) -> None:
    expected = series
    for op in ops:
        expected = run(expected, op)
    expected = run(expected, group=group)
    frame = series.alias("x").to_frame()
    compiled = compile_features([feature(ops, group)], frame.to_arrow().schema)
    inside_polars = compiled.lazy(frame).collect(engine="in-memory")["x"]
    assert bits(inside_polars) == bits(expected)
    assert bits(run(series, *ops, group=group)) == bits(expected)


def column(draw: Any, numbers: Any, dtype: pl.DataType) -> pl.Series:
    held = pl.Series(draw(st.lists(st.one_of(st.none(), numbers), max_size=20)), dtype=dtype)
    return held[draw(st.integers(0, 3)) :]  # with another offset


@examples(25)
@given(st.data(), st.sampled_from([pl.Float32(), pl.Float64()]), st.lists(st.sampled_from(FLOAT_OPS[:9]), max_size=5))
def test_chains_over_floats(data: st.DataObject, dtype: pl.DataType, ops: list[tuple[str, Any]]):
    width = 32 if dtype == pl.Float32() else 64
    numbers = st.one_of(st.floats(width=width), st.floats(-5, 50, width=width))
    check(column(data.draw, numbers, dtype), ops, data.draw(st.sampled_from(["extra", "dense"])))


@examples(25)
@given(st.data(), st.lists(st.sampled_from(ID_OPS[:5]), max_size=4), st.sampled_from([None, *ID_OPS[5:]]))
def test_chains_over_ids(data: st.DataObject, ops: list[tuple[str, Any]], last: tuple[str, Any] | None):
    dtype = data.draw(st.sampled_from([pl.Int64(), pl.Int8(), pl.UInt64()]))
    numbers = st.integers(0, 2**64 - 1 if dtype == pl.UInt64() else 127)
    ops = ops if last is None else [*ops, last]
    check(column(data.draw, numbers, dtype), ops, "extra")


@examples(25)
@given(st.data(), st.lists(st.sampled_from(ID_OPS[:5]), max_size=4))
def test_chains_over_lists(data: st.DataObject, ops: list[tuple[str, Any]]):
    rows = data.draw(st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-9, 9))))))
    series = pl.Series(rows, dtype=pl.List(pl.Int64))
    check(series, ops, "extra")
    if not any(name == "fill_null" for name, _ in ops):
        check(series.list.to_array(2) if all(row is None or len(row) == 2 for row in rows) else series, ops, "extra")


@pytest.mark.parametrize("last", FLOAT_OPS[-3:], ids=str)
def test_ops_after_a_fused_chain(last: tuple[str, Any]):
    series = pl.Series([0.25, None, 3.5, -2.0], dtype=pl.Float32)
    check(series, [("clip", {"min": -1}), ("log1p", None), last], "extra")
    check(series, [("clip", {"min": -1}), last, ("log1p", None)], "dense")


@examples(40)
@given(
    lists=st.lists(st.none() | st.lists(st.none() | st.integers(0, 99), max_size=6), min_size=1, max_size=9),
    op=st.one_of(
        st.integers(1, 5).map(lambda count: ("first_x", count)),
        st.tuples(st.integers(-4, 4), st.integers(-4, 4)).map(
            lambda ends: ("list_slice", {"start": ends[0], "stop": ends[1]})
        ),
    ),
    before=st.sampled_from([[], [("modulo", 7)]]),
    dtype=st.sampled_from([pl.Int64(), pl.Int32()]),
)
def test_slices_at_the_end_of_a_feature(lists: Any, op: Any, before: Any, dtype: pl.DataType):
    """Two features of one slice, of a column or of what Polars computes, equal the slice inside Polars."""
    frame = pl.DataFrame({"x": pl.Series(lists, dtype=pl.List(dtype))})
    one = feature([*before, op], "sparse")
    compiled = compile_features([one, replace(one, name="again")], frame.to_arrow().schema)
    inside_polars = compiled.lazy(frame).collect(engine="in-memory")
    assert compiled.apply(frame).to_dict(as_series=False) == inside_polars.to_dict(as_series=False)
    start, stop = (0, op[1]) if op[0] == "first_x" else (op[1]["start"], op[1]["stop"])
    expected = [None if each is None else each[start:stop] for each in lists]
    expected = [[None if v is None else v % 7 for v in each] if before and each else each for each in expected]
    assert compiled.apply(frame)["x"].to_list() == expected


@examples(60)
@given(
    lists=st.lists(st.none() | st.lists(st.none() | st.integers(-99, 99), max_size=6), min_size=1, max_size=9),
    slices=st.sampled_from([[], [("first_x", {"": 3})]]),
    dtype=st.sampled_from([pl.Int64(), pl.Int32(), pl.UInt8(), pl.Float32()]),
    skip=st.integers(0, 3),
)
def test_kernels_over_elements_at_the_end_of_a_feature(lists: Any, slices: Any, dtype: pl.DataType, skip: int):
    held = [None if each is None else [v if v is None else abs(v) for v in each] for each in lists]
    frame = pl.DataFrame({"x": pl.Series(held, dtype=pl.List(dtype))}).slice(skip)  # slices have offsets
    ops: list[tuple[str, Any]] = [("clip", {"min": 2, "max": 50}), ("log1p", None)]
    if dtype.is_integer():
        ops = [("hash_bucket", {"": 9}), ("fill_null", {"": 3})]
    compiled = compile_features([feature([*slices, *ops], "sparse")], frame.to_arrow().schema)
    assert compiled.apply(frame)["x"].equals(compiled.lazy(frame).collect()["x"])
    assert compiled._pass.only_source == "x", "Polars computes nothing"
