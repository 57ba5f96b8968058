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
