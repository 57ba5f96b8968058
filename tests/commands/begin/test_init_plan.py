"""The filters of a plan: rows with a label, on either side of the split."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiles import binary, column, table

from feedline.commands.begin.init_plan import Choices, HeldOut
from feedline.commands.begin.plan_pipeline import plan_pipeline

SPLIT = HeldOut(by="t", train="t < 5", held_out="t >= 5", reason="")


@pytest.mark.parametrize(
    ("label", "split", "where", "held_out"),
    [
        (None, None, None, None),
        ("y is not None", None, "y is not None", None),
        (None, SPLIT, "t < 5", "t >= 5"),
        ("y is not None", SPLIT, "y is not None and t < 5", "y is not None and t >= 5"),
    ],
)
def test_filters(label: str | None, split: HeldOut | None, where: str | None, held_out: str | None):
    plan = plan_pipeline(table(binary(), column("a")), Choices(), table="t")
    plan = replace(plan, label=replace(plan.label, where=label), held_out=split)
    assert (plan.where, plan.held_out_where) == (where, held_out)
