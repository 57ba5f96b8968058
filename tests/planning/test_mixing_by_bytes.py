"""Shuffled plans of wide rows: exact, elastic and resumable, whatever a release or a changed feature would choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place
from row_digests import digest_of

from feedline import Pipeline
from feedline.errors import StateError
from feedline.loader.state import state_of
from feedline.planning import mixing
from feedline.planning.mixing import MixingWindow
from feedline.planning.plan import Plan

GROUPS, GROUP_ROWS, COLUMNS = 40, 64, 12
ROWS = GROUPS * GROUP_ROWS
FEATURES = {
    "dense": {f"x_{{0..{COLUMNS - 2}}}": [{"fill_null": 0}]},
    "label": {"clicked": []},
    "extra": ["row"],
}
WIDER = {**FEATURES, "dense": {f"x_{{0..{COLUMNS - 1}}}": [{"fill_null": 0}]}}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of ten row groups of 64 rows, twelve random columns that compress little, nulls among them."""
    folder, source = tmp_path_factory.mktemp("wide"), np.random.default_rng(3)
    for file in range(4):
        rows = ROWS // 4
        columns = {
            f"x_{column}": pa.array(source.random(rows), mask=source.random(rows) < 0.1) for column in range(COLUMNS)
        }
        row = np.arange(file * rows, (file + 1) * rows)
        table = pa.table({**columns, "clicked": (row % 2).astype(np.int8), "row": row, "ds": np.full(rows, file)})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=GROUP_ROWS)
    return folder


@pytest.fixture
def place(tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Where a default window of this table is 512 rows, and 16 blocks of one stated as 1,024 would be too large."""
    monkeypatch.setattr(mixing, "_WINDOW_BYTES", 80_000)
    monkeypatch.setattr(mixing, "_BLOCK_BYTES", 4_000)
    return Place(tmp_path, wide)


def pipeline_of(place: Place, **changes: Any) -> Pipeline:
    settings = {"features": FEATURES, "lanes": 4, "batch": {"size": 50, "tail": "partial"}, "shuffle": {"seed": 3}}
    return Pipeline.from_yaml(place.write(**{**settings, **changes}))


STATED = {"seed": 3, "window_rows": 1024}
DEFAULT = {"seed": 3, "window_rows": None}


def rows_of(pipeline: Pipeline, plan: Plan, world_size: int, step: int = 0) -> list[list[int]]:
    """The valid rows of each global step, rank after rank."""
    ranks = [pipeline.batches(rank=rank, world_size=world_size, step=step, plan=plan) for rank in range(world_size)]
    return [
        [row for batch in batches for row in batch.extra["row"][batch.valid].tolist()]
        for batches in zip(*ranks, strict=True)
    ]


def test_bytes_choose_the_window(place: Place):
    plan = pipeline_of(place, shuffle=DEFAULT).plan()
    assert plan.window == MixingWindow(rows=512, blocks=16)
    assert pipeline_of(place, shuffle=STATED).plan().window == MixingWindow(rows=1024, blocks=32)
    rows = np.diff(plan.source.schedule(0).lane(0).borders)
    assert rows.max() == GROUP_ROWS, "a block is one row group, or what the lane's border leaves of it"


def test_bytes_of_row_groups_that_keep_no_rows_do_not_count(place: Place):
    whole, one_file = (pipeline_of(place, source={"where": where}).plan() for where in (None, "ds == 2"))
    assert int(one_file.source.selection.rows.sum()) == ROWS // 4
    assert one_file.source.row_bytes.selected == pytest.approx(whole.source.row_bytes.selected, rel=0.05)
    half = pipeline_of(place, source={"where": "clicked == 1"}).plan().source.row_bytes
    assert half.selected == pytest.approx(2 * half.stored)
    assert half.stored == pytest.approx(whole.source.row_bytes.stored, rel=0.05)


@pytest.mark.parametrize("shuffle", [DEFAULT, STATED])
def test_a_state_keeps_its_window(place: Place, monkeypatch: pytest.MonkeyPatch, shuffle: Any):
    """Also with another feature, and in a release with other limits, where a new run has another window."""
    pipeline = pipeline_of(place, shuffle=shuffle)
    plan = pipeline.plan()
    state = state_of(plan.facts(), 0, 4)
    expected = [digest_of(batch) for batch in pipeline.batches(plan=plan, step=4)]
    steps = rows_of(pipeline, plan, 1, step=4)

    monkeypatch.setattr(mixing, "_WINDOW_BYTES", 39_000)
    monkeypatch.setattr(mixing, "_BLOCK_BYTES", 1_000)
    assert pipeline.plan().fingerprint != plan.fingerprint
    found = pipeline.plan_for(state)
    assert (found.window, found.fingerprint) == (plan.window, plan.fingerprint)
    assert [digest_of(batch) for batch in pipeline.batches(plan=found, step=4)] == expected
    assert found.with_window(plan.window) is found

    wider = pipeline_of(place, shuffle=shuffle, features=WIDER)
    with pytest.raises(StateError, match="the state belongs to another features"):
        wider.plan_for(state)
    found = wider.plan_for({**state, "features": wider.plan().features_fingerprint})
    assert found.fingerprint == plan.fingerprint
    assert rows_of(wider, found, 1, step=4) == steps


def test_a_rebase_keeps_the_window(place: Place, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = tmp_path / "table"
    table.mkdir()
    for file in wide.iterdir():
        (table / file.name).write_bytes(file.read_bytes())
    pipeline = pipeline_of(place, source={"table": str(table), "row_key": "row"}, shuffle=DEFAULT)
    plan = pipeline.plan()
    steps = rows_of(pipeline, plan, 1)
    state = state_of(plan.facts(), 0, 4)
    merged = pa.concat_tables([pq.read_table(table / f"{file}.parquet") for file in (1, 2)])
    pq.write_table(merged, table / "1.parquet", row_group_size=GROUP_ROWS)
    (table / "2.parquet").unlink()
    monkeypatch.setattr(mixing, "_WINDOW_BYTES", 39_000)
    rebased = pipeline.rebase(state)
    assert rebased.window == plan.window != pipeline.plan().window
    later = rebased.state_after(state)
    found = pipeline.plan_for(later)
    assert (found.fingerprint, found.window) == (rebased.fingerprint, plan.window)
    remaining = [row for step in rows_of(pipeline, found, 2, step=4) for row in step]
    assert sorted(remaining) == sorted(row for step in steps[4:] for row in step)
