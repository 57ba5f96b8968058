"""The same tests on every store: a table there gives what its local copy gives, and what is written there can be read.

Each store is a real server on loopback behind a proxy that injects faults: see tests/support/stores.py.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from leaks import all_descendants, no_leaks, remaining
from optimized import multiset, warehouse
from pipelines import Place, furnished, image
from s3_store import ALWAYS
from sample_logs import END_NS, drawn_logs, spec_of, write_logs
from stores import KINDS, Kind, furnished_store

from feedline import FeedlineDataset, Pipeline, Table
from feedline.errors import StoreError, TableArgumentError, TableChangedError, TableError, TableNotFoundError
from feedline.expressions import bind_where
from feedline.materialize.output_folder import OutputFolder
from feedline.planning.agreement import RunStart, choose_once
from feedline.warehouse.building.build import build
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.columns.change import add_columns, drop_columns
from feedline.warehouse.columns.values import ExpressionValues
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.optimize.optimize import TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.optimize.usage import load_uses, record_usage
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.selection.select import plan_fragments, screen_rows, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage import content_store, locations, retry
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.file_identity import known_files
from feedline.warehouse.storage.locations import list_folder, list_tree, locate
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

pytestmark = pytest.mark.nightly

QUICK = retry.RetryPolicy(first_s=0.01, longest_s=0.05, deadline_s=60)


@dataclass(frozen=True)
class Served:
    """A store of a kind, its port, and the proxy before it."""

    kind: Kind
    port: int
    proxy: Any

    def uri(self, path: str, **options: str) -> str:
        """The URI of `bucket/path…` behind the proxy."""
        return str(self.proxy.uri(path, **options))

    def put(self, path: str, content: bytes) -> None:
        """Write an object past the proxy."""
        self.kind.put(self.port, path, content)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest, clicks: Path) -> Iterator[Served]:
    with furnished_store(request.param, clicks) as (port, proxy):
        yield Served(request.param, port, proxy)


@pytest.fixture
def store(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The store without faults, with the credentials in the environment, and little patience."""
    for name, value in server.kind.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retry, "POLICY", QUICK)
    monkeypatch.setattr(retry, "budget", retry.Budget())
    monkeypatch.setattr(locations, "STALL_TIMEOUT_S", 5.0)
    server.proxy.forget()
    try:
        yield server
    finally:
        locate.cache_clear()  # its clients hold connections
        gc.collect()


@pytest.fixture(autouse=True)
def leak_scan(request: pytest.FixtureRequest) -> Iterator[None]:
    """As everywhere, but for Azure's client, whose connections stay in a pool of the process for a minute."""
    if "azure" in request.node.name:
        yield
        return
    with no_leaks():
        yield


@pytest.fixture(autouse=True, scope="module")
def module_leak_scan() -> Iterator[None]:
    """Servers and proxies have ended; connections are looked at after each test."""
    before = all_descendants()
    yield
    left = remaining(lambda: sorted(all_descendants().items() - before.items()))
    assert not left, f"processes left behind: {left}"


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def test_a_table_is_listed_and_read_as_its_local_copy(store: Served, clicks: Path) -> None:
    uri, local = store.uri("warehouse/clicks"), str(clicks)
    listed = discover(uri).files
    assert listed.drop_columns("mtime_ns").equals(discover(local).files.drop_columns("mtime_ns"))
    assert Table(uri).read(where='ds != "2026-01-02"').equals(Table(local).read(where='ds != "2026-01-02"'))


def test_an_epoch_and_its_rest_are_those_of_the_local_copy(store: Served, place: Place) -> None:
    local = place.write("local.yaml")
    path = place.write(source={"table": store.uri("warehouse/clicks")}, work_dir=store.uri("work/run"))
    expected = [image(batch) for batch in Pipeline.from_yaml(local).batches()]
    assert [image(batch) for batch in Pipeline.from_yaml(path).batches()] == expected
    half = len(expected) // 2
    assert [image(batch) for batch in Pipeline.from_yaml(path).batches(step=half)] == expected[half:]


