"""The features of times, compared with the calendar."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import polars as pl
import pyarrow as pa
import pytest
from profiles import column, time_of

from feedline.pipeline import Pipeline
from feedline.workbench.begin.column_choice import choose_times

MOMENTS = [datetime(1969, 12, 31, 23, 59), datetime(1970, 1, 1), datetime(2026, 7, 5, 13), datetime(2028, 2, 29, 7, 30)]
RANGE = ("2026-01-01T05:00:00", "2026-03-01T00:00:00")


def computed(values: pa.Array, first: str | None, last: str | None, unit: str | None = None) -> dict[str, list[float]]:
    """The features of a column by the end of their names."""
    facts = column("t x", "time", str(values.type), first=first, last=last)
    candidate = None if unit is None else time_of("t x", first, last, unit)
    found = {}
    for end, feature in choose_times(facts, candidate):
        body = {"expr": feature.expr, "ops": [each for each in feature.ops if each != "standardize"]}
        spec = {
            "version": 1,
            "name": "t",
            "source": {"table": "t"},
            "features": {feature.group: {"f": body}},
            "batch": {"size": 8},
        }
        batch = Pipeline.from_dict(spec).transform(pl.DataFrame({"t x": pl.Series(values)})).to_batch()
        found[end] = batch["f"].tolist()
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
