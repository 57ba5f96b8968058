"""Does `feedline plan` say what a cache holds of a plan, without making one?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_modules import own_modules

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.commands.plan import parts
from feedline.commands.plan.parts import cache_facts, cache_text
from feedline.planning.plan import Plan

SPEC: dict[str, Any] = {"version": 1, "name": "planned", "batch": {"size": 10}}


def plan_of(folder: Path, **changes: Any) -> Plan:
    if not (folder / "table").exists():
        (folder / "table").mkdir()
        columns = {"price": [float(row) for row in range(1000)], "item": [*range(1000)], "label": [1.0] * 1000}
        pq.write_table(pa.table(columns), folder / "table" / "a.parquet", row_group_size=100)
    spec: dict[str, Any] = {
        **SPEC,
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "table")},
        "features": {"dense": {"price": []}, "categorical": {"item": []}, "label": {"label": []}},
        "cache": {"dir": str(folder / "cache"), "mode": "features", "free": 1},
    }
    return Pipeline.from_dict(spec | changes).plan()


def run(plan: Plan, blocks: int | None = None) -> None:
    for block in [*plan.source.schedule(0).blocks(0, everything=True)][:blocks]:
        run_block(plan.source.job, plan.request(block, 0), "block", False)


def test_a_cache_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    facts = cache_facts(plan_of(tmp_path).source, 16)
    assert facts is not None
    assert (facts["share"], facts["bytes"], facts["bytes_to_add"]) == (0.0, 0, 16_000)
    assert facts["segment_bytes"] == 16 * 100  # of a row group
    assert "a thread that adds rows holds 1,600 bytes besides its block, at most" in cache_text(facts)
    assert not (tmp_path / "cache").exists()


def test_what_is_there_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path)
    run(plan)
    facts = cache_facts(plan.source, 16)
    assert facts is not None
    # of 100 rows a float32, a label, and an id of 16 bits, of the first row group of 8
    assert (facts["share"], facts["bytes_to_add"]) == (1.0, 0)
    assert facts["bytes"] == 1000 * (4 + 4) + 200 * 9 + 100
    other = {"dense": {"price": ["log1p"]}, "categorical": {"item": []}, "label": {"label": []}}
    facts = cache_facts(plan_of(tmp_path, features=other).source, 16)
    assert facts is not None
    assert facts["share"] == pytest.approx(2 / 3)
    assert "66.7% of features x row groups are there" in cache_text(facts)
    monkeypatch.setattr(parts, "_MOST_ROW_GROUPS", 5)
    facts = cache_facts(plan.source, 16)
    assert facts is not None
    assert (facts["share"], facts["row_groups_looked_up"]) == (1.0, 5)


def test_features_that_are_not_kept_are_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "cached_ops.py").write_text("import importlib\ndef twice(x): return x * 2\n")
    with own_modules(tmp_path):
        function = {"function": "cached_ops:twice", "gives": "float64"}
        features = {"dense": {"price": [{"python": function}]}, "label": {"label": []}}
        plan_of(tmp_path)
        spec = {**SPEC, "features": features, "allow_code": True, "work_dir": str(tmp_path / "work")}
        spec |= {"source": {"table": str(tmp_path / "table")}, "cache": {"dir": str(tmp_path / "cache")}}
        (tmp_path / "pipe" / "pipeline.yaml").write_text(json.dumps(spec))
        facts = cache_facts(Pipeline.from_yaml(tmp_path / "pipe" / "pipeline.yaml").plan().source, 16)
    assert facts is not None
    reason = "cached_ops: importlib in line 1 may load any code"
    assert facts["not_kept"] == {"price": reason}
    assert f"1 not kept, such as price ({reason})" in cache_text(facts)


def test_deduplicated_groups_are_counted_as_other_features_are(tmp_path: Path) -> None:
    assert cache_facts(plan_of(tmp_path, cache="off").source, 16) is None
    plan = plan_of(tmp_path, dedup={"item": {"columns": ["item"]}}, shuffle="off")
    run(plan)
    facts = cache_facts(plan.source, 16)
    assert facts is not None
    assert facts["share"] == 1.0
