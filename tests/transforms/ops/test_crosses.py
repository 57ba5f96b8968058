"""Crosses and intersections of columns against their documentation, by an oracle in plain Python."""

from __future__ import annotations

from itertools import product
from typing import Any

import polars as pl
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import (
    check_rows,
    combined,
    ids,
    int_lists,
    some_ids,
    without_nulls,
)
from reference_hash import cross_of

two_id_lists = st.lists(st.tuples(st.one_of(st.none(), some_ids), st.one_of(st.none(), some_ids)), max_size=8)


# several columns


@examples(30)
@given(two_id_lists, st.one_of(st.integers(1, 50), st.integers(1, 2**63 - 1)))
def test_cartesian(rows: list[Any], buckets: int):
    def oracle(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return None
        return [None if None in pair else cross_of(*pair) % buckets for pair in product(left, right)]

    given_rows = [int_lists([row[side] for row in rows]) for side in (0, 1)]
    check_rows("cartesian", buckets, given_rows, oracle)


@examples(30)
@given(st.lists(st.tuples(st.one_of(st.none(), ids), st.one_of(st.none(), st.text(max_size=14))), max_size=9))
def test_hashed_cross(rows: list[Any]):
    numbers = pl.Series([row[0] for row in rows], dtype=pl.Int64)
    words = pl.Series([row[1] for row in rows], dtype=pl.String)
    buckets = 10**12

    def oracle(*row: Any) -> Any:
        return None if None in row else cross_of(*row) % buckets

    check_rows("hashed_cross", buckets, [numbers, words], oracle)
    check_rows("hashed_cross", buckets, [words, numbers, words], oracle)


def test_hashed_cross_does_not_depend_on_the_width_of_integers():
    narrow, wide, word = pl.Series([-3], dtype=pl.Int8), pl.Series([-3], dtype=pl.Int64), pl.Series(["x"])
    assert combined("hashed_cross", 10**9, narrow, word) == combined("hashed_cross", 10**9, wide, word)
    assert combined("hashed_cross", 10**9, word, wide) != combined("hashed_cross", 10**9, wide, word)


@examples(30)
@given(two_id_lists)
def test_positive_intersect(rows: list[Any]):
    given_rows = [int_lists([row[side] for row in rows]) for side in (0, 1)]
    oracle = without_nulls(lambda left, right: [item for item in left if item in right])
    check_rows("positive_intersect", None, given_rows, oracle)
