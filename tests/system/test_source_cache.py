"""What a store has delivered is read from the cache: without requests for data, and never from a replaced file."""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place, eventually, furnished, image
from processes import SUPPORT, ended_here, running
from s3_store import ALWAYS, KEYS, Store, put, put_folder, s3_server

from feedline import Pipeline, Table
from feedline.blocks.cache import auto_choice
from feedline.blocks.cache.cache_costs import PolicyInputs
from feedline.blocks.cache.cache_policy import CacheDecision
from feedline.blocks.compute import pack_block, run_block
from feedline.errors import CorruptFileError, TableChangedError
from feedline.planning.plan import Plan
from feedline.warehouse.cache.cache_folder import CacheRef, open_folder
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.read import ReadRequest, read_arrow, read_fragment
from feedline.warehouse.selection.select import plan_fragments, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import ranges
from feedline.warehouse.storage.locations import locate
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

COLUMNS = ["request_id", "hist_0", "str_0"]
DATA = {"ranged": True}

READS = SUPPORT / "cached_reading.py"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of fewer row groups than the clicks have: each is a request per column."""
    folder = tmp_path_factory.mktemp("warehouse") / "small"
    recipe = ClickRecipe(rows=4_000, days=2, dense=2, strings=1, histories=1, row_group_rows=512, part_rows=1_024)
    generate_clicks(str(folder), recipe)
    return folder


@pytest.fixture(scope="module")
def server(clicks: Path, small: Path) -> Iterator[int]:
    """An S3 server that holds the click table and the small one: its port."""
    with s3_server() as port:
        put_folder(port, "warehouse", clicks)
        put_folder(port, "tables", small)
        yield port


@pytest.fixture
def s3(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store behind a proxy that counts requests; none is repeated by chance (see `storage.ranges`)."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranges, "_ends_with_mark", lambda source, position: True)
    made = Store(server)
    try:
        yield made
    finally:
        made.close()
        locate.cache_clear()  # its clients hold connections
        gc.collect()


@pytest.fixture
def ref(tmp_path: Path) -> CacheRef:
    return CacheRef(folder=str(tmp_path / "cache"), size=2**30, free=0, shared=False)


def frozen(uri: str, ref: CacheRef | None) -> tuple[Snapshot, list[Fragment]]:
    """A table's snapshot, read through the cache, and its fragments."""
    snapshot = replace(Table(uri).snapshot(), source_cache=ref)
    return snapshot, plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)


def rows(snapshot: Snapshot, fragments: list[Fragment], columns: list[str] | None = None) -> pa.Table:
    parts = [read_arrow(each, ReadRequest(columns or COLUMNS, snapshot.schema)) for each in fragments]
    return pa.concat_tables(parts)


def entries(ref: CacheRef) -> list[Path]:
    return sorted(Path(ref.folder).rglob("*.entry"))


def test_the_second_epoch_requests_no_data(s3: Store, ref: CacheRef, small: Path) -> None:
    expected = Table(str(small)).read(columns=COLUMNS)
    snapshot, fragments = frozen(s3.uri("tables/small"), ref)
    assert rows(snapshot, fragments).equals(expected)
    s3.forget()
    assert rows(snapshot, fragments).equals(expected)
    assert s3.counts() == {"HEAD": len(fragments)}


def test_another_column_is_fetched_alone(s3: Store, ref: CacheRef) -> None:
    snapshot, fragments = frozen(s3.uri("tables/small"), ref)
    plain, same = frozen(s3.uri("tables/small"), None)
    rows(snapshot, fragments)
    s3.forget()
    rows(plain, same, ["dense_1"])
    alone = sum(request.bytes for request in s3.requests if request.range)
    s3.forget()
    got = rows(snapshot, fragments, [*COLUMNS, "dense_1"])
    assert sum(request.bytes for request in s3.requests if request.range) == alone
    assert got.equals(rows(plain, same, [*COLUMNS, "dense_1"]))


def test_a_local_table_is_not_copied(ref: CacheRef, clicks: Path) -> None:
    snapshot, fragments = frozen(str(clicks), ref)
    assert rows(snapshot, fragments).num_rows == snapshot.rows
    assert not Path(ref.folder).exists()


def test_damaged_entries_are_fetched_again(s3: Store, ref: CacheRef) -> None:
    snapshot, fragments = frozen(s3.uri("tables/small"), ref)
    expected = rows(snapshot, fragments)
    for number, path in enumerate(entries(ref)):
        content = bytearray(path.read_bytes())
        content[(number * 7919 + 1) % len(content)] ^= 0x10
        path.write_bytes(content)
    assert rows(snapshot, fragments).equals(expected)
    assert open_folder(ref).counters.damaged > len(entries(ref)) / 2  # the others were hit where nothing is stored
    rows(snapshot, fragments)  # the damaged files are gone, with what was unharmed in them
    s3.forget()
    assert rows(snapshot, fragments).equals(expected)
    assert "range" not in s3.counts()


