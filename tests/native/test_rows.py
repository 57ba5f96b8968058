"""Do the compiled functions return what numpy does, bit by bit, and does everything work without them?"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.native import rows
from feedline.transforms.values import ragged

compiled = pytest.mark.skipif(not rows.COMPILED, reason="the kernel was not compiled: there is no C compiler")

LISTS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=7), max_size=20)


def encoded(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in lists], dtype=np.int64))).astype(np.int64)
    return np.array([value for each in lists for value in each], dtype=np.int64), offsets


@compiled
@given(
    lists=st.lists(st.none() | st.lists(st.integers(-9, 9), max_size=6), max_size=12),
    skip=st.integers(0, 3),
    start=st.integers(-8, 8),
    stop=st.none() | st.integers(-8, 8),
)
@settings(deadline=None, max_examples=150)
def test_slices_of_lists_are_those_of_python_with_and_without_the_kernel(lists, skip, start, stop):
    series = pl.Series("lists", lists, dtype=pl.List(pl.Int64))[skip:]
    expected = [None if each is None else each[start:stop] for each in lists[skip:]]
    frame = pl.DataFrame([series])
    expression = ragged.list_slices(pl.col("lists"), start, stop, pl.List(pl.Int64()))
    assert frame.select(expression).to_series().to_list() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "COMPILED", False)
        assert frame.select(expression).to_series().to_list() == expected


@compiled
def test_offsets_and_sizes_that_cannot_be_are_refused():
    """Such arguments would read or write beyond the buffers."""
    target, source = np.zeros(3, np.int64), np.ones(3, np.int64)
    falling = np.array([0, 2, 1, 3])
    for size in (-1, 2**62, 2**31):
        with pytest.raises(ValueError, match="a value's size is out of range"):
            rows.equal_neighbours(np.arange(4), source, size)
        with pytest.raises(ValueError, match="a value's size is out of range"):
            rows.slice_values(np.arange(4), source, size, 0, np.arange(4), target)
    for offsets in (falling, np.array([-1, 0, 1, 2])):
        with pytest.raises(ValueError, match="the offsets of lists fall, or are negative"):
            rows.equal_neighbours(offsets, source, 8)
        with pytest.raises(ValueError, match="the offsets of lists fall, or are negative"):
            rows.slice_values(offsets, source, 8, 0, np.arange(4), target)
        with pytest.raises(ValueError, match="the offsets of lists fall, or are negative"):
            rows.slice_values(np.arange(4), source, 8, 0, offsets, target)
    with pytest.raises(ValueError, match="wrong size"):
        rows.slice_values(np.array([0, 3]), np.ones(2, np.int64), 8, 0, np.array([0, 3]), target)
    with pytest.raises(ValueError, match="the values of lists have a wrong size: got 24 bytes, expected 4 of 8 each"):
        rows.equal_neighbours(np.array([0, 1, 4]), source, 8)
    with pytest.raises(ValueError, match="the slice of list 1 is longer than what the list holds from its start"):
        rows.slice_values(np.array([0, 2, 3]), source, 8, 1, np.array([0, 1, 3]), target)
    assert not target.any()


@pytest.mark.parametrize("code", [np.uint16, np.int32])
@pytest.mark.parametrize("stored", [np.float32, np.int64, np.int32])
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_gathered_codes_are_the_values_that_they_stand_for(code, stored, data):
    table = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=1, max_size=9)), stored)
    codes = np.array(data.draw(st.lists(st.integers(0, len(table) - 1), max_size=20)), code)
    first, step = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
    target = np.full(first + step * len(codes) + 2, -99, np.int64 if stored == np.int32 else stored)
    extremes = np.empty(2, np.int64) if target.dtype == np.int64 and len(codes) else None
    for without in (False, True):
        target[:] = -99
        with pytest.MonkeyPatch.context() as patch:
            if without:
                patch.setattr(rows, "COMPILED", False)
            rows.gather_codes([(target, first, step, table, codes, extremes, None)])
            assert rows.count_codes(codes, 10).tolist() == np.bincount(codes, minlength=10).tolist()
            assert np.flatnonzero(rows.mark_codes(codes, 10)).tolist() == sorted(set(codes.tolist()))
        np.testing.assert_array_equal(target[first : first + step * len(codes) : step], table[codes])
        assert np.count_nonzero(target != -99) == len(codes)
        if extremes is not None:
            assert extremes.tolist() == [table[codes].min(), table[codes].max()]


@compiled
@given(
    lists=st.lists(st.lists(st.integers(0, 8), max_size=6), max_size=12),
    code=st.sampled_from([np.uint16, np.int32]),
    start=st.integers(-8, 8),
    stop=st.integers(-8, 8),
)
@settings(deadline=None, max_examples=150)
def test_gathered_slices_of_codes_are_those_of_python(lists, code, start, stop):
    table = np.arange(9, dtype=np.int32) * 11 - 20
    codes, offsets = encoded(lists)
    expected = [table[each].item() for one in lists for each in one[start:stop]]
    ends = rows.slice_lists(offsets, start, stop)
    target, extremes = np.empty(len(expected), np.int64), np.empty(2, np.int64)
    rows.gather_codes([(target, 0, 1, table, codes.astype(code), extremes, (start, offsets, ends))])
    assert target.tolist() == expected
    if expected:
        assert extremes.tolist() == [min(expected), max(expected)]


@compiled
@given(
    lists=st.lists(st.lists(st.integers(0, 8), max_size=6), max_size=60),
    code=st.sampled_from([np.uint16, np.int32]),
    start=st.integers(-8, 8),
    stop=st.integers(-8, 8),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=100)
def test_codes_are_gathered_in_another_order(lists, code, start, stop, seed):
    table = np.arange(9, dtype=np.int32) * 11 - 20
    order = np.random.default_rng(seed).permutation(len(lists)).astype(np.int32)
    codes, offsets = encoded(lists)
    lengths = np.diff(rows.slice_lists(offsets, start, stop))[order]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    target, extremes = np.empty(int(ends[-1]), np.int64), np.empty(2, np.int64)
    rows.gather_codes([(target, 0, 1, table, codes.astype(code), extremes, (start, offsets, ends))], order)
    assert target.tolist() == [table[each].item() for row in order for each in lists[row][start:stop]]

    firsts = np.array([len(each) for each in lists], code)
    matrix = np.full((len(lists), 2), -1, np.float32)
    rows.gather_codes([(matrix.reshape(-1), 1, 2, np.arange(9, dtype=np.float32), firsts, None, None)], order)
    np.testing.assert_array_equal(matrix, np.stack([np.full(len(lists), -1), firsts[order]], axis=1))


@compiled
def test_an_order_that_cannot_be_is_refused():
    table, codes, target, whole = np.arange(4), np.array([0, 3, 1], np.int32), np.zeros(3, np.int64), np.arange(4)
    for slices in (None, (0, whole, whole)):
        column = (target, 0, 1, table, codes, None, slices)
        for wrong in ([0, 1, 3], [0, -1, 2]):
            with pytest.raises(ValueError, match="a code or a row is out of range"):
                rows.gather_codes([column], np.array(wrong, np.int32))
        for wrong in (np.zeros(2, np.int32), np.zeros(3, np.int64)):
            with pytest.raises(ValueError, match="the order of the rows has a wrong size"):
                rows.gather_codes([column], wrong)
    with pytest.raises(ValueError, match="or a slice is longer than its list"):
        rows.gather_codes([(target, 0, 1, table, codes, None, (0, np.array([0, 1, 3]), np.array([0, 2, 3])))],
                          np.array([0, 1], np.int32))  # fmt: skip


@compiled
def test_codes_and_slices_that_cannot_be_are_refused():
    table, codes, target = np.arange(4), np.array([0, 3, 1], np.int32), np.zeros(3, np.int64)
    whole = np.array([0, 3])

    def gather(codes=codes, target=target, first=0, step=1, table=table, slices=None):
        rows.gather_codes([(target, first, step, table, codes, None, slices)])

    for wrong in (np.array([0, 4, 1], np.int32), np.array([-1, 0, 0], np.int32), np.array([9, 0, 0], np.uint16)):
        with pytest.raises(ValueError, match=r"a code (or a row )?is out of range"):
            gather(wrong)
        with pytest.raises(ValueError, match=r"a code (or a row )?is out of range"):
            gather(wrong, slices=(0, whole, whole))
        with pytest.raises(ValueError, match=r"a code (or a row )?is out of range"):
            rows.count_codes(wrong, 4)
    with pytest.raises(ValueError, match="a code has a wrong size: got 8 bytes, expected 2 or 4"):
        gather(codes.astype(np.int64))
    for wrong in ({"first": 1}, {"step": 2}, {"step": 0}, {"first": -1}, {"target": target[:2]}):
        with pytest.raises(ValueError, match="a target is too small for its codes"):
            gather(**wrong)
        with pytest.raises(ValueError, match="a target is too small for its codes"):
            gather(**wrong, slices=(0, whole, whole))
    with pytest.raises(ValueError, match="its values have another size"):
        gather(table=table.astype(np.int16))
    with pytest.raises(ValueError, match="the values of lists have a wrong size: got 3 bytes, expected 4 of 1 each"):
        gather(slices=(0, np.array([0, 4]), np.array([0, 3])))
    with pytest.raises(ValueError, match="the offsets of lists fall, or are negative"):
        gather(slices=(0, np.array([0, 2, 1]), np.array([0, 1, 2])))
    with pytest.raises(ValueError, match="the offsets of lists fall, or are negative"):
        gather(slices=(0, np.array([0, 1, 2]), np.array([0, 2, 1])))
    with pytest.raises(
        ValueError, match="the array of the slices' offsets has a wrong size: got 16 bytes, expected 24"
    ):
        gather(slices=(0, np.array([0, 1, 2]), whole))
    with pytest.raises(ValueError, match="or a slice is longer than its list"):
        gather(slices=(1, whole, whole))


@compiled
def test_strings_outside_their_buffers_are_refused():
    def digests(view: tuple[int, int, int, int], size: int = 1) -> None:
        rows.digest_views(np.array(view, np.int32), (b"x" * 20, b"y" * 30), np.empty(size, np.uint64))

    digests((30, 0, 1, 0))
    for view in ((30, 0, 0, 0), (20, 0, 0, 1), (20, 0, 2, 0), (20, 0, -1, 0), (20, 0, 0, -1), (-1, 0, 0, 0)):
        with pytest.raises(ValueError, match="a string lies outside its buffer"):
            digests(view)
    with pytest.raises(ValueError, match="the array of digests has a wrong size: got 16 bytes, expected 8"):
        digests((1, 0, 0, 0), size=2)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.randoms())
def test_parts_of_rows_are_those_in_which_they_lie(heights: list[int], random: Any):
    """Some are empty."""
    rows_of_parts = [part for part, height in enumerate(heights) for _ in range(height)]
    index = list(range(len(rows_of_parts)))
    random.shuffle(index)
    found = rows.parts_of(np.array(index, np.int64), np.cumsum([0, *heights[:-1]]))
    assert found.dtype == np.uint16
    assert found.tolist() == [rows_of_parts[row] for row in index]


def test_the_package_is_imported_without_the_kernel():
    program = (
        "import sys; sys.modules['feedline.native._rows'] = None\n"
        "from feedline import Pipeline\n"
        "from feedline.native import rows\n"
        "print(Pipeline.__name__, rows.COMPILED)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "Pipeline False\n"
