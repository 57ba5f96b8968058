"""A plan's costs and the changes that pay are measured together, and travel as plain values."""

from __future__ import annotations

import json
from pathlib import Path

from costly_tables import costly_pipeline
from mixed_tables import mixed_plan_of, write_tables

from feedline import Pipeline
from feedline.workbench.explain.cpu_time import CpuEstimate
from feedline.workbench.explain.measured_costs import DataChange, MeasuredCosts
from feedline.workbench.explain.plan_costs import ChosenSource, measure_plan


def test_costs_travel_as_plain_values(tmp_path: Path):
    path = costly_pipeline(tmp_path, rows=2_048, row_group_rows=256, list_mean=30, files=1)
    plan = Pipeline.from_yaml(path).plan()
    found = measure_plan(ChosenSource.of(plan).plan, budget_s=2.0, rounds=1, blocks=1)
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
