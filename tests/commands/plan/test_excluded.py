"""`feedline plan` says which rows are excluded, why, and whether the features have changed since."""

from __future__ import annotations

import io
from typing import Any

import pytest
from bad_table import FEATURES, BadTable
from rich.console import Console

from feedline import Pipeline
from feedline.commands.plan.parts import excluded_stage, excluded_text
from feedline.commands.plan.report import describe, plan_table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> BadTable:
    table = BadTable(tmp_path_factory.mktemp("bad"))
    table.check()
    return table


def shown(pipeline: Pipeline) -> tuple[dict[str, Any], str]:
    facts = describe(pipeline.plan().source, world_size=1)
    out = io.StringIO()
    Console(file=out, width=200).print(plan_table(facts))
    return facts, out.getvalue()


def test_a_pipeline_without_an_exclusion_shows_none(table: BadTable):
    facts, text = shown(table.pipeline())
    assert facts["excluded"] is None
    assert excluded_stage(table.pipeline().plan().source) == []
    assert [stage["stage"] for stage in facts["stages"]][-1] == "sample"
    assert "bad rows" not in text


def test_excluded_rows_are_the_last_stage_and_have_reasons(table: BadTable):
    facts, text = shown(table.excluding())
    bad, kept = len(table.bad_ids()), len(table.ids("true"))
    assert [(stage["stage"], stage["rows"]) for stage in facts["stages"]][-2:] == [
        ("sample", kept),
        ("exclude", kept - bad),
    ]
    assert facts["kept"]["rows"] == kept  # of the filter
    assert facts["rows"] == kept - bad
    assert facts["excluded"]["rows"] == bad
    assert sum(each["rows"] for each in facts["excluded"]["reasons"]) >= bad
    assert f"{bad:,} rows of " in text
    assert "feature 'age' cannot be computed (no ops)" in text
    assert "found by other features" not in text


def test_features_that_changed_are_named(table: BadTable):
    _, text = shown(table.excluding(features={**FEATURES, "label": {}}))
    assert "found by other features" in text
    assert "these rows stay excluded" in text


def test_many_reasons_are_cut():
    reasons = [{"feature": f"f{index}", "reason": "holds a null", "rows": 1} for index in range(30)]
    facts = {"rows": 30, "row_groups": 1, "id": "x", "reasons": reasons, "found_by_other_features": False}
    assert excluded_text(facts).endswith("and 20 more reasons")
