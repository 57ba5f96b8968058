"""A job is sent to each worker once and compiled once, and sent again to a worker that lacks it."""

from __future__ import annotations

import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import PATIENCE_S, eventually

from feedline import Pipeline
from feedline.blocks import jobs
from feedline.blocks.jobs import UnknownJobError, check_job, compile_job, compile_like, find_job
from feedline.blocks.single_flight import IDLE_KEPT, IDLE_S, SingleFlight
from feedline.config.cluster_section import ClusterSpec
from feedline.config.features import FeatureSpec
from feedline.fitting import observe
from feedline.loader.wire.facts import BlockStats
from feedline.planning.plan import Plan
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder.delivery import Delivery, StreamBlocks
from feedline.service.feeder.window import Window, WindowLimits
from feedline.transforms.compile import compiled
from feedline.transforms.compile.chains import Compiler

ROWS = 64


def planned(folder: Path, features: int) -> Plan:
    """Two blocks of a table whose columns all are features."""
    columns = {f"column_{number}": np.arange(ROWS, dtype="f4") for number in range(features)}
    pq.write_table(
        pa.table({**columns, "clicked": np.zeros(ROWS, "f4")}), folder / "t.parquet", row_group_size=ROWS // 2
    )
    ops = [{"fill_null": 0}, "log1p", {"clip": {"min": 0, "max": 9}}]
    document = {
        "version": 1,
        "name": "n",
        "work_dir": str(folder / "w"),
        "source": {"table": str(folder / "t.parquet"), "split_rows": ROWS // 2},
        "features": {
            "dense": {f"feature_{number}": {"column": f"column_{number}", "ops": ops} for number in range(features)},
            "label": {"clicked": []},
        },
        "batch": {"size": 8},
        "shuffle": {"window_rows": ROWS // 2},
    }
    (folder / "p.yaml").write_text(json.dumps(document))
    return Pipeline.from_yaml(folder / "p.yaml").plan()


def test_a_feeder_compiles_its_features_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    built: list[str] = []

    class Counted(Compiler):
        def feature(self, feature: FeatureSpec) -> Any:
            built.append(feature.name)
            return super().feature(feature)

    monkeypatch.setattr(compiled, "Compiler", Counted)
    plan = planned(tmp_path, 20)
    assert not plan.source.gaps.nulls
    job = compile_job(plan.source.job, plan.source.features)
    coded = job.parts[0].coded_columns
    plain = coded.split(())
    assert plain is not None
    assert plain[0].outputs == plan.source.features.outputs
    assert sorted(built) == sorted(feature.name for feature in plan.source.features.features)


def test_some_features_of_groups_have_the_runs_of_all(tmp_path: Path):
    """What all of a group's features read is read, compared, and not cut to what some need."""
    table = pa.table({"ids": [[1, 2], [1, 2]], "words": [["a"], ["b"]], "age": [0.5, 1.5], "clicked": [0.0, 1.0]})
    pq.write_table(table, tmp_path / "t.parquet")
    document = {
        "version": 1,
        "name": "n",
        "work_dir": str(tmp_path / "w"),
        "source": {"table": str(tmp_path / "t.parquet")},
        "features": {
            "dense": {"age": []},
            "sparse": {"ids": [{"first_x": 1}], "words": [{"first_x": 1}, {"hash_bucket": 9}]},
            "label": {"clicked": []},
        },
        "dedup": {"user": {"columns": ["ids", "words", "age"]}},
        "batch": {"size": 2},
        "shuffle": "off",
    }
    job = Pipeline.from_dict(document).plan().source.job
    whole = compile_job(job)
    some = replace(job, features=tuple(each for each in job.features if each.name == "words"))
    like = compile_like(some, whole)
    assert like.parts[1].columns == whole.parts[1].columns
    assert set(like.read.columns) == {"ids", "words", "age"}
    assert dict(like.read.coded) == {"words": 0}
    assert compile_like(some, whole) is like
    assert compile_job(some).parts[1].columns == ("words",)


def delivery_of(plan: Plan, cluster: Any) -> Delivery:
    window = Window(WindowLimits(open_blocks=1, memory_bytes=2**30, fixed_blocks=8))
    blocks = replace(StreamBlocks.of(plan, 0, range(plan.lanes)), batch_rows=0)
    return Delivery(cluster, blocks, window=window, wake=lambda: None, stats=BlockStats())


def test_a_worker_that_does_not_know_the_job_gets_it_with_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan = planned(tmp_path, 3)
    with closing(open_cluster(ClusterRequest(ClusterSpec(threads=1), threads=1))) as cluster:
        delivery = delivery_of(plan, cluster)
        monkeypatch.setattr(jobs, "_jobs", SingleFlight())  # as in a process that came later
        delivery.pump(plan.schedule(0).steps)
        assert eventually(lambda: delivery.get(0, 0) is not None and delivery.get(0, 1) is not None)
        assert 1 <= delivery.stats.resubmitted <= 2
        delivery.close()


def test_a_checked_job_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    job = planned(tmp_path, 3).source.job
    monkeypatch.setattr(jobs, "_jobs", SingleFlight())
    with pytest.raises(UnknownJobError, match=job.digest):
        find_job(job.digest)
    check_job(pickle.loads(pickle.dumps(job)))
    assert find_job(job.digest) == job


@pytest.mark.parametrize(("module", "compiled"), [(jobs, "compile_job"), (observe, "compile_fit")])
def test_threads_compile_a_job_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, compiled: str):
    """Eight Dask threads begin with their first blocks at the same moment."""
    job: Any = planned(tmp_path, 3).source.job
    if module is observe:
        rows = observe.TableConditions(where=job.where, sample=job.sample, schema=job.schema)
        known = {name: getattr(job, name) for name in ("features", "artifacts", "environment", "code")}
        job = observe.FitJob(**known, rows=rows, keys=(), scratch=None)  # type: ignore[arg-type]  # it needs none
    monkeypatch.setattr(module, "_compiled_fits" if module is observe else "_compiled", SingleFlight())
    calls: list[int] = []
    every, real = threading.Barrier(8), module.check_functions
    several = threading.Event()

    def counting(code: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            several.set()
        several.wait(0.2)  # time for another thread to come in, were it let
        real(code)

    monkeypatch.setattr(module, "check_functions", counting)

    def first(_: int) -> Any:
        every.wait(PATIENCE_S)
        return getattr(module, compiled)(job)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(first, range(8)))
    assert len(calls) == 1
    assert all(result is results[0] for result in results)


def test_values_in_use_stay_cached():
    now = [0.0]
    kept: SingleFlight[int, int] = SingleFlight(now_s=lambda: now[0])
    made: list[int] = []

    def ask(key: int) -> int:
        return kept.get(key, lambda: made.append(key) or -key)

    for _ in range(3):
        assert [ask(key) for key in range(50)] == [-key for key in range(50)]
        now[0] += IDLE_S / 2
    assert made == list(range(50))
    now[0] += 2 * IDLE_S
    ask(100)  # of the others the last few stay
    made.clear()
    for key in range(50 - IDLE_KEPT, 50):
        ask(key)
    assert made == []
    ask(0)
    assert made == [0]


def test_a_failed_value_is_computed_again():
    kept: SingleFlight[str, int] = SingleFlight()

    def fails() -> int:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        kept.get("a", fails)
    assert kept.get("a", lambda: 1) == kept.get("a", fails) == 1
