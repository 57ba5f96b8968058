"""The plan of several sources: what decides it, the window that they share, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mixed_tables import mixed_pipeline, mixed_plan_of

from feedline import Pipeline
from feedline.errors import PlanError
from feedline.loader.state import state_of
from feedline.planning.mixing import MixingWindow


def test_the_fingerprint_covers_what_decides_the_rows(folder: Path):
    plan = mixed_plan_of(folder)
    others = [
        mixed_plan_of(folder, stop="all"),
        mixed_plan_of(folder, stop=7),
        mixed_plan_of(folder, size=20),
        mixed_plan_of(folder, shuffle={"window_rows": 200, "seed": 6}),
        mixed_plan_of(folder, lanes=2),
    ]
    pipeline = mixed_pipeline(folder)
    for change in ({"weight": 1.5}, {"name": "clicks2"}, {"where": "id != 4"}, {"sample": {"fraction": 0.9}}):
        sources = [{**pipeline["sources"][0], **change}, pipeline["sources"][1]]
        others.append(mixed_plan_of(folder, sources=sources))
    others.append(mixed_plan_of(folder, sources=pipeline["sources"][::-1]))
    fingerprints = [each.fingerprint for each in (plan, *others)]
    assert len(set(fingerprints)) == len(fingerprints)
    assert mixed_plan_of(folder).fingerprint == plan.fingerprint
    memory = mixed_plan_of(folder, memory="32MiB", cluster={"threads": 1})
    assert (memory.fingerprint, memory.features_fingerprint) == (plan.fingerprint, plan.features_fingerprint)


def test_a_state_keeps_the_window_that_its_run_had(folder: Path):
    plan = mixed_plan_of(folder, shuffle=None)
    other = plan.with_window(MixingWindow(rows=plan.window.rows >> 3, blocks=64))
    assert other.fingerprint != plan.fingerprint
    assert [each.window for each in other.sources] == [other.window] * 2
    assert other.with_window(None).fingerprint == plan.fingerprint
    found = Pipeline.from_dict(mixed_pipeline(folder, shuffle=None)).plan_for(state_of(other.facts(), 0, 2))
    assert (found.fingerprint, found.window) == (other.fingerprint, other.window)


def test_facts_count_passes_and_rows(folder: Path):
    facts = mixed_plan_of(folder, world_size=2, lanes=2).facts()
    clicks, views = facts.sources
    assert (clicks.name, clicks.batch_rows, clicks.rows, clicks.pass_steps) == ("clicks", 8, 1_800, 112)
    assert (views.name, views.batch_rows, views.rows, views.pass_steps) == ("views", 2, 450, 112)
    assert facts.steps == 112
    assert (facts.rows, facts.rows_dropped) == (2_250, 2_250 - 112 * 20)
    stated = [{**source, "rows_per_batch": rows} for source, rows in zip(_sources(folder), (5, 5), strict=True)]
    longer = mixed_plan_of(folder, stop="all", sources=stated).facts()
    assert [(each.pass_steps, each.passes) for each in longer.sources] == [(360, 1.0), (90, 4.0)]
    assert [each.passes for each in mixed_plan_of(folder, stop=450).facts().sources] == [2.0, 2.0]


def _sources(folder: Path) -> list[dict[str, Any]]:
    sources: list[dict[str, Any]] = mixed_pipeline(folder)["sources"]
    return [{key: value for key, value in source.items() if key != "weight"} for source in sources]


def test_states_name_the_snapshot_of_each_source(folder: Path):
    plan = mixed_plan_of(folder)
    state = state_of(plan.facts(), 0, 7)
    assert state["snapshot"] == ",".join(each.snapshot.id for each in plan.sources)
    assert (state["epoch"], state["step"], state["batch_size"]) == (0, 7, 10)
    assert state_of(plan.facts(), 0, 225)["epoch"] == 1


def test_what_reads_one_table_is_refused(folder: Path):
    pipeline = Pipeline.from_dict(mixed_pipeline(folder))
    with pytest.raises(PlanError, match=r"to_dask reads one table: got the sources clicks, views. Name one"):
        pipeline.to_dask()
    with pytest.raises(PlanError, match="materialize reads one table: got the sources clicks, views"):
        pipeline.materialize(folder / "out")
