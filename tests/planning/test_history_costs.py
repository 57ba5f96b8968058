"""What a plan says of its histories, beside the bytes that computing all its blocks reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.commands.plan.report import describe, plan_table
from feedline.planning.history_costs import describe_histories
from feedline.planning.plan import Plan
from feedline.warehouse.histories.stored_events import events_of
from feedline.warehouse.optimize.optimize import TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.table import Table

EVENTS, USERS, ROWS, DAY = 120_000, 100, 4_000, 86_400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("costs"), np.random.default_rng(5)
    for name in ("plain", "days", "none"):
        (folder / name).mkdir()
    events = pa.table(
        {
            "user": rng.integers(0, USERS, EVENTS),
            "ts": rng.integers(0, 4 * DAY, EVENTS),
            "item": rng.integers(0, 2**40, EVENTS),
            "kind": rng.choice(["listen", "like"], EVENTS, p=[0.9, 0.1]),
            "other": rng.normal(size=EVENTS),
        }
    )
    pq.write_table(events, folder / "plain" / "part.parquet")
    settings = Settings.of(history="user", sort_by=("ts",))
    snapshot = Table(str(folder / "plain")).snapshot()
    optimize(snapshot, str(folder / "sorted"), settings, source=("plain",), projection=(), runner=TaskRunner(threads=2))
    rows = pa.table({"user": rng.integers(0, USERS, ROWS), "at": rng.integers(2 * DAY, 4 * DAY, ROWS)})
    pq.write_table(rows, folder / "none" / "part.parquet", row_group_size=500)
    for day in (2, 3):
        (folder / "days" / f"day={day}").mkdir()
        own = rows.filter(pa.array(rows["at"].to_numpy() // DAY == day))
        pq.write_table(own, folder / "days" / f"day={day}" / "part.parquet", row_group_size=500)
    pq.write_table(rows.sort_by("user"), folder / "clustered.parquet", row_group_size=500)
    return folder


def plan_of(folder: Path, table: str, feature: dict[str, Any], events: str = "sorted", **changes: Any) -> Plan:
    return Pipeline.from_dict(
        {
            "version": 1,
            "name": "costs",
            "work_dir": str(folder / "work"),
            "source": {"table": str(folder / table), **changes.pop("source", {})},
            "histories": {"events": {"table": str(folder / events), "key": "user", "time": "ts", "memory": 1}},
            "features": {"sparse": {"items": {"history": "events", "at": "at", "column": "item", **feature}}},
            "batch": {"size": 100, "tail": "partial"},
            "shuffle": {"window_rows": 500},
            **changes,
        }
    ).plan()


def measured(plan: Plan) -> int:
    """The bytes of events that all blocks read."""
    [history] = plan.source.snapshot.histories
    before = events_of(history).bytes_read
    for block in plan.source.schedule(0).blocks(0, everything=True):
        run_block(plan.source.job, plan.source.request(block, 0), "block", False)
    return events_of(history).bytes_read - before


@pytest.mark.parametrize(
    "feature",
    [
        {"last": 64},
        {"last": 2_000},
        {"last": 64, "lag": 3_600, "where": "kind == 'like'", "scan": 600},
        {"last": 100, "where": "kind == 'like'"},
    ],
)
def test_bytes_are_estimated_without_reading_events(folder: Path, feature: dict[str, Any]):
    plan = plan_of(folder, "none", feature)
    [history] = plan.source.snapshot.histories
    before = events_of(history).bytes_read
    [facts] = describe_histories(plan.source)
    assert events_of(history).bytes_read == before
    assert 0.6 < facts["read_bytes"] / measured(plan) < 1.7
    assert (facts["events"], facts["keys"], facts["most"]) == (EVENTS, USERS, feature["last"])
    assert facts["layout"] == "as it is"
    assert facts["generation"] == history.events
    assert 500 <= facts["sampled"] <= ROWS
    assert facts["amplification"] >= 1


def test_the_mean_is_about_what_rows_see(folder: Path):
    [few] = describe_histories(plan_of(folder, "none", {"last": 64}).source)
    [many] = describe_histories(plan_of(folder, "none", {"last": 100_000}).source)
    assert few["mean"] == 64
    assert many["mean"] == pytest.approx(EVENTS / USERS * 0.75, rel=0.2)  # rows are of the last half of the time


def test_clustering_is_advised_where_it_saves(folder: Path):
    plan = plan_of(folder, "none", {"last": 40_000})
    [facts] = describe_histories(plan.source)
    table = folder / "none"
    assert facts["command"] == f"feedline optimize {table} OUT --cluster-by user --sort-by at"
    assert facts["clustered_bytes"] < 0.5 * facts["read_bytes"]
    [by_day] = describe_histories(plan_of(folder, "days", {"last": 40_000}).source)
    assert 1.3 * facts["clustered_bytes"] < by_day["clustered_bytes"] < by_day["read_bytes"]
    clustered = plan_of(folder, "clustered.parquet", {"last": 40_000})
    [done] = describe_histories(clustered.source)
    assert done["command"] is None
    assert done["read_bytes"] < 0.5 * facts["read_bytes"]
    assert measured(clustered) <= facts["clustered_bytes"] * 1.4


def test_histories_are_part_of_what_plan_prints(folder: Path):
    plan = plan_of(folder, "none", {"last": 64}, events="plain", name="written")
    facts = describe(plan.source, world_size=1)
    [history] = facts["histories"]
    assert history["layout"].startswith(str(folder / "work" / "histories"))
    [row_table] = [each for each in plan_table(facts).renderables if each.title == "the plan"]
    cells = dict(zip(*(list(column.cells) for column in row_table.columns), strict=True))
    text = cells["history events"]
    assert f"{folder / 'plain'}, written to {history['layout']}, generation {history['generation'][:12]}: " in text
    assert "120,000 events of 100 keys" in text
    assert "a row sees 64 events at most, about 64 on average" in text
    assert f"besides {facts['bytes']['read_per_epoch']:,} of samples" in text
    assert "histories" not in describe(
        Pipeline.from_dict(
            {
                "version": 1,
                "name": "plain",
                "work_dir": str(folder / "work"),
                "source": {"table": str(folder / "none")},
                "features": {"dense": {"user": []}},
                "batch": {"size": 100},
            }
        )
        .plan()
        .source,
        world_size=1,
    )