@pytest.mark.parametrize("times", [1, ALWAYS])
def test_bytes_damaged_on_the_wire_are_fetched_again_and_not_kept(
    s3: Store, ref: CacheRef, changing: Path, times: int
) -> None:
    snapshot, fragments = frozen(s3.uri("changing/t"), ref)
    with fragments[0].open():  # its footer is checked
        pass
    s3.fault("damaged", r"f\.parquet", times=times, **DATA)
    if times == 1:
        assert rows(snapshot, fragments, ["a"])["a"].to_pylist() == list(range(4000))
    else:
        with pytest.raises(CorruptFileError, match=r"f\.parquet, row group 0"):
            rows(snapshot, fragments, ["a"])
    assert open_folder(ref).counters.damaged == 1
    s3.forget()
    for _ in range(2):
        assert rows(snapshot, fragments, ["a"])["a"].to_pylist() == list(range(4000))
    assert open_folder(ref).counters.damaged == 1
    s3.forget()
    assert rows(snapshot, fragments, ["a"]).num_rows == 4000
    assert "range" not in s3.counts()


def test_a_cache_smaller_than_the_table_evicts(s3: Store, ref: CacheRef) -> None:
    snapshot, fragments = frozen(s3.uri("tables/small"), ref)
    expected = rows(snapshot, fragments)
    whole = open_folder(ref).space.rescan()
    small = replace(ref, folder=ref.folder + "2", size=whole // 2)
    snapshot, fragments = frozen(s3.uri("tables/small"), small)
    for _ in range(3):
        assert rows(snapshot, fragments).equals(expected)
        assert open_folder(small).space.rescan() <= whole // 2 + whole // len(entries(ref)) * 2


def test_auto_keeps_what_the_store_delivered_where_features_do_not_pay(
    s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[PolicyInputs]()

    def choose(inputs: PolicyInputs) -> CacheDecision:
        found.append(inputs)
        return CacheDecision(mode="source", writes=True, kept={}, predictions=(), reason="source: test")

    monkeypatch.setattr(auto_choice, "choose_mode", choose)
    spec = {
        "version": 1,
        "name": "remote",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": s3.uri("tables/small")},
        "features": {"dense": {"dense_1": [{"fill_null": 0}]}, "sparse": {"hist_0": []}},
        "shuffle": "off",
        "batch": {"size": 50},
    }
    plain = Pipeline.from_dict(spec).plan()
    plan = Pipeline.from_dict(spec | {"cache": str(tmp_path / "cache")}).plan()
    assert plan.source.job.auto is not None
    assert plan.source.job.auto.store_bytes == plan.source.row_group_bytes.sum() > 0

    def blocks(plan: Plan, epoch: int) -> list[bytes]:
        requests = [plan.request(block, epoch) for block in plan.source.schedule(epoch).blocks(0, everything=True)]
        results = [run_block(plan.source.job, request, "b", False) for request in requests]
        return [pack_block(plan.layout, each.parts or ()).to_pybytes() for each in results]

    expected = blocks(plain, 0)
    for epoch in range(2):
        assert blocks(plan, epoch) == expected
    assert found[0].store.remote
    assert sum(each.store_bytes for each in found[0].features) > 0
    s3.forget()
    assert blocks(plan, 2) == expected
    assert "range" not in s3.counts()


# -- files that change ------------------------------------------------------------------------------------------------


@pytest.fixture
def changing(s3: Store, server: int, tmp_path: Path) -> Path:
    """A table of one file with two row groups, in a bucket of its own; and its folder."""
    folder = tmp_path / "t"
    folder.mkdir()
    write(folder / "f.parquet", 0)
    put_folder(server, "changing", folder)
    return folder


def write(path: Path, first: int) -> None:
    values = pa.table({"a": np.arange(4000) + first})
    pq.write_table(values, path, row_group_size=2000, compression="none", use_dictionary=False)


@pytest.mark.parametrize("change", ["replaced", "truncated", "deleted"])
def test_a_changed_file_is_refused_although_all_its_bytes_are_kept(
    s3: Store, ref: CacheRef, server: int, changing: Path, change: str
) -> None:
    snapshot, [fragment] = frozen(s3.uri("changing/t"), ref)
    chunks = read_fragment(fragment, ReadRequest(["a"], snapshot.schema))
    assert pl.concat([chunk.frame for chunk in chunks])["a"].to_list() == list(range(4000))
    other = changing / "other.parquet"
    write(other, 5)
    if change == "deleted":
        s3.fault("missing", r"f\.parquet", times=ALWAYS)
    else:
        content = other.read_bytes()
        put(server, "changing/t/f.parquet", content if change == "replaced" else content[:20_000])
    with pytest.raises(TableChangedError, match=r"f\.parquet (was replaced|changed|is gone)"):
        read_arrow(fragment, ReadRequest(["a"], snapshot.schema))
    if change == "replaced":
        again, [fragment] = frozen(s3.uri("changing/t"), ref)
        assert read_arrow(fragment, ReadRequest(["a"], again.schema))["a"].to_pylist() == list(range(5, 4005))


# -- several processes ------------------------------------------------------------------------------------------------


def test_two_processes_that_read_the_same_fetch_it_once(s3: Store, ref: CacheRef) -> None:
    snapshot, fragments = frozen(s3.uri("warehouse/clicks"), None)
    rows(snapshot, fragments)
    s3.forget()
    rows(snapshot, fragments)
    once = s3.counts()["range"]
    s3.fault("delay", seconds=0.02, times=ALWAYS, **DATA)
    with ExitStack() as stack:
        programs = [
            stack.enter_context(running(sys.executable, READS, s3.uri("warehouse/clicks"), ref.folder))
            for _ in range(2)
        ]
        for program in programs:
            program.line("ready")
        with s3.lock:
            s3.requests.clear()
        for program in programs:
            program.send(signal.SIGUSR1)
        for program in programs:
            program.line(str(snapshot.rows))
            assert program.wait() == 0
    footers = 2 * snapshot.files.num_rows  # each process checks them itself
    # Now and then a row group is looked up just before it is kept, or a range ends with a mark.
    assert once <= s3.counts()["range"] - footers <= 1.2 * once + 2


@pytest.mark.parametrize("part", [0.5, *(pytest.param(part, marks=pytest.mark.nightly) for part in (0.1, 0.9))])
def test_a_process_killed_while_it_fills(s3: Store, ref: CacheRef, clicks: Path, part: float) -> None:
    s3.fault("delay", seconds=0.02, times=ALWAYS, **DATA)
    with running(sys.executable, READS, s3.uri("warehouse/clicks"), ref.folder) as program:
        program.line("ready")
        files = s3.counts()["range"]
        program.send(signal.SIGUSR1)
        assert eventually(lambda: s3.counts()["range"] >= (1 + part) * files)
        program.send(signal.SIGKILL)
        program.wait()
    s3.forget()
    snapshot, fragments = frozen(s3.uri("warehouse/clicks"), ref)
    expected = Table(str(clicks)).read(columns=COLUMNS)
    began_s = time.monotonic()
    assert rows(snapshot, fragments).equals(expected)
    assert time.monotonic() - began_s < 30, "a dead process holds no row group"
    s3.forget()
    assert rows(snapshot, fragments).equals(expected)
    assert "range" not in s3.counts()


# -- pipelines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def remote(s3: Store, place: Place, name: str, **changes: Any) -> Path:
    """A pipeline over the table in the store that keeps what it reads in `cache`."""
    cache = {"dir": "cache", "mode": "source", "size": "1GiB", "free": "1MiB"}
    return place.write(name, source={"table": s3.uri("warehouse/clicks")}, cache=cache, **changes)


def test_batches_are_those_of_the_local_table_and_request_no_data_twice(s3: Store, place: Place) -> None:
    expected = [image(batch) for batch in Pipeline.from_yaml(place.write("local.yaml")).batches()]
    path = remote(s3, place, "first.yaml")
    assert [image(batch) for batch in Pipeline.from_yaml(path).batches()] == expected
    s3.forget()
    pipeline = Pipeline.from_yaml(path)
    assert [image(batch) for batch in pipeline.batches()] == expected
    # The batches of another job: another seed, order and epoch.
    other = Pipeline.from_yaml(remote(s3, place, "other.yaml", shuffle={"seed": 8}))
    assert sum(1 for _ in other.batches(epoch=3)) == len(expected)
    data = [each for each in s3.requests if each.range and each.path.endswith(".parquet") and each.bytes > 70_000]
    assert data == []


def test_a_run_reads_from_the_cache_what_worker_processes_kept(s3: Store, place: Place) -> None:
    summaries, fetched = [], []
    for cluster in ({"workers": 1, "threads": 1}, {"threads": 1}):
        path = remote(s3, place, "run.yaml", cluster=cluster)
        s3.forget()
        done = ended_here("run", path, "--sink", "null", "--json")
        assert done.returncode == 0, done.stderr
        summaries.append(json.loads(done.stdout)["bytes_delivered"])
        fetched.append(sum(each.bytes for each in s3.requests if each.range))
    assert summaries[0] == summaries[1]
    assert fetched[1] < fetched[0] / 3, "the second run requests footers alone"
    assert (place.folder / "cache" / "feedline-cache.json").exists()


def test_a_deep_check_reads_the_store(s3: Store, place: Place) -> None:
    path = remote(s3, place, "deep.yaml")
    sum(1 for _ in Pipeline.from_yaml(path).batches())
    footers = Table(s3.uri("warehouse/clicks")).snapshot().files.num_rows
    s3.fault("damaged", r"\.parquet", ranged=True, after=footers, times=ALWAYS)
    done = ended_here("check", path, "--deep")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "is not valid Parquet" in done.stdout


def test_counting_and_fits_read_through_the_cache(s3: Store, place: Place) -> None:
    features = {"categorical": {"str_0": ["vocabulary"]}, "label": {"clicked": []}}
    path = remote(s3, place, "fit.yaml", features=features)
    where = {"source.where": "dense_0 > 0"}
    Pipeline.from_yaml(path, where).fit()
    first = sum(each.bytes for each in s3.requests if each.range)
    s3.forget()
    Pipeline.from_yaml(path, where).fit()
    assert sum(each.bytes for each in s3.requests if each.range) < first / 3
