"""What becomes of each column, and why some become nothing."""

from __future__ import annotations

import pytest
from profiles import binary, column, distinct, numbers, table

from feedline.workbench.begin.column_choice import choose_columns, keep_best
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature
from feedline.workbench.profile.table_facts import ColumnProfile, LabelCandidate


def chosen(*columns: ColumnProfile, **others: object) -> tuple[list[PlannedFeature], list[LeftOut]]:
    facts = table(binary(), *columns, **{key: value for key, value in others.items() if key == "labels"})
    roles = {"label": "clicked", "time": None, "split_by": ()}
    return choose_columns(facts, **{**roles, **{key: value for key, value in others.items() if key in roles}})  # type: ignore[arg-type]


UNKNOWN_AND_USELESS = (
    "30 % of the held-out rows have values that no row to learn from has, and the others predict worse than a constant"
)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (column("a", null_rate=1.0), "null in every row to learn from"),
        (column("a", constant=True), "constant"),
        (column("a", null_rate=0.985), "null in 98 % of the rows"),
        (column("a", disguise="AUC 1.0000 with the label"), "the label in disguise: AUC 1.0000 with the label"),
        (column("a", "unsupported", "decimal256(60, 2)", reason="no frame holds it"), "no frame holds it"),
        (column("a", "nested", "struct<x y: int64>"), "struct<x y: int64>"),
        (column("a", rows=0), "not sampled"),
        (column("a", time_order=1), "rises with time: later rows have values never seen in training"),
        (
            column("a", "string", "string", time_order=1, vocabulary=distinct(9)),
            "rises with time: later rows have values never seen in training",
        ),
        (column("a", is_index=True), "an index of pandas: it numbers rows"),
        (
            column("a", "time", "timestamp[us]", same_moment="sold"),
            "the moment of sold, whose features are enough",
        ),
        (
            column("a", "string", "string", vocabulary=distinct(9), unknown=0.6),
            "60 % of the held-out rows have values that no row to learn from has",
        ),
        (
            column("a", "string", "string", vocabulary=distinct(9), unknown=0.3, gain=-0.1),
            UNKNOWN_AND_USELESS,
        ),
        (
            column("a", kind="int64", id_like=True, numbers=numbers(7, 100_006)),
            "numbers the rows: each has a value of its own",
        ),
    ],
)
def test_columns_that_are_left_out(facts: ColumnProfile, reason: str):
    features, [left] = chosen(facts)
    assert not features
    assert left.reason == reason


def test_parts_of_structs_and_maps_are_shown():
    _, left = chosen(
        column("s t", "nested", "struct<x y: int64>"),
        column("m", "nested", "map<int32, float>"),
        column("n", "nested", "map<string, float>"),
        column("l", "nested", "list<element: list<element: int64>>"),
    )
    assert [each.enable and each.enable.expr for each in left] == [
        'col("s t")["x y"]',
        "m[1]",
        'n["KEY"]',
        None,
    ]


def test_a_constant_beside_nulls_stays():
    features, left = chosen(column("flag", "category", "int64", constant=True, null_rate=0.5, vocabulary=distinct(1)))
    assert [each.name for each in features] == ["flag"]
    assert not left


def test_a_key_of_held_out_folders_is_no_feature():
    features, [left] = chosen(column("d", "category", "int64"), split_by=("d",))
    assert not features
    assert left.reason.startswith("separates training from held-out rows")


def test_integers_that_name_things_are_ids():
    reason = "ids: one by one they tell 12 % of the label's variance, as numbers 1 %"
    [feature], _ = chosen(column("dept", kind="int64", vocabulary=distinct(14), as_ids=reason))
    assert (feature.group, feature.ops) == ("categorical", ("vocabulary",))
    assert feature.reason.endswith(reason)


def test_dates_in_strings_have_their_weekday_and_no_vocabulary():
    facts = {"time_like": "strings in the form of ISO 8601", "first": "2026-01-01", "last": "2026-03-01"}
    [feature], _ = chosen(column("day", "string", "string", vocabulary=distinct(60), **facts))
    assert (feature.name, feature.group) == ("day_weekday", "categorical")
    facts = {**facts, "first": "2026-01-01 10:00:00", "last": "2026-03-01 11:30:00"}
    features, _ = chosen(column("at", "string", "string", vocabulary=distinct(600), **facts))
    assert [each.name for each in features] == ["at_hour", "at_weekday"]


def test_other_outcomes_are_left_out():
    labels = (
        LabelCandidate(column="clicked", score=0.8, reason="named clicked"),
        LabelCandidate(column="bought", score=0.8, reason="named bought"),
        LabelCandidate(column="flag", score=0.3, reason="0 and 1"),
    )
    features, [left] = chosen(binary("bought"), binary("flag"), labels=labels)
    assert [each.name for each in features] == ["flag"]
    assert left.reason == "may be another outcome, known only after the label (named bought)"


def test_names_of_several_features_of_a_column_are_free():
    stamp = {"role": "time", "kind": "timestamp[us]", "first": "2026-01-01T01:00:00", "last": "2026-05-01T02:00:00"}
    features, _ = chosen(
        column("t_hour", null_rate=0.3),
        column("t", **stamp),
        column("t_hour_is_null"),
    )
    assert len({each.name for each in features}) == 5
    assert {"t_hour", "t_hour_2", "t_weekday", "t_hour_is_null", "t_hour_is_null_2"} == {each.name for each in features}


def test_the_best_features_are_kept_in_order():
    features, _ = chosen(
        column("a", correlation=0.1), column("b", null_rate=0.9), column("c", correlation=-0.8), column("d")
    )
    kept, others = keep_best(features, 2)
    assert [each.name for each in kept] == ["a", "c"]
    assert [each.name for each in others] == ["b", "b_is_null", "d"]
