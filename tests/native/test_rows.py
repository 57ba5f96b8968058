"""Do the compiled functions return what numpy does, bit by bit, and does everything work without them?"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
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
@examples(150)
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
    assert not target.any()
    with pytest.raises(ValueError, match="the slice of list 1 is longer than what the list holds from its start"):
        rows.slice_values(np.array([0, 2, 3]), source, 8, 1, np.array([0, 1, 3]), target)


FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=70)
INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=70)


@given(INTEGERS, FLOATS)
def test_extremes_are_those_of_numpy(integers: list[int], floats: list[float]):
    ids, values = np.array(integers, np.int64), np.array(floats, np.float32)
    for without in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if without:
                patch.setattr(rows, "COMPILED", False)
            of_integers, of_floats = rows.extremes([ids, ids[:1]]), rows.extremes([values])
        assert of_integers.dtype == np.int64
        assert of_integers.tolist() == [[min(integers), max(integers)], [integers[0], integers[0]]]
        assert of_floats.dtype == np.float64
        assert np.array_equal(of_floats, [[values.min(), values.max()]], equal_nan=True)


@pytest.mark.skipif(not rows.COMPILED, reason="installed without a compiler")
def test_extremes_of_nothing_and_of_other_sizes_are_refused():
    for array in (np.empty(0, np.int64), np.zeros(3, np.int16), np.zeros(6, np.int64)[::2]):
        with pytest.raises(ValueError):
            rows.extremes([array])
    with pytest.raises(ValueError, match="not all of int64 or all of float32"):
        rows.extremes([np.zeros(3, np.int64), np.zeros(3, np.float32)])


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3) | st.integers(2**63, 2**63 + 9), max_size=50))
def test_words_are_sorted_with_and_without_the_kernel(words: list[int]):
    for kernel in {rows.COMPILED, False}:
        found = np.array(words, np.uint64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "COMPILED", kernel)
            rows.sort_words(found)
        assert found.tolist() == sorted(words)


def test_many_random_words_are_sorted():
    words = np.random.default_rng(0).integers(0, 2**64, 300_000, np.uint64)
    expected = np.sort(words)
    rows.sort_words(words)
    assert np.array_equal(words, expected)


@compiled
def test_words_of_another_size_are_refused():
    with pytest.raises(ValueError, match="words are of 8 bytes"):
        rows.sort_words(np.zeros(4, np.uint32))  # type: ignore[arg-type]


SOME_LENGTHS = st.lists(st.integers(0, 9), max_size=30) | st.lists(st.just(1), max_size=30)
LISTS_OF_LENGTHS = st.lists(SOME_LENGTHS, min_size=1, max_size=4)


@given(LISTS_OF_LENGTHS)
def test_lengths_are_counted_with_and_without_the_kernel(columns: list[list[int]]):
    """Of a column with a list that has no place among the counts, nothing is."""
    offsets = [np.concatenate([[3], 3 + np.cumsum(lengths)]).astype(np.int64) for lengths in columns]
    places = list(range(len(columns), 0, -1))
    expected = np.ones((len(columns) + 1, 8), np.int64)
    for place, lengths in zip(places, columns, strict=True):
        if max(lengths, default=0) < 8:
            expected[place] += np.bincount(lengths, minlength=8)[:8]
    for kernel in {rows.COMPILED, False}:
        counts = np.ones_like(expected)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "COMPILED", kernel)
            longest = rows.count_lengths(offsets, places, counts)
        assert longest == [max(lengths, default=-1) for lengths in columns]
        assert counts.tolist() == expected.tolist()


@compiled
def test_lengths_that_cannot_be_counted_are_refused():
    counts = np.zeros((2, 4), np.int64)
    with pytest.raises(ValueError, match="the offsets of lists fall"):
        rows.count_lengths([np.array([0, 2, 1])], [0], counts)
    for offsets, place in ((np.empty(0, np.int64), 0), (np.array([0, 1]), 2), (np.array([0, 1]), -1)):
        with pytest.raises(ValueError, match="lists have no offsets, or no place among the counts"):
            rows.count_lengths([offsets], [place], counts)
    assert not counts.any()


@pytest.mark.parametrize("code", [np.uint16, np.int32])
@given(data=st.data())
@examples(60)
def test_extremes_of_values_in_use_are_found_with_and_without_the_kernel(code, data):
    table = np.array(data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9)), np.int64)
    codes = np.array(data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=20)), code)
    used = table[codes]
    whole = (table.min(), table.max())
    for kernel in {rows.COMPILED, False}:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "COMPILED", kernel)
            found = rows.used_extremes([(table, codes), (table, None)])
        assert found == [(*whole, used.min(), used.max()), (*whole, *whole)]


@compiled
def test_codes_and_tables_whose_extremes_cannot_be_found_are_refused():
    with pytest.raises(ValueError, match="a code is out of range"):
        rows.used_extremes([(np.array([5, 1, 9]), np.array([1, 3], np.int32))])
    for table in (np.empty(0, np.int64), np.zeros(3, np.int32)):
        with pytest.raises(ValueError, match="a table has no values, or is not of int64"):
            rows.used_extremes([(table, None)])


@pytest.mark.parametrize("code", [np.uint16, np.int32])
@pytest.mark.parametrize("stored", [np.float32, np.int64, np.int32])
@given(data=st.data())
@examples(30)
def test_gathered_codes_are_the_values_that_they_stand_for(code, stored, data):
    table = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=1, max_size=9)), stored)
    codes = np.array(data.draw(st.lists(st.integers(0, len(table) - 1), max_size=20)), code)
    first, step = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
    target = np.full(first + step * len(codes) + 2, -99, np.int64 if stored == np.int32 else stored)
    is_counted = bool(target.dtype == np.int64 and len(codes))
    for without in (False, True):
        target[:] = -99
        with pytest.MonkeyPatch.context() as patch:
            if without:
                patch.setattr(rows, "COMPILED", False)
            found = rows.gather_codes([(target, first, step, table, codes, is_counted)])
            assert rows.count_codes(codes, 10).tolist() == np.bincount(codes, minlength=10).tolist()
            assert np.flatnonzero(rows.mark_codes(codes, 10)).tolist() == sorted(set(codes.tolist()))
        np.testing.assert_array_equal(target[first : first + step * len(codes) : step], table[codes])
        assert np.count_nonzero(target != -99) == len(codes)
        assert found == ([(table[codes].min(), table[codes].max())] if is_counted else [])


@compiled
@pytest.mark.parametrize("code", [np.uint16, np.int32])
def test_a_code_is_found_wherever_it_is(code):
    codes, table = np.zeros(5_000, code), np.array([0, 5, 1])
    for place in (0, 1_023, 1_024, 4_999):
        codes[place] = 1
        assert rows.used_extremes([(table, codes)]) == [(0, 5, 0, 5)]
        codes[place] = 2
        assert rows.used_extremes([(table, codes)]) == [(0, 5, 0, 1)]
        codes[place] = 0
    many = np.zeros(2**16 + 1, np.int64)
    many[-1] = 7  # the low bits of its code are 0
    assert rows.used_extremes([(many, codes)]) == [(0, 7, 0, 0)]


@compiled
@given(
    lists=st.lists(st.lists(st.integers(0, 8), max_size=6) | st.just([3, 1] * 40), max_size=60),
    code=st.sampled_from([np.uint16, np.int32]),
    start=st.integers(-8, 8),
    stop=st.integers(-8, 8),
    seed=st.integers(0, 9),
)
@examples(100)
def test_slices_of_codes_are_picked_in_another_order(lists, code, start, stop, seed):
    codes, offsets = encoded(lists)
    sliced = rows.slice_lists(offsets, start, stop)
    shuffled = np.random.default_rng(seed).permutation(len(lists)).astype(np.int32)
    for order in (None, shuffled):
        places = np.arange(len(lists)) if order is None else order
        ends = np.concatenate([[0], np.cumsum(np.diff(sliced)[places])]).astype(np.int64)
        picked = np.empty(int(ends[-1]), code)
        rows.slice_values(offsets, codes.astype(code), picked.itemsize, start, ends, picked, order)
        assert picked.tolist() == [each for row in places for each in lists[row][start:stop]]


@compiled
def test_codes_are_gathered_in_another_order():
    order = np.array([2, 0, 1], np.int32)
    for code in (np.uint16, np.int32):
        matrix = np.full((3, 2), -1, np.float32)
        table, codes = np.arange(9, dtype=np.float32), np.array([4, 8, 0], code)
        rows.gather_codes([(matrix.reshape(-1), 1, 2, table, codes, False)], order)
        assert matrix.tolist() == [[-1, 0], [-1, 4], [-1, 8]]


@compiled
def test_an_order_that_cannot_be_is_refused():
    table, codes, target, whole = np.arange(4), np.array([0, 3, 1], np.int32), np.zeros(3, np.int64), np.arange(4)
    column = (target, 0, 1, table, codes, False)
    for wrong in ([0, 1, 3], [0, -1, 2]):
        with pytest.raises(ValueError, match="a code or a row is out of range"):
            rows.gather_codes([column], np.array(wrong, np.int32))
        with pytest.raises(ValueError, match="or there is no such list"):
            rows.slice_values(whole, table, 8, 0, whole, target, np.array(wrong, np.int32))
    for wrong in (np.zeros(2, np.int32), np.zeros(3, np.int64)):
        with pytest.raises(ValueError, match="the order of the rows has a wrong size"):
            rows.gather_codes([column], wrong)
        with pytest.raises(ValueError, match="the order of the lists has a wrong size"):
            rows.slice_values(whole, table, 8, 0, whole, target, wrong)
    borders, order = np.array([0, 1, 3]), np.array([0, 1], np.int32)
    with pytest.raises(ValueError, match="the slice of list 0 is longer"):
        rows.slice_values(borders, codes, 4, 0, np.array([0, 2, 3]), codes.copy(), order)


@compiled
def test_codes_that_cannot_be_are_refused():
    table, codes, target = np.arange(4), np.array([0, 3, 1], np.int32), np.zeros(3, np.int64)

    def gather(codes=codes, target=target, first=0, step=1, table=table):
        rows.gather_codes([(target, first, step, table, codes, False)])

    for wrong in (np.array([0, 4, 1], np.int32), np.array([-1, 0, 0], np.int32), np.array([9, 0, 0], np.uint16)):
        with pytest.raises(ValueError, match="a code or a row is out of range"):
            gather(wrong)
        with pytest.raises(ValueError, match="a code is out of range"):
            rows.count_codes(wrong, 4)
    with pytest.raises(ValueError, match="a code has a wrong size: got 8 bytes, expected 2 or 4"):
        gather(codes.astype(np.int64))
    for wrong in ({"first": 1}, {"step": 2}, {"step": 0}, {"first": -1}, {"target": target[:2]}):
        with pytest.raises(ValueError, match="a target is too small for its codes"):
            gather(**wrong)
    with pytest.raises(ValueError, match="its values have another size"):
        gather(table=table.astype(np.int16))


@examples(60)
@given(st.integers(0, 70), st.integers(1, 40), st.data())
def test_columns_of_a_matrix_are_laid_in_and_taken_out_with_and_without_the_kernel(height, width, data):
    numbers = sorted(data.draw(st.sets(st.integers(0, width - 1))))
    matrix = np.random.default_rng(height).random((height, width), np.float32)
    matrix.reshape(-1)[::7] = np.nan
    for kernel in {rows.COMPILED, False}:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "COMPILED", kernel)
            columns = rows.take_columns(matrix, numbers)
            assert len(columns) == len(numbers)
            for number, column in zip(numbers, columns, strict=True):
                np.testing.assert_array_equal(column.view(np.int32), matrix[:, number].copy().view(np.int32))
            laid = np.full_like(matrix, 5)
            expected = laid.copy()
            expected[:, numbers] = matrix[:, numbers]
            rows.lay_columns(laid, dict(zip(numbers, columns, strict=True)))
            assert laid.tobytes() == expected.tobytes()


@pytest.mark.parametrize("numbers", [[0, 5, 1, 3], [4, 2, 6, 7], [1, 1, 1, 4], [3, 2, 1, 6, 0, 1, 2, 3]])
def test_columns_of_a_matrix_are_taken_in_any_order(numbers: list[int]):
    """The last of four is three after the first, and they are no neighbours."""
    matrix = np.arange(64, dtype=np.float32).reshape(8, 8)
    columns = rows.take_columns(matrix, numbers)
    assert [column.tolist() for column in columns] == [matrix[:, number].tolist() for number in numbers]
    laid = np.zeros_like(matrix)
    rows.lay_columns(laid, dict(zip(numbers, columns, strict=True)))
    assert laid[:, numbers].tolist() == matrix[:, numbers].tolist()


@compiled
def test_columns_that_are_not_of_a_matrix_are_refused():
    matrix, column = np.zeros((5, 3), np.float32), np.zeros(5, np.float32)
    with pytest.raises(ValueError, match=r"column 3 is not among the 3 of a matrix"):
        rows.lay_columns(matrix, {3: column})
    with pytest.raises(ValueError, match=r"column -1 is not among the 3"):
        rows.take_columns(matrix, [-1])
    with pytest.raises(ValueError, match=r"a column has a wrong size: got 16 bytes, expected 20"):
        rows.lay_columns(matrix, {0: column[:4]})
    matrix.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        rows.lay_columns(matrix, {0: column})


@compiled
def test_a_width_whose_bytes_no_number_counts_is_refused():
    """2^62 columns of 4 bytes would be rows of 0 bytes."""
    with pytest.raises(ValueError, match="a value's size is out of range"):
        rows._compiled.take_columns(np.zeros(12, np.float32), 2**62, (), ())


@compiled
def test_offsets_whose_distances_wrap_are_refused():
    """From 2^63 - 1 to -2^63 it is one step, for a processor."""
    offsets = np.array([0, 2**63 - 1, -(2**63)], np.int64)
    with pytest.raises(ValueError, match="the offsets of lists fall, or are negative"):
        rows.equal_neighbours(offsets, np.zeros(1, np.int64), 8)
    with pytest.raises(ValueError, match="the offsets of lists fall, or are negative"):
        rows.slice_lists(offsets, 0, 1)


@compiled
def test_offsets_of_strings_have_4_or_8_bytes():
    with pytest.raises(ValueError, match="an offset of strings has a wrong size: got 2 bytes, expected 8"):
        rows.digest_strings(np.zeros(2, np.int16), b"", 2, np.zeros(1, np.uint64))


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


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=compiled), False])
@given(
    values=st.lists(st.integers(-9, 9), max_size=12).map(sorted),
    rows_of=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(-10, 10)), max_size=5),
)
def test_bisect_is_that_of_numpy(compiled: bool, values: list[int], rows_of: list[tuple[int, int, int]]):
    own = np.array(values, np.int64)
    low, high, bounds = np.minimum(np.array(rows_of, np.int64).reshape(-1, 3).T, [[len(own)], [len(own)], [99]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "COMPILED", compiled)
        found = rows.bisect(own, low, high, bounds)
    expected = [
        int(first + np.searchsorted(own[first:stop], bound)) if first < stop else int(first)
        for first, stop, bound in zip(low, high, bounds, strict=True)
    ]
    assert found.tolist() == expected


@compiled
def test_ranges_outside_of_the_values_are_refused_by_bisect():
    values, one = np.arange(4), np.ones(1, np.int64)
    for low, high, bounds in (([0], [5], one), ([-1], [2], one), ([0], [2], np.ones(2, np.int64))):
        with pytest.raises(ValueError, match="ranges of values and bounds do not fit each other"):
            rows.bisect(values, np.array(low), np.array(high), bounds)
