"""Measures of drift, compared with scipy and with their definitions."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.workbench.profile.drift import bin_numbers, bin_values, distance, missing_share, stability_index


def test_the_stability_index_is_a_symmetric_divergence():
    base, other = np.array([600, 300, 100]), np.array([300, 300, 400])
    p, q = (base + 0.5) / 1001.5, (other + 0.5) / 1001.5
    expected = scipy.stats.entropy(p, q) + scipy.stats.entropy(q, p)
    assert stability_index(base, other) == pytest.approx(expected)
    assert stability_index(base, other) == pytest.approx(stability_index(other, base))
    assert stability_index(base, base * 7) == pytest.approx(0, abs=1e-5)
    assert stability_index(base, np.zeros(3, np.int64)) == 0
    assert math.isfinite(stability_index(np.array([5, 0]), np.array([0, 5])))


@pytest.mark.parametrize("seed", range(3))
def test_the_distance_is_that_of_kolmogorov_and_smirnov(seed: int):
    random = np.random.default_rng(seed)
    base, other = np.round(random.normal(size=500), 1), np.round(random.normal(0.3, size=300), 1)
    assert distance(base, other) == pytest.approx(scipy.stats.ks_2samp(base, other).statistic)
    assert distance(base, base) == 0
    assert distance(base, base[:0]) is None


NUMBERS = st.lists(st.integers(-5, 5) | st.floats(-1e9, 1e9), max_size=60).map(lambda values: np.array(values, float))


@settings(max_examples=80, deadline=None)
@given(NUMBERS, NUMBERS, st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_bins_hold_every_number_once(base: np.ndarray, other: np.ndarray, nulls: tuple[int, int]):
    bins = bin_numbers(base, other, nulls)
    assert len(bins.labels) == len(bins.base) == len(bins.other)
    assert (sum(bins.base), sum(bins.other)) == (len(base) + nulls[0], len(other) + nulls[1])
    assert (bins.base[-1], bins.other[-1]) == nulls


def test_bins_of_continuous_numbers_are_tenths():
    base = np.random.default_rng(0).normal(size=10_000)
    assert np.allclose(bin_numbers(base, base, (0, 0)).base[:-1], 1000, atol=1)


def test_a_shift_of_numbers_is_seen_and_a_resample_is_not():
    random = np.random.default_rng(0)
    base, same, moved = random.normal(size=5000), random.normal(size=5000), random.normal(1, size=5000)
    assert bin_numbers(base, same, (0, 0)).psi < 0.02
    assert bin_numbers(base, moved, (0, 0)).psi > 0.5
    assert bin_numbers(np.ones(1000), np.full(1000, 2.0), (0, 0)).psi > 1
    assert bin_numbers(base, base, (0, 2000)).psi > 0.25


def test_values_are_counted_by_the_base():
    base, other = pl.Series(["a", "a", "b", None]), pl.Series(["a", "c", "c", None, None])
    bins = bin_values(base, other, complete=True)
    assert bins.labels == ("value 1", "value 2", "others", "new", "null")
    assert bins.base == (2, 1, 0, 0, 1)
    assert bins.other == (1, 0, 0, 2, 2)
    assert bin_values(base, other, complete=False).other == (1, 0, 2, 2)


def test_rare_values_are_one_bin():
    base = pl.Series([*range(20)] * 10 + [*range(100, 150)])
    bins = bin_values(base, pl.Series([100, 999]), complete=True)
    assert bins.base[-3:] == (50, 0, 0)
    assert bins.other[-3:] == (1, 1, 0)


def test_missing_values_have_a_share():
    assert missing_share(pl.Series([1, 2, 3, None]), pl.Series([1, 1])) == pytest.approx(2 / 3)
    assert missing_share(pl.Series([], dtype=pl.Int64), pl.Series([1])) == 0
