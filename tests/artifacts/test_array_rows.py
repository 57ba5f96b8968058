"""Rows of an array are gathered with bounded memory, and blocks are loaded once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.artifacts.array_rows import ArrayRows, StoredArray


def counting(rows: int, width: int, block_rows: int, log: list[int]) -> StoredArray:
    """An array whose rows are their numbers, and which notes the blocks that are loaded."""

    def load(number: int) -> np.ndarray:
        log.append(number)
        first = number * block_rows
        return np.repeat(np.arange(first, min(first + block_rows, rows), dtype=np.float32)[:, None], width, axis=1)

    return StoredArray(rows=rows, width=width, block_rows=block_rows, dtype=np.dtype(np.float32), load=load)


@given(
    st.integers(1, 50),
    st.integers(1, 12),
    st.integers(1, 2000),
    st.lists(st.lists(st.floats(0, 1, exclude_max=True), max_size=20), max_size=5),
)
def test_memory_is_bounded_and_only_needed_blocks_are_loaded(
    rows: int, block_rows: int, max_bytes: int, asked: list[list[float]]
):
    log: list[int] = []
    held = ArrayRows(counting(rows, 3, block_rows, log), max_bytes)
    block_bytes = min(block_rows, rows) * 12
    for part in asked:
        indices = np.array([int(place * rows) for place in part], np.int64)
        before = len(log)
        assert np.array_equal(held.take(indices), np.repeat(indices[:, None], 3, axis=1).astype(np.float32))
        loaded = log[before:]
        assert len(set(loaded)) == len(loaded)
        assert set(loaded) <= set((indices // block_rows).tolist())
        assert held.nbytes <= max(max_bytes, block_bytes)
    if rows * 12 <= max_bytes:
        assert len(set(log)) == len(log)
    assert held.loads == len(log)


def test_the_blocks_used_last_are_kept():
    log: list[int] = []
    held = ArrayRows(counting(100, 3, 10, log), 2 * 10 * 12)
    for row in (5, 15, 7, 25, 5, 15):
        held.take(np.array([row]))
    assert log == [0, 1, 2, 1]


def test_a_block_is_loaded_once_for_all_threads():
    log: list[int] = []
    stored = counting(100, 3, 10, log)
    together = threading.Barrier(4)
    first = threading.Event()

    def load(number: int) -> np.ndarray:
        first.wait(10)
        return stored.load(number)

    held = ArrayRows(StoredArray(rows=100, width=3, block_rows=10, dtype=stored.dtype, load=load), 1 << 20)

    def take() -> np.ndarray:
        if together.wait(10) == 0:
            first.set()
        return held.take(np.arange(100))

    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(take) for _ in range(4)]]
    assert all(np.array_equal(each, found[0]) for each in found)
    assert sorted(log) == list(range(10))


def test_a_block_that_cannot_be_loaded_fails_all_who_wait_and_is_tried_again():
    failures = [OSError("gone")]

    def load(number: int) -> np.ndarray:
        if failures:
            raise failures.pop()
        return np.zeros((5, 2), np.float32)

    held = ArrayRows(StoredArray(rows=10, width=2, block_rows=5, dtype=np.dtype(np.float32), load=load), 1 << 20)
    with pytest.raises(OSError, match="gone"):
        held.take(np.array([1]))
    assert held.take(np.array([1])).tolist() == [[0.0, 0.0]]
