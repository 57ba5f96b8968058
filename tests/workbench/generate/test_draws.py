"""The random values of generated tables have the laws that they state."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.workbench.generate.draws import (
    draw_words,
    effect,
    geometric,
    lognormal,
    nulls,
    permute,
    unit,
    zipf,
)

WORDS = draw_words((1, 2), (3, 4, 5), 50_000)


def test_words_are_those_of_philox_from_the_beginning_of_a_stream():
    raw = np.random.Philox(key=np.array([1, 2], np.uint64), counter=np.array([0, 3, 4, 5], np.uint64)).random_raw(9)
    assert WORDS[:9].tolist() == raw.tolist()
    assert draw_words((1, 2), (3, 4, 5), 9).tolist() == raw.tolist()
    for other in (((1, 3), (3, 4, 5)), ((1, 2), (4, 4, 5))):
        assert not (draw_words(*other, 9) == raw).any()


def test_units_are_the_top_53_bits():
    edges = np.array([0, 2**11 - 1, 2**63, 2**64 - 1], np.uint64)
    assert unit(edges).tolist() == [0.0, 0.0, 0.5, 1 - 2**-53]
    assert statistics.fmean(unit(WORDS)) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_nulls_are_a_share_of_the_words(share: float):
    assert nulls(WORDS, share).mean() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("cardinality", [1, 2, 100, 10**7])
def test_ids_follow_zipf_and_stay_below_the_cardinality(cardinality: int):
    ids = zipf(WORDS, cardinality)
    assert ids.min() == 0
    assert ids.max() < cardinality
    counts = np.bincount(ids[ids < 3], minlength=3)
    if cardinality >= 100:
        assert counts[0] > counts[1] > counts[2] > 0
    assert zipf(np.array([0, 2**64 - 1], np.uint64), cardinality).tolist() == [0, cardinality - 1]


def test_lognormals_have_the_quantiles_of_their_law():
    values = np.sort(lognormal(WORDS, 1.0))
    assert values.dtype == np.float32
    for share in (0.1, 0.5, 0.9):
        expected = math.exp(statistics.NormalDist().inv_cdf(share)) - 0.1
        assert values[int(share * len(values))] == pytest.approx(expected, rel=0.05)
    assert -0.1 < values[0] < 0


@pytest.mark.parametrize("mean", [1.0, 2.5, 20.0])
def test_geometric_numbers_have_their_mean(mean: float):
    lengths = geometric(WORDS, mean)
    assert lengths.min() == 1
    assert lengths.mean() == pytest.approx(mean, rel=0.03)


def test_effects_are_fixed_per_id_and_spread_evenly():
    ids = np.arange(10_000)
    values = effect(ids)
    assert (effect(ids[::-1])[::-1] == values).all()
    assert ((values >= -1) & (values < 1)).all()
    assert abs(values.mean()) < 0.03


@examples(40)
@given(size=st.integers(1, 5_000), seed=st.integers(0, 2**64 - 1))
def test_a_permutation_has_each_number_once(size: int, seed: int):
    numbers = np.arange(size)
    moved = permute(numbers, size, (seed, 1))
    assert np.array_equal(np.sort(moved), numbers)
    chosen = numbers[:: max(1, size // 7)]
    assert np.array_equal(permute(chosen, size, (seed, 1)), moved[chosen])


def test_a_permutation_leaves_no_order():
    moved = permute(np.arange(100_000), 100_000, (3, 4))
    assert abs(np.corrcoef(moved, np.arange(100_000))[0, 1]) < 0.02
    assert abs(np.corrcoef(moved[1:], moved[:-1])[0, 1]) < 0.02
    assert not np.array_equal(moved, permute(np.arange(100_000), 100_000, (4, 4)))
