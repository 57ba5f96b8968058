"""A plan's costs and the changes that pay are measured together, and travel as plain values."""

from __future__ import annotations

import json
from pathlib import Path

from costly_tables import costly_pipeline

from feedline import Pipeline
from feedline.explain.costs.measured_costs import MeasuredCosts
from feedline.explain.costs.plan_costs import largest_source, measure_plan


def test_costs_travel_as_plain_values(tmp_path: Path):
    path = costly_pipeline(tmp_path, rows=2_048, row_group_rows=256, list_mean=30, files=1)
    plan = Pipeline.from_yaml(path).plan()
    found = measure_plan(largest_source(plan), budget_s=2.0, rounds=1, blocks=1)
    again = MeasuredCosts.from_facts(json.loads(json.dumps(found.facts())))
    assert again.changes == found.changes
    assert again.account["rows"] == found.account["rows"]
