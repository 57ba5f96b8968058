"""Which plan answers a trainer's hello, where the feeder has plans of other trainers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.loader.wire.facts import Hello
from feedline.planning.plan import Plan

PIPELINE = """
version: 1
name: p
work_dir: work
source: {table: table}
features:
  dense: {price: [FEATURE]}
batch: {size: 10}
"""


def pipeline_at(folder: Path, feature: str) -> Pipeline:
    (folder / "p.yaml").write_text(PIPELINE.replace("FEATURE", feature))
    return Pipeline.from_yaml(folder / "p.yaml")


def write(folder: Path, name: str, mean: float) -> None:
    (folder / "table").mkdir(exist_ok=True)
    prices = np.random.default_rng(0).normal(mean, 1, 100).astype(np.float32)
    pq.write_table(pa.table({"price": prices}), folder / "table" / name)


def hello_of(plan: Plan, *, features: str | None) -> Hello:
    """That of a trainer that resumes; features of None: those of today."""
    names = {"snapshot": plan.snapshot_name, "lanes": plan.lanes, "plan": plan.fingerprint}
    return Hello(rank=0, world_size=1, features=features, **names)


def test_changed_features_are_those_of_the_current_artifacts(tmp_path: Path):
    """Not those of a live session's plan, on the same snapshot and lanes: a new dataset would have the new mean."""
    write(tmp_path, "a.parquet", mean=0)
    pipeline = pipeline_at(tmp_path, "standardize")
    pipeline.fit()
    old = pipeline.resolve(Hello(rank=0, world_size=1), job="j")
    write(tmp_path, "b.parquet", mean=100)
    pipeline_at(tmp_path, "standardize").fit()
    new = pipeline.resolve(hello_of(old, features=None), job="j")
    assert new.features_fingerprint != old.features_fingerprint
    live = pipeline.resolve(hello_of(old, features=None), job="j", plans=[old])
    assert live.features_fingerprint == new.features_fingerprint
    assert live.source.selection is old.source.selection, "rows are not counted again"
    assert pipeline.resolve(hello_of(old, features=None), job="j", plans=[old, live]) is live
    resumed = pipeline.resolve(hello_of(old, features=old.features_fingerprint), job="j", plans=[live, old])
    assert resumed is old


@pytest.mark.parametrize("feature", ["standardize", "log1p"])
def test_ranks_of_a_feeder_share_a_plan(feature: str, tmp_path: Path):
    write(tmp_path, "a.parquet", mean=5)
    pipeline = pipeline_at(tmp_path, feature)
    pipeline.fit()
    hellos = [Hello(rank=rank, world_size=2) for rank in range(2)]
    zero = pipeline.resolve(hellos[0], job="j")
    assert pipeline.resolve(hellos[1], job="j", plans=[zero]) is zero
