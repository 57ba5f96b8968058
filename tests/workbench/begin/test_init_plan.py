"""The filters of a plan: rows with a label, on either side of the split."""

from __future__ import annotations

from dataclasses import replace

import pytest
from begun_plans import planned
from profiles import binary, column, table

from feedline.workbench.begin.init_plan import HeldOut

LATE = HeldOut(by=("t",), train="t < 5", held_out="t >= 5", reason="")
REST = HeldOut(by=(), sample={"fraction": 0.9}, reason="")


@pytest.mark.parametrize(
    ("label", "split", "where", "held_out"),
    [
        (None, REST, None, {"source.sample.rest": True}),
        ("y is not None", REST, "y is not None", {"source.sample.rest": True}),
        (None, LATE, "t < 5", {"source.where": "t >= 5"}),
        ("y is not None", LATE, "y is not None and t < 5", {"source.where": "y is not None and t >= 5"}),
    ],
)
def test_filters(label: str | None, split: HeldOut, where: str | None, held_out: dict[str, object]):
    plan = planned(table(binary(), column("a")))
    plan = replace(plan, label=replace(plan.label, where=label), held_out=split)
    assert (plan.where, plan.held_out_keys) == (where, held_out)
