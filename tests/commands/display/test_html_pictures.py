"""Pictures are as long, wide and high as the values that they show."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.commands.display.html_pictures import (
    BarRow,
    FlameNode,
    html_bars,
    html_flame,
    html_histogram,
    html_timeline,
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


def test_timeline_stacks_its_series():
    picture = html_timeline([0, 10, 20], {"waits": [1, 0, 1], "works": [1, 2, 1]}, name="who waited")
    below, above = [each.get("points") or "" for each in ET.fromstring(picture).iter("polygon")]
    tops = [float(point.split(",")[1]) for point in below.split()[:3]]
    assert tops == pytest.approx([83, 158, 83], abs=0.2)
    assert above.split()[:3] == ["52.0,8.0", "476.0,8.0", "900.0,8.0"]
    assert above.split()[3:] == list(reversed(below.split()[:3]))
    assert ">20 s<" in picture


def test_timeline_of_nothing():
    assert ET.fromstring(html_timeline([], {"waits": []}, name="none")).find(".//polygon") is not None


def test_flame_boxes_are_shares_of_the_box_above():
    root = FlameNode(
        name="run",
        value=10,
        children=(
            FlameNode(name="decode", value=6, children=(FlameNode(name="hist_0", value=3),), color=1),
            FlameNode(name="ops", value=2),
            FlameNode(name="tiny", value=0.001),
        ),
    )
    picture = html_flame(root)
    assert widths(picture) == [100, 60, 50, 20]
    assert re.findall(r'<b class="(s[0-9])"', picture) == ["s0", "s1", "s1", "s0"]
    assert "tiny" not in picture.partition(">")[2]


@examples(30)
@given(st.lists(st.floats(0, 1e12), max_size=8), st.floats(0, 1e12))
def test_flame_boxes_never_overflow(values: list[float], own: float):
    root = FlameNode(name="run", value=own, children=tuple(FlameNode(name="x", value=value) for value in values))
    assert sum(widths(html_flame(root))[1:]) <= 100.1


def test_plain_numbers():
    assert [plain_number(each) for each in (0, 1, 1234.4, 12.34, 0.012345)] == ["0", "1", "1,234", "12.3", "0.0123"]
