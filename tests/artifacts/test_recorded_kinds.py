"""The kinds of recorded Arrow types: which fits match columns of which types."""

from __future__ import annotations

import pytest

from feedline.artifacts.store import kind_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int32", "uint64"),
        ("float", "double"),
        ("string", "large_string"),
        ("string", "dictionary<values=string, indices=int32, ordered=0>"),
        ("list<element: int64>", "large_list<item: int32 not null>"),
        ("list<item: string>", "fixed_size_list<element: string>[3]"),
    ],
)
def test_types_of_one_kind_share_a_fit(one: str, other: str):
    assert kind_of(one) == kind_of(other)


def test_types_of_other_kinds_do_not():
    kinds = ["int64", "double", "string", "binary", "bool", "list<item: int64>", "timestamp[us]", "timestamp[ns]", ""]
    assert len({kind_of(name) for name in kinds}) == len(kinds)
