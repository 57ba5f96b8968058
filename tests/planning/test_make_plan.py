"""A plan has the cache of its pipeline, which no fingerprint depends on; followed epochs are planned first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from growing_table import GrowingTable
from minimal_pipeline import completed

from feedline import Pipeline, Table
from feedline.config import PipelineSpec, load_spec, parse_spec
from feedline.errors import DataError, SpecError
from feedline.planning.plan import Plan
from feedline.planning.recording import recording_of
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.snapshot.snapshot import Snapshot


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


# --------------------------------------------------------------------------------------------------------------------
# Rows are recorded by a key that files store and that can be hashed.


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    (tmp_path / "data/ds=1").mkdir(parents=True)
    table = pa.table({"id": [1, 2], "price": [0.5, 1.5], "user": [{"a": 1}, {"a": 2}]})
    pq.write_table(table, tmp_path / "data/ds=1/0.parquet")
    return Table(str(tmp_path / "data")).snapshot()


def spec_of(keys: str, by: str = "{}") -> PipelineSpec:
    return parse_spec(completed(f"source: {{table: data, row_key: {keys}}}\nshuffle: {by}\n"), base_dir="/base")


def test_no_key_records_nothing(snapshot: Snapshot):
    assert recording_of(parse_spec(completed(""), base_dir="/base"), snapshot) is None


def test_a_key_is_recorded_with_the_column_of_the_shuffle(snapshot: Snapshot):
    found = recording_of(spec_of("[id, ds]", "{by: price}"), snapshot)
    assert found is not None
    assert found.work_dir == "/base/work"
    assert (found.identity.key, found.identity.names) == (("id",), ("id", "price"))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("[nothing]", "'nothing' cannot identify rows: got no column of that name"),
        ("[user]", "'user' cannot identify rows: got struct<"),
        ("[ds]", "consists of partition keys: got ds. Name a column of the files"),
    ],
)
def test_keys_that_identify_no_row_are_refused(snapshot: Snapshot, key: str, message: str):
    with pytest.raises(SpecError, match=f"source.row_key: {message}"):
        recording_of(spec_of(key), snapshot)
