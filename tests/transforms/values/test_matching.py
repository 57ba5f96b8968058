"""Ids of two lists of a row are matched as plain Python matches them, however wide the ids are and rows are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.transforms.values import matching
from feedline.transforms.values.matching import (
    first_of_each,
    match_lists,
    members,
    reduce_scores,
    row_blocks,
    shared_counts,
)
from feedline.transforms.values.ragged import Ragged

IDS = st.sampled_from([0, 1, 2, 3, -1, 2**62, -(2**63), 2**63 - 1])
LISTS = st.lists(IDS, max_size=6)
ROWS = st.lists(st.tuples(LISTS, LISTS), max_size=6)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "BLOCK_VALUES", 8)


def ragged(lists: list[list[int]]) -> Ragged:
    return Ragged.of(pl.Series(lists, dtype=pl.List(pl.Int64)))


def sides(rows: list[tuple[list[int], list[int]]]) -> tuple[Ragged, Ragged]:
    return ragged([left for left, _ in rows]), ragged([right for _, right in rows])


@examples(40)
@given(st.lists(LISTS, max_size=6))
def test_the_first_of_each_value_of_a_row_is_marked(lists: list[list[int]]):
    expected = [value not in row[:place] for row in lists for place, value in enumerate(row)]
    assert first_of_each(ragged(lists)).tolist() == expected


@examples(40)
@given(ROWS)
def test_members_are_the_values_that_the_other_list_of_the_row_holds(rows: list[tuple[list[int], list[int]]]):
    assert members(*sides(rows)).tolist() == [value in right for left, right in rows for value in left]


@examples(40)
@given(ROWS)
def test_shared_ids_are_counted_on_both_sides(rows: list[tuple[list[int], list[int]]]):
    expected = []
    for row, (left, right) in enumerate(rows):
        ours, theirs = Counter(left), Counter(right)
        expected += [(row, ours[value], theirs[value]) for value in sorted(ours.keys() & theirs.keys())]
    found = zip(*(part.tolist() for part in shared_counts(*sides(rows))), strict=True)
    assert sorted(found) == sorted(expected)


@examples(40)
@given(ROWS, st.sampled_from([(np.add, sum), (np.minimum, min), (np.maximum, max)]), st.booleans())
def test_scores_of_an_id_are_reduced_per_row_and_side(
    rows: list[tuple[list[int], list[int]]], reduction: tuple[np.ufunc, Callable[[Any], float]], scored: bool
):
    ufunc, python = reduction
    left, right = sides(rows)
    own = np.arange(1, len(left.values) + 1, dtype=np.float32) if scored else None
    theirs = np.arange(1, len(right.values) + 1, dtype=np.float32) * 10
    expected = []
    begins = [0, 0]
    for row, both in enumerate(rows):
        scores: list[dict[int, list[float]]] = [{}, {}]
        for side, values in enumerate(both):
            for place, value in enumerate(values):
                score = float((own, theirs)[side][begins[side] + place]) if scored or side else 1.0  # type: ignore[index]
                scores[side].setdefault(value, []).append(score)
            begins[side] += len(values)
        for value in scores[0].keys() | scores[1].keys():
            ours = scores[0].get(value, [])
            first = float(len(ours)) if own is None else float(python(ours)) if ours else 0.0
            second = float(python(scores[1][value])) if value in scores[1] else 0.0
            expected.append((row, first, second, value in scores[0] and value in scores[1]))
    sums = reduce_scores(left, own, right, theirs, ufunc)
    columns = (sums.rows, sums.left, sums.right, sums.shared)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(expected)


def test_runs_are_ordered_by_row_value_side_and_position():
    runs = match_lists(ragged([[7, 5, 7], [5]]), ragged([[7], [6, 5]]))
    spans = list(zip(runs.rows.tolist(), runs.starts.tolist(), runs.ends.tolist(), strict=True))
    assert spans == [(0, 0, 1), (0, 1, 4), (1, 4, 6), (1, 6, 7)]
    assert runs.sides.tolist() == [0, 0, 0, 1, 0, 1, 1]
    assert runs.positions(slice(None)).tolist() == [1, 0, 2, 0, 3, 2, 1]


def test_blocks_hold_all_rows_in_order_and_about_as_many_values_as_wanted():
    lists = ragged([[1, 2, 3, 4]] * 5 + [[]] * 3)
    blocks = list(row_blocks(lists, lists))
    assert blocks[0][0].start == 0
    assert blocks[-1][0].stop == 8
    for (rows, parts), (after, _) in pairwise(blocks):
        assert rows.stop == after.start
        assert all(len(part.offsets) - 1 == rows.stop - rows.start for part in parts)
    assert len(blocks) > 1
    assert list(row_blocks(ragged([]))) == []
