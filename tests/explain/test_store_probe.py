"""A probe finds what a limited store delivers, reads what the plan reads, past caches, and says why it cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from costly_tables import costly_pipeline
from s3_store import ALWAYS, KEYS, Store, put_folder, s3_server

from feedline import Pipeline
from feedline.errors import FeedlineError, PlanError, TableChangedError
from feedline.explain import store_probe
from feedline.explain.explanation import Explanation
from feedline.explain.store_probe import explained_with_probe, probe_store
from feedline.planning.plan import Plan
from feedline.spec import load_spec
from feedline.warehouse.storage.locations import locate

MB = 1e6
LEVEL_S = 0.2
LISTS = {"sparse": {"hist": []}}


def running() -> bool:
    """Nothing ends the probe."""
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """An S3 server's port, and the local folder of the table that it holds."""
    folder = tmp_path_factory.mktemp("probed")
    costly_pipeline(folder / "t", rows=4_096, row_group_rows=1_024, list_mean=60)
    with s3_server() as port:
        put_folder(port, "warehouse", folder / "t" / "table")
        yield port, folder / "t" / "table"


@pytest.fixture
def s3(server: tuple[int, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    made = Store(server[0])
    yield made
    made.close()
    locate.cache_clear()


def pipeline_on(store: Store, folder: Path, **keys: Any) -> Path:
    """A pipeline that reads lists of the table in the store."""
    source = {"table": store.uri("warehouse/table")}
    return costly_pipeline(
        folder / "p", rows=1, row_group_rows=1, list_mean=1, files=1, source=source, features=LISTS, **keys
    )


def plan_on(store: Store, folder: Path, **keys: Any) -> Plan:
    return Pipeline.from_yaml(pipeline_on(store, folder, **keys)).plan()


def list_bytes(folder: Path) -> int:
    """Compressed bytes of the lists in a table's files."""
    found = 0
    for path in folder.glob("*.parquet"):
        metadata = pq.read_metadata(path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            chunks = map(group.column, range(group.num_columns))
            found += sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.startswith("hist"))
    return found


@pytest.mark.nightly
def test_the_rate_of_a_store_that_its_readers_share(s3: Store, tmp_path: Path) -> None:
    plan = plan_on(s3, tmp_path)
    s3.bytes_per_s = 10 * MB
    rate = probe_store(plan, running, LEVEL_S)
    assert len(rate.levels) > 1
    assert rate.best.bytes_per_s <= 12 * MB  # reads that reach beyond a level count as if they were even
    assert sum(each.bytes for each in s3.requests) >= rate.nbytes


@pytest.mark.nightly
def test_the_column_chunks_of_the_plan_are_read_past_the_cache(
    s3: Store, server: tuple[int, Path], tmp_path: Path
) -> None:
    plan = plan_on(s3, tmp_path, cache={"dir": str(tmp_path / "cache"), "mode": "source"}, epochs=2)
    nbytes = list_bytes(server[1])
    s3.forget()
    probe_store(plan, running, LEVEL_S)
    reads = {(each.path, each.range): each.bytes for each in s3.requests if each.range and each.bytes > nbytes // 16}
    assert len(reads) == 8  # row groups of the two files
    assert nbytes <= sum(reads.values()) <= 1.01 * nbytes
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.stat().st_size > nbytes // 16]


@pytest.mark.nightly
def test_transient_failures_are_repeated(s3: Store, tmp_path: Path) -> None:
    plan = plan_on(s3, tmp_path)
    fault = s3.fault("reset", r"\.parquet", ranged=True, after=3)
    assert probe_store(plan, running, LEVEL_S).nbytes > 0
    assert fault.met > 3


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["denied", "missing"])
def test_a_store_that_refuses_is_named_in_the_explanation(s3: Store, tmp_path: Path, kind: str) -> None:
    path = pipeline_on(s3, tmp_path)
    Pipeline.from_yaml(path).plan()
    s3.fault(kind, r"\.parquet", times=ALWAYS)
    run = Explanation(name="n", source="short run", ranks=(), seconds=0.0)
    found = explained_with_probe(run, load_spec(path, {}), None, running)
    assert found.store is not None
    assert ".parquet" in found.store["skipped"]
    assert found.ranks == ()


def test_a_file_that_changed_is_said(tmp_path: Path) -> None:
    plan = Pipeline.from_yaml(costly_pipeline(tmp_path / "t", rows=512, row_group_rows=512, list_mean=2)).plan()
    one, other = (tmp_path / "t" / "table" / f"{name}.parquet" for name in (0, 1))
    one.write_bytes(other.read_bytes())
    with pytest.raises(TableChangedError, match=r"0\.parquet"):
        probe_store(plan, running, LEVEL_S)


@pytest.mark.nightly
def test_a_stop_ends_it(s3: Store, tmp_path: Path) -> None:
    plan = plan_on(s3, tmp_path)
    asked = threading.Event()

    def stop() -> bool:
        if s3.counts(r"\.parquet")["range"] > 4:
            asked.set()
        return asked.is_set()

    with pytest.raises(PlanError, match="not measured to the end: stopped"):
        probe_store(plan, stop, 60.0)
    path = tmp_path / "p" / "p.yaml"
    run = Explanation(name="n", source="short run", ranks=(), seconds=0.0)
    found = explained_with_probe(run, load_spec(path, {}), None, lambda: True)
    assert found.store == {"skipped": "not measured"}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_local_files_count_if_their_bytes_come_from_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    plan = Pipeline.from_yaml(costly_pipeline(tmp_path / "t", rows=512, row_group_rows=512, list_mean=9)).plan()
    dropped: list[tuple[int, int]] = []
    monkeypatch.setattr(store_probe.os, "posix_fadvise", lambda _file, start, size, _: dropped.append((start, size)))
    monkeypatch.setattr(store_probe, "_disk_bytes", lambda: int(share * sum(size for _, size in dropped)))
    if share:
        assert probe_store(plan, running, LEVEL_S).nbytes == sum(size for _, size in dropped)
        return
    with pytest.raises(FeedlineError, match="as bytes came from memory: got 0 MB from a disk"):
        probe_store(plan, running, LEVEL_S)


def test_a_plan_that_reads_no_file_has_nothing_to_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Pipeline.from_yaml(costly_pipeline(tmp_path / "t", rows=512, row_group_rows=512, list_mean=2)).plan()
    monkeypatch.setattr(store_probe, "stored_ranges", lambda *_: [])
    with pytest.raises(PlanError, match="the plan reads no bytes of the store"):
        probe_store(plan, running, LEVEL_S)
