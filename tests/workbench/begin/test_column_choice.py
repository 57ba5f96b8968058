"""What becomes of each column, by what its facts say, and why some become nothing."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import polars as pl
import pyarrow as pa
import pytest
from profiles import binary, column, distinct, lengths, numbers, table, time_of

from feedline.pipeline import Pipeline
from feedline.workbench.begin.column_choice import (
    buckets_for,
    choose_boolean,
    choose_columns,
    choose_ids,
    choose_list,
    choose_numbers,
    choose_times,
    keep_best,
)
from feedline.workbench.begin.init_plan import LeftOut, PlannedFeature
from feedline.workbench.profile.table_facts import ColumnProfile, LabelCandidate


def chosen(*columns: ColumnProfile, **others: object) -> tuple[list[PlannedFeature], list[LeftOut]]:
    facts = table(binary(), *columns, **{key: value for key, value in others.items() if key == "labels"})
    roles = {"label": "clicked", "time": None, "split_by": ()}
    return choose_columns(facts, **{**roles, **{key: value for key, value in others.items() if key in roles}})


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


def number_feature(facts: ColumnProfile) -> PlannedFeature:
    [feature] = choose_numbers(facts)
    return feature


def test_numbers_are_standardized_and_nulls_become_the_mean():
    [chosen, _] = choose_numbers(column("a", null_rate=0.25))
    assert chosen.ops == ("standardize", {"fill_null": 0})
    assert chosen.reason == "25 % null"
    assert number_feature(column("a")).ops == ("standardize", {"fill_null": 0})  # the first nulls may be yet to come
    assert number_feature(column("a", nullable=False)).ops == ("standardize",)


@pytest.mark.parametrize(
    ("facts", "ops"),
    [
        ({"low": 0, "high": 1e6, "skewness": 9.0}, ("log1p", "standardize")),
        ({"low": 0, "high": 0.5, "skewness": 9.0}, ({"clip": {"min": 0.005, "max": 0.495}}, "standardize")),
        (
            {"low": -1, "high": 1e6, "skewness": 9.0, "negative_rate": 0.001},
            ({"clip": {"min": 0}}, "log1p", "standardize"),
        ),
        (
            {"low": -100, "high": 100, "skewness": -9.0, "negative_rate": 0.5},
            ({"clip": {"min": -98.0, "max": 98.0}}, "standardize"),
        ),
        ({"low": 0, "high": 10, "skewness": 1.0}, ("standardize",)),
        ({"low": -3, "high": 3.2, "negative_rate": 0.48}, ("standardize",)),  # a median near 0 makes no long tail
        ({"low": 3, "high": 3, "skewness": 0.0}, ("standardize",)),
    ],
)
def test_skewed_numbers_are_shaped(facts: dict[str, float], ops: tuple[object, ...]):
    chosen = number_feature(column("a", nullable=False, numbers=numbers(**facts)))
    assert chosen.ops == ops
    assert chosen.reason


def test_numbers_that_are_not_finite_become_the_mean():
    chosen = number_feature(column("a", nullable=False, numbers=numbers(nan_rate=0.02, inf_rate=0.01)))
    assert chosen.ops == ("standardize", {"fill_nonfinite": 0})
    assert "3 % NaN or infinite" in chosen.reason


def test_where_nulls_are_is_a_feature_unless_they_are_rare():
    assert choose_numbers(column("a b", null_rate=0.4))[1].expr == 'col("a b") is None'
    assert len(choose_numbers(column("a", null_rate=0.005))) == 1
    assert len(choose_numbers(column("a", null_rate=0.995))) == 1


def test_a_column_close_to_the_label_is_questioned():
    assert number_feature(column("a", correlation=-0.92)).check is not None
    assert number_feature(column("a", correlation=0.3)).check is None
    check = number_feature(column("a", shared_nulls=0.97)).check
    assert check == "is null where the label is: is it known when the prediction is made?"


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
    left = choose_ids(column(**{"name": "s", "role": "string", "kind": "string", **facts}))
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


def list_feature(element: str, **facts: object) -> PlannedFeature:
    found = choose_list(listed(element, **facts))
    assert isinstance(found, PlannedFeature)
    return found


def listed(element: str, **facts: object) -> ColumnProfile:
    defaults = {"element": element, "lengths": lengths(), "vocabulary": distinct(50), "element_null_rate": 0.0}
    return column("l", "list", f"list<element: {element}>", **{**defaults, **facts})


@pytest.mark.parametrize("element", ["int64", "uint8", "string", "binary"])
def test_ids_are_cut_at_the_95th_percentile(element: str):
    found = list_feature(element)
    assert (found.group, found.ops) == ("sparse", ({"first_x": 5}, "vocabulary"))
    assert found.reason == "95 % have at most 5 elements, the longest 9; 50 distinct: vocabulary"
    assert list_feature(element, lengths=lengths(7, 7)).reason.startswith("at most 7 elements")
    assert list_feature(element, vocabulary=distinct(10**7), element_null_rate=None).ops[1] == {
        "hash_bucket": {"buckets": 1 << 20, "null_bucket": True}
    }


def test_vectors_are_dense_and_other_numbers_their_mean():
    vector = list_feature("float", lengths=lengths(4, 4, fixed=4), null_rate=0.5)
    assert (vector.group, vector.ops) == ("dense", ({"fill_null": 0}, {"pad": 4}))
    assert vector.reason == "a vector of 4 numbers; 50 % null: zeros"
    mean = list_feature("double")
    assert (mean.group, mean.expr) == ("dense", "l.list.mean()")


def test_weighted_ids_and_booleans_are_ids():
    assert list_feature("struct<id: int64, weight: float>").ops == ("ids", {"first_x": 5}, "vocabulary")
    assert list_feature("bool").ops[1:] == ({"cast": "int64"}, {"fill_null": 2}, {"modulo": 3})


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


MOMENTS = [datetime(1969, 12, 31, 23, 59), datetime(1970, 1, 1), datetime(2026, 7, 5, 13), datetime(2028, 2, 29, 7, 30)]
RANGE = ("2026-01-01T05:00:00", "2026-03-01T00:00:00")


def computed(values: pa.Array, first: str | None, last: str | None, unit: str | None = None) -> dict[str, list[float]]:
    """The features of a column by the end of their names."""
    facts = column("t x", "time", str(values.type), first=first, last=last)
    candidate = None if unit is None else time_of("t x", first, last, unit)
    found = {}
    for feature in choose_times(facts, candidate):
        body = {"expr": feature.expr, "ops": [each for each in feature.ops if each != "standardize"]}
        spec = {
            "version": 1,
            "name": "t",
            "source": {"table": "t"},
            "features": {feature.group: {"f": body}},
            "batch": {"size": 8},
        }
        batch = Pipeline.from_dict(spec).transform(pl.DataFrame({"t x": pl.Series(values)})).to_batch()
        found[feature.name.removeprefix("t x")] = batch["f"].tolist()
    return found


def test_parts_of_timestamps_that_come_again():
    found = computed(pa.array([*MOMENTS, None], pa.timestamp("us")), *RANGE)
    assert found == {
        "_hour": [each.hour for each in MOMENTS] + [24],
        "_weekday": [each.isoweekday() for each in MOMENTS] + [0],
    }


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1_000), ("us", 10**6), ("ns", 10**9)])
def test_integers_since_1970(unit: str, factor: int):
    counts = [int(each.replace(tzinfo=UTC).timestamp()) * factor for each in MOMENTS]
    found = computed(pa.array([*counts, None]), *RANGE, unit)
    assert found == {
        "_hour": [each.hour for each in MOMENTS] + [24],
        "_weekday": [each.isoweekday() for each in MOMENTS] + [0],
    }


def test_dates_have_no_hour_and_short_ranges_no_weekday():
    days = pa.array([date(2026, 7, 5), None])
    assert computed(days, "2026-01-01", "2026-03-01") == {"_weekday": [7, 0]}
    assert computed(days, "2026-01-01", "2026-01-03") == {}
    stamps = pa.array([MOMENTS[2]], pa.timestamp("ms"))
    assert list(computed(stamps, "2026-01-01T00:00:00", "2026-03-01T00:00:00")) == ["_weekday"]
    assert list(computed(stamps, "2026-01-01T01:00:00", "2026-01-02T00:00:00")) == ["_hour"]


def test_times_of_day_and_durations():
    assert computed(pa.array([time(13, 5), None], pa.time64("us")), None, None) == {"_hour": [13, 24]}
    assert computed(pa.array([timedelta(seconds=90), None], pa.duration("ms")), None, None) == {"": [90, 0]}


def test_integers_of_no_unit_have_no_parts():
    assert choose_times(column("n", "numeric", "int64"), None) == []
