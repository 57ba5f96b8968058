"""Pages of HTML are complete in themselves, and show every string as it is."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.workbench.profile.html_page import (
    Markup,
    as_markup,
    folded,
    html_element,
    html_table,
    number_tiles,
    page_section,
    render_page,
)

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


def test_scripts_in_names_stay_text():
    page = evil_page("</title><script>alert(1)</script>\"' onload=x")
    assert "<script" not in page
    assert Elements(page).tags == Elements(evil_page("x")).tags


def test_values_become_markup_once():
    assert as_markup("a < b") == "a &lt; b"
    assert as_markup(as_markup("a < b")) == "a &lt; b"
    assert as_markup(None) == ""
    assert as_markup(3) == "3"


def test_attributes_are_escaped_and_left_out():
    element = ET.fromstring(html_element("p", "x", class_='a"b', title=None, aria_label="<"))
    assert element.attrib == {"class": 'a"b', "aria-label": "<"}


def test_numbers_of_tables_stand_right():
    table = ET.fromstring(html_table(["name", "rows"], [["a", 1]], numbers=[1]))
    assert [cell.get("class") for row in table.iter("tr") for cell in row] == [None, "n", None, "n"]
