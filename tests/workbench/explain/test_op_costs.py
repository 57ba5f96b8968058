"""The costs of `plan --ops` cover all features, and are positive where a chain computes something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from costly_tables import costly_plan

from feedline.workbench.explain.op_costs import describe_ops


def test_every_feature_has_its_cost(tmp_path: Path):
    facts = describe_ops(costly_plan(tmp_path).source)
    assert {feature["name"] for feature in facts["features"]} == {"price", "both", "item", "hist", "clicked"}
    assert all(feature["ms_per_million_values"] > 0 for feature in facts["features"])
    assert abs(sum(feature["share"] for feature in facts["features"]) - 1) < 1e-9
    costs = facts["ms_per_million_rows"]
    assert costs["pass"] > 0
    assert costs["encode"] > 0


def test_features_without_fits_have_none(tmp_path: Path):
    features = {"categorical": {"item": [{"vocabulary": {}}]}, "label": {"clicked": []}}
    facts = describe_ops(costly_plan(tmp_path, features=features).source)
    costs = {feature["name"]: feature["ms_per_million_values"] for feature in facts["features"]}
    assert costs["item"] is None
    assert costs["clicked"] > 0
    assert facts["ms_per_million_rows"]["pass"] is None


def test_ops_of_a_group_are_computed_on_its_unique_rows(tmp_path: Path):
    plan = costly_plan(
        tmp_path,
        rows=4_000,
        row_group_rows=4_000,
        columns={"user": lambda _, rows: np.arange(rows) // 5 * 2.5},
        features={"dense": {"user": ["log1p"], "price": ["log1p"]}, "label": {"clicked": []}},
        dedup={"users": {"columns": ["user"]}},
        shuffle={"seed": 1, "rows": False},
    )
    facts = describe_ops(plan.source)
    values = {feature["name"]: feature["values"] for feature in facts["features"]}
    assert values == {"user": facts["rows"] / 5, "price": facts["rows"], "clicked": facts["rows"]}
    assert facts["ms_per_million_rows"]["encode"] > 0
