"""Learnt statistics of numbers are right, and the same for every order and partition.

The oracles are fractions.Fraction, numpy and the sketch of the library whose buckets are used.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import CubicallyInterpolatedMapping
from ddsketch.store import DenseStore
from drawn_examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from feedline.errors import DataError
from feedline.transforms.learning.learner import Artifact, Learner
from feedline.transforms.learning.statistics import Extremes, Moments, Quantiles, finite_numbers, root

MOMENTS, EXTREMES = Moments(op="o"), Extremes(op="o")
MEDIAN = Quantiles(op="o", parts=2, error=0.001, median=True)
TENTHS = Quantiles(op="o", parts=10, error=0.01)
LEARNERS = [MOMENTS, EXTREMES, MEDIAN, TENTHS]
DTYPES = [pl.Float64(), pl.Float32(), pl.Int64(), pl.Int8(), pl.UInt64()]


@st.composite
def columns(draw: Any) -> pl.Series:
    """A column with nulls, NaN, infinities, negative zeros, repetitions and extremes."""
    dtype = draw(st.sampled_from(DTYPES))
    if dtype.is_integer():
        low, high = (int(pl.select(bound).item()) for bound in (dtype.min(), dtype.max()))
        number: Any = st.one_of(st.integers(low, high), st.sampled_from([low, high]), st.integers(0, 5))
    else:
        width = 32 if dtype == pl.Float32() else 64
        odd = st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 1.0, -2.5])
        number = st.one_of(odd, st.floats(width=width), st.floats(-4, 4, width=width))
    return pl.Series("x", draw(st.lists(st.one_of(number, number, st.none()), max_size=40)), dtype=dtype)


def learn(learner: Learner, *parts: pl.Series) -> Artifact:
    """In one merge."""
    return learner.finish([learner.merge([learner.observe([part]) for part in parts])])


def finite(series: pl.Series) -> list[Any]:
    return [value for value in series.to_list() if value is not None and math.isfinite(value)]


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
@examples(30)
@given(series=columns(), cuts=st.lists(st.integers(0, 40), max_size=4), data=st.data())
def test_every_order_and_partition_gives_the_same_artifact(
    learner: Learner, series: pl.Series, cuts: list[int], data: st.DataObject
):
    if not finite(series):
        with pytest.raises(DataError, match=r"o learns from finite numbers: got .* nulls and .* NaN or infinities"):
            learn(learner, series)
        return
    whole = learn(learner, series)
    order = data.draw(st.permutations(range(len(series))))
    mixed = series[list(order)]
    borders = [0, *sorted(min(cut, len(series)) for cut in cuts), len(series)]
    states = [learner.observe([mixed[start:stop]]) for start, stop in pairwise(borders)]
    while len(states) > 1:  # in a tree of any shape
        count = data.draw(st.integers(2, len(states)))
        states = [*states[count:], learner.merge(states[:count][::-1])]
    state = learner.merge(states)
    assert state.schema == learner.observe([series[:0]]).schema
    parts = [state] if not learner.keys else [part for _, part in state.group_by(pl.col("bucket") % 3)]
    found = learner.finish(parts)
    assert (found.facts, found.digest) == (whole.facts, whole.digest)
    assert set(found.facts) == set(learner.blank().facts)
    assert found.facts["values"] == len(finite(series))
    assert found.facts["nulls"] == series.null_count()
    assert found.facts["nonfinite"] == len(series) - series.null_count() - len(finite(series))


@examples(30)
@given(columns())
def test_moments_are_those_of_rational_numbers(series: pl.Series):
    values = [Fraction(value) for value in finite(series)]
    if not values:
        return
    facts = learn(MOMENTS, series).facts
    mean = sum(values, Fraction(0)) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert facts["mean"] == float(mean)
    assert math.isclose(facts["std"], root(variance), rel_tol=1e-15)
    if 1e-300 < variance < 1e300:
        assert math.isclose(facts["std"], math.sqrt(variance), rel_tol=1e-15)


@examples(30)
@given(st.fractions(min_value=0))
@example(Fraction(2) ** 2000)
@example(Fraction(1, 2**2100))
def test_a_root_squared_is_the_square(square: Fraction):
    found = Fraction(root(square))
    assert abs(found * found - square) <= square * Fraction(2) ** -51


@examples(30)
@given(columns())
def test_extremes(series: pl.Series):
    values = finite(series)
    if values:
        facts = learn(EXTREMES, series).facts
        assert (facts["min"], facts["max"]) == (min(values), max(values))
        assert not str(facts["min"]).startswith("-0.0")


@examples(30)
@given(columns(), st.sampled_from([2, 3, 4, 10]), st.sampled_from([0.0001, 0.01, 0.1]))
def test_quantiles_are_off_by_their_error_at_most(series: pl.Series, parts: int, error: float):
    values = finite(series)
    if not values:
        return
    found = learn(Quantiles(op="o", parts=parts, error=error, median=parts == 2), series).facts["quantiles"]
    shares = np.arange(1, parts) / parts
    exact = np.quantile(np.array([float(value) for value in values]), shares, method="inverted_cdf")
    if parts == 2 and len(values) % 2 == 0 and series.dtype.is_float():
        ordered = sorted(values)
        exact = [ordered[len(values) // 2 - 1] / 2 + ordered[len(values) // 2] / 2]
        size = [max(abs(ordered[len(values) // 2 - 1]), abs(ordered[len(values) // 2]))]
    else:
        size = np.abs(exact)
    assert len(found) == parts - 1
    for mine, other, large in zip(found, exact, size, strict=True):
        assert isinstance(mine, int if series.dtype.is_integer() else float)
        allowed = error * large * (1 + 1e-9) + 3e-308 + (0.5 if series.dtype.is_integer() else 0)
        assert abs(float(mine) - other) <= allowed + 2**-52 * large


@examples(30)
@given(st.lists(st.floats(-1e300, 1e300).filter(lambda value: not 0 < abs(value) < 1e-300), min_size=1, max_size=60))
def test_buckets_are_those_of_the_library(values: list[float]):
    """Fed value by value, its sketch gives the same quantiles, where a bucket's number is not known exactly."""
    sketch = BaseDDSketch(CubicallyInterpolatedMapping(0.05), DenseStore(), DenseStore(), 0.0)
    for value in [*values, *(value * 1.0001 for value in values)]:
        sketch.add(value)
    twice = pl.Series([*values, *(value * 1.0001 for value in values)])
    learner = Quantiles(op="o", parts=2, error=0.05, median=True)
    state = learner.observe([twice]).with_columns(only=pl.lit(None, pl.Float64))
    shares = [(rank + 0.25) / (len(twice) - 1) for rank in (len(values) - 1, len(values))]  # clear of rounding
    left, right = (sketch.get_quantile_value(min(share, 1)) for share in shares)
    assert learner.finish([state]).facts["quantiles"] == [left / 2 + right / 2]


