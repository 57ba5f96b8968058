"""A block's order permutes rows, or whole runs of `shuffle.by`, which end with their piece."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.request import BlockRequest, PieceRequest, Runs
from feedline.blocks.row_order import ordered_rows

FRAGMENT: Any = None
KEY = ("rows", 3, 0, 0, 0)
BY_USER = Runs("user")


def request_of(sizes: list[int], *, permuted: bool = True) -> BlockRequest:
    pieces = tuple(PieceRequest(fragment=FRAGMENT, skip=0, rows=size) for size in sizes)
    return BlockRequest(pieces=pieces, rows=sum(sizes), permutation=KEY if permuted else None, nbytes=0)


def test_a_block_in_plan_order_has_no_permutation():
    assert ordered_rows(BY_USER, request_of([3, 4], permuted=False), lambda index: pl.Series([0])) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_rows_are_permuted(sizes: list[int]):
    order = ordered_rows(None, request_of(sizes), lambda index: pl.Series([0]))
    assert order is not None
    assert sorted(order.tolist()) == list(range(sum(sizes)))


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=4))
def test_runs_stay_together(pieces: list[list[int]]):
    order = ordered_rows(BY_USER, request_of([len(piece) for piece in pieces]), lambda index: pl.Series(pieces[index]))
    assert order is not None
    runs, row = [], 0
    for piece in pieces:
        for _, values in groupby(piece):
            runs.append(list(range(row, row := row + len(list(values)))))
    found, rows = [], order.tolist()
    while rows:
        run = next(run for run in runs if run[0] == rows[0])
        assert rows[: len(run)] == run
        found.append(run)
        rows = rows[len(run) :]
    assert sorted(found) == runs
