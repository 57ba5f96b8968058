"""Features that are not fitted have bytes and no CPU time; those of other names have neither."""

from __future__ import annotations

from pathlib import Path

from pipelines import furnished

from feedline import Pipeline
from feedline.commands.diff.cost_per_feature import cost_per_feature
from feedline.planning.plan import Plan

FEATURES = {"dense": {"dense_0": []}, "categorical": {"id_0": ["vocabulary"]}, "label": {"clicked": []}}


def test_features_that_are_not_fitted_have_bytes_only(tmp_path: Path, clicks: Path):
    with furnished(tmp_path, clicks) as place:
        plan = Pipeline.from_yaml(place.write(features=FEATURES)).plan()
        assert isinstance(plan, Plan)
        costs = cost_per_feature(plan, ["id_0", "absent"], with_cpu=True)
        assert list(costs) == ["id_0"]
        assert costs["id_0"]["cpu_s"] is None
        assert costs["id_0"]["bytes"] is not None
        assert costs["id_0"]["bytes"] > 0