def test_a_snapshot_and_counts_are_kept_in_the_store(store: Served, clicks: Path) -> None:
    work_dir = store.uri("work/kept")
    taken = take_snapshot(store.uri("warehouse/clicks"))
    snapshot = Snapshot.load(work_dir, taken.save(work_dir))
    assert snapshot.files.equals(taken.files)
    local = take_snapshot(str(clicks))
    assert snapshot.row_groups.equals(local.row_groups)
    bound = bind_where("clicked == 1", snapshot.schema)
    counted = select_rows(snapshot, bound, work_dir=work_dir)
    assert not counted.report.cached
    assert np.array_equal(counted.rows, select_rows(local, bound, work_dir=str(clicks.parent / "counts")).rows)
    assert select_rows(snapshot, bound, work_dir=work_dir).report.cached


def test_a_table_is_optimized_into_the_store_and_finished_there(store: Served, tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", days=2)
    uri = store.uri("work/optimized")
    expected = multiset(Table(str(source)).read())
    settings = Settings(cluster_by=("session",), sort_by=("ts",), row_group_rows=256)

    def run() -> tuple[int, int]:
        report = optimize(take_snapshot(str(source)), uri, settings, runner=TaskRunner(threads=2))
        return report.written, report.finished

    assert run() == (2, 0)
    assert multiset(Table(uri).read()) == expected
    assert run() == (0, 2)
    *_, lost = sorted(info.path for info in list_tree(locate(uri)) if "ds=2026-01-02" in info.path)
    locate(uri).filesystem.delete_file(lost)
    assert run() == (1, 1)
    assert multiset(Table(uri).read()) == expected
    left = [info.path for info in list_tree(locate(uri)) if info.type == pafs.FileType.File]
    assert [path for path in left if not path.endswith(".parquet")] == []


def test_a_table_is_built_in_the_store(store: Served, tmp_path: Path) -> None:
    write_logs(drawn_logs(51, rows=60), tmp_path / "logs", files=1)
    here = spec_of(tmp_path)
    uri = store.uri("work/samples")
    there = here.model_copy(update={"out": here.out.model_copy(update={"table": uri})})
    runner = TaskRunner(threads=2, memory_bytes=1 << 30)
    built = [build(spec, now_ns=END_NS, until_ns=END_NS, runner=runner).built for spec in (here, there, there)]
    assert built == [("ds=2026-01-01", "ds=2026-01-02")] * 2 + [()]
    assert Table(uri).read().equals(Table(tmp_path / "out").read())


def test_rows_are_deleted_and_columns_added_in_the_store(store: Served, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": np.arange(4000) % 7, "a": np.arange(4000)}), tmp_path / "f.parquet")
    store.put("work/deleted/ds=1/f.parquet", (tmp_path / "f.parquet").read_bytes())
    store.put("work/deleted/ds=2/f.parquet", (tmp_path / "f.parquet").read_bytes())
    uri = store.uri("work/deleted")
    table = Table(uri)
    add_columns(uri, ExpressionValues(expression="a * 2", name="twice"))
    report = table.delete("user == 3")
    assert report.is_met
    assert sorted(set(table.read().column("user").to_pylist())) == [0, 1, 2, 4, 5, 6]
    assert table.read().num_rows == 8000 - report.rows == 8000 - 2 * 571
    both = table.read(["a", "twice"])
    assert both["twice"].to_pylist() == [2 * each for each in both["a"].to_pylist()]
    drop_columns(uri, ["twice"])
    assert "twice" not in table.snapshot().schema.names


# -- writers that meet ------------------------------------------------------------------------------------------------


def test_records_of_two_jobs_are_both_kept(store: Served, clicks: Path) -> None:
    snapshot, work = take_snapshot(str(clicks)), store.uri("work/usage")
    for job in ("one", "two"):
        record_usage(work, snapshot, ["ts"], snapshot.rows_per_row_group, job=job)
    assert [use.job for use in load_uses(work, snapshot.uri)] == ["one", "two"]


def test_ranks_agree_on_what_lies_in_the_store(store: Served) -> None:
    taken = iter(["a", "b", "c"])

    def agreed(rank: int) -> str:
        start = RunStart(job="f" * 64, rank=rank, world_size=2, connected=True)
        return choose_once(start, store.uri("work/ranks"), lambda: next(taken), environment={})

    assert [agreed(0), agreed(1), agreed(0), agreed(1)] == ["a", "a", "b", "b"]


def test_of_two_runs_that_write_a_folder_the_later_one_has_it(store: Served) -> None:
    options: dict[str, Any] = {"uri": store.uri("work/claimed"), "hidden": "_hidden", "file": "run", "name": "t"}
    first, second = Claim(**options), Claim(**options)
    first.take()
    first.check()
    content_store.put(first.own(), "part/a", [b"a"])
    second.take()
    content_store.put(second.own(), "part/b", [b"b"])
    with pytest.raises(TableError, match="is no longer this run's"):
        first.check()
    filesystem, hidden = second.location.filesystem, second.location.path + "/_hidden"
    names = {info.base_name for info in list_folder(filesystem, hidden)}
    assert names == {"run", second.run}  # the files of the first are gone
    first.release()
    second.move([(f"{second.own().path}/part/b", f"{second.location.path}/b")])
    second.release()
    files = [info.path for info in list_tree(second.location) if info.type == pafs.FileType.File]
    assert files == [f"{second.location.path}/b"]


def test_a_folder_of_others_is_not_written_over(store: Served) -> None:
    """Its files lie in folders, which a store may not list."""
    uri = store.uri("warehouse/clicks")
    with pytest.raises(TableArgumentError, match=r"is not empty: it holds 'ds=2026-01-01'"):
        OutputFolder(uri, overwrite=True)
    with pytest.raises(TableArgumentError, match="is not empty"):
        generate_clicks(uri, ClickRecipe(rows=10, days=1))
    store.put("work/foreign/sub/data.csv", b"a")
    with pytest.raises(TableArgumentError, match="'sub', which is no ds= partition"):
        generate_clicks(store.uri("work/foreign"), ClickRecipe(rows=10, days=1), overwrite=True)


# -- caches -----------------------------------------------------------------------------------------------------------


def test_kept_bytes_are_not_requested_again(store: Served, tmp_path: Path) -> None:
    ref = CacheRef(folder=str(tmp_path / "cache"), size=2**30, free=0, shared=False)
    snapshot = replace(Table(store.uri("warehouse/clicks")).snapshot(), source_cache=ref)
    fragments = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
    request = ReadRequest(["request_id", "hist_0"], snapshot.schema)
    first = [read_arrow(each, request) for each in fragments]
    store.proxy.forget()
    assert [read_arrow(each, request) for each in fragments] == first
    assert store.proxy.counts()["range"] == 0


def test_a_file_is_opened_once(store: Served, tmp_path: Path) -> None:
    """Of a file on GCS each opening requests the whole object."""
    pq.write_table(pa.table({"a": np.arange(4000)}), tmp_path / "f.parquet", row_group_size=1000)
    store.put("work/opened/f.parquet", (tmp_path / "f.parquet").read_bytes())
    snapshot = Table(store.uri("work/opened")).snapshot()
    [fragment] = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
    read_arrow(fragment, ReadRequest(["a"], snapshot.schema))
    store.proxy.forget()
    read_arrow(fragment, ReadRequest(["a"], snapshot.schema))
    assert store.proxy.counts()["range"] == len(fragment.row_groups) == 4
    assert store.proxy.counts("alt=media")["GET"] <= 1
    assert store.proxy.counts()["GET"] + store.proxy.counts()["HEAD"] <= 1 + 1 + 4


# -- files that change ------------------------------------------------------------------------------------------------


def test_a_file_replaced_by_one_of_the_same_size_is_another(store: Served, tmp_path: Path) -> None:
    """At once, so that its time may be the same in a store that tells whole seconds."""

    def written(start: int) -> bytes:
        values = pa.array(np.arange(4000) + start)
        pq.write_table(
            pa.table({"a": values}), path := tmp_path / "f.parquet", compression="none", use_dictionary=False
        )
        return path.read_bytes()

    store.put("work/changing/f.parquet", written(0))
    before = Table(store.uri("work/changing")).snapshot()
    [fragment] = plan_fragments(before, screen_rows(before, None), 10**6)
    fragment.check()
    other = written(5)
    assert len(other) == before.files["bytes"][0].as_py()
    store.put("work/changing/f.parquet", other)
    for read in (fragment.check, lambda: read_arrow(fragment, ReadRequest(["a"], before.schema))):
        with pytest.raises(TableChangedError, match=r"f\.parquet changed after the snapshot was taken: got "):
            read()
    after = Table(store.uri("work/changing")).snapshot()
    assert not known_files(after.files, before.files).same.any()
    assert after.files["etag"][0].as_py() != before.files["etag"][0].as_py() != ""


# -- faults -----------------------------------------------------------------------------------------------------------


def test_faults_that_pass_change_nothing(store: Served, clicks: Path) -> None:
    """Google's and Azure's clients repeat a request themselves: four failures outlive Azure's."""
    columns = ["request_id", "hist_0", "str_0"]
    store.proxy.fault("server_error", **store.kind.listing)
    store.proxy.fault("slow_down", after=2, **store.kind.opening)
    store.proxy.fault("server_error", ranged=True, times=4)
    for place, kind in enumerate(["reset", "truncated", "slow_down", "short", "reset_body"]):
        store.proxy.fault(kind, ranged=True, after=8 + 2 * place)
    assert Table(store.uri("warehouse/clicks")).read(columns).equals(Table(str(clicks)).read(columns))
    assert all(met > least for met, least in store.proxy.met()), store.proxy.met()


def test_a_listing_that_fails_loses_no_folder(store: Served, clicks: Path) -> None:
    store.proxy.fault("server_error", times=5, **store.kind.listing)
    listed = discover(store.uri("warehouse/clicks")).files
    assert listed.drop_columns("mtime_ns").equals(discover(str(clicks)).files.drop_columns("mtime_ns"))
    assert all(met > least for met, least in store.proxy.met())


def test_a_store_that_stays_down_is_an_error(store: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "POLICY", retry.RetryPolicy(first_s=0.01, longest_s=0.05, deadline_s=0.1))
    store.proxy.fault("server_error", times=ALWAYS)
    with pytest.raises(StoreError, match=r"clicks could not be .*: gave up after \d+ attempts in .* s\.") as caught:
        Table(store.uri("warehouse/clicks")).snapshot()
    assert "?" not in str(caught.value)


# -- what is wrong ----------------------------------------------------------------------------------------------------


def test_what_is_missing_is_an_error_that_names_it(store: Served) -> None:
    for path in ("nowhere/t", "warehouse/nothing"):
        with pytest.raises(TableNotFoundError, match=rf"{path.split('/')[1]}.* does not exist: expected") as caught:
            Table(store.uri(path)).snapshot()
        assert store.uri(path).partition("?")[2] not in str(caught.value)
    with pytest.raises(TableError, match=r"(?i)does not exist") as caught:
        content_store.create(store.uri("nowhere/w"), "x/y", [pa.table({"a": [1]})])
    assert "?" not in str(caught.value)


def test_what_is_denied_is_an_error_without_secrets(store: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.kind.checks_keys:
        for name in store.kind.environment:
            monkeypatch.setenv(name, "d3Jvbmc=")  # "wrong"
    else:  # this server takes any key: its answer is the proxy's
        store.proxy.fault("denied", times=ALWAYS)
    with pytest.raises(TableError, match=r"may not be (read|listed): (the store denies it|permission denied)") as e:
        Table(store.uri("warehouse/clicks")).snapshot()
    assert not [each for each in (store.kind.secret, "d3Jvbmc=", "?") if each and each in str(e.value)]


# -- a run ------------------------------------------------------------------------------------------------------------


def test_a_training_that_is_resumed_has_the_same_batches(store: Served, place: Place) -> None:
    local = place.write("local.yaml")
    path = place.write(source={"table": store.uri("warehouse/clicks")}, work_dir=store.uri("work/training"))
    expected = [image(batch) for batch in Pipeline.from_yaml(local).batches()]
    got: list[bytes] = []
    state: dict[str, Any] | None = None
    for steps in (len(expected) // 3, None):
        with FeedlineDataset(path) as dataset:
            if state is not None:
                dataset.load_state_dict(state)
            for batch in dataset:
                got.append(image(batch))
                if steps is not None and len(got) == steps:
                    state = json.loads(json.dumps(dataset.state_dict()))
                    break
    assert got == expected
