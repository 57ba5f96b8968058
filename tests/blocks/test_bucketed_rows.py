"""Bucketed orders lay a block's rows bucket after bucket, and leave out those of a neighbouring lane."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.request import BucketRows, StepShares
from feedline.blocks.row_order import bucketed_rows
from feedline.errors import DataError

BOUNDS = (2, 5, 9)
KEY = ("rows", 0, 0, 0, 0)
LENGTHS = st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=4)


def bucket(length: int) -> int:
    return next((index for index, bound in enumerate(BOUNDS) if length <= bound), len(BOUNDS) - 1)


@examples(150)
@given(LENGTHS, st.data())
def test_a_block_has_its_ordinals_of_each_bucket(pieces, data):
    wanted: list[set[int]] = [set(), set(), set()]
    parts, first = [], 0
    for index, lengths in enumerate(pieces):
        of_bucket = [[first + row for row, each in enumerate(lengths) if bucket(each) == own] for own in range(3)]
        ranges = tuple(
            tuple(sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2), label="range"))) for rows in of_bucket
        )
        if data.draw(st.booleans()):
            parts.append((index, ranges))
        else:
            ranges = tuple((0, len(rows)) for rows in of_bucket)
        for own, (start, stop) in enumerate(ranges):
            wanted[own] |= set(of_bucket[own][start:stop])
        first += len(lengths)
    rows = BucketRows(rows=tuple(len(own) for own in wanted), parts=tuple(parts))
    order = bucketed_rows([np.array(each, np.int64) for each in pieces], BOUNDS, rows, *KEY).tolist()
    found, at = [], 0
    for own in wanted:
        found.append(order[at : at + len(own)])
        at += len(own)
    assert at == len(order)
    assert [sorted(own) for own in found] == [sorted(own) for own in wanted]


def test_rows_of_a_bucket_are_permuted_or_balanced():
    lengths = np.tile([1, 4], 500)
    rows = BucketRows(rows=(500, 500, 0))
    order = bucketed_rows([lengths], BOUNDS, rows, *KEY)
    assert order[:500].tolist() != sorted(order[:500].tolist())
    shares = StepShares(first_step=0, rows=np.full(50, 10, "<u4").tobytes())
    mixed = np.tile([3, 5, 4, 4, 4, 4, 4, 4, 4, 4], 50)
    balanced = bucketed_rows([mixed], BOUNDS, BucketRows(rows=(0, 500, 0), shares=(shares, shares, shares)), *KEY)
    assert set(mixed[balanced].reshape(50, 10).sum(axis=1).tolist()) == {40}


def test_another_number_of_rows_than_was_counted_is_an_error():
    with pytest.raises(
        DataError, match=r"another number of rows of up to 5 elements than was counted: got 1, expected 2"
    ):
        bucketed_rows([np.array([1, 4])], BOUNDS, BucketRows(rows=(1, 2, 0)), *KEY)
