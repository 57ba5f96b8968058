"""A plan has the cache of its pipeline, which no fingerprint depends on; followed epochs are planned first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from growing_table import GrowingTable

from feedline import Pipeline
from feedline.config import load_spec
from feedline.errors import DataError
from feedline.planning.plan import Plan
from feedline.warehouse.cache.cache_folder import CacheRef


def planned(folder: Path, **entries: Any) -> Plan:
    if not (folder / "t.parquet").exists():
        pq.write_table(pa.table({"x": [float(number) for number in range(64)]}), folder / "t.parquet")
    document = {
        "version": 1,
        "name": "n",
        "work_dir": str(folder / "w"),
        "source": {"table": str(folder / "t.parquet")},
        "features": {"dense": {"x": []}},
        "batch": {"size": 8},
        **entries,
    }
    return Pipeline(load_spec(document, base_dir=str(folder))).plan()


@pytest.mark.parametrize("mode", ["auto", "features"])
def test_jobs_name_the_folder_and_its_bounds(tmp_path: Path, mode: str):
    cache = {"dir": "finished", "size": "4 GB", "free": "2 GB", "mode": mode, "shared": True}
    ref = CacheRef(folder=f"{tmp_path}/finished", size=4 * 10**9, free=2 * 10**9, shared=True)
    assert planned(tmp_path, cache=cache).source.job.cache == ref
    assert not (tmp_path / "finished").exists(), "a plan creates no folder"


@pytest.mark.parametrize("cache", [None, "off", {"dir": "x", "mode": "off"}, {"dir": "x", "mode": "source"}])
def test_jobs_without_finished_features_have_no_cache(tmp_path: Path, cache: Any):
    plan = planned(tmp_path, cache=cache)
    assert plan.source.job.cache is None
    assert plan.source.job.digest == planned(tmp_path).source.job.digest


def test_fingerprints_do_not_depend_on_a_cache(tmp_path: Path):
    plain, cached = planned(tmp_path), planned(tmp_path, cache="finished")
    assert cached.source.job.digest != plain.source.job.digest
    assert (cached.fingerprint, cached.features_fingerprint) == (plain.fingerprint, plain.features_fingerprint)
    assert cached.facts() == plain.facts()


@pytest.mark.parametrize("epoch", ["new", "all"])
def test_nulls_that_no_feature_holds_decide_no_border_of_a_followed_table(tmp_path: Path, epoch: str):
    table = GrowingTable(tmp_path)
    table.land(1)
    pipeline = Pipeline.from_yaml(table.pipeline(source={"where": None}, follow={"epoch": epoch}))
    plan = pipeline.complete_plan()
    bad = table.land(2)
    pq.write_table(pa.table({"id": [1] * 20, "x": pa.array([None] * 20, pa.int32())}), bad)
    with pytest.raises(DataError, match=rf"epoch 1 of .*'x' holds nulls: got 20 in .*\(first: ds=.*/{bad.name}\)"):
        pipeline.next_plan(plan)
    bad.unlink()
    table.land(2)
    after = pipeline.next_plan(plan)
    assert after is not None
    assert after.schedule(1).steps == (5 if epoch == "new" else 10)
