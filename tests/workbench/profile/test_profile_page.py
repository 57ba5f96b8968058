"""Pages of profiles and drifts: complete, escaped, and without anything to load."""

from __future__ import annotations

import html.parser
from dataclasses import replace

from test_drift_tables import GONE, PRICE, SAME
from test_profile_tables import FACTS, NUMBERS, ODD

from feedline.workbench.profile.drift import BinnedCounts, TableDrift
from feedline.workbench.profile.profile_page import drift_page, profile_page
from feedline.workbench.profile.table_facts import ColumnProfile, FrequentValue


class _Tags(html.parser.HTMLParser):
    """Checks that elements end in the order in which they began."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(page: str) -> set[str]:
    parser = _Tags()
    parser.feed(page)
    assert not parser.open
    return parser.seen


def test_a_profile_has_tables_and_pictures():
    word = ColumnProfile(
        name="<script>", type="string", role="string", rows=1, frequent=(FrequentValue(share=0.5, value="<b>"),)
    )
    page = profile_page(replace(FACTS, columns=(*FACTS.columns, word)))
    assert {"table", "svg", "h2"} <= tags(page)
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
    assert "svg" not in tags(profile_page(replace(FACTS, columns=())))


def test_a_drift_has_both_sides():
    bins = BinnedCounts(labels=("<= 1", "> 1", "null"), base=(5, 5, 0), other=(1, 4, 5))
    drift = TableDrift(base=FACTS, other=replace(FACTS, where="a > 1"), columns=(GONE, replace(PRICE, bins=bins), SAME))
    page = drift_page(drift)
    assert "svg" in tags(page)
    assert "price: psi 0.300" in page
    assert "only in the base" in page
    assert "where a &gt; 1" in page
