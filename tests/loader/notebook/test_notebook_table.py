"""Tables of HTML hold what they are given, escaped, and no more rows than a notebook can show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from table_reader import TableReader

from feedline.loader.notebook.notebook_table import notebook_table, short_text

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)


@given(NAMES, st.lists(NAMES, min_size=1, max_size=3), st.lists(st.lists(NAMES, min_size=3, max_size=3), max_size=4))
def test_every_text_is_escaped(caption: str, headings: list[str], rows: list[list[str]]):
    read = TableReader(notebook_table(caption, headings, rows))
    assert read.texts.get("caption", "") == caption
    assert read.rows == [headings, *rows]


def test_numbers_and_absent_values():
    read = TableReader(notebook_table("c", ("a", "b", "c", "d"), [(12_345, None, True, 0.123456)]))
    assert read.rows[1] == ["12,345", "", "True", "0.1235"]


def test_many_rows_and_long_texts_are_cut():
    read = TableReader(notebook_table("c", ("a",), [(number,) for number in range(1_250)]))
    assert len(read.rows) == 101
    assert read.texts["p"] == "and 1,150 more"
    assert short_text("x" * 61) == "x" * 59 + "…"
    assert short_text("x" * 60) == "x" * 60
