"""The costs of `plan --ops` cover all features, and are positive where a chain computes something."""

from __future__ import annotations

from pathlib import Path

from costly_tables import costly_plan

from feedline.explain.costs.op_costs import describe_ops


def test_every_feature_has_its_cost(tmp_path: Path):
    facts = describe_ops(costly_plan(tmp_path))
    assert {feature["name"] for feature in facts["features"]} == {"price", "both", "item", "hist", "clicked"}
    assert all(feature["ms_per_million_values"] > 0 for feature in facts["features"])
    assert abs(sum(feature["share"] for feature in facts["features"]) - 1) < 1e-9
    costs = facts["ms_per_million_rows"]
    assert costs["pass"] > 0
    assert costs["encode"] > 0


def test_features_without_fits_have_none(tmp_path: Path):
    features = {"categorical": {"item": [{"vocabulary": {}}]}, "label": {"clicked": []}}
    facts = describe_ops(costly_plan(tmp_path, features=features))
    costs = {feature["name"]: feature["ms_per_million_values"] for feature in facts["features"]}
    assert costs["item"] is None
    assert costs["clicked"] > 0
    assert facts["ms_per_million_rows"]["pass"] is None
