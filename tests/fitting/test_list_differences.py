"""Lists differ as plain Python counts it, whatever the type of their elements."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.fitting.list_differences import list_differences

ELEMENTS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.0, 2.0, float("nan")]))
LISTS = st.lists(st.one_of(st.none(), st.lists(ELEMENTS, max_size=6)), max_size=8)


def key(value: Any) -> Any:
    """Equal for values that are the same to the audit."""
    return "nan" if value != value else value


@given(LISTS, st.data())
def test_differences_are_those_of_multisets(stored: list[Any], data: st.DataObject):
    own = st.one_of(st.none(), st.lists(ELEMENTS, max_size=6))
    rebuilt = [data.draw(st.one_of(st.just(each), own)) for each in stored]
    columns = [pl.Series("lists", each, dtype=pl.List(pl.Float64)) for each in (stored, rebuilt)]
    found = list_differences(*columns, pl.Float64())
    for row, (one, other) in enumerate(zip(stored, rebuilt, strict=True)):
        a, b = [key(each) for each in one or []], [key(each) for each in other or []]
        assert found.equal[row] == (a == b)
        assert found.missing[row] == (Counter(b) - Counter(a)).total()
        assert found.extra[row] == (Counter(a) - Counter(b)).total()
        if Counter(a) == Counter(b):
            assert (found.out_of_order[row] > 0) == (a != b)


@pytest.mark.parametrize(
    ("stored", "rebuilt", "falls"),
    [
        ([1, 2, 3], [1, 3, 2], 1),
        ([3, 2, 1], [1, 2, 3], 2),
        ([7, 1, 7], [1, 7], 0),  # cut in front
        ([7, 1, 7], [7, 1], 0),  # one too many at the end
        ([1, 2, 9, 3], [0, 1, 2, 3], 0),
        ([2, 1, 9], [1, 2, 3], 1),
    ],
)
def test_a_list_that_was_cut_is_not_out_of_order(stored: list[int], rebuilt: list[int], falls: int):
    found = list_differences(pl.Series([stored]), pl.Series([rebuilt]), pl.Int64())
    assert found.out_of_order.tolist() == [falls]


@pytest.mark.parametrize(
    ("dtype", "one", "other"),
    [
        (pl.String(), "x", "y" * 40),
        (pl.Binary(), b"x", b"y"),
        (pl.Boolean(), True, False),
        (pl.Date(), datetime(2026, 1, 1).date(), datetime(2026, 1, 2).date()),
        (pl.Datetime("ms"), datetime(2026, 1, 1), datetime(2026, 1, 2)),
        (pl.Decimal(10, 2), Decimal("1.10"), Decimal("1.20")),
    ],
)
def test_elements_may_be_of_any_single_type(dtype: pl.DataType, one: Any, other: Any):
    stored = pl.Series([[one, None, other, one], [one]], dtype=pl.List(dtype))
    rebuilt = pl.Series([[other, None, None, one], [one]], dtype=pl.List(dtype))
    found = list_differences(stored, rebuilt, dtype)
    assert (found.equal.tolist(), found.missing.tolist(), found.extra.tolist()) == ([False, True], [1, 0], [1, 0])
    assert found.out_of_order.tolist() == [1, 0]
