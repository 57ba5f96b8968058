"""Ops that learn from dense columns against scikit-learn, numpy and pandas on the same rows."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from fit_in_memory import fit_frames
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import check_elements, columns, rounded
from op_oracles import run as run_op
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import KBinsDiscretizer, MinMaxScaler, StandardScaler

from feedline.config.features import FeatureSpec, OpCall
from feedline.errors import DataError
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, InMemoryArtifacts
from feedline.transforms.registry.op import OpError

RANDOM = np.random.default_rng(5)
GAMMA = RANDOM.gamma(2, 3, 5000)
DTYPES = [pl.Float64(), pl.Float32(), pl.Int64(), pl.Int16()]
Call = str | dict[str, Any]


def feature(*ops: Call, group: Any = "extra") -> FeatureSpec:
    calls = []
    for written in ops:
        [(name, value)] = written.items() if isinstance(written, dict) else [(written, {})]
        calls.append(OpCall(op=name, arguments=json.dumps(value if isinstance(value, dict) else {"": value})))
    return FeatureSpec(name="made", group=group, column="x", ops=tuple(calls))


def run(series: pl.Series, *ops: Call, learnt_from: pl.Series | None = None, group: Any = "extra") -> pl.Series:
    """The ops over a column, told what they learn from it or from another of its type."""
    frame = series.alias("x").to_frame()
    other = frame if learnt_from is None else learnt_from.alias("x").to_frame()
    schema = frame.to_arrow().schema
    known = fit_frames([feature(*ops, group=group)], schema, [other[: len(other) // 3], other[len(other) // 3 :]])
    return compile_features([feature(*ops, group=group)], schema, known).apply(frame)["made"]


def facts(series: pl.Series, *ops: Call) -> dict[str, Any]:
    frame = series.alias("x").to_frame()
    [artifact] = fit_frames([feature(*ops)], frame.to_arrow().schema, [frame]).artifacts.values()
    return dict(artifact.facts)


def with_holes(values: np.ndarray[Any, Any], dtype: pl.DataType) -> tuple[pl.Series, np.ndarray[Any, Any]]:
    """A column with nulls, and the float64 numbers that are left."""
    series = pl.Series("x", values).cast(dtype)
    absent = np.arange(len(values)) % 7 == 0
    return series.set(pl.Series(absent), None), series.to_numpy().astype(np.float64)[~absent]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_standardize_agrees_with_scikit_learn(dtype: pl.DataType):
    series, values = with_holes(GAMMA * 10, dtype)
    expected = StandardScaler().fit_transform(values[:, None])[:, 0]
    found = run(series, "standardize")
    assert found.null_count() == series.null_count()
    assert found.dtype == (pl.Float32 if dtype == pl.Float32() else pl.Float64)
    close = 1e-6 if dtype == pl.Float32() else 1e-12
    np.testing.assert_allclose(found.drop_nulls().to_numpy(), expected, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("to", [(0, 1), (-1, 1), (5, 50)], ids=str)
def test_min_max_agrees_with_scikit_learn(dtype: pl.DataType, to: tuple[int, int]):
    series, values = with_holes(GAMMA * 10 - 20, dtype)
    expected = MinMaxScaler(to).fit_transform(values[:, None])[:, 0]
    found = run(series, {"min_max": {"to": to}})
    close = 1e-6 if dtype == pl.Float32() else 1e-12
    np.testing.assert_allclose(found.drop_nulls().to_numpy(), expected, rtol=close, atol=close)
    assert (found.min(), found.max()) == to


@pytest.mark.parametrize("name", ["standardize", "min_max"])
def test_learnt_numbers_as_parameters_give_the_same_result(name: str):
    """The given form is the fitted one with its numbers written down, to the bit."""
    series, _ = with_holes(GAMMA, pl.Float32())
    learnt = facts(series, name)
    given_form = {key: learnt[key] for key in (("mean", "std") if name == "standardize" else ("min", "max"))}
    assert run(series, {name: given_form}).equals(run(series, name), null_equal=True)


@pytest.mark.parametrize(
    ("ops", "value", "expected"),
    [
        (["standardize"], 7.25, 0.0),
        (["standardize"], 9.25, 2.0),
        (["min_max"], 7.25, 0.0),
        (["min_max"], 9.25, 0.0),
        (["min_max"], math.inf, math.nan),
        ([{"min_max": {"to": [2, 3]}}], 9.25, 2.0),
        (["fill_median"], None, 7.25),
        (["fill_mean"], None, 7.25),
        ([{"quantile_bucketize": 5}], 7.25, 0),
        ([{"quantile_bucketize": 5}], 7.5, 1),
    ],
)
def test_a_constant_column(ops: list[Call], value: float | None, expected: float):
    for dtype in (pl.Float64(), pl.Float32()):
        constant = pl.Series([7.25, None, 7.25, math.nan, math.inf], dtype=dtype)
        found = run(pl.Series([value], dtype=dtype), *ops, learnt_from=constant).item()
        assert str(found) == str(expected)


@pytest.mark.parametrize("ops", ["standardize", "min_max", "fill_median", "fill_mean", {"quantile_bucketize": 3}])
@pytest.mark.parametrize("values", [[], [None, None], [math.nan, math.inf, -math.inf, None]], ids=str)
def test_nothing_is_learnt_from_no_finite_number(ops: Call, values: list[Any]):
    name = ops if isinstance(ops, str) else next(iter(ops))
    with pytest.raises(DataError, match=rf"{name} learns from finite numbers: got \d nulls and \d NaN or infinities"):
        run(pl.Series(values, dtype=pl.Float64), ops)


def test_nonfinite_numbers_follow_ieee_754():
    odd = pl.Series([math.nan, math.inf, -math.inf, None, 3.0])
    learnt = pl.Series([1.0, 5.0])
    assert str(run(odd, "standardize", learnt_from=learnt).to_list()) == "[nan, inf, -inf, None, 0.0]"
    assert str(run(odd, "min_max", learnt_from=learnt).to_list()) == "[nan, inf, -inf, None, 0.5]"
    assert str(run(odd, "fill_median", learnt_from=learnt).to_list()) == "[nan, inf, -inf, 3.0, 3.0]"
    assert run(odd, {"quantile_bucketize": 2}, learnt_from=learnt).to_list() == [None, 1, 0, None, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["median", "mean"])
def test_fills_agree_with_scikit_learn(dtype: pl.DataType, name: str):
    series, values = with_holes(GAMMA[:4001] * 30, dtype)
    holed = series.cast(pl.Float64).fill_null(math.nan).to_numpy()
    expected = SimpleImputer(strategy=name).fit_transform(holed[:, None])[:, 0]
    found = run(series, f"fill_{name}")
    assert found.null_count() == 0
    assert found.dtype.is_integer() is (dtype.is_integer() and name == "median")
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=0.001 if name == "median" else 1e-7)
    assert math.isclose(found.to_numpy()[0], np.median(values) if name == "median" else values.mean(), rel_tol=0.001)


def test_quantile_buckets_hold_equally_many():
    found = run(pl.Series(GAMMA), {"quantile_bucketize": {"buckets": 20, "error": 0.0001}})
    counts = np.bincount(found.to_numpy(), minlength=20)
    assert counts.sum() == len(GAMMA)
    assert np.abs(counts - len(GAMMA) / 20).max() <= 10
    binned = KBinsDiscretizer(20, encode="ordinal", strategy="quantile", quantile_method="inverted_cdf")
    expected = binned.fit_transform(GAMMA[:, None])[:, 0]
    assert (np.abs(found.to_numpy() - expected) <= 1).all()
    assert (found.to_numpy() == expected).mean() > 0.98


def test_equal_borders_are_one():
    found = run(pl.Series([0] * 90 + [*range(1, 11)]), {"quantile_bucketize": 10})
    assert found.to_list() == [0] * 90 + [1] * 10
    floats = run(pl.Series([0.0] * 50 + [0.5] * 50, dtype=pl.Float32), {"quantile_bucketize": 4})
    assert floats.to_list() == [0] * 50 + [1] * 50


def test_lists_and_vectors_learn_from_all_their_elements():
    lists = pl.Series([[1.0, 3.0], None, [], [5.0, None, 7.0]])
    flat = run(pl.Series([1.0, 3.0, 5.0, None, 7.0]), "standardize").to_list()
    assert run(lists, "standardize").to_list() == [flat[:2], None, [], flat[2:]]
    vectors = pl.Series([[1.0, 3.0], [5.0, 7.0]], dtype=pl.Array(pl.Float32, 2))
    found = run(vectors, "min_max", group="dense")
    assert found.dtype == pl.Array(pl.Float32, 2)
    assert found.to_list() == [[0.0, pytest.approx(1 / 3)], [pytest.approx(2 / 3), 1.0]]


def test_ops_learn_from_the_results_of_earlier_ops():
    series = pl.Series([None, 1.0, 3.0, math.nan, 1e9])
    chain: list[Call] = [{"clip": {"max": 15}}, {"fill_nonfinite": 7}, "fill_mean", "log1p", "standardize"]
    filled = np.array([6.5, 1, 3, 7, 15])
    expected = StandardScaler().fit_transform(np.log1p(filled)[:, None])[:, 0]
    np.testing.assert_allclose(run(series, *chain).to_numpy(), expected, rtol=1e-12)


def test_wrong_parameters_are_refused():
    schema = pl.Series("x", [1.5]).to_frame().to_arrow().schema
    wide = InMemoryArtifacts(artifacts={})
    [want] = compile_features([feature("min_max")], schema, wide).missing_fits
    known = InMemoryArtifacts(artifacts={want.key: Artifact(facts={"min": -1.7e308, "max": 1.7e308})})
    with pytest.raises(OpError, match=r"min_max: a range must fit float64: got -1.7e\+308 to 1.7e\+308"):
        compile_features([feature("min_max")], schema, known)
    words = pl.Series("x", ["a"]).to_frame().to_arrow().schema
    with pytest.raises(OpError, match="standardize takes numbers, or lists of them: got string"):
        compile_features([feature("standardize")], words)


@examples(30)
@given(columns(), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_standardize(series: pl.Series, mean: float, std: float):
    def oracle(value: float) -> float:
        return rounded(float((np.float64(value) - mean) / std), series.dtype)

    with np.errstate(all="ignore"):
        close = 1.5e-7 if series.dtype == pl.Float32() else 5e-16
        check_elements("standardize", {"mean": mean, "std": std}, series, oracle, close)


def test_standardize_keeps_precision_far_from_zero():
    """In float32 the difference would be off by 8: seconds since 1970 lie 128 apart."""
    series = pl.Series([1.7e9, 1.7e9 + 128], dtype=pl.Float32)
    expected = [float(np.float32((float(value) - 1_700_000_003) / 10)) for value in series]
    assert run_op("standardize", {"mean": 1_700_000_003, "std": 10}, series).to_list() == expected
