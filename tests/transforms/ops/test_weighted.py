"""Weights stay beside their ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import (
    FLOAT_LISTS,
    PAIRS,
    combined,
    ids,
    int_lists,
    parts_of,
    same,
)
from reference_hash import hash_of

from feedline.errors import DataError
from feedline.transforms.registry.op import OpError

weights = st.one_of(st.none(), st.sampled_from([0.0, -1.5, 0.25, 2.0, 3.0]))


# weights


@examples(30)
@given(st.lists(st.one_of(st.none(), st.lists(st.tuples(ids, weights), max_size=5)), max_size=6))
def test_ops_keep_weights_beside_their_ids(rows: list[Any]):
    pairs = parts_of([None if row is None else [{"id": i, "weight": w} for i, w in row] for row in rows], PAIRS)
    other = int_lists([[1, 2, 3]] * len(rows))
    hashed: Callable[[Any], Any] = lambda row: [(hash_of(i) % 9, w) for i, w in row]  # noqa: E731
    for op, arguments, beside, oracle in (
        ("hash_bucket", 9, (), hashed),
        ("modulo", 7, (), lambda row: [(i % 7, w) for i, w in row]),
        ("cast", "float64", (), lambda row: [(float(i), w) for i, w in row]),
        ("first_x", 2, (), lambda row: row[:2]),
        ("list_slice", {"start": -2, "stop": -1}, (), lambda row: row[-2:-1]),
        ("enumerate", None, (), lambda row: [(place, w) for place, (_, w) in enumerate(row)]),
        ("id_list_transform", {"min": 2}, (), lambda row: [(i, w) for i, w in row if i >= 2]),
        ("positive_intersect", None, (other,), lambda row: [(i, w) for i, w in row if i in (1, 2, 3)]),
        ("weighted", {"fill": 7.0}, (), lambda row: [(i, 7.0 if w is None else w) for i, w in row]),
    ):
        found, held = combined(op, arguments, pairs, *beside)
        expected = [None if row is None else oracle(row) for row in rows]
        assert held is not None
        same(found, [None if row is None else [i for i, _ in row] for row in expected])
        same(held, [None if row is None else [w for _, w in row] for row in expected])
    assert combined("ids", None, pairs) == ([None if row is None else [i for i, _ in row] for row in rows], None)
    assert combined("weights", None, pairs) == ([None if row is None else [w for _, w in row] for row in rows], None)


def test_where_weights_come_from():
    expected = ([[5, 6], [], None], [[0.5, 1.0], [], None])
    a, b = int_lists([[5, 6], [], None]), pl.Series([[0.5, 1.0], None, []], dtype=pl.List(pl.Float64))
    assert combined("weighted", None, a, b) == expected
    assert combined("weighted", None, a[1:], b[1:]) == (expected[0][1:], expected[1][1:])
    mapped = pl.Series(pa.array([[(5, 0.5), (6, 1.0)], [], None], type=pa.map_(pa.int64(), pa.float32())))
    assert combined("weighted", None, mapped) == expected
    structs = pl.Series(
        [[{"s": 0.5, "i": 5}, {"s": 1.0, "i": 6}], [], None],
        dtype=pl.List(pl.Struct({"s": pl.Float64(), "i": pl.Int64()})),
    )
    assert combined("weighted", {"id": "i", "weight": "s"}, structs) == expected
    whole = pl.Series([[1, 0], [], None], dtype=pl.List(pl.UInt8))
    assert combined("weighted", None, a, whole) == (expected[0], [[1.0, 0.0], [], None])


def test_an_op_that_ignores_weights_refuses_weighted_lists():
    """It would lose them without a word."""
    pairs = pl.Series([[{"id": 5, "weight": 0.5}]], dtype=PAIRS)
    with pytest.raises(OpError, match=r"input 1 of cartesian, ids, must be lists of integers: got .*weight"):
        combined("cartesian", 10, pairs, int_lists([[5]]))


def test_weights_of_another_length():
    with pytest.raises(DataError, match="each id must have one weight: got 1 weights for 2 ids, expected 2"):
        combined("weighted", None, int_lists([[1], [2, 3]]), pl.Series([[0.5], [0.5]], dtype=FLOAT_LISTS))
    with pytest.raises(DataError, match="got 0 weights for 1 ids"):
        combined("weighted", None, int_lists([[1]]), pl.Series([None], dtype=FLOAT_LISTS))
