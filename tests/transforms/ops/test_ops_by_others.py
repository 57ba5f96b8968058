"""Ops against other libraries, and on values at the edge of their types.

The oracles are numpy in float64, pandas, scipy and scikit-learn; for ids beyond int64 and scores that are not finite,
plain Python.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, product
from typing import Any

import numpy as np
import polars as pl
import pytest
from op_oracles import FLOAT_LISTS, combined, run, same
from reference_hash import cross_of, hash_of, sigrid_of

# by other libraries


# at the edge of types

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

    def each(function: Any) -> list[Any]:
        return [None if row is None else [None if i is None else function(i) for i in row] for row in LEFT]

    assert combined("hash_bucket", 997, given)[0] == each(lambda i: hash_of(i) % 997)
    assert combined("modulo", 1000, given)[0] == each(lambda i: i % 1000)
    sigrid = {"salt": 5, "max_value": 10**6}
    assert combined("sigrid_hash", sigrid, given)[0] == each(lambda i: sigrid_of(i, 5, 10**6))
    table = {"keys": [2**64 - 1, 2**63], "values": [5, 6], "default": -1}
    assert combined("map_id", table, given)[0] == each(lambda i: {2**64 - 1: 5, 2**63: 6}.get(i, -1))
    assert combined("clip", {"max": 2**63}, given)[0] == each(lambda i: min(i, 2**63))
    assert combined("bucketize", [7, 2**63], given)[0] == each(lambda i: (i > 7) + (i > 2**63))
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


def test_numbers_that_are_not_finite():
    odd = pl.Series([NAN, INF, -INF, -0.0, None], dtype=pl.Float32)
    for op, arguments, expected in (
        ("fill_null", 5, [NAN, INF, -INF, -0.0, 5.0]),
        ("fill_nonfinite", 5, [5.0, 5.0, 5.0, -0.0, None]),
        ("clip", {"min": -3, "max": 3}, [NAN, 3.0, -3.0, -0.0, None]),
        ("log1p", None, [NAN, INF, NAN, -0.0, None]),
        ("log", None, [NAN, INF, NAN, -INF, None]),
        ("standardize", {"mean": 1, "std": 2}, [NAN, INF, -INF, -0.5, None]),
        ("box_cox", 2, [NAN, INF, NAN, -0.5, None]),
        ("logit", {"eps": 0}, [NAN, NAN, NAN, -INF, None]),
        ("bucketize", [0, 1], [None, 2, 0, 0, None]),
        ("cast", {"to": "int32", "strict": False}, [None, None, None, 0, None]),
        ("cast", "float64", [NAN, INF, -INF, -0.0, None]),
    ):
        same(run(op, arguments, odd).to_list(), expected)
        lists = pl.Series([odd.to_list(), None, []], dtype=FLOAT_LISTS)
        same(run(op, arguments, lists).to_list(), [expected, None, []])
    same(run("expr", "x + 1", odd).to_list(), [NAN, INF, -INF, 1.0, None])
    padded = combined("pad", {"length": 4, "value": -1}, pl.Series([[NAN, None, -0.0]], dtype=FLOAT_LISTS))[0]
    same(padded, [[NAN, None, -0.0, -1.0]])
