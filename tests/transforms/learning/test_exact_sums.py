"""Sums are exact, and the same for every order and partition, by the oracle `fractions.Fraction`."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from feedline.transforms.learning import exact_sums
from feedline.transforms.learning.exact_sums import (
    bins_of,
    nearest_float,
    normal,
    normal_groups,
    rounded_groups,
    total,
    units_of_each,
)

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
EXTREMES = (0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 1.7976931348623157e308, -1.7976931348623157e308, 1e308, 2.0**970)
TIES = st.builds(lambda units, place: units * 2.0 ** (31 + 32 * place), st.integers(-9, 9), st.integers(-20, 20))
ANY_FLOAT = st.one_of(FLOATS, st.sampled_from(EXTREMES), TIES, st.floats(-1, 1), st.integers(-100, 100).map(float))
INTEGERS = {
    np.int8: (-(2**7), 2**7 - 1),
    np.int32: (-(2**31), 2**31 - 1),
    np.uint32: (0, 2**32 - 1),
    np.int64: (-(2**63), 2**63 - 1),
    np.uint64: (0, 2**64 - 1),
}


@st.composite
def arrays(draw: Any) -> np.ndarray[Any, Any]:
    """Numbers of one type, extremes among them."""
    dtype = draw(st.sampled_from([np.float64, np.float64, np.float32, *INTEGERS]))
    if dtype in INTEGERS:
        low, high = INTEGERS[dtype]
        element: Any = st.one_of(st.integers(low, high), st.sampled_from([low, high]), st.integers(0, 9))
    elif dtype is np.float32:
        element = st.floats(width=32, allow_nan=False, allow_infinity=False)
    else:
        element = ANY_FLOAT
    return np.array(draw(st.lists(element, max_size=40)), dtype=dtype)


def exactly(values: Any, *, squares: bool = False) -> Fraction:
    """The oracle."""
    return sum((Fraction(value) ** (1 + squares) for value in values.tolist()), Fraction(0))


@examples(30)
@given(arrays(), st.booleans())
@example(np.array(EXTREMES), False)
@example(np.array(EXTREMES), True)
@example(np.array([2.0**31, 2.0**63, -(2.0**31), 3 * 2.0**31]), True)
def test_a_sum_is_exact(values: Any, squares: bool):
    assert total(bins_of(values, squares=squares)) == exactly(values, squares=squares)


@examples(30)
@given(arrays(), st.booleans(), st.randoms(use_true_random=False), st.lists(st.integers(0, 40), max_size=5))
def test_every_order_and_partition_gives_the_same_bins(values: Any, squares: bool, random: Any, cuts: list[int]):
    whole = bins_of(values, squares=squares)
    mixed = values[random.sample(range(len(values)), len(values))]
    borders = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    parts = [bins_of(mixed[start:stop], squares=squares) for start, stop in pairwise(borders)]
    random.shuffle(parts)
    added: dict[int, int] = {}
    for part in parts:
        added = normal({place: added.get(place, 0) + part.get(place, 0) for place in {*added, *part}})
    assert list(added.items()) == list(whole.items())


def test_a_block_of_the_largest_parts_is_added_without_rounding():
    """As many values as a block has, each of as many units as a bin takes, and one."""
    values = np.full(exact_sums.BLOCK_VALUES, 2.0**31)
    values[0] = 1.0
    assert total(bins_of(values)) == (exact_sums.BLOCK_VALUES - 1) * 2**31 + 1


@examples(30)
@given(st.dictionaries(st.integers(-60, 60), st.integers(-(2**80), 2**80), max_size=8))
def test_the_normal_form_is_one_form_of_a_sum(bins: dict[int, int]):
    found = normal(bins)
    assert total(found) == total(bins)
    assert all(-(2**31) <= units < 2**31 and units for units in found.values())
    assert list(found) == sorted(found)
    carried = dict.fromkeys(bins, 0) | {place + 1: 0 for place in bins}
    for place, units in bins.items():
        carried[place] += units + 2**32
        carried[place + 1] -= 1
    assert normal(carried) == found


def test_nothing_is_a_sum_of_nothing():
    assert bins_of(np.empty(0)) == {} == bins_of(np.empty(0, np.int64), squares=True) == bins_of(np.zeros(5))
    assert total({}) == 0
    assert nearest_float(total({})) == 0


def test_a_sum_beyond_float64_is_an_infinity():
    values = np.array([1.7e308, 1.7e308])
    assert nearest_float(total(bins_of(values))) == math.inf
    assert nearest_float(total(bins_of(-values))) == -math.inf
    assert nearest_float(total(bins_of(np.concatenate((values, -values))))) == 0


# groups


def sums_of(groups: Any, bins: Any, units: Any) -> dict[int, Fraction]:
    """What rows of groups, bins and units say."""
    found: dict[int, Fraction] = {}
    for group, place, count in zip(groups.tolist(), bins.tolist(), units.tolist(), strict=True):
        found[group] = found.get(group, Fraction(0)) + total({place: count})
    return found


def grouped_bins(values: Any, groups: Any, squares: bool = False) -> tuple[Any, Any, Any]:
    """Rows of groups, bins and units, one for each value and bin."""
    found = units_of_each(values, squares=squares)
    rows = [(groups, np.full(len(groups), place), units) for place, units in found.items()]
    columns = zip(*rows, (np.empty(0, np.int64),) * 3, strict=True)
    groups, bins, units = (np.concatenate(column) for column in columns)
    return groups, bins, units


@examples(30)
@given(arrays(), st.booleans(), st.data())
def test_sums_of_groups_are_exact(values: Any, squares: bool, data: st.DataObject):
    groups = np.array(data.draw(st.lists(st.integers(0, 4), min_size=len(values), max_size=len(values))), np.int64)
    rows = grouped_bins(values, groups, squares=squares)
    expected = {group: exactly(values[groups == group], squares=squares) for group in range(5)}
    found = sums_of(*rows)
    assert {group: found.get(group, 0) for group in range(5)} == expected
    normal_rows = list(zip(*(column.tolist() for column in normal_groups(*rows)), strict=True))
    for group in range(5):
        mine = {place: count for at, place, count in normal_rows if at == group}
        assert list(mine.items()) == list(bins_of(values[groups == group], squares=squares).items())
    high, low = rounded_groups(*rows, 5)
    for group in range(5):
        assert high[group] == nearest_float(expected[group])
        if math.isfinite(high[group]):
            missing = expected[group] - Fraction(high[group]) - Fraction(low[group])
            assert abs(missing) <= abs(expected[group]) / 2**95 + Fraction(5e-324)


@examples(30)
@given(arrays(), st.data())
def test_sums_of_groups_do_not_depend_on_order_and_partition(values: Any, data: st.DataObject):
    size = len(values)
    groups = np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)), np.int64)
    cut = data.draw(st.integers(0, size))
    order = np.array(data.draw(st.permutations(range(size))), np.int64)
    parts = [grouped_bins(values[order][at], groups[order][at]) for at in (slice(0, cut), slice(cut, None))]
    joined = [np.concatenate(column) for column in zip(*parts[::-1], strict=True)]
    for mine, other in zip(normal_groups(*joined), normal_groups(*grouped_bins(values, groups)), strict=True):
        assert mine.tolist() == other.tolist()


@pytest.mark.parametrize("value", [9.480751907005473e153, 1.3407807929942596e154])
def test_a_sum_close_to_the_largest_float_begins_beyond_it(value: float):
    high, low = rounded_groups(*grouped_bins(np.array([value]), np.zeros(1, np.int64), squares=True), 1)
    assert high[0] == nearest_float(Fraction(value) ** 2)
    assert abs(Fraction(high[0]) + Fraction(low[0]) - Fraction(value) ** 2) <= Fraction(value) ** 2 / 2**95


def test_units_near_the_limit_of_int64_are_carried_before_they_are_added():
    units = np.array([2**62, 2**62, 2**62, -(2**62), 2**62 - 1], np.int64)
    groups, bins = np.zeros(5, np.int64), np.zeros(5, np.int64)
    assert sums_of(*normal_groups(groups, bins, units)) == {0: 3 * 2**62 - 1}
