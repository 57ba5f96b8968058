"""Sources that follow their tables: each epoch of a mix reads what had landed in each at its border."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixed_tables import NAMES, VIEWS, ids_of, mixed_pipeline, write_files

from feedline import FeedlineDataset, Pipeline
from feedline.loader.state import state_of

FOLLOW = {"landed": "_SUCCESS"}


def land(folder: Path, name: str, day: int, rows: int = 60) -> set[int]:
    """Land a day's partition of a table; returns the ids in it."""
    first = (VIEWS if name == "views" else 0) + 10_000 * day
    place = folder / name / f"day={day}"
    write_files(place, NAMES[name], first, files=1, rows=rows, group=20)
    (place / "_SUCCESS").touch()
    return set(range(first, first + rows))


def following(folder: Path, **changes: Any) -> dict[str, Any]:
    """A pipeline whose views follow their table, 1:1, on two lanes."""
    document = mixed_pipeline(folder, size=4, lanes=2, shuffle={"window_rows": 40}, **changes)
    for source in document["sources"]:
        source["weight"] = 1
    document["sources"][1]["follow"] = FOLLOW
    return document


def rows_of(pipeline: Pipeline, plan: Any) -> tuple[set[int], set[int]]:
    """The ids of clicks and of views in a plan's epoch; every step of every lane has two of each."""
    batches = [ids_of(batch, 2) for batch in pipeline.batches(plan.epoch, plan=plan)]
    ids = np.stack(batches)
    assert (ids[:, :, :2] < VIEWS).all()
    assert (ids[:, :, 2:] >= VIEWS).all()
    assert len(ids) == plan.facts().steps
    return set(ids[:, :, :2].ravel().tolist()), set(ids[:, :, 2:].ravel().tolist())


@pytest.mark.parametrize("stop", ["all", 7])
def test_each_epoch_reads_what_had_landed_of_a_source(tmp_path: Path, stop):
    clicks, views = land(tmp_path, "clicks", 1, 80), land(tmp_path, "views", 1)
    pipeline = Pipeline.from_dict(following(tmp_path, stop=stop))
    plan = pipeline.complete_plan()
    assert (plan.epoch, plan.facts().epoch) == (0, 0)
    first = rows_of(pipeline, plan)
    later = land(tmp_path, "views", 2)
    second_plan = pipeline.next_plan(plan)
    assert second_plan is not None
    assert second_plan.epoch == 1
    second = rows_of(pipeline, second_plan)
    if stop == "all":
        assert first == (clicks, views)
        assert second == (clicks, views | later)
    else:
        assert second_plan.facts().steps == 7
        assert second[1] & later
    kept, followed = second_plan.snapshot_name.split(",")
    assert kept == plan.snapshot_name.split(",")[0]
    assert "@" in followed
    again = pipeline.next_plan(plan)
    assert again is not None
    assert again.fingerprint == second_plan.fingerprint


def test_new_partitions_of_both_sources_are_read_once_and_resumed(tmp_path: Path):
    landed = [(land(tmp_path, "clicks", day), land(tmp_path, "views", day)) for day in (1,)]
    document = following(tmp_path, stop="all")
    for source in document["sources"]:
        source["follow"] = {**FOLLOW, "epoch": "new"}
    pipeline = Pipeline.from_dict(document)
    plan: Any = pipeline.complete_plan()
    for day in (2, 3):
        assert rows_of(pipeline, plan) == landed[-1]
        landed.append((land(tmp_path, "clicks", day), land(tmp_path, "views", day)))
        plan = pipeline.next_plan(plan)
    state = state_of(plan.facts(), 2, 5)
    resumed = pipeline.plan_for(state)
    rest = [ids_of(batch).ravel().tolist() for batch in pipeline.batches(2, step=5, plan=resumed)]
    assert rest == [ids_of(batch).ravel().tolist() for batch in pipeline.batches(2, plan=plan)][5:]


def test_a_dataset_takes_the_epochs_of_followed_sources_in_turn(tmp_path: Path):
    land(tmp_path, "clicks", 1, 80)
    views = land(tmp_path, "views", 1)
    document = following(tmp_path, stop="all")
    with FeedlineDataset(document, rank=0, world_size=1) as dataset:
        seen = [np.concatenate([ids_of(batch).ravel() for batch in dataset])]
        views |= land(tmp_path, "views", 2)  # the next epoch's border may have been decided before
        seen.append(np.concatenate([ids_of(batch).ravel() for batch in dataset]))
        state = dataset.state_dict()
        seen.append(np.concatenate([ids_of(batch).ravel() for batch in dataset]))
    assert {id for id in seen[2].tolist() if id >= VIEWS} == views
    with FeedlineDataset(document, rank=0, world_size=1) as dataset:
        dataset.load_state_dict(state)
        again = np.concatenate([ids_of(batch).ravel() for batch in dataset])
    assert again.tolist() == seen[2].tolist()
