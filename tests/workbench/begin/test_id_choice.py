"""The ops of ids, codes and strings."""

from __future__ import annotations

import pytest
from profiles import column, distinct, numbers

from feedline.workbench.begin.column_choice import buckets_for, choose_boolean, choose_ids
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature

RARE = "vocabulary; those of fewer than {} rows teach the id of unknown ones"


@pytest.mark.parametrize(
    ("count", "ops", "reason"),
    [
        (3, ("vocabulary",), "3 distinct: vocabulary"),
        (900, ({"vocabulary": {"min_count": 2}},), f"900 distinct: {RARE.format(2)}"),
        (5_000, ({"vocabulary": {"min_count": 3}},), f"5,000 distinct: {RARE.format(3)}"),
        (12_400_000, ({"hash_bucket": {"buckets": 1 << 20, "null_bucket": True}},), "12.4 M distinct: hash_bucket"),
        (150_000, ({"hash_bucket": {"buckets": 1 << 18, "null_bucket": True}},), "150 k distinct: hash_bucket"),
    ],
)
def test_few_values_are_a_vocabulary_and_many_are_hashed(count: int, ops: tuple[object, ...], reason: str):
    chosen = choose_ids(column("shop", "category", "int64", vocabulary=distinct(count, once=0.1)))
    assert isinstance(chosen, PlannedFeature)
    assert (chosen.group, chosen.ops, chosen.reason) == ("categorical", ops, reason)


def test_estimates_and_nulls_are_named():
    facts = column("shop", "string", "string", vocabulary=distinct(300_000, sample=20_000), null_rate=0.07)
    chosen = choose_ids(facts)
    assert chosen.reason == "300 k distinct (estimate): hash_bucket; 7 % null"


def test_values_that_are_never_rare_are_all_of_the_vocabulary():
    chosen = choose_ids(column("shop", "category", "int64", vocabulary=distinct(5_000)))
    assert isinstance(chosen, PlannedFeature)
    assert chosen.ops == ("vocabulary",)


def test_without_nulls_there_is_no_bucket_for_them():
    chosen = choose_ids(column("shop", "category", "int64", vocabulary=distinct(300_000), nullable=False))
    assert isinstance(chosen, PlannedFeature)
    assert chosen.ops == ({"hash_bucket": 1 << 19},)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"id_like": True, "vocabulary": distinct(10**6)}, "it names the row"),
        ({"vocabulary": distinct(10**6, once=0.9), "string_bytes": (312.4, 9_000)}, "text of 312 bytes"),
        ({"name": "request_id", "vocabulary": distinct(10**6, once=0.6)}, "an id of the event"),
    ],
)
def test_names_of_rows_and_texts_are_left_out_with_the_line_that_reads_them(facts: dict[str, object], reason: str):
    left = choose_ids(column(**{"name": "s", "role": "string", "kind": "string", **facts}))  # type: ignore[arg-type]
    assert isinstance(left, LeftOut)
    assert reason in left.reason
    assert left.enable is not None


def test_a_boolean_is_a_number_or_three_ids():
    facts = {"role": "category", "kind": "bool", "numbers": numbers(0, 1, mean=0.25)}
    assert choose_boolean(column("b", nullable=False, **facts)).ops == ()
    assert choose_boolean(column("b", **facts)).reason == "25 % true"
    assert choose_boolean(column("b", **facts)).ops == ({"fill_null": False},)
    chosen = choose_boolean(column("b", null_rate=0.5, **facts))
    assert chosen.group == "categorical"
    assert chosen.ops == ({"cast": "int64"}, {"fill_null": 2}, {"modulo": 3})


@pytest.mark.parametrize(
    ("count", "buckets"), [(0, 1 << 10), (1 << 17, 1 << 17), ((1 << 17) + 1, 1 << 18), (1 << 40, 1 << 20)]
)
def test_buckets_are_a_power_of_two_within_limits(count: int, buckets: int):
    assert buckets_for(distinct(count)) == buckets
    assert buckets_for(None) == 1 << 10
