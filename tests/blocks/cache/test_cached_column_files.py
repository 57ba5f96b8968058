"""Finished features that a cache keeps are named by the column files that their job reads, and by no others."""

from __future__ import annotations

from pathlib import Path

from cached_blocks import assert_same, blocks_of, counts_of
from column_sources import add_seeded, write_days

from feedline import Pipeline
from feedline.planning.plan import Plan


def plan_of(table: Path, folder: Path, *, cached: bool) -> Plan:
    spec = {
        "version": 1,
        "name": "cached",
        "work_dir": str(folder / "work"),
        "source": {"table": str(table)},
        "features": {"dense": {"x": [{"fill_null": 0}], "price": ["log1p"]}},
        "batch": {"size": 50, "tail": "partial"},
        **({"cache": {"dir": str(folder / "cache"), "mode": "features", "free": 1}} if cached else {}),
    }
    return Pipeline.from_dict(spec).plan()


def test_values_of_a_replaced_column_are_computed_again(tmp_path: Path):
    table = write_days(tmp_path / "t")
    add_seeded(table, "x")
    blocks_of(plan_of(table, tmp_path, cached=True))
    again = plan_of(table, tmp_path, cached=True)
    found = counts_of(blocks_of(again))
    assert (found.computed, found.found > 0) == (0, True)
    add_seeded(table, "other")  # which the job does not read
    assert counts_of(blocks_of(plan_of(table, tmp_path, cached=True))).computed == 0
    add_seeded(table, "x", seed=3, where='ds == "2026-01-02"', replaced=True)
    now = plan_of(table, tmp_path, cached=True)
    results = blocks_of(now)
    counts = counts_of(results)
    assert 0 < counts.computed < found.found
    assert counts.computed + counts.found == found.found
    assert_same(now, results, blocks_of(plan_of(table, tmp_path, cached=False)))
