"""Scores of two lists or vectors against their documentation, by an oracle in plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import (
    FLOAT_LISTS,
    INT_LISTS,
    PAIRS,
    check_rows,
    combined,
    ids,
    int_lists,
    parts_of,
    some_ids,
    without_nulls,
)
from weighted_scores import SCORED, SCORES

two_id_lists = st.lists(st.tuples(st.one_of(st.none(), some_ids), st.one_of(st.none(), some_ids)), max_size=8)


@examples(30)
@given(two_id_lists, st.sampled_from(sorted(SCORES)))
def test_scores_of_two_lists(rows: list[Any], op: str):
    given_rows = [int_lists([row[side] for row in rows]) for side in (0, 1)]
    check_rows(op, None, given_rows, without_nulls(SCORES[op]))


def test_score_vectors_of_torcharrow():
    ids_a = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 10, 11, 12]]
    ids_b = [[1, 2, 3], [0, 10], [7, 10, 10], [10, 10, 11, 13]]
    a, b = int_lists(ids_a), int_lists(ids_b)
    own, theirs = (pl.Series("s", rows, dtype=FLOAT_LISTS) for rows in (ids_a, ids_b))
    cosine = [
        1.0,
        0.0,
        7 * 7 / math.sqrt(7 * 7 + 8 * 8 + 9 * 9) / math.sqrt(7 * 7 + 20 * 20),
        (20 * 20 + 11 * 11) / math.sqrt(20 * 20 + 11 * 11 + 12 * 12) / math.sqrt(20 * 20 + 11 * 11 + 13 * 13),
    ]
    for op, given_columns, expected in (
        ("has_id_overlap", (a, b), [1, 0, 1, 1]),
        ("id_overlap_count", (a, b), [3, 0, 1, 3]),
        ("get_max_count", (a, b), [3, 0, 1, 3]),
        ("get_jaccard_similarity", (a, b), [1, 0, 1 / 5, 3 / 5]),
        ("get_cosine_similarity", (a, own, b, theirs), cosine),
        ("get_score_sum", (a, own, b, theirs), [6, 0, 7, 31]),
        ("get_score_min", (a, b, theirs), [1, 0, 7, 10]),
        ("get_score_max", (a, b, theirs), [3, 0, 7, 11]),
    ):
        assert combined(op, None, *given_columns)[0] == pytest.approx(expected, rel=1e-6)
    assert combined("id_overlap_count", None, int_lists([[1, 2, 3]]), int_lists([[1]]))[0] == [1.0], "code, not docs"


weights = st.one_of(st.none(), st.sampled_from([0.0, -1.5, 0.25, 2.0, 3.0]))
scored_rows = st.lists(
    st.tuples(*[st.one_of(st.none(), st.lists(st.tuples(st.one_of(st.none(), ids), weights), max_size=5))] * 2),
    max_size=6,
)


@examples(30)
@given(scored_rows, st.sampled_from(sorted(SCORED)))
def test_scores_of_weighted_lists(rows: list[Any], op: str):
    """Once as lists of structs; once as lists beside lists, where the op takes those."""

    def oracle(*row: Any) -> Any:
        if None in row:
            return None
        return float(SCORED[op](*([pair for pair in side if None not in pair] for side in row)))

    expected = [oracle(*row) for row in rows]
    pairs = [
        parts_of([None if row[side] is None else [{"id": i, "weight": w} for i, w in row[side]] for row in rows], PAIRS)
        for side in (0, 1)
    ]
    found = combined(op, None, *pairs)[0]
    assert [one is None for one in found] == [one is None for one in expected]
    assert [one for one in found if one is not None] == pytest.approx(
        [one for one in expected if one is not None], abs=2e-6
    )
    if op != "column_similarity":
        flat = [
            pl.Series(
                "a", [None if row[side] is None else [pair[part] for pair in row[side]] for row in rows], dtype=dtype
            )
            for side in (0, 1)
            for part, dtype in ((0, INT_LISTS), (1, FLOAT_LISTS))
        ]
        assert combined(op, None, *flat)[0] == found


@examples(30)
@given(st.lists(st.tuples(*[st.one_of(st.none(), st.tuples(*[st.integers(-9, 9)] * 3))] * 2), max_size=6))
def test_similarity_of_vectors(rows: list[Any]):
    given_columns = [pl.Series("v", [row[side] for row in rows], dtype=pl.Array(pl.Int16, 3)) for side in (0, 1)]

    def inner(a: Any, b: Any) -> Any:
        return None if a is None or b is None else float(np.dot(a, b))

    def cosine(a: Any, b: Any) -> Any:
        norm = math.sqrt(np.dot(a, a) * np.dot(b, b)) if a is not None and b is not None else 0
        return inner(a, b) / norm if norm else inner(a, b)

    check_rows("column_similarity", "inner", given_columns, inner)
    check_rows("column_similarity", None, given_columns, cosine, close=1e-6)
