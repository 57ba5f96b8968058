"""Ops over several columns, and over weighted lists, against their documentation.

The oracle is plain Python, one row at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
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
    same,
    some_ids,
    without_nulls,
)
from reference_hash import cross_of, hash_of

from feedline.errors import DataError, SpecError
from feedline.transforms.registry.op import OpError

two_id_lists = st.lists(st.tuples(st.one_of(st.none(), some_ids), st.one_of(st.none(), some_ids)), max_size=8)


# several columns


@settings(max_examples=30)
@given(two_id_lists, st.one_of(st.integers(1, 50), st.integers(1, 2**63 - 1)))
def test_cartesian(rows: list[Any], buckets: int):
    def oracle(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return None
        return [None if None in pair else cross_of(*pair) % buckets for pair in product(left, right)]

    given_rows = [int_lists([row[side] for row in rows]) for side in (0, 1)]
    check_rows("cartesian", buckets, given_rows, oracle)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.one_of(st.none(), ids), st.one_of(st.none(), st.text(max_size=14))), max_size=9))
def test_hashed_cross(rows: list[Any]):
    numbers = pl.Series([row[0] for row in rows], dtype=pl.Int64)
    words = pl.Series([row[1] for row in rows], dtype=pl.String)
    buckets = 10**12

    def oracle(*row: Any) -> Any:
        return None if None in row else cross_of(*row) % buckets

    check_rows("hashed_cross", buckets, [numbers, words], oracle)
    check_rows("hashed_cross", buckets, [words, numbers, words], oracle)


def test_fixed_size_lists_are_lists_to_ops_over_several_columns():
    left, right = pl.Series([[1, 2], [3, 3], None]), pl.Series([[2, 2], [3, 3], [1, 1]])
    fixed = [series.cast(pl.Array(pl.Int32, 2)) for series in (left, right)]
    scores = pl.Series([[0.5, 1.0], [2.0, 3.0], None], dtype=pl.Array(pl.Float32, 2))
    for op, arguments in (("id_overlap_count", None), ("cartesian", 99), ("positive_intersect", None)):
        assert combined(op, arguments, *fixed) == combined(op, arguments, left, right)
    found = combined("weighted", None, fixed[0], scores)
    assert found == ([[1, 2], [3, 3], None], [[0.5, 1.0], [2.0, 3.0], None])
    assert combined("get_score_sum", None, fixed[1], fixed[0], scores)[0] == [1.0, 5.0, None]


def test_hashed_cross_does_not_depend_on_the_width_of_integers():
    narrow, wide, word = pl.Series([-3], dtype=pl.Int8), pl.Series([-3], dtype=pl.Int64), pl.Series(["x"])
    assert combined("hashed_cross", 10**9, narrow, word) == combined("hashed_cross", 10**9, wide, word)
    assert combined("hashed_cross", 10**9, word, wide) != combined("hashed_cross", 10**9, wide, word)


@settings(max_examples=30)
@given(two_id_lists)
def test_positive_intersect(rows: list[Any]):
    given_rows = [int_lists([row[side] for row in rows]) for side in (0, 1)]
    oracle = without_nulls(lambda left, right: [item for item in left if item in right])
    check_rows("positive_intersect", None, given_rows, oracle)


SCORES: dict[str, Callable[[Any, Any], float]] = {
    "id_overlap_count": lambda a, b: float((Counter(a) & Counter(b)).total()),
    "has_id_overlap": lambda a, b: float(bool({*a} & {*b})),
    "get_max_count": lambda a, b: float(sum(max(a.count(item), b.count(item)) for item in {*a} & {*b})),
    "get_jaccard_similarity": lambda a, b: float(
        np.float32((Counter(a) & Counter(b)).total() / ((Counter(a) | Counter(b)).total() or 1))
    ),
}


@settings(max_examples=30)
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


def sums(row: Any) -> dict[int, float]:
    found: dict[int, float] = {}
    for item, weight in row:
        found[item] = found.get(item, 0.0) + weight
    return found


def cosine_of(left: Any, right: Any) -> float:
    a, b = sums(left), sums(right)
    norm = math.sqrt(sum(x * x for x in a.values())) * math.sqrt(sum(x * x for x in b.values()))
    return sum(a[item] * b[item] for item in {*a} & {*b}) / norm if norm else 0.0


SCORED: dict[str, Callable[[Any, Any], float]] = {
    "get_cosine_similarity": cosine_of,
    "get_score_sum": lambda a, b: sum(weight for item, weight in b if item in {one for one, _ in a}),
    "get_score_min": lambda a, b: min((weight for item, weight in b if item in {one for one, _ in a}), default=0.0),
    "get_score_max": lambda a, b: max((weight for item, weight in b if item in {one for one, _ in a}), default=0.0),
    "column_similarity": cosine_of,
}


@settings(max_examples=30)
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


@settings(max_examples=30)
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


# weights


@settings(max_examples=30)
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


# parts


@pytest.mark.parametrize(
    ("op", "arguments", "count"),
    [
        ("ngram", {"n": 2, "buckets": 10**6}, 1),
        ("id_list_transform", {"unique": True}, 1),
        ("pad", 4, 1),
        ("cartesian", 10**6, 2),
        ("positive_intersect", None, 2),
        *((name, None, 2) for name in SCORES),
    ],
)  # fmt: skip
def test_parts_match_the_whole(op: str, arguments: object, count: int):
    random = np.random.default_rng(1)
    for scale in (20, 2**62):
        given_columns = []
        for _ in range(count):
            rows = [None if i % 11 == 3 else (random.integers(-scale, scale, i % 7)).tolist() for i in range(200)]
            given_columns.append(int_lists(rows))
        whole = combined(op, arguments, *given_columns)[0]
        cuts = [0, 1, 8, 9, 64, 100, 200]
        parts = [combined(op, arguments, *(series[i:j] for series in given_columns))[0] for i, j in pairwise(cuts)]
        assert [row for part in parts for row in part] == whole


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
    for module, rows in (("kernels.matching", 16), ("ops.crosses", 8), ("ops.generated", 7)):
        monkeypatch.setattr(f"feedline.transforms.{module}.BLOCK_VALUES", rows)
    monkeypatch.setattr("feedline.hashing._MIXED_WORDS", 5)
    for call, expected in zip(calls, whole, strict=True):
        same(combined(*call[:2], *call[2])[0], expected)


def test_errors_are_of_the_spec():
    assert issubclass(OpError, SpecError)
