"""Plans are tried on tables: splits without rows, outliers among times, refused features, measured groups."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.errors import PlanError
from feedline.warehouse.table import Table
from feedline.workbench.begin.init_plan import Choices, InitPlan
from feedline.workbench.begin.plan_pipeline import guess_choices
from feedline.workbench.begin.trial import TrialFolder, try_plan, without_refused
from feedline.workbench.profile.profile_table import table_facts_of
from feedline.workbench.profile.table_sample import ProfileOptions, sample_table

ROWS = 600
RNG = np.random.default_rng(3)


def tried(table: str, folder: Path, **choices: str) -> InitPlan:
    sample = sample_table(table, ProfileOptions(values=True))
    facts = table_facts_of(sample, ProfileOptions(values=True))
    place = TrialFolder(folder=str(folder), work_dir=str(folder / "w"))
    return try_plan(sample, facts, guess_choices(facts, Choices(**choices)), table=table, folder=place)  # type: ignore[arg-type]


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
    assert plan.dedup is not None
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
