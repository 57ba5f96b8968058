"""Plans are tried on tables: splits without rows, outliers among times, refused features, measured groups."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.commands.begin.init_plan import Choices, InitPlan
from feedline.commands.begin.plan_pipeline import plan_pipeline
from feedline.commands.begin.trial import TrialFolder, try_plan, without_refused
from feedline.errors import PlanError
from feedline.profiling.profile_table import table_facts_of
from feedline.profiling.table_facts import TableFacts
from feedline.profiling.table_sample import ProfileOptions, sample_table
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.table import Table

ROWS = 600
RNG = np.random.default_rng(3)


def looked_at(table: str) -> tuple[TableFacts, Snapshot]:
    sample = sample_table(table, ProfileOptions())
    return table_facts_of(sample, ProfileOptions()), sample.snapshot


def tried(table: str, folder: Path, **choices: str) -> InitPlan:
    facts, snapshot = looked_at(table)
    place = TrialFolder(folder=str(folder), work_dir=str(folder / "w"))
    return try_plan(facts, Choices(**choices), snapshot, table=table, folder=place)  # type: ignore[arg-type]


def written(folder: Path, **columns: object) -> str:
    path = folder / "t.parquet"
    pq.write_table(pa.table({"label": RNG.integers(0, 2, ROWS), "a": RNG.normal(size=ROWS), **columns}), path)
    return str(path)


def counted(table: str, plan: InitPlan) -> tuple[int, int]:
    read = Table(table)
    return read.read(columns=["label"], where=plan.where).num_rows, read.read(
        columns=["label"], where=plan.held_out_where
    ).num_rows


def test_a_time_with_outliers_still_holds_out_a_part(tmp_path: Path):
    base = datetime(2026, 1, 1)
    times = [datetime(1970, 1, 1), *(base + timedelta(hours=hour) for hour in range(ROWS - 1))]
    plan = tried(table := written(tmp_path, ts=times), tmp_path)
    assert plan.held_out is not None
    train, held_out = counted(table, plan)
    assert train + held_out == ROWS
    assert 0.03 * ROWS <= held_out <= 0.25 * ROWS
    assert f"({held_out} rows" in plan.held_out.reason


def test_a_partition_with_nearly_all_rows_is_not_held_out(tmp_path: Path):
    table = tmp_path / "t"
    for day, rows in ((1, 5), (2, ROWS)):
        (table / f"ds=2026-01-0{day}").mkdir(parents=True)
        data = pa.table({"label": RNG.integers(0, 2, rows), "a": RNG.normal(size=rows)})
        pq.write_table(data, table / f"ds=2026-01-0{day}" / "x.parquet")
    assert tried(str(table), tmp_path).held_out is None
    assert tried(str(table), tmp_path, time="").time is None


def test_features_that_do_not_compile_are_left_out_with_the_error(tmp_path: Path):
    facts, snapshot = looked_at(table := written(tmp_path))
    place = TrialFolder(folder=str(tmp_path), work_dir=str(tmp_path / "w"))
    plan = plan_pipeline(facts, Choices(), table=table)
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
    assert (plan.batch_size, plan.tail) == (16, "partial")
