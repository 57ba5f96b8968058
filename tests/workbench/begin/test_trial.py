"""Plans are tried on tables: splits without rows, outliers among times, refused features, measured groups."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import column, distinct, key, table

from feedline.errors import PlanError
from feedline.warehouse.table import Table
from feedline.workbench.begin.init_plan import Choices, InitPlan
from feedline.workbench.begin.plan_pipeline import guess_choices
from feedline.workbench.begin.trial import (
    MOST,
    TrialFolder,
    by_hash,
    by_keys,
    by_time,
    calendar_keys,
    fewest_held_out,
    held_out_share,
    late_border,
    try_plan,
    without_refused,
)
from feedline.workbench.profile.profile_table import table_facts_of
from feedline.workbench.profile.table_sample import ProfileOptions, sample_table

ROWS = 600
RNG = np.random.default_rng(3)


def tried(table: str, folder: Path, **choices: str) -> InitPlan:
    sample = sample_table(table, ProfileOptions(values=True))
    facts = table_facts_of(sample, ProfileOptions(values=True))
    place = TrialFolder(folder=str(folder), work_dir=str(folder / "w"))
    return try_plan(sample, facts, guess_choices(facts, Choices(**choices)), table=table, folder=place)


def written(folder: Path, **columns: object) -> str:
    path = folder / "t.parquet"
    pq.write_table(pa.table({"label": RNG.integers(0, 2, ROWS), "a": RNG.normal(size=ROWS), **columns}), path)
    return str(path)


def counted(table: str, plan: InitPlan) -> tuple[int, int]:
    read, rest = Table(table), None
    where = plan.held_out_keys.get("source.where", plan.where)
    if plan.held_out.sample is not None:
        rest = {**plan.held_out.sample, "rest": True}
    return (
        read.read(columns=["label"], where=plan.where, sample=plan.held_out.sample).num_rows,
        read.read(columns=["label"], where=where, sample=rest).num_rows,
    )


def test_a_time_with_outliers_still_holds_out_a_part(tmp_path: Path):
    base = datetime(2026, 1, 1)
    times = [datetime(1970, 1, 1), *(base + timedelta(hours=hour) for hour in range(ROWS - 1))]
    plan = tried(table := written(tmp_path, ts=times), tmp_path)
    train, held_out = counted(table, plan)
    assert train + held_out == ROWS
    assert 0.1 * ROWS <= held_out <= 0.25 * ROWS
    assert f"({held_out} rows" in plan.held_out.reason


def test_a_partition_with_nearly_all_rows_is_not_held_out(tmp_path: Path):
    table = tmp_path / "t"
    for day, rows in ((1, 5), (2, ROWS)):
        (table / f"ds=2026-01-0{day}").mkdir(parents=True)
        data = pa.table({"label": RNG.integers(0, 2, rows), "a": RNG.normal(size=rows)})
        pq.write_table(data, table / f"ds=2026-01-0{day}" / "x.parquet")
    plan = tried(str(table), tmp_path)
    assert plan.held_out.sample == {"fraction": 0.8}
    train, held_out = counted(str(table), plan)
    assert train + held_out == ROWS + 5
    assert 0.1 * ROWS < held_out < 0.3 * ROWS
    assert tried(str(table), tmp_path, time="").time is None


def test_a_column_with_values_in_held_out_rows_alone_is_left_out(tmp_path: Path):
    day = np.arange(ROWS) // 60
    later = pa.array([1.5 + index if day[index] >= 8 else None for index in range(ROWS)])
    shuffled = RNG.permutation(ROWS)
    table = pa.table({"ds": day, "later": later, "label": RNG.integers(0, 2, ROWS), "a": RNG.normal(size=ROWS)})
    pq.write_table(table.take(shuffled), tmp_path / "t.parquet")
    plan = tried(str(tmp_path / "t.parquet"), tmp_path, time="ds", label="label")
    assert plan.held_out_keys == {"source.where": "ds >= 8"}
    assert {each.column: each.reason for each in plan.left_out}["later"] == "null in every row to learn from"


def test_ids_that_held_out_rows_do_not_share_are_left_out_and_integers_that_name_things_are_ids(tmp_path: Path):
    rows = 6_000
    day, kind = np.arange(rows) // 300, RNG.integers(0, 40, rows)
    effect = RNG.permutation(40) / 40
    columns = {
        "ds": day,
        "label": (RNG.random(rows) < 0.1 + 0.8 * effect[kind]).astype(int),
        "kind": kind,
        "size": RNG.integers(0, 40, rows),
        "visitor": [f"v{each}" for each in day * 50 + RNG.integers(0, 50, rows)],
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    plan = tried(str(tmp_path / "t.parquet"), tmp_path, time="ds", label="label")
    groups = {each.column: each.group for each in plan.features}
    assert groups == {"kind": "categorical", "size": "dense"}
    reasons = {each.column: each.reason for each in plan.left_out}
    assert reasons["visitor"] == "100 % of the held-out rows have values that no row to learn from has"
    assert "one by one they tell" in next(each.reason for each in plan.features if each.column == "kind")


def test_features_that_do_not_compile_are_left_out_with_the_error(tmp_path: Path):
    plan = tried(table := written(tmp_path), tmp_path)
    snapshot = sample_table(table, ProfileOptions()).snapshot
    place = TrialFolder(folder=str(tmp_path), work_dir=str(tmp_path / "w"))
    wrong = replace(plan.features[0], name="wrong", ops=("no_such_op",))
    kept = without_refused(more := replace(plan, features=(*plan.features, wrong)), place.spec_of(more), snapshot)
    assert kept.features == plan.features
    assert kept.left_out[-1].reason.startswith("refused: ")
    assert "no_such_op" in kept.left_out[-1].reason
    only = replace(plan, features=(wrong,))
    with pytest.raises(PlanError, match=r"no feature of .* can be computed"):
        without_refused(only, place.spec_of(only), snapshot)


def test_groups_that_repeat_are_measured(tmp_path: Path, clicks: Path):
    plan = tried(str(clicks), tmp_path)
    assert plan.dedup.by == plan.session == "session_id"
    assert any("hist_0" in columns for _, columns in plan.dedup.groups)
    assert "Measured: " in plan.dedup.reason
    assert tried(str(clicks), tmp_path, session="").dedup is None


def test_batches_fit_the_rows_that_have_a_label(tmp_path: Path):
    label = pa.array([None] * (ROWS - 40) + [0, 1] * 20)
    plan = tried(written(tmp_path, label=label), tmp_path, label="label")
    assert plan.where == "label is not None"
    assert (plan.batch_size, plan.tail) == (64, "partial")


def test_one_moment_yields_one_set_of_features(tmp_path: Path):
    base = datetime(2026, 1, 1)
    times = [base + timedelta(minutes=97 * index) for index in range(ROWS)]
    columns = {
        "sold": times,
        "hour": [each.replace(minute=0) for each in times],
        "text": [each.isoformat(sep=" ") for each in times],
        "seconds": [int(each.replace(tzinfo=UTC).timestamp()) for each in times],
        "paid": [each + timedelta(hours=int(RNG.integers(2, 90))) for each in times],
        "month": [each.month for each in times],
    }
    plan = tried(written(tmp_path, **columns), tmp_path, time="sold")
    made = {each.name for each in plan.features}
    assert made == {"a", "sold_hour", "sold_weekday", "paid_hour", "paid_weekday"}
    reasons = {each.column: each.reason for each in plan.left_out}
    assert all(reasons[name] == "the moment of sold, whose features are enough" for name in ("hour", "text", "seconds"))
    assert reasons["month"] == "rises with time: later rows have values never seen in training"


def test_an_odd_column_of_the_sample_ends_nothing(tmp_path: Path):
    far = pa.array(RNG.integers(2**61, 2**62, ROWS), pa.timestamp("us"))
    odd = {"far": far, "lists": [[1, None]] * ROWS, "times": pa.array(RNG.integers(0, 2**40, ROWS), pa.duration("us"))}
    plan = tried(written(tmp_path, **odd), tmp_path)
    assert "a" in {each.name for each in plan.features}


def test_of_a_few_rows_some_are_held_out(tmp_path: Path):
    for rows in range(2, 8):
        data = pa.table({"label": [0, 1, 1, 0, 1, 0, 1][:rows], "a": RNG.normal(size=rows)})
        pq.write_table(data, tmp_path / "t.parquet")
        train, held_out = counted(
            table := str(tmp_path / "t.parquet"), tried(table, tmp_path / str(rows), label="label")
        )
        assert train + held_out == rows
        assert min(train, held_out) > 0


@pytest.mark.parametrize(
    ("rows", "share", "fewest"),
    [(1_000, 0.2, 100), (5_000, 0.2, 500), (8_000, 0.125, 800), (50_000, 0.1, 1_000), (3_000_000, 0.1, 30_000)],
)
def test_a_tenth_is_held_out_and_a_fifth_of_few(rows: int, share: float, fewest: int):
    assert (held_out_share(rows), fewest_held_out(rows)) == (share, fewest)


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=40), st.floats(0.05, 0.3))
def test_the_border_is_the_one_nearest_to_the_share(rows: list[int], share: float):
    total = sum(rows)
    tails = {index: sum(rows[index:]) for index in range(1, len(rows))}
    fitting = {index: tail for index, tail in tails.items() if 0.05 * total <= tail <= MOST * total}
    found = late_border(rows, share, 0.05 * total)
    assert (found is None) == (not fitting)
    if found is not None:
        assert abs(tails[found] - share * total) == min(abs(tail - share * total) for tail in fitting.values())


def test_a_thin_tail_of_days_is_not_all_that_is_held_out():
    days = [(date(2024, 1, 1) + timedelta(days=day),) for day in range(36)]
    found = by_keys(("ds",), days, [2_000] * 16 + [2] * 20, 0.1)
    assert (found.train, found.held_out) == ('ds < "2024-01-15"', 'ds >= "2024-01-15"')


def test_two_keys_are_one_time():
    months = [(year, month) for year in (2024, 2025) for month in range(1, 13)]
    found = by_keys(("year", "month"), months, [1_000] * 24, 0.1)
    assert found.train == "(year < 2025 or year == 2025 and month < 11)"
    assert found.held_out == "(year > 2025 or year == 2025 and month >= 11)"
    assert by_keys(("year",), [(2024,)], [100], 0.1) is None


def test_keys_are_joined_from_years_to_hours_and_the_chosen_one_comes_first():
    keys = (
        key("country", "string", 4, "DE", "US"),
        key("month", "int64", 12, "1", "12"),
        key("year", "int64", 5, "2020", "2024"),
        key("ds", "date32[day]", 9, "2026-01-01", "2026-01-09"),
    )
    assert calendar_keys(keys, None) == [("ds",), ("year", "month")]
    assert calendar_keys(keys, "month") == [("month",), ("ds",), ("year",)]
    assert calendar_keys((key("month", "string", 12, "1", "12"),), None) == []  # "10" comes before "9"


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
    st.lists(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=900)), min_size=20, max_size=60),
    st.booleans(),
)
def test_a_border_of_times_leaves_enough_on_both_sides(first: datetime, offsets: list[timedelta], zoned: bool):
    times = pl.Series("t", [first + each for each in offsets])
    found = by_time("t", times.dt.replace_time_zone("UTC") if zoned else times, 0.2, len(times))
    if found is None:
        assert len(set(offsets)) < 20
        return
    border = datetime.fromisoformat(found.held_out.split('"')[1])
    assert (border.tzinfo is not None) == zoned
    late = int((times >= border.replace(tzinfo=None)).sum())
    assert fewest_held_out(len(times)) <= late <= MOST * len(times)


def test_borders_are_comparable_as_the_column_is_stored():
    days = [f"2024-01-{day:02}" for day in range(1, 21)]
    for values, border in (
        (days, '"2024-01-19"'),
        ([date.fromisoformat(day) for day in days], '"2024-01-19"'),
        ([int(day[-2:]) * 1_000 for day in days], "19000"),
        ([datetime.fromisoformat(day).replace(tzinfo=UTC) for day in days], '"2024-01-19T00:00:00+00:00"'),
    ):
        found = by_time("t", pl.Series("t", values), 0.1, 20)
        assert (found.train, found.held_out) == (f"t < {border}", f"t >= {border}")


def test_one_moment_is_no_time():
    assert by_time("t", pl.Series("t", [datetime(2026, 1, 1)] * 9), 0.1, 9) is None
    assert by_time("t", pl.Series("t", [None], dtype=pl.Date), 0.1, 9) is None
    far = pl.Series("t", np.linspace(2**61, 2**62, 50).astype(np.int64)).cast(pl.Datetime("us"))
    assert by_time("t", far, 0.1, 50) is None  # beyond Python's years


def test_a_hash_of_an_id_or_of_a_session_of_many_values_or_of_the_place():
    few = column("kind", "string", "string", vocabulary=distinct(24))
    many = column("visit", "string", "string", vocabulary=distinct(20_000))
    name = column("id", "category", "int64", id_like=True)
    assert by_hash(table(few, many), None).sample == {"fraction": 0.9}
    assert by_hash(table(few, many), "kind").sample == {"fraction": 0.9}
    assert by_hash(table(few, many, name), "visit").sample == {"fraction": 0.9, "key": ["visit"]}
    assert by_hash(table(few, many, name, rows=2_000), None).sample == {"fraction": 0.8, "key": ["id"]}


@pytest.mark.parametrize("kind", [pl.Date, pl.Datetime("ms"), pl.Datetime("us", "Asia/Tokyo")])
def test_times_beyond_python_s_calendar_hold_nothing_out(kind: pl.DataType):
    per_day = {pl.Date: 1, pl.Datetime("ms"): 86_400_000}.get(kind, 86_400_000_000)
    days = pl.Series("t", [0, 0, 0, 5_000_000] * 500) * per_day
    times = (days.cast(pl.Int32) if kind == pl.Date else days).cast(kind)
    assert by_time("t", times, 0.25, 2_000) is None
    near = (days // per_day).clip(0, 1) * per_day
    assert by_time("t", (near.cast(pl.Int32) if kind == pl.Date else near).cast(kind), 0.25, 2_000) is not None
