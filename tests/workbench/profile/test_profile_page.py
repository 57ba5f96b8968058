"""Pages of profiles and drifts: complete, escaped, and without anything to load."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from test_profile_tables import DRIFTED, FACTS, GONE, NUMBERS, ODD, SAME

from feedline.workbench.profile.drift import BinnedCounts, TableDrift
from feedline.workbench.profile.profile_page import (
    drift_page,
    folded,
    html_bars,
    html_element,
    html_histogram,
    html_table,
    number_tiles,
    page_section,
    plain_number,
    profile_page,
    render_page,
)
from feedline.workbench.profile.table_facts import ColumnProfile, FrequentValue


def tags_of(page: str) -> set[str]:
    return set(Elements(page).tags)


def test_a_profile_has_tables_and_pictures():
    word = ColumnProfile(
        name="<script>", type="string", role="string", rows=1, frequent=(FrequentValue(share=0.5, value="<b>"),)
    )
    page = profile_page(replace(FACTS, columns=(*FACTS.columns, word)))
    assert {"table", "svg", "h2"} <= tags_of(page)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "distribution of price" in page
    assert str(NUMBERS.max) in page
    assert ODD.type in page.replace("&lt;", "<").replace("&gt;", ">")


def test_a_page_of_very_many_columns_has_fewer_pictures():
    columns = tuple(replace(FACTS.columns[0], name=f"c{index}") for index in range(600))
    page = profile_page(replace(FACTS, columns=columns))
    assert page.count("<svg") == 500
    assert "500 of 600 columns" in page
    assert "c599" in page


def test_an_empty_table_has_a_page():
    assert "svg" not in tags_of(profile_page(replace(FACTS, columns=())))


def test_a_drift_has_both_sides():
    bins = BinnedCounts(labels=("<= 1", "> 1", "null"), base=(5, 5, 0), other=(1, 4, 5))
    drift = TableDrift(
        base=FACTS, other=replace(FACTS, where="a > 1"), columns=(GONE, replace(DRIFTED, bins=bins), SAME)
    )
    page = drift_page(drift)
    assert "svg" in tags_of(page)
    assert "price: psi 0.300" in page
    assert "only in the base" in page
    assert "where a &gt; 1" in page


VOID = {"meta"}


class Elements(HTMLParser):
    """Checks that elements are closed in the order in which they were opened, and collects them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def evil_page(name: str) -> str:
    table = html_table([name, "rows"], [[name, 3], [None, Markup("<b>4</b>")]], numbers=[1])
    tiles = number_tiles({name: name})
    return render_page(name, [page_section(name, table, tiles, folded(name, name), note=name)], lead=name, note=name)


def test_page_needs_nothing_else():
    page = evil_page("price")
    elements = Elements(page)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(elements.tags)
    assert not {"src", "href", "onclick"} & {name for name, _ in elements.attributes}
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme:dark" in page
    assert "width=device-width" in page


@examples(40)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_names_are_shown_as_they_are(name: str):
    plain, named = Elements(evil_page("x")), Elements(evil_page(name))
    assert named.tags == plain.tags
    assert named.text.count(name) >= 8


def test_values_become_markup_once():
    assert html_element("p", "a < b") == "<p>a &lt; b</p>"
    assert html_element("p", html_element("b", "a < b")) == "<p><b>a &lt; b</b></p>"
    assert html_element("p", None, 3) == "<p>3</p>"


def test_attributes_are_escaped_and_left_out():
    element = ET.fromstring(html_element("p", "x", class_='a"b', title=None, aria_label="<"))
    assert element.attrib == {"class": 'a"b', "aria-label": "<"}


def test_numbers_of_tables_stand_right():
    table = ET.fromstring(html_table(["name", "rows"], [["a", 1]], numbers=[1]))
    assert [cell.get("class") for row in table.iter("tr") for cell in row] == [None, "n", None, "n"]


def widths(picture: str) -> list[float]:
    return [float(each) for each in re.findall(r"width:([0-9.]+)%", picture)]


def heights(picture: str) -> list[float]:
    return [float(each.get("height") or 0) for each in ET.fromstring(picture).iter("rect")]


def test_bars_are_shares_of_a_line():
    bars = html_bars([("a", 0.75, "75.0%"), ("<b>", 0.5, "")])
    assert widths(bars) == [75, 50]
    assert "75.0%" in bars
    assert "&lt;b&gt;" in bars
    assert widths(html_bars([])) == []


def test_histogram_columns_are_as_high_as_counts():
    picture = html_histogram([0, 1, 2, 4], [5, 10, 0], name="lengths")
    assert heights(picture) == pytest.approx([75, 150, 0], abs=0.2)
    assert "2 to 4: 0" in picture
    named = html_histogram(["red", "green"], [1, 2], name="colors", others=[2, 1])
    assert heights(named) == pytest.approx([75, 150, 150, 75], abs=0.2)
    assert "red: 1" in named


def test_plain_numbers():
    assert [plain_number(each) for each in (0, 1, 1234.4, 12.34, 0.012345)] == ["0", "1", "1,234", "12.3", "0.0123"]
