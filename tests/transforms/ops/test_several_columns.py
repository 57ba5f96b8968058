"""Ops over several columns, and over weighted lists, against their documentation.

The oracle is plain Python, one row at a time.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from op_oracles import (
    FLOAT_LISTS,
    combined,
    int_lists,
    same,
)
from weighted_scores import SCORED, SCORES

from feedline.transforms.registry.op import OpError


def test_fixed_size_lists_are_lists_to_ops_over_several_columns():
    left, right = pl.Series([[1, 2], [3, 3], None]), pl.Series([[2, 2], [3, 3], [1, 1]])
    fixed = [series.cast(pl.Array(pl.Int32, 2)) for series in (left, right)]
    scores = pl.Series([[0.5, 1.0], [2.0, 3.0], None], dtype=pl.Array(pl.Float32, 2))
    for op, arguments in (("id_overlap_count", None), ("cartesian", 99), ("positive_intersect", None)):
        assert combined(op, arguments, *fixed) == combined(op, arguments, left, right)
    found = combined("weighted", None, fixed[0], scores)
    assert found == ([[1, 2], [3, 3], None], [[0.5, 1.0], [2.0, 3.0], None])
    assert combined("get_score_sum", None, fixed[1], fixed[0], scores)[0] == [1.0, 5.0, None]


def test_inputs_of_another_kind_are_refused():
    a, word, floats = int_lists([[1]]), pl.Series(["x"]), pl.Series([[0.5]], dtype=FLOAT_LISTS)
    for op, given_columns, message in (
        ("cartesian", (a,), "input 2 of cartesian, others, must be lists of integers: got 1 of its inputs. Write"),
        ("cartesian", (a, word), "input 2 of cartesian, others, must be lists of integers: got string"),
        ("cartesian", (a, a, a), "cartesian takes .*: got integer list as input 3"),
        ("hashed_cross", (word, a), "input 2 of hashed_cross, second, must be integers, strings or binary"),
        ("get_score_sum", (a, a), "get_score_sum: ids must have scores: got integer list"),
        ("get_score_min", (a, floats, a), "get_score_min: ids must have scores"),
        ("id_overlap_count", (a, a.cast(pl.List(pl.UInt64))), "ids must be of one type to be compared: got"),
        ("column_similarity", (a, floats), "the inputs must be two vectors or two lists of ids: got integer list and"),
        ("weighted", (floats,), "weighted: a weighted list needs two lists, a list of structs or a map: got list"),
        ("weighted", (word, floats), "weights need a list of ids: got string"),
    ):  # fmt: skip
        with pytest.raises(OpError, match=message):
            combined(op, 9 if op in ("cartesian", "hashed_cross") else None, *given_columns)


# parts


@pytest.mark.parametrize("scale", [20, 2**62])
def test_blocks_match_the_whole(scale: int, monkeypatch: pytest.MonkeyPatch):
    """Rows and values are taken in blocks; here in tiny ones, with lists that are longer than a block."""
    random = np.random.default_rng(2)
    lengths = [0, 50, *random.integers(0, 9, 300).tolist(), 33]
    ids = [
        int_lists([None if i % 13 == 5 else random.integers(-scale, scale, n).tolist() for i, n in enumerate(order)])
        for order in (lengths, lengths[::-1])
    ]
    scores = [
        pl.Series([None if row is None else random.random(len(row)).tolist() for row in held], dtype=FLOAT_LISTS)
        for held in ids
    ]
    both, scored = tuple(ids), (ids[0], scores[0], ids[1], scores[1])
    calls: list[tuple[str, object, tuple[pl.Series, ...]]] = [
        *((name, None, both) for name in SCORES),
        *((name, None, scored) for name in sorted(SCORED) if name != "column_similarity"),
        ("column_similarity", "inner", both),
        ("positive_intersect", None, both),
        ("cartesian", 10**9, both),
        ("hashed_cross", 10**9, tuple(held.list.first() for held in both)),
        ("id_list_transform", {"unique": True}, both[:1]),
        ("ngram", {"n": 3, "buckets": 10**9}, both[:1]),
    ]
    whole = [combined(*call[:2], *call[2])[0] for call in calls]
    for module, rows in (("values.matching", 16), ("ops.crosses", 8), ("ops.generated", 7)):
        monkeypatch.setattr(f"feedline.transforms.{module}.BLOCK_VALUES", rows)
    monkeypatch.setattr("feedline.hashing._MIXED_WORDS", 5)
    for call, expected in zip(calls, whole, strict=True):
        same(combined(*call[:2], *call[2])[0], expected)
