"""A block's order permutes rows, or whole runs of `shuffle.by`, which end with their piece."""

from __future__ import annotations

from fractions import Fraction
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.permutation import _places, draw_rows
from feedline.blocks.request import BlockRequest, PieceRequest, Runs
from feedline.blocks.row_order import ordered_rows
from feedline.planning.weighted_rows import draws_of_groups

FRAGMENT: Any = None
KEY = ("rows", 3, 0, 0, 0)
BY_USER = Runs("user")


def request_of(sizes: list[int], *, permuted: bool = True) -> BlockRequest:
    pieces = tuple(PieceRequest(fragment=FRAGMENT, skip=0, rows=size) for size in sizes)
    return BlockRequest(pieces=pieces, rows=sum(sizes), permutation=KEY if permuted else None, nbytes=0)


def test_a_block_in_plan_order_has_no_permutation():
    assert ordered_rows(BY_USER, request_of([3, 4], permuted=False), lambda index: pl.Series([0])) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_rows_are_permuted(sizes: list[int]):
    order = ordered_rows(None, request_of(sizes), lambda index: pl.Series([0]))
    assert order is not None
    assert sorted(order.tolist()) == list(range(sum(sizes)))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=4))
def test_runs_stay_together(pieces: list[list[int]]):
    order = ordered_rows(BY_USER, request_of([len(piece) for piece in pieces]), lambda index: pl.Series(pieces[index]))
    assert order is not None
    runs, row = [], 0
    for piece in pieces:
        for _, values in groupby(piece):
            runs.append(list(range(row, row := row + len(list(values)))))
    found, rows = [], order.tolist()
    while rows:
        run = next(run for run in runs if run[0] == rows[0])
        assert rows[: len(run)] == run
        found.append(run)
        rows = rows[len(run) :]
    assert sorted(found) == runs


# --------------------------------------------------------------------------------------------------------------------
# Draws with replacement: their numbers against exact fractions, their shares against the weights.


@given(st.lists(st.integers(0, 2**2000), min_size=1, max_size=30), st.integers(0, 2**40), st.integers(0, 5))
def test_a_row_group_gets_its_expected_draws_rounded_down_or_up(quanta: list[int], draws: int, seed: int):
    found = draws_of_groups(np.array(quanta, object), draws, seed).tolist()
    if not sum(quanta):
        assert not any(found)
        return
    assert sum(found) == draws
    for each, own in zip(found, quanta, strict=True):
        assert abs(each - Fraction(own) * draws / sum(quanta)) < 1
        assert own or not each


def test_rounding_is_fair_over_seeds():
    sums = np.array([1, 2, 7], object)
    found = np.mean([draws_of_groups(sums, 1, seed, "e") for seed in range(4000)], axis=0)
    assert np.abs(found - [0.1, 0.2, 0.7]).max() < 4 * np.sqrt(0.25 / 4000)


def test_rows_are_drawn_in_proportion_and_independently():
    quanta = np.array([0, 1, 5, 0, 94])
    counts = np.stack([np.bincount(draw_rows(quanta, 100, seed), minlength=5) for seed in range(2000)])
    share = quanta / 100
    assert np.abs(counts.mean(axis=0) / 100 - share).max() < 4 * np.sqrt(0.25 / 200_000)
    assert np.allclose(counts.var(axis=0), 100 * share * (1 - share), rtol=0.2, atol=1e-9)  # binomial: with replacement
    assert not counts[:, [0, 3]].any()


def test_draws_are_sorted_and_repeat_for_the_same_key():
    quanta = np.arange(1000)
    rows = draw_rows(quanta, 5000, 1, 2, "path", 3)
    assert (np.diff(rows) >= 0).all()
    assert np.array_equal(rows, draw_rows(quanta, 5000, 1, 2, "path", 3))
    assert not np.array_equal(rows, draw_rows(quanta, 5000, 1, 2, "path", 4))
    assert not len(draw_rows(quanta, 0, 1))
    assert rows[:5].tolist() == [11, 18, 22, 29, 31]  # on every machine, in every version


def test_large_sums_do_not_overflow():
    quanta = np.array([2**61, 2**61 - 1])
    assert draws_of_groups(quanta.astype(object), 10**12, 0).sum() == 10**12
    assert np.bincount(draw_rows(quanta, 1000, 0), minlength=2).min() > 400


def test_large_sums_leave_no_row_more_than_its_share():
    # 2^64 is 5.33 times these quanta: a word modulo them is below a third of them in 6 of 16 cases
    quanta = np.full(3, 2**60)
    counts = np.bincount(draw_rows(quanta, 200_000, 0), minlength=3)
    assert np.abs(counts / 200_000 - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 200_000)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), st.integers(1, 2**62))
def test_a_word_falls_on_its_share_of_the_quanta(words: list[int], total: int):
    assert _places(np.array(words, np.uint64), total).tolist() == [word * total >> 64 for word in words]
