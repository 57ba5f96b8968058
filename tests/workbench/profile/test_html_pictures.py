"""Pictures are as long, wide and high as the values that they show."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from feedline.workbench.profile.html_page import (
    BarRow,
    html_bars,
    html_histogram,
    plain_number,
)


def widths(picture: str) -> list[float]:
    return [float(each) for each in re.findall(r"width:([0-9.]+)%", picture)]


def heights(picture: str) -> list[float]:
    return [float(each.get("height") or 0) for each in ET.fromstring(picture).iter("rect")]


def test_bars_are_to_one_scale():
    bars = html_bars([BarRow(name="a", parts=(3, 1)), BarRow(name="b", parts=(0, 2), text="2 s")], ("decode", "ops"))
    assert widths(bars) == [75, 25, 50]
    assert "decode 3, ops 1" in bars
    assert "2 s" in bars
    assert widths(html_bars([BarRow(name="a", parts=(1,))], most=4)) == [25]


def test_bars_of_nothing():
    assert widths(html_bars([])) == []
    assert widths(html_bars([BarRow(name="a", parts=(0,))])) == []


def test_histogram_columns_are_as_high_as_counts():
    picture = html_histogram([0, 1, 2, 4], [5, 10, 0], name="lengths")
    assert heights(picture) == pytest.approx([75, 150, 0], abs=0.2)
    assert "2 to 4: 0" in picture
    named = html_histogram(["red", "green"], [1, 2], name="colors", others=[2, 1])
    assert heights(named) == pytest.approx([75, 150, 150, 75], abs=0.2)
    assert "red: 1" in named


def test_plain_numbers():
    assert [plain_number(each) for each in (0, 1, 1234.4, 12.34, 0.012345)] == ["0", "1", "1,234", "12.3", "0.0123"]
