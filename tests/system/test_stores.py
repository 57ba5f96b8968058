"""A table on S3 gives exactly what its local copy gives, whatever the store does in between: a real S3 server on
loopback, and a proxy before it that breaks what it is told to break.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place, eventually, furnished, image
from processes import ended_here, feedline, finished
from s3_store import ALWAYS, KEYS, Store, put, put_folder, s3_server

from feedline import Pipeline, Table
from feedline.errors import CorruptFileError, StoreError, TableChangedError, TableError, TableNotFoundError
from feedline.expressions import bind_where
from feedline.planning.agreement import RunStart, choose_once
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.optimize.usage import load_uses, record_usage
from feedline.warehouse.parquet import open_file
from feedline.warehouse.reading.read import ReadRequest, read_arrow, read_fragment
from feedline.warehouse.selection.select import plan_fragments, screen_rows, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage import content_store, locations, ranges, retry
from feedline.warehouse.storage.file_identity import known_files
from feedline.warehouse.storage.locations import locate

QUICK = retry.RetryPolicy(first_s=0.01, longest_s=0.05, deadline_s=30)
SECRET = KEYS["AWS_SECRET_ACCESS_KEY"]
BUSY = {"slow_down": 6, "server_error": 3, "reset": 3, "reset_body": 3, "truncated": 3, "short": 3, "hang": 1}
LIST, OPEN, DATA = {"path": "list-type", "ranged": False}, {"method": "HEAD"}, {"ranged": True}


@pytest.fixture(scope="module")
def clicks(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each day: most of the time of these tests is the server's, for each request."""
    half = tmp_path_factory.mktemp("half") / "clicks"
    for file in clicks.rglob("part-00000.parquet"):
        (half / file.parent.name).mkdir(parents=True)
        shutil.copy(file, half / file.parent.name)
    return half


@pytest.fixture(scope="module")
def server(clicks: Path) -> Iterator[int]:
    """An S3 server that holds the click table: its port."""
    with s3_server() as port:
        put_folder(port, "warehouse", clicks)
        put(port, "work")
        yield port


