"""Tests for values of files are taken out of a condition's text, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import ExpressionError
from feedline.expressions import parse
from feedline.expressions.file_lists import columns_text, take_file_lists


@pytest.mark.parametrize(
    ("text", "expected", "tests"),
    [
        ('user in file("a.txt")', "col('in file 1')", [("user", "a.txt")]),
        ('(user not in file("a.txt"))', "((not col('in file 1')))", [("user", "a.txt")]),
        (
            'x > 1 and not (col("odd name") in file("/b/é.csv")) or user in file("s3://b/c.parquet")',
            "x > 1 and not (col('in file 1')) or col('in file 2')",
            [("odd name", "/b/é.csv"), ("user", "s3://b/c.parquet")],
        ),
        ('"é" == y and\n  user in file("a.txt")', "\"é\" == y and\n  col('in file 1')", [("user", "a.txt")]),
        ("x > 1", "x > 1", []),
        ('word == "in file(1)"', 'word == "in file(1)"', []),
    ],
)
def test_tests_become_columns(text: str, expected: str, tests: list[tuple[str, str]]) -> None:
    found, lists = take_file_lists(text)
    assert found == expected
    assert [(each.column, each.file) for each in lists] == tests
    assert {each.name for each in lists} <= parse(found).columns


@pytest.mark.parametrize(
    "text",
    [
        'x + 1 in file("a.txt")',
        'user == file("a.txt")',
        "user in file(name)",
        'user in file("a.txt", "b.txt")',
        "user in file()",
        'user in file("")',
        '1 < user in file("a.txt")',
        'user["id"] in file("a.txt")',
    ],
)
def test_other_uses_are_refused_with_their_place(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"in file\(.*\)`[\s\S]*\^"):
        take_file_lists(text)


@given(st.text(max_size=60))
def test_any_other_text_is_left_to_the_parser(text: str) -> None:
    assert take_file_lists(text) == (text, ())


def test_a_log_shows_names_of_files_without_folders() -> None:
    text, tests = take_file_lists('user in file("/secret/place/a.txt") and x > 1')
    assert columns_text(text, tests) == "`user` in file('a.txt') and x > 1"
