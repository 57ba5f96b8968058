"""Does `feedline plan` say what a cache holds of a plan, without making one?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.commands.plan import cached
from feedline.commands.plan.cached import cache_facts, cache_text
from feedline.planning.plan import Plan


def plan_of(folder: Path, **changes: Any) -> Plan:
    if not (folder / "table").exists():
        (folder / "table").mkdir()
        columns = {"price": [float(row) for row in range(1000)], "item": [*range(1000)], "label": [1.0] * 1000}
        pq.write_table(pa.table(columns), folder / "table" / "a.parquet", row_group_size=100)
    spec: dict[str, Any] = {
        "version": 1,
        "name": "planned",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "table")},
        "features": {"dense": {"price": []}, "categorical": {"item": []}, "label": {"label": []}},
        "batch": {"size": 10},
        "cache": {"dir": str(folder / "cache"), "mode": "features", "free": 1},
    }
    return Pipeline.from_dict(spec | changes).plan()


def run(plan: Plan, blocks: int | None = None) -> None:
    for block in [*plan.schedule(0).blocks(0, everything=True)][:blocks]:
        run_block(plan.job, plan.request(block, 0), "block", False)


def test_a_cache_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    facts = cache_facts(plan_of(tmp_path), 16)
    assert facts is not None
    assert (facts["share"], facts["bytes"], facts["bytes_to_add"]) == (0.0, 0, 16_000)
    assert not (tmp_path / "cache").exists()


def test_what_is_there_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path)
    run(plan)
    facts = cache_facts(plan, 16)
    assert facts is not None
    # of 100 rows a float32, a label, and an id of 16 bits, of the first row group of 8
    assert (facts["share"], facts["bytes_to_add"]) == (1.0, 0)
    assert facts["bytes"] == 1000 * (4 + 4) + 200 * 9 + 100
    other = {"dense": {"price": ["log1p"]}, "categorical": {"item": []}, "label": {"label": []}}
    facts = cache_facts(plan_of(tmp_path, features=other), 16)
    assert facts is not None
    assert facts["share"] == pytest.approx(2 / 3)
    assert "66.7% of features x row groups are there" in cache_text(facts)
    monkeypatch.setattr(cached, "_MOST_ROW_GROUPS", 5)
    facts = cache_facts(plan, 16)
    assert facts is not None
    assert (facts["share"], facts["row_groups_looked_up"]) == (1.0, 5)


def test_deduplicated_groups_are_counted_as_other_features_are(tmp_path: Path) -> None:
    assert cache_facts(plan_of(tmp_path, cache="off"), 16) is None
    plan = plan_of(tmp_path, dedup={"item": {"columns": ["item"]}}, shuffle="off")
    run(plan)
    facts = cache_facts(plan, 16)
    assert facts is not None
    assert facts["share"] == 1.0
