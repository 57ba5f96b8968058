"""Changes of data travel between processes, and are worthwhile where they gain more than noise."""

from __future__ import annotations

import json

from feedline.workbench.explain.cpu_time import CpuEstimate
from feedline.workbench.explain.measured_costs import DataChange


def test_changes_travel_as_plain_values():
    change = DataChange(
        kind="drop", subject="x", how="remove x", gain_s=CpuEstimate(1.0, 0.5, 1.5), before_s=4.0, stages={"ops": 1.0}
    )
    assert DataChange.from_facts(json.loads(json.dumps(change.facts()))) == change
    assert change.share == 0.25
    assert change.is_worthwhile
    assert not DataChange(
        kind="drop", subject="x", how="", gain_s=CpuEstimate(1.0, -0.1, 1.5), before_s=4.0
    ).is_worthwhile
