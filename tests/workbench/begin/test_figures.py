"""Figures in comments read as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.workbench.begin.figures import distinct, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (9_999, "9,999"),
        (12_400, "12.4 k"),
        (12_400_000, "12.4 M"),
        (999_999, "1 M"),
        (1e13, "10 T"),
        (0.123456, "0.123"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers(value: float, text: str):
    assert number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.25, "25 %"),
        (0.004, "0.4 %"),
        (0.9999, "99.99 %"),
        (1e-9, "< 0.01 %"),
        (1 - 1e-9, "> 99.99 %"),
        (None, "?"),
    ],
)
def test_shares(share: float | None, text: str):
    assert percent(share) == text


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_share_is_never_rounded_to_none_or_all(share: float):
    assert percent(share) not in ("0 %", "100 %", "0.0 %", "100.0 %", "0.00 %", "100.00 %")


def test_estimates_say_so():
    assert distinct(12_400_000, exact=False) == "12.4 M distinct (estimate)"
    assert distinct(3, exact=True) == "3 distinct"
