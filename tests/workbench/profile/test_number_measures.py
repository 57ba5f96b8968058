"""Numbers of a column, compared with numpy, scipy and pandas."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.workbench.profile.column_measures import histogram_of, moments, number_facts, quantiles_of
from feedline.workbench.profile.table_facts import QUANTILES


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=300))
def test_quantiles_are_those_of_the_inverted_distribution_function(values: list[int]):
    array = np.array(values)
    expected = [int(np.quantile(array, share, method="inverted_cdf")) for share in QUANTILES]
    assert list(quantiles_of(array, QUANTILES)) == expected


@pytest.mark.parametrize("seed", range(3))
def test_moments_are_those_of_scipy(seed: int):
    values = np.random.default_rng(seed).lognormal(size=5000)
    mean, std, skewness = moments(values)
    assert mean == pytest.approx(values.mean())
    assert std == pytest.approx(values.std())
    assert skewness == pytest.approx(scipy.stats.skew(values))


def test_a_constant_has_no_deviation():
    assert moments(np.full(1000, 0.1)) == (pytest.approx(0.1), 0.0, 0.0)
    assert moments(np.array([7])) == (7.0, 0.0, 0.0)


def test_moments_beyond_float64_are_unknown():
    assert moments(np.array([1e308, -1e308, 1e308])) == (pytest.approx(1e308 / 3), None, None)
    assert moments(np.array([], np.float64)) == (None, None, None)


def test_rates_are_of_values_that_are_not_null():
    facts = number_facts(pl.Series([0.0, -1.0, math.nan, math.inf, -math.inf, None, 2.0, None, 3.0, 4.0]))
    assert facts is not None
    assert (facts.zero_rate, facts.negative_rate, facts.nan_rate, facts.inf_rate) == (1 / 8, 1 / 8, 1 / 8, 2 / 8)
    assert (facts.min, facts.max) == (-1.0, 4.0)


def test_lists_are_measured_by_their_elements():
    facts = number_facts(pl.Series([[1.0, math.nan], None, [], [3.0, None]]))
    assert facts is not None
    assert (facts.min, facts.max, facts.nan_rate) == (1.0, 3.0, 1 / 3)


def test_booleans_are_zeros_and_ones():
    facts = number_facts(pl.Series([True, False, True, None]))
    assert facts is not None
    assert (facts.min, facts.max, facts.zero_rate) == (0, 1, 1 / 3)
    assert facts.mean == pytest.approx(2 / 3)


def test_a_column_of_nulls_has_no_numbers():
    assert number_facts(pl.Series([None, None], dtype=pl.Float32)) is None


def test_a_column_without_finite_numbers_has_rates():
    facts = number_facts(pl.Series([math.nan, math.inf]))
    assert facts is not None
    assert (facts.min, facts.mean, facts.quantiles, facts.histogram) == (None, None, (), None)
    assert facts.nan_rate == 0.5


NUMBERS = st.one_of(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=100).map(np.array),
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=100).map(lambda values: np.array(values, np.int64)),
    st.lists(st.integers(0, 5), min_size=1, max_size=100).map(lambda values: np.array(values, np.int64)),
)


@settings(max_examples=100, deadline=None)
@given(NUMBERS, st.sampled_from([0.0, 5.0, None]))
def test_histograms_count_every_number_once(values: np.ndarray, skewness: float | None):
    histogram = histogram_of(values, skewness)
    if histogram is None:
        return
    assert sum(histogram.counts) == len(values)
    assert len(histogram.edges) == len(histogram.counts) + 1
    assert list(histogram.edges) == sorted(histogram.edges)


def test_few_integers_have_a_bin_each():
    histogram = histogram_of(np.array([1, 1, 2, 4]), 0.0)
    assert histogram is not None
    assert histogram.counts == (2, 1, 0, 1)


def test_skewed_positive_numbers_have_growing_bins():
    values = np.random.default_rng(0).lognormal(sigma=2, size=10_000)
    histogram = histogram_of(values, 10.0)
    assert histogram is not None
    assert histogram.log
    ratios = np.diff(np.log(histogram.edges))
    assert np.allclose(ratios, ratios[0])
    assert max(histogram.counts) < 0.3 * len(values)  # in linear bins, nearly all would be in the first one


def test_numbers_far_out_do_not_flatten_the_others():
    values = np.append(np.random.default_rng(0).normal(size=10_000), [1e6, -1e6])
    histogram = histogram_of(values, 0.0)
    assert histogram is not None
    assert (histogram.edges[0], histogram.edges[-1]) == (-1e6, 1e6)
    assert max(histogram.counts) < 0.2 * len(values)


def test_zeros_of_skewed_numbers_have_a_bin_of_their_own():
    values = np.concatenate([np.zeros(100), np.random.default_rng(0).lognormal(sigma=3, size=100)])
    histogram = histogram_of(values, 10.0)
    assert histogram is not None
    assert histogram.log
    assert (histogram.edges[0], histogram.counts[0]) == (0.0, 100)
