"""Candidates of labels and times, by names, types and values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest

from feedline.workbench.profile.column_measures import number_facts
from feedline.workbench.profile.profile_table import find_labels, find_times
from feedline.workbench.profile.roles import epoch_unit
from feedline.workbench.profile.table_facts import ColumnProfile, DistinctCount


def column(name: str, values: list[float | None], **changed: object) -> ColumnProfile:
    series = pl.Series(values)
    distinct = series.drop_nulls().n_unique()
    usual = ColumnProfile(
        name=name,
        type="int64",
        role="numeric",
        rows=len(values),
        null_rate=series.null_count() / len(values),
        numbers=number_facts(series),
        vocabulary=DistinctCount(sample=distinct, table=distinct, error=0, once=0),
    )
    return replace(usual, **changed)


def labels(*columns: ColumnProfile) -> list[str]:
    return [candidate.column for candidate in find_labels(columns)]


def test_names_and_two_values_make_a_label():
    a = column("price", [1, 2, 3])
    b = column("is_click", [0, 1, 0, 0])
    c = column("label", [0, 1, 0, 0])
    assert labels(a, b, c) == ["label", "is_click"]
    [first, second] = find_labels([a, b, c])
    assert first.balance == 0.25
    assert "25.00% ones" in first.reason
    assert "named click" in second.reason


def test_any_binary_column_is_a_weak_candidate():
    assert labels(column("x", [0, 1, 1])) == ["x"]
    assert labels(column("x", [1, 2, 2])) == []


def test_ratings_are_candidates_without_balance():
    [found] = find_labels([column("rating", [1.0, 4.5, 3.0])])
    assert found.balance is None


@pytest.mark.parametrize("changed", [{"constant": True}, {"id_like": True}, {"partition": True}, {"role": "string"}])
def test_what_cannot_be_a_label_is_none(changed: dict[str, object]):
    assert labels(column("label", [0, 1, 1], **changed)) == []


def test_nulls_make_a_label_less_likely():
    some = column("label", [0, 1, None, None])
    [found] = find_labels([some])
    assert found.score < find_labels([column("label", [0, 1])])[0].score
    assert "50.00% nulls" in found.reason


def seconds(*days: int) -> list[float | None]:
    return [datetime(2024, 1, day, tzinfo=UTC).timestamp() for day in days]


@pytest.mark.parametrize(("factor", "unit"), [(1, "s"), (10**3, "ms"), (10**6, "us"), (10**9, "ns")])
def test_integers_count_since_1970(factor: int, unit: str):
    values = [int(second * factor) for second in seconds(1, 2, 9) if second is not None]
    assert epoch_unit(min(values), max(values)) == unit
    [found] = find_times([column("ts", list(values))])
    assert (found.unit, found.first, found.last) == (unit, "2024-01-01T00:00:00", "2024-01-09T00:00:00")


def test_small_and_equal_integers_are_no_times():
    for values in ([1, 2, 3], [1_700_000_000, 1_700_000_000]):
        assert epoch_unit(min(values), max(values)) is None


def test_timestamps_come_before_dates_and_strings():
    found = find_times(
        [
            ColumnProfile(name="ds", type="date32[day]", role="time", first="2024-01-01", last="2024-01-02"),
            ColumnProfile(name="made", type="timestamp[us]", role="time", first="a", last="b", null_rate=0.1),
            ColumnProfile(name="day", type="string", role="string", time_like="strings in the form of ISO 8601"),
            ColumnProfile(name="gone", type="timestamp[us]", role="time", null_rate=1.0),
        ]
    )
    assert [candidate.column for candidate in found] == ["ds", "made", "day"]
    assert "10.00% nulls" in found[1].reason
