"""The ops of lists, by elements and lengths."""

from __future__ import annotations

import pytest
from profiles import column, distinct, lengths

from feedline.workbench.begin.column_choice import choose_list
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature
from feedline.workbench.profile.table_facts import ColumnProfile


def chosen(element: str, **facts: object) -> PlannedFeature:
    found = choose_list(listed(element, **facts))
    assert isinstance(found, PlannedFeature)
    return found


def listed(element: str, **facts: object) -> ColumnProfile:
    defaults = {"element": element, "lengths": lengths(), "vocabulary": distinct(50), "element_null_rate": 0.0}
    return column("l", "list", f"list<element: {element}>", **{**defaults, **facts})


@pytest.mark.parametrize("element", ["int64", "uint8", "string", "binary"])
def test_ids_are_cut_at_the_95th_percentile(element: str):
    found = chosen(element)
    assert (found.group, found.ops) == ("sparse", ({"first_x": 5}, "vocabulary"))
    assert found.reason == "95 % have at most 5 elements, the longest 9; 50 distinct: vocabulary"
    assert chosen(element, lengths=lengths(7, 7)).reason.startswith("at most 7 elements")
    assert chosen(element, vocabulary=distinct(10**7), element_null_rate=None).ops[1] == {
        "hash_bucket": {"buckets": 1 << 20, "null_bucket": True}
    }


def test_vectors_are_dense_and_other_numbers_their_mean():
    vector = chosen("float", lengths=lengths(4, 4, fixed=4), null_rate=0.5)
    assert (vector.group, vector.ops) == ("dense", ({"fill_null": 0}, {"pad": 4}))
    assert vector.reason == "a vector of 4 numbers; 50 % null: zeros"
    mean = chosen("double")
    assert (mean.group, mean.expr) == ("dense", "l.list.mean()")


def test_weighted_ids_and_booleans_are_ids():
    assert chosen("struct<id: int64, weight: float>").ops == ("ids", {"first_x": 5}, "vocabulary")
    assert chosen("bool").ops[1:] == ({"cast": "int64"}, {"fill_null": 2}, {"modulo": 3})


@pytest.mark.parametrize(
    ("element", "facts", "reason"),
    [
        ("int64", {"lengths": lengths(0, 0)}, "all lists are empty"),
        ("int64", {"lengths": None}, "all lists are empty"),
        ("float", {"lengths": lengths(5_000, 5_000, fixed=5_000)}, "wider than a row of features"),
        ("date32[day]", {}, "take it apart"),
    ],
)
def test_other_lists_are_left_out(element: str, facts: dict[str, object], reason: str):
    left = choose_list(listed(element, **facts))
    assert isinstance(left, LeftOut)
    assert reason in left.reason
