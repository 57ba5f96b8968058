"""Roles of integers by name and values."""

from __future__ import annotations

import polars as pl
import pytest

from feedline.workbench.profile.column_measures import number_facts
from feedline.workbench.profile.roles import is_id_like, name_words, role_of_integers
from feedline.workbench.profile.table_facts import ColumnRole, DistinctCount


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("user_id", ["user", "id"]),
        ("userId", ["user", "id"]),
        ("User Id", ["user", "id"]),
        ("itemID", ["item", "id"]),
        ("C14", ["c", "14"]),
        ("ключ", []),
        ("a.b\nc", ["a", "b", "c"]),
    ],
)
def test_names_are_split_into_words(name: str, words: list[str]):
    assert name_words(name) == words


def role(name: str, values: list[int]) -> ColumnRole:

    facts = number_facts(pl.Series(values))
    assert facts is not None
    distinct = len(set(values))
    vocabulary = DistinctCount(sample=distinct, table=distinct, error=0, once=0)
    return role_of_integers(name, facts, vocabulary, len(values))[0]


def test_integers_are_numbers_unless_they_look_like_ids():
    assert role("distance", list(range(100))) == "numeric"
    assert role("shop_id", list(range(100))) == "category"
    assert role("x", [7 << 40, -5, 3]) == "category"
    assert role("flag", [0, 1, 1, 0]) == "category"
    assert role("item", [1, 2, 3]) == "category"
    assert role("visits_per_item", [1, 2, 3]) == "numeric"


def test_ids_have_a_value_per_row():
    def count(table: int) -> DistinctCount:
        return DistinctCount(sample=990, table=table, error=0, once=1)

    assert is_id_like(count(990), 1000, 1000)
    assert not is_id_like(count(900), 1000, 1000)
    assert not is_id_like(count(10), 10, 10)  # too few to tell
    assert not is_id_like(count(1000), 1000, 20_000)  # users, each of whom comes again
    assert not is_id_like(None, 1000, 1000)
