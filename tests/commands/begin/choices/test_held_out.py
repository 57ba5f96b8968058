"""The rows that are held out are later than the others, and a tenth of the range."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import column, key, numbers, table, time_of

from feedline.commands.begin.choices.held_out import choose_held_out
from feedline.profiling.table_facts import PartitionKey


@pytest.mark.parametrize(
    ("part", "train", "held_out"),
    [
        (key("ds", "date32[day]", 4, "2026-01-01", "2026-01-04"), 'ds < "2026-01-04"', 'ds >= "2026-01-04"'),
        (key("ds", "date32[day]", 100, "2026-01-01", "2026-04-10"), 'ds < "2026-04-01"', 'ds >= "2026-04-01"'),
        (key("month", "int64", 12, "1", "12"), "month < 12", "month >= 12"),
        (key("day", "int64", 31, "1", "31"), "day < 29", "day >= 29"),
        (key("hour", "string", 24, "00", "23"), 'hour < "23"', 'hour >= "23"'),
    ],
)
def test_the_last_folders(part: PartitionKey, train: str, held_out: str):
    [found] = choose_held_out(table(column("a"), partitions=(part,)), None)
    assert (found.train, found.held_out) == (train, held_out)


def test_folders_that_are_no_times_or_alone_are_none():
    keys = (key("country", "string", 4, "DE", "US"), key("ds", "date32[day]", 1, "2026-01-01", "2026-01-01"))
    assert choose_held_out(table(column("a"), partitions=keys), None) == []


def test_the_chosen_key_comes_first_then_the_time_then_an_id():
    facts = table(
        column("id", "category", "int64", id_like=True),
        column("t", "time", "timestamp[us]", first="2026-01-01T00:00:00", last="2026-02-01T00:00:00"),
        partitions=(key("year", "int64", 5, "2020", "2024"), key("month", "int64", 12, "1", "12")),
    )
    assert [each.by for each in choose_held_out(facts, "t")] == ["year", "month", "t", "id"]
    assert [each.by for each in choose_held_out(facts, "month")] == ["month", "year", "id"]
    assert choose_held_out(facts, None)[-1].train == "id % 10 != 9"


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=9_000)),
)
def test_a_border_lies_within_the_range(first: datetime, width: timedelta):
    last = first + width
    facts = table(column("t", "time", "timestamp[us]", first=first.isoformat(), last=last.isoformat()))
    found = choose_held_out(facts, "t")
    if not width:
        assert found == []
        return
    border = datetime.fromisoformat(found[0].train.split('"')[1])
    assert first < border <= last or width.total_seconds() < 1
    assert (last - border) <= 0.16 * width or width.total_seconds() < 1


def test_of_few_days_the_last_is_held_out():
    days = column("day", "time", "date32[day]", first="2026-01-01", last="2026-01-04")
    assert choose_held_out(table(days), "day")[0].held_out == 'day >= "2026-01-04"'


def test_zones_and_integers_since_1970():
    zoned = column(
        "t",
        "time",
        "timestamp[ms, tz=Europe/Berlin]",
        first="2026-01-01T00:00:00+01:00",
        last="2026-03-01T00:00:00+01:00",
    )
    [found] = choose_held_out(table(zoned), "t")
    assert found.held_out == 't >= "2026-02-23T00:00:00+01:00"'
    seconds = column("t", "numeric", "int64", numbers=numbers(0, 1_000))
    facts = table(seconds, times=(time_of("t", "2026-01-01T00:00:00", "2026-03-01T00:00:00", "s"),))
    [found] = choose_held_out(facts, "t")
    assert found.train == "t < 892"