@pytest.fixture
def s3(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store behind a proxy of the test's own, with little patience."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retry, "POLICY", QUICK)
    monkeypatch.setattr(retry, "budget", retry.Budget())
    monkeypatch.setattr(locations, "STALL_TIMEOUT_S", 1.0)
    made = Store(server)
    try:
        yield made
    finally:
        made.close()
        locate.cache_clear()  # its clients hold connections
        gc.collect()


@pytest.fixture
def counted_s3(s3: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store for tests that count requests: nothing is requested twice by chance.

    Under load an answer may take longer than the short timeout of `s3`. And a range that happens to end with the mark
    of `ranges` costs one more request; the contents of snapshots differ from run to run, as they hold upload times.
    """
    monkeypatch.setattr(locations, "STALL_TIMEOUT_S", 60.0)
    monkeypatch.setattr(ranges, "_ends_with_mark", lambda source, position: True)
    return s3


def remote(s3: Store) -> Table:
    return Table(s3.uri("warehouse/clicks"))


def test_the_usage_record_survives_a_busy_store_and_says_what_is_wrong(s3: Store, clicks: Path) -> None:
    snapshot, work = take_snapshot(str(clicks)), s3.uri("work/usage")
    s3.fault("server_error", times=2, **LIST)
    record_usage(work, snapshot, ["ts"], snapshot.rows_per_row_group, job="job")
    s3.forget()
    fault = s3.fault("server_error", times=2, **LIST)
    assert [set(use.columns) for use in load_uses(work, snapshot.uri)] == [{"ts"}]
    assert fault.met > fault.times
    s3.forget()
    s3.fault("denied", times=ALWAYS, **LIST)
    with pytest.raises(TableError, match=r"s3://work/usage/.* may not be listed: the store denies it"):
        load_uses(work, snapshot.uri)


# -- faults that pass ---------------------------------------------------------------------------------------------


# Of answers, of bodies that end early, and of silence, one each; test_every_request_fails_once has all but the last.
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("slow_down", "truncated", "hang") else pytest.mark.nightly)
        for kind in BUSY
    ],
)
def test_rows_counts_and_artifacts_are_those_of_the_local_copy(s3: Store, clicks: Path, kind: str) -> None:
    where = 'clicked == 1 and ds != "2026-01-02"'
    spots = [LIST, DATA, {**DATA, "after": 15}] if kind != "hang" else [LIST, DATA]
    if kind not in ("reset_body", "truncated", "short", "hang"):  # answers to these have no body
        spots += [{"method": "PUT"}, OPEN]
    faults = [s3.fault(kind, times=BUSY[kind], seconds=30, **spot) for spot in spots]
    local = take_snapshot(str(clicks))
    work_dir = s3.uri("work/" + kind)
    taken = take_snapshot(s3.uri("warehouse/clicks"))
    snapshot = Snapshot.load(work_dir, taken.save(work_dir))
    assert snapshot.files.drop_columns(["mtime_ns", "etag"]).equals(local.files.drop_columns("mtime_ns"))
    assert snapshot.row_groups.equals(local.row_groups)
    bound = bind_where(where, snapshot.schema)
    counted = select_rows(snapshot, bound, work_dir=work_dir)
    assert not counted.report.cached
    assert np.array_equal(counted.rows, select_rows(local, bound, work_dir=str(clicks.parent / "w")).rows)
    assert select_rows(snapshot, bound, work_dir=work_dir).report.cached
    assert remote(s3).read(where=where).equals(Table(str(clicks)).read(where=where))
    assert all(fault.met > fault.after + fault.times for fault in faults), faults  # each was met, and outlived


def test_a_slow_store_only_takes_longer(s3: Store, clicks: Path) -> None:
    s3.fault("delay", seconds=0.05, times=ALWAYS)
    here, there = (Table(f"{clicks}/ds=2026-01-01"), Table(s3.uri("warehouse/clicks/ds=2026-01-01")))
    assert there.read(columns=["request_id"]).equals(here.read(columns=["request_id"]))


def test_every_request_fails_once(s3: Store, clicks: Path) -> None:
    """Each in another way, so that nothing depends on where in a read the fault happens."""
    kinds = ["reset", "server_error", "truncated", "short", "slow_down", "reset_body"]
    for i in range(60):
        s3.fault(kinds[i % len(kinds)], after=2 * i, **DATA)
    columns = ["request_id", "hist_0", "str_0", "dense_1"]
    assert remote(s3).read(columns).equals(Table(str(clicks)).read(columns))


def test_a_listing_that_never_ends_well_is_taken_apart(s3: Store, clicks: Path) -> None:
    """The whole table cannot be listed at once, its folders can."""
    whole = s3.fault("server_error", r"\?list-type.*prefix=clicks%2F$", times=ALWAYS)
    folder = s3.fault("truncated", r"\?list-type.*2026-01-02", times=ALWAYS)
    listing = discover(s3.uri("warehouse/clicks"))
    assert listing.files.drop_columns("mtime_ns").equals(discover(str(clicks)).files.drop_columns("mtime_ns"))
    assert whole.met == 1
    assert folder.met == 1


def test_a_manifest_in_the_store(s3: Store, server: int, clicks: Path) -> None:
    names = sorted(str(path.relative_to(clicks.parent)) for path in clicks.rglob("ds=2026-01-02/*.parquet"))
    put(server, "warehouse/manifest.json", json.dumps([s3.uri(f"warehouse/{name}") for name in names]).encode())
    for spot in ({"ranged": False}, OPEN, DATA):
        s3.fault("slow_down", times=2, **spot)
    s3.fault("short", r"manifest\.json", ranged=True)
    got = Table.from_manifest(s3.uri("warehouse/manifest.json")).snapshot()
    assert got.rows == Table([str(clicks.parent / name) for name in names]).snapshot().rows


READS = """
import sys
from feedline import Table
for uri in sys.argv[1:]:
    print(Table(uri).read(["request_id", "hist_0"]).num_rows)
import fsspec
from feedline.warehouse.storage import content_store as store
import pyarrow as pa
store.create("memory://w", "x/y", [pa.table({"a": [1]})])
print(store.load("memory://w", "x/y", 1)[0].num_rows)
"""


def test_a_process_that_read_from_stores_ends_well(s3: Store) -> None:
    """pyarrow aborts at exit where its threads still hold a Python file, or S3 was shut down under a client."""
    done = finished(sys.executable, "-c", READS, s3.uri("warehouse/clicks/ds=2026-01-01"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "3333\n1\n", "")


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def test_a_run_and_its_batches(s3: Store, place: Place) -> None:
    local = place.write("local.yaml")
    source = {"table": s3.uri("warehouse/clicks"), "where": "dense_0 is not None"}
    path = place.write(source=source, work_dir=s3.uri("work/run"))
    expected = [image(batch) for batch in Pipeline.from_yaml(local, {"source.where": source["where"]}).batches()]
    for i, kind in enumerate(["server_error", "reset", "truncated", "slow_down", "short"]):
        s3.fault(kind, after=2 + 2 * i, **DATA)
    assert [image(batch) for batch in Pipeline.from_yaml(path).batches()] == expected
    s3.forget()
    for i, kind in enumerate(["server_error", "reset", "truncated", "slow_down", "short"]):
        s3.fault(kind, after=2 + 2 * i, **DATA)
    s3.fault("server_error", method="PUT")
    done = ended_here("run", path, "--sink", "null", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["bytes_delivered"] == sum(map(len, expected))
    assert summary["batches"] == len(expected)
    assert all(fault.met > fault.after for fault in s3.faults)
    assert SECRET not in done.stderr + done.stdout + path.read_text()


def test_a_signal_while_a_run_waits_for_the_store(s3: Store, place: Place) -> None:
    path = place.write(source={"table": s3.uri("warehouse/clicks")}, work_dir=s3.uri("work/signal"))
    fault = s3.fault("slow_down", times=ALWAYS, **DATA)
    with feedline("run", path, "--sink", "null", env={**os.environ, **KEYS}) as program:
        assert eventually(lambda: fault.met > 3)
        sent_s = time.monotonic()
        program.send(signal.SIGINT)
        assert program.wait() == 130
        assert time.monotonic() - sent_s < 12


def test_what_ranks_agree_on_lies_in_the_store_too(s3: Store, server: int) -> None:
    s3.fault("slow_down", path="/runs/", method="GET|HEAD", times=2)
    s3.fault("reset", path="/runs/", method="PUT", times=2)
    taken = iter(["a", "b", "c"])

    def agreed(rank: int) -> str:
        start = RunStart(job="f" * 64, rank=rank, world_size=2, connected=True)
        return choose_once(start, s3.uri("work/ranks"), lambda: next(taken), environment={})

    assert [agreed(0), agreed(1), agreed(0), agreed(1)] == ["a", "a", "b", "b"]
    s3.fault("denied", path="/runs/", times=ALWAYS)
    with pytest.raises(TableError, match="the store denies it"):
        agreed(0)  # not to be able to look is not to find nothing


# -- faults that stay ---------------------------------------------------------------------------------------------


def test_a_store_that_stays_down_is_told(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "POLICY", retry.RetryPolicy(first_s=0.01, longest_s=0.1, deadline_s=0.2))
    snapshot = remote(s3).snapshot()
    [fragment, *_] = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
    for kind, words in (
        ("slow_down", "SLOW_DOWN.*reduce your request rate"),
        ("truncated", "Transferred a partial file"),
        ("short", "answer is too short"),
        ("reset", "Connection reset by peer"),
    ):
        s3.fault(kind, times=ALWAYS, **DATA)
        monkeypatch.setattr(retry, "budget", retry.Budget())
        started_s = time.monotonic()
        with pytest.raises(
            StoreError,
            match=rf"clicks/ds=.*\.parquet.* could not be read: gave up after \d+ attempts in .* s\. .*{words}",
        ) as caught:
            read_arrow(fragment, ReadRequest(["request_id"], snapshot.schema))
        assert time.monotonic() - started_s < 5
        assert not isinstance(caught.value, CorruptFileError)
        assert "endpoint_override" not in str(caught.value)
        s3.forget()


def test_finals_are_told_at_once(s3: Store) -> None:
    snapshot = remote(s3).snapshot()
    [fragment, *_] = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)

    def read() -> None:
        read_arrow(fragment, ReadRequest(["request_id"], snapshot.schema))

    for spot, kind, error, words in (
        (DATA, "denied", TableError, "may not be read: the store denies it .*ACCESS_DENIED"),
        (DATA, "bad_key", TableError, "may not be read: the store denies it .*INVALID_ACCESS_KEY_ID"),
        (DATA, "missing", TableChangedError, "is gone: it was there when the snapshot was taken"),
        (OPEN, "missing", TableChangedError, "is gone"),
        (OPEN, "denied", TableError, "may not be read: the store denies it"),
    ):
        s3.forget()
        open_file._checked_footers._values.clear()
        s3.fault(kind, times=ALWAYS, **spot)
        with pytest.raises(error, match=words) as caught:
            read()
        assert type(caught.value) is error
        assert s3.counts()["HEAD"] <= 2
        assert s3.counts()["range"] <= 1
    s3.forget()
    s3.fault("denied", times=ALWAYS, **LIST)
    with pytest.raises(TableError, match=r"clicks may not be listed: the store denies it .*ACCESS_DENIED"):
        remote(s3).snapshot()
    s3.forget()
    with pytest.raises(TableNotFoundError, match="s3://nowhere/t does not exist"):
        Table(s3.uri("nowhere/t")).snapshot()
    with pytest.raises(TableError, match=r"NO_SUCH_BUCKET|does not exist"):
        content_store.create(s3.uri("nowhere/w"), "x/y", [pa.table({"a": [1]})])


def test_an_address_that_is_wrong(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    started_s = time.monotonic()
    with pytest.raises(TableError, match=r"s3://b/t could not be listed: .*resolve"):
        Table("s3://b/t?endpoint_override=no-such-host.invalid&scheme=http").snapshot()
    assert time.monotonic() - started_s < 10
    monkeypatch.setattr(retry, "POLICY", retry.RetryPolicy(first_s=0.01, longest_s=0.1, deadline_s=0.3))
    with pytest.raises(StoreError, match="s3://b/t could not be listed: gave up after"):
        Table("s3://b/t?endpoint_override=127.0.0.1:1&scheme=http").snapshot()


def test_secrets_are_in_no_message(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "POLICY", retry.RetryPolicy(deadline_s=0))
    for kind in ("denied", "bad_key", "server_error"):
        s3.forget()
        s3.fault(kind, times=ALWAYS)
        with pytest.raises(TableError) as caught:
            remote(s3).snapshot()
        assert SECRET not in str(caught.value)
        assert "?" not in str(caught.value)


# -- tables that change -------------------------------------------------------------------------------------------


@pytest.fixture
def changing(s3: Store, server: int, tmp_path: Path) -> tuple[Store, Path]:
    """A table of one file with two row groups, in a bucket of its own; and a folder to write others in."""
    folder = tmp_path / "t"
    folder.mkdir()
    pq.write_table(
        pa.table({"a": np.arange(4000)}),
        folder / "f.parquet",
        row_group_size=2000,
        compression="none",
        use_dictionary=False,
    )
    put_folder(server, "changing", folder)
    return s3, folder


def test_a_file_replaced_between_two_row_groups(changing: tuple[Store, Path], server: int) -> None:
    """By one of the same layout, so that every page decodes and only the store can tell."""
    s3, folder = changing
    snapshot = Table(s3.uri("changing/t")).snapshot()
    [fragment] = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
    other = folder / "other.parquet"
    pq.write_table(
        pa.table({"a": np.arange(4000) + 5}), other, row_group_size=2000, compression="none", use_dictionary=False
    )
    assert other.stat().st_size == (folder / "f.parquet").stat().st_size
    chunks = read_fragment(fragment, ReadRequest(["a"], snapshot.schema))
    assert next(chunks).frame["a"].to_list() == list(range(2000))
    put(server, "changing/t/f.parquet", other.read_bytes())
    with pytest.raises(TableChangedError, match=r"f\.parquet (was replaced while it was read|changed after)"):
        next(chunks)  # before any of its rows
    with pytest.raises(TableChangedError, match=r"f\.parquet (was replaced|changed) after the snapshot was taken"):
        read_arrow(fragment, ReadRequest(["a"], snapshot.schema))


def test_a_file_replaced_by_a_shorter_one_is_never_read_as_rubbish(changing: tuple[Store, Path], server: int) -> None:
    s3, folder = changing
    snapshot = Table(s3.uri("changing/t")).snapshot()
    [fragment] = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
    chunks = read_fragment(fragment, ReadRequest(["a"], snapshot.schema))
    next(chunks)
    put(server, "changing/t/f.parquet", (folder / "f.parquet").read_bytes()[:20_000])
    with pytest.raises(TableChangedError, match=r"f\.parquet changed after the snapshot was taken: got 20000 bytes"):
        next(chunks)


def test_a_file_replaced_within_the_second_of_its_time_is_another(changing: tuple[Store, Path], server: int) -> None:
    """S3 says when an object was written in whole seconds, and its tag when it is opened."""
    s3, folder = changing
    content = (folder / "f.parquet").read_bytes()
    place = content.index((5).to_bytes(8, "little") + (6).to_bytes(8, "little"))  # 5, 6 among the values
    other = content[:place] + content[place + 8 : place + 16] + content[place : place + 8] + content[place + 16 :]
    for _ in range(20):
        put(server, "changing/t/f.parquet", content)
        before = Table(s3.uri("changing/t")).snapshot()
        [fragment] = plan_fragments(before, screen_rows(before, None), 10**6)
        put(server, "changing/t/f.parquet", other)
        after = Table(s3.uri("changing/t")).snapshot()
        if after.files["mtime_ns"][0].as_py() // 10**9 == before.files["mtime_ns"][0].as_py() // 10**9:
            break
    assert after.files["etag"] != before.files["etag"]
    assert after.files["footer_digest"] == before.files["footer_digest"]
    assert not known_files(after.files, before.files).same.any()
    for read in (fragment.check, lambda: read_arrow(fragment, ReadRequest(["a"], before.schema))):
        with pytest.raises(TableChangedError, match=r"f\.parquet changed after the snapshot was taken: got .*, tag "):
            read()
    put(server, "changing/t/f.parquet", content)  # restored, at another time
    fragment.check()


# -- waiting can be interrupted -----------------------------------------------------------------------------------


def test_a_failure_elsewhere_ends_the_waiting(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file is denied, the others are throttled: nobody waits for those."""
    monkeypatch.setattr(retry, "POLICY", retry.RetryPolicy(first_s=60, longest_s=60, deadline_s=10**5))
    monkeypatch.setattr(retry.Budget, "CAPACITY", 0.0)  # every pause is a long one
    monkeypatch.setattr(retry, "budget", retry.Budget())
    monkeypatch.setattr(retry.Budget, "PER_SECOND", 0.02)
    s3.fault("denied", "2026-01-03", times=ALWAYS, **DATA)
    s3.fault("slow_down", times=ALWAYS, **DATA)
    started_s = time.monotonic()
    with pytest.raises(TableError, match=r"ds=2026-01-03/part-00000\.parquet may not be read: the store denies it"):
        remote(s3).snapshot()
    assert time.monotonic() - started_s < 20


# -- requests -----------------------------------------------------------------------------------------------------


def test_requests_of_a_snapshot_and_a_split(counted_s3: Store) -> None:
    s3 = counted_s3
    snapshot = remote(s3).snapshot()
    files = snapshot.files.num_rows
    assert s3.counts() == {"HEAD": 2 + files, "GET": 3, "range": files}  # is it a folder, twice; the listing
    s3.forget()
    open_file._checked_footers._values.clear()
    fragments = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
    first = fragments[0]
    for again in (0, 1):
        read_arrow(first, ReadRequest(["request_id", "hist_0"], snapshot.schema))
        # a HEAD and, once, the footer for the file; one range and a HEAD after it for each row group
        assert s3.counts() == {"HEAD": 1 + len(first.row_groups), "range": len(first.row_groups) + 1 - again}
        s3.forget()
    Snapshot.load(s3.uri("work/count"), snapshot.save(s3.uri("work/count")))
    # is it there already; the index; the tables that every user needs
    assert s3.counts() == {"PUT": 1, "HEAD": 3, "range": 2}
    s3.forget()
    many = [pa.table({"a": np.arange(i)}) for i in range(50)]
    content_store.create(s3.uri("work/count"), "x/many", many)
    assert content_store.load(s3.uri("work/count"), "x/many", 50) == many
    assert s3.counts() == {"PUT": 1, "HEAD": 2, "range": 2}


@pytest.fixture(scope="module")
def wide(server: int, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """400 columns in one row group of 16 MB; a tenth of them are popular, and lie first in one of two files."""
    folder = tmp_path_factory.mktemp("wide") / "wide"
    rng = np.random.default_rng(3)
    names = [f"c{i}" for i in range(400)]
    table = pa.table({name: rng.integers(0, 2**62, 5_000) for name in names})
    popular = sorted(rng.choice(names, 40, replace=False).tolist())
    (folder / "plain").mkdir(parents=True)
    (folder / "popular").mkdir()
    rest = [name for name in names if name not in popular]
    pq.write_table(table, folder / "plain" / "f.parquet", use_dictionary=False)
    pq.write_table(table.select(popular + rest), folder / "popular" / "f.parquet", use_dictionary=False)
    put_folder(server, "wide", folder)
    return table.select(popular)


def test_requests_of_a_projection(counted_s3: Store, wide: pa.Table) -> None:
    """A tenth of 400 columns: all popular, 36 popular and 4 scattered, and 40 scattered over an unordered table."""
    s3, popular = counted_s3, wide.schema.names
    for layout, swapped, most, bytes_part in (("popular", 0, 1, 1.1), ("popular", 4, 4, 1.1), ("plain", 0, 30, 1.7)):
        snapshot = Table(s3.uri(f"wide/wide/{layout}")).snapshot()
        scattered = [name for name in snapshot.schema.names if name not in popular][::100][:swapped]
        names = popular[swapped:] + scattered
        [fragment] = plan_fragments(snapshot, screen_rows(snapshot, None), 10**6)
        read_arrow(fragment, ReadRequest(names, snapshot.schema))  # checks the footer
        s3.forget()
        read = read_arrow(fragment, ReadRequest(names, snapshot.schema))
        assert read.select(popular[4:]).equals(wide.select(popular[4:]))
        data = [request for request in s3.requests if request.range]
        assert len(data) <= most
        assert sum(request.bytes for request in data) <= bytes_part * wide.nbytes
        if layout == "plain":  # what pyarrow alone would ask for
            place = locate(snapshot.uri)
            with place.filesystem.open_input_file(f"{place.path}/f.parquet") as source:
                parquet = pq.ParquetFile(source, pre_buffer=True)
                s3.forget()
                parquet.read_row_group(0, columns=names, use_threads=False)
            assert s3.counts()["range"] > 1.2 * len(data)
