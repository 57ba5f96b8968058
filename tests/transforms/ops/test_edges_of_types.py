"""Ops at the edge of types: ids beyond int64, numbers that are not finite, decimals, values below null lists."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from op_oracles import FLOAT_LISTS, combined, run, same
from reference_hash import cross_of

BIG = [2**64 - 1, 2**63, 2**63 - 1, 0, 1, 7]
UINT_LISTS = pl.List(pl.UInt64())


def big_lists(rows: int, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [
        None if row % 9 == 4 else [None if pick == 6 else BIG[pick] for pick in random.integers(0, 7, row % 6).tolist()]
        for row in range(rows)
    ]


LEFT, RIGHT = big_lists(60, 1), big_lists(60, 2)


def of_pairs(function: Any) -> list[Any]:
    return [
        None if None in (a, b) else function([i for i in a if i is not None], [i for i in b if i is not None])
        for a, b in zip(LEFT, RIGHT, strict=True)
    ]


def test_ids_beyond_int64_in_two_lists():
    given = [pl.Series(rows, dtype=UINT_LISTS) for rows in (LEFT, RIGHT)]
    for op, oracle in (
        ("positive_intersect", lambda a, b: [i for i in a if i in b]),
        ("id_overlap_count", lambda a, b: float((Counter(a) & Counter(b)).total())),
        ("has_id_overlap", lambda a, b: float(bool({*a} & {*b}))),
        ("get_max_count", lambda a, b: float(sum(max(a.count(i), b.count(i)) for i in {*a} & {*b}))),
    ):
        assert combined(op, None, *given)[0] == of_pairs(oracle), op
    pairs = [
        None if None in (a, b) else [None if None in pair else cross_of(*pair) % 997 for pair in product(a, b)]
        for a, b in zip(LEFT, RIGHT, strict=True)
    ]
    assert combined("cartesian", 997, *given)[0] == pairs


def test_ids_beyond_int64_in_one_list():
    given = pl.Series(LEFT, dtype=UINT_LISTS)

    assert combined("first_x", 2, given)[0] == [None if row is None else row[:2] for row in LEFT]
    assert combined("list_slice", -2, given)[0] == [None if row is None else row[-2:] for row in LEFT]
    assert combined("enumerate", None, given)[0] == [None if row is None else [*range(len(row))] for row in LEFT]
    assert combined("pad", {"length": 3, "value": 2**64 - 1}, given)[0] == [
        ((row or []) + [2**64 - 1] * 3)[:3] for row in LEFT
    ]
    unique = [None if row is None else [*dict.fromkeys(i for i in row if i is not None)] for row in LEFT]
    assert combined("id_list_transform", {"unique": True}, given)[0] == unique
    grams = [
        None if row is None else [None if None in pair else cross_of(*pair) % 97 for pair in pairwise(row)]
        for row in LEFT
    ]
    assert combined("ngram", {"n": 2, "buckets": 97}, given)[0] == grams


def test_ids_beyond_int64_beside_words():
    ids = pl.Series([*BIG, None], dtype=pl.UInt64)
    words = pl.Series(["a", "", "b", "Zürich", "a", None, "a"])
    expected = [None if None in row else cross_of(*row) % 10**9 for row in zip(ids, words, strict=True)]
    assert combined("hashed_cross", 10**9, ids, words)[0] == expected


INF, NAN = math.inf, math.nan
SCORES = [[1.0, INF], [-INF, INF], [NAN, 1.0], [0.0, -0.0], [1e30, 1e30], [-INF, 2.0], [None, INF], []]


def scored(op: str) -> list[Any]:
    """Both lists hold the ids 1, 2, …; the second one has the scores."""
    ids = pl.Series([[*range(1, len(row) + 1)] for row in SCORES], dtype=pl.List(pl.Int64))
    ones = pl.Series([[1.0] * len(row) for row in SCORES], dtype=FLOAT_LISTS)
    return combined(op, None, ids, ones, ids, pl.Series(SCORES, dtype=FLOAT_LISTS))[0]


def test_scores_that_are_not_finite():
    known = [[score for score in row if score is not None] for row in SCORES]
    same(scored("get_score_sum"), [float(np.float32(sum(row))) for row in known])
    with np.errstate(invalid="ignore"):
        lows = [float(np.min(np.float32(row))) if row else 0.0 for row in known]
        highs = [float(np.max(np.float32(row))) if row else 0.0 for row in known]
    assert scored("get_score_min") == pytest.approx(lows, nan_ok=True)
    assert scored("get_score_max") == pytest.approx(highs, nan_ok=True)
    found = scored("get_cosine_similarity")
    for value, row in zip(found, known, strict=True):
        assert math.isnan(value) is not all(map(math.isfinite, row))
    assert found[4] == pytest.approx(1)


def test_vectors_that_are_not_finite():
    vectors = pl.Series([[1.0, INF], [NAN, 0.0], [0.0, 0.0], [3.0, 4.0]], dtype=pl.Array(pl.Float32, 2))
    ones = pl.Series([[1.0, 1.0]] * 4, dtype=pl.Array(pl.Float32, 2))
    same(combined("column_similarity", "inner", vectors, ones)[0], [INF, NAN, 0.0, 7.0])
    same(combined("column_similarity", None, vectors, ones)[0], [NAN, NAN, 0.0, 7 / math.sqrt(50)], close=1e-6)


def test_decimals_are_numbers():
    prices = pl.Series([Decimal("0.50"), None, Decimal("3.25")])
    assert run("clip", {"min": 1, "max": 2}, prices).to_list() == [1.0, None, 2.0]
    assert run("bucketize", [0.5, 3], prices).to_list() == [0, None, 2]
    assert run("cast", "int64", prices).to_list() == [0, None, 3]


def test_half_floats_are_numbers():
    halves = pl.Series([0.5, None, -2.0], dtype=pl.Float16)
    assert run("clip", {"min": 0, "max": 1}, halves).to_list() == [0.5, None, 0.0]


def test_values_under_a_null_list_do_not_count():
    """Arrow allows elements under a null; a strict cast must not look at them, and no op may bring them back."""
    hidden = pa.LargeListArray.from_buffers(
        pa.large_list(pa.float64()),
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 2, 3], dtype=np.int64))],
        children=[pa.array([1.0, math.nan, 2.0])],
    )
    series = pl.Series(hidden)
    assert run("cast", "int64", series).to_list() == [[1], None, [2]]
    assert run("bucketize", [1.5], series).to_list() == [[0], None, [1]]
    assert run("clip", {"max": 1}, series).to_list() == [[1.0], None, [1.0]]
    assert run("first_x", 1, series).to_list() == [[1.0], None, [2.0]]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        *(("fill_null", 3), ("clip", {"min": 2, "max": 50}), ("log1p", None), ("log", None), ("logit", 0.01)),
        *(("box_cox", {"power": 0.3, "shift": 1}), ("standardize", {"mean": 3, "std": 2}), ("cast", "float32")),
        *(("bucketize", [2, 5, 5, 70]), ("expr", "x")),
    ],
)
def test_float32_does_not_depend_on_where_a_part_begins(op: str, arguments: object):
    """Vectorised loops end in other instructions than they begin with; the bits must be the same."""
    series = pl.Series("a", np.random.default_rng(0).gamma(2.0, 20.0, 1000).astype(np.float32))
    whole = run(op, arguments, series)
    for start in (1, 2, 3, 5, 17):
        for stop in (start + 1, start + 7, 998, 1000):
            assert run(op, arguments, series[start:stop]).equals(whole[start:stop])
