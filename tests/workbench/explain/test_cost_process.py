"""Costs are measured in a process of their own, which answers with plain values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from costly_tables import costly_pipeline
from mixed_tables import mixed_plan_of, write_tables

from feedline import Pipeline
from feedline.config import load_spec
from feedline.errors import PlanError
from feedline.workbench.explain import cost_process
from feedline.workbench.explain.cost_process import (
    ATTACHED_SHARE,
    DataChange,
    MeasuredCosts,
    attached_budget_s,
    measure_apart,
    watch_s_for_costs,
)
from feedline.workbench.explain.cpu_time import CpuEstimate
from feedline.workbench.explain.plan_costs import ChosenSource, measure_plan


def test_process_measures_the_pipeline_as_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is larger than what a pipe holds; the process imports for longer than its parent waits between two looks."""
    long = {f"price_{number}": {"column": "price", "ops": [{"fill_null": 0}]} for number in range(300)}
    features = {"dense": long, "label": {"clicked": []}}
    path = costly_pipeline(tmp_path, rows=512, row_group_rows=512, list_mean=2, files=1, features=features)
    monkeypatch.setenv("TABLE", str(tmp_path / "table"))
    path.write_text(path.read_text().replace(str(tmp_path / "table"), "${TABLE}"))
    spec = load_spec(path, {})
    assert len(spec.packed()) > 2**16
    monkeypatch.delenv("TABLE")
    path.write_text("version: 1\nfeatures:")  # saved in half
    found = measure_apart(spec, budget_s=0.1)
    assert {each["name"] for each in found.account["features"]} == {*long, "clicked"}


def test_failures_are_told(tmp_path: Path):
    features = {"categorical": {"item": [{"vocabulary": {}}]}, "label": {"clicked": []}}
    path = costly_pipeline(tmp_path, rows=512, row_group_rows=512, list_mean=2, files=1, features=features)
    with pytest.raises(PlanError, match=r"costs could not be measured: .*feedline fit"):
        measure_apart(load_spec(path, {}))


def test_measurements_end_where_they_are_stopped_or_a_run_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = costly_pipeline(tmp_path, rows=512, row_group_rows=512, list_mean=2, files=1)
    with pytest.raises(PlanError, match="stopped"):
        measure_apart(load_spec(path, {}), budget_s=1e6, stop=lambda: True)
    monkeypatch.setattr(cost_process, "_MOST_S", 0.0)
    with pytest.raises(PlanError, match="the run left too little CPU"):
        measure_apart(load_spec(path, {}), budget_s=1e6, attached=True)


def test_measuring_beside_a_run_stays_within_its_share_of_the_cores():
    assert attached_budget_s(2, 30) == 0.0
    assert attached_budget_s(64, 30) == 5.0
    for cores in (1, 2, 8, 32):
        enough_s = watch_s_for_costs(cores)
        assert 2.0 <= attached_budget_s(cores, enough_s) < ATTACHED_SHARE * cores * enough_s
        assert attached_budget_s(cores, enough_s - 1 / cores - 1) == 0.0


def test_costs_of_the_only_source_are_told_by_what_stages_of_a_run_take_and_travel_as_plain_values(tmp_path: Path):
    path = costly_pipeline(tmp_path, rows=2_048, row_group_rows=256, list_mean=30, files=1)
    source = ChosenSource.of(Pipeline.from_yaml(path).plan())
    found = source.in_mix(measure_plan(source.plan, budget_s=1.5, blocks=1))
    assert found.changes
    assert all(change.before == found.account["stages"] for change in found.changes)
    assert (found.source, found.step_share) == ("", 1.0)
    again = MeasuredCosts.from_facts(json.loads(json.dumps(found.facts())))
    assert again.changes == found.changes
    assert again.account["rows"] == found.account["rows"]


def test_a_source_is_chosen_by_name_or_by_its_rows_of_a_step(tmp_path: Path):
    plan = mixed_plan_of(write_tables(tmp_path))
    found = [ChosenSource.of(plan, name) for name in (None, "clicks", "views")]
    assert [(each.name, each.step_share) for each in found] == [("clicks", 0.8), ("clicks", 0.8), ("views", 0.2)]
    assert [plan.sources.index(each.plan) for each in found] == [0, 0, 1]
    change = DataChange(
        kind="drop",
        subject="x",
        how="",
        gain_s=CpuEstimate(1.0, 0.5, 1.5),
        before_s=2.0,
        stages={"ops": 1.0},
        before={"ops": 2.0},
    )
    [weighted] = found[2].in_mix(MeasuredCosts(account={}, changes=(change,))).changes
    assert (weighted.share, weighted.gain_s.low, weighted.stages) == (0.1, 0.1, {"ops": 0.2})
    # The run's blocks are those of both sources: what it takes is no measure of one.
    assert weighted.before == {}
