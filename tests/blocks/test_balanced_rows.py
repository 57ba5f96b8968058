"""Balanced orders hold every row once, and give each step nearly its share of all elements."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.request import StepShares
from feedline.blocks.row_order import balanced_rows

KEY = ("rows", 3, 0, 0, 0)


def shares_of(rows: list[int], *, first_step: int = 0, phase: int = 0) -> StepShares:
    return StepShares(first_step=first_step, rows=np.array(rows, "<u4").tobytes(), phase=phase)


def zipf(rows: int, seed: int = 0, exponent: float = 1.2, longest: int = 5_000) -> np.ndarray:
    weights = np.arange(1, longest + 1, dtype=np.float64) ** -exponent
    return np.random.default_rng(seed).choice(np.arange(1, longest + 1), size=rows, p=weights / weights.sum())


def sums(lengths: np.ndarray, order: np.ndarray, rows: list[int]) -> np.ndarray:
    borders = np.concatenate(([0], np.cumsum(rows)))
    return np.array([lengths[order[start:stop]].sum() for start, stop in pairwise(borders)])


@examples(200)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
    st.data(),
)
def test_every_row_comes_once_and_the_same_key_gives_the_same_order(rows, phase, first_step, data):
    lengths = np.array(data.draw(st.lists(st.integers(0, 50), min_size=sum(rows), max_size=sum(rows))))
    shares = shares_of(rows, first_step=first_step, phase=phase)
    order = balanced_rows(lengths, shares, *KEY)
    assert sorted(order.tolist()) == list(range(sum(rows)))
    assert (balanced_rows(lengths, shares, *KEY) == order).all()


def test_steps_get_nearly_the_same_of_the_longest_tails():
    rows, lengths = [512] * 64, zipf(64 * 512)
    random = sums(lengths, np.random.default_rng(1).permutation(len(lengths)), rows)
    balanced = sums(lengths, balanced_rows(lengths, shares_of(rows), *KEY), rows)
    assert random.max() / random.mean() > 1.15
    assert balanced.max() / balanced.mean() < 1.001


def test_the_blocks_of_a_step_make_up_for_each_other():
    """16 blocks give a step 32 rows each: a step that gets the longest rows of one gets shorter ones of others."""
    rows, total = [32] * 256, np.zeros(256)
    for block in range(16):
        lengths = zipf(8192, seed=block)
        total += sums(lengths, balanced_rows(lengths, shares_of(rows, phase=block * 2**60), *KEY, block), rows)
    assert total.max() / total.mean() < 1.01
    assert total.min() / total.mean() > 0.99


def test_steps_of_other_sizes_get_their_share():
    """A lane's first block: the steps of one open block take 512 rows, and ever fewer as others open."""
    rows = [512, 256, 170, 128, 102, 85, 73, 64, *[32] * 200, 7]
    lengths = zipf(sum(rows))
    share = sums(lengths, balanced_rows(lengths, shares_of(rows), *KEY), rows) / np.array(rows) / lengths.mean()
    assert np.abs(share[:8] - 1).max() < 0.05
    assert np.abs(share[8:-1] - 1).max() < 0.08


def test_rows_of_equal_lengths_are_permuted():
    """Rows of one length are in random order: each step has rows from everywhere, and no two keys give the same."""
    rows, lengths = [100] * 10, np.full(1000, 7)
    order = balanced_rows(lengths, shares_of(rows), *KEY)
    assert (balanced_rows(lengths, shares_of(rows), *KEY, 1) != order).mean() > 0.9
    means = order.reshape(10, 100).mean(axis=1)
    assert np.abs(means - 499.5).max() < 100


def test_the_longest_rows_come_at_other_steps_with_other_phases():
    lengths = np.arange(1000)
    firsts = {
        int(np.flatnonzero(balanced_rows(lengths, shares_of([10] * 100, phase=p * 2**61), *KEY) == 999)[0]) // 10
        for p in range(8)
    }
    assert len(firsts) > 4