def test_quantiles_of_few_distinct_numbers_are_exact():
    values = np.random.default_rng(0).integers(-300, 300, 10_000)
    exact = np.quantile(values, np.arange(1, 20) / 20, method="inverted_cdf")
    for series in (pl.Series(values), pl.Series(values / 7), pl.Series(values.astype(np.int16))):
        found = learn(Quantiles(op="o", parts=20, error=0.001), series[:10], series[10:]).facts["quantiles"]
        scale = 7 if series.dtype.is_float() else 1
        assert found == [value / scale if scale > 1 else value for value in exact.tolist()]
    assert learn(MEDIAN, pl.Series([2**60 + 1, 2**60 + 1, 5])).facts["quantiles"] == [2**60 + 1]
    assert learn(MEDIAN, pl.Series([1, 2, 3, 4])).facts["quantiles"] == [2]
    assert learn(MEDIAN, pl.Series([1.0, 2.0, 4.0, 9.0])).facts["quantiles"] == [3.0]


def test_numbers_are_seen_one_by_one():
    assert finite_numbers(pl.Series([[1, None], None, [], [2]])).values.tolist() == [1, 2]
    assert finite_numbers(pl.Series([[1, None], None, [], [2]])).nulls == 1
    vectors = pl.Series([[1.5, 2.5], [math.inf, None], None], dtype=pl.Array(pl.Float32, 2))
    seen = finite_numbers(vectors)
    assert (seen.values.tolist(), seen.nulls, seen.nonfinite) == ([1.5, 2.5], 1, 1)
    assert finite_numbers(pl.Series([Decimal("1.50"), None])).values.tolist() == [1.5]


def test_summaries_are_short():
    series = pl.Series([1.0, 2.0, 9.0, None, math.nan])
    counts = {"values": 3, "nulls": 1, "nonfinite": 1}
    assert MOMENTS.show(learn(MOMENTS, series)) == {**counts, "mean": 4.0, "std": pytest.approx(math.sqrt(38 / 3))}
    assert EXTREMES.show(learn(EXTREMES, series)) == {**counts, "min": 1.0, "max": 9.0}
    assert MEDIAN.show(learn(MEDIAN, series)) == {**counts, "error": 0.001, "median": 2.0}
    found = TENTHS.show(learn(TENTHS, series))
    assert found == {**counts, "error": 0.01, "borders": 9, "first": 1.0, "last": 9.0}
