"""Splits against their definition as a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import PlanError
from feedline.warehouse.snapshot.splits import plan_splits

TABLES = st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=6)


def by_hand(files: list[list[int]], split_rows: int) -> list[tuple[int, list[int]]]:
    splits: list[tuple[int, list[int]]] = []
    index = 0
    for file, groups in enumerate(files):
        run: list[int] = []
        held = 0
        for rows in groups:
            if rows and run and held + rows > split_rows:
                splits.append((file, run))
                run, held = [], 0
            if rows:
                run.append(index)
                held += rows
            index += 1
        if run:
            splits.append((file, run))
    return splits


@given(TABLES, st.integers(1, 100))
def test_splits_are_greedy_runs_of_one_file(files: list[list[int]], split_rows: int) -> None:
    rows = np.array([count for groups in files for count in groups], np.int64)
    file = np.array([index for index, groups in enumerate(files) for _ in groups], np.int32)
    splits = plan_splits(rows, file, split_rows)
    expected = by_hand(files, split_rows)
    assert len(splits) == len(expected)
    assert splits.file.tolist() == [file for file, _ in expected]
    assert splits.first_row_group.tolist() == [run[0] for _, run in expected]
    assert splits.stop_row_group.tolist() == [run[-1] + 1 for _, run in expected]
    assert splits.rows.tolist() == [int(rows[run].sum()) for _, run in expected]
    assert (splits.file.dtype, splits.first_row_group.dtype, splits.rows.dtype) == (np.int32, np.int32, np.int64)


def test_split_rows_must_be_positive() -> None:
    with pytest.raises(PlanError, match="split_rows is too small: got 0, expected at least 1"):
        plan_splits(np.array([1]), np.array([0]), 0)
