"""Lists of names in an option are read as they were written, whatever the names hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.column_ranges import join_names, split_names


@given(st.lists(st.text(st.sampled_from("ab,\" \t{}.0'=é"), min_size=1, max_size=6)))
def test_names_survive_a_list(names: list[str]):
    assert list(split_names(join_names(names), ranges=True)) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a, b,,c ,", ("a", "b", "c")),
        ("h_{0..2},x", ("h_0", "h_1", "h_2", "x")),
        ('"a,b","c""d"," e ","h_{0..2}"', ("a,b", 'c"d', " e ", "h_{0..2}")),
        ("", ()),
    ],
)
def test_how_lists_are_written(text: str, names: tuple[str, ...]):
    assert split_names(text, ranges=True) == names


@pytest.mark.parametrize("text", ['"a', 'a"b"', '"a"b', 'a,"'])
def test_a_list_that_ends_within_a_name_is_refused(text: str):
    with pytest.raises(ValueError, match="a list of names is malformed"):
        split_names(text)
