"""Does `optimize` write to an object store, and is the usage record kept there? A real S3 server on loopback."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from optimized import multiset, warehouse

from feedline import Table
from feedline.errors import TableError
from feedline.warehouse.optimize.landing import target_at
from feedline.warehouse.optimize.optimize import TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.optimize.usage import load_uses, record_usage
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage.locations import list_tree, locate

SETTINGS = Settings(cluster_by=("session",), sort_by=("ts",), row_group_rows=256)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The options of URIs on a server of this test's own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        _, port = running.get_host_and_port()
        boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket="bucket")
        yield f"?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
        running.stop()


@pytest.mark.parametrize("memory_bytes", [None, 240_000])
def test_a_table_is_written_to_a_store_and_finished_there(
    tmp_path: Path, server: str, memory_bytes: int | None
) -> None:
    source = warehouse(tmp_path / "in", days=2)
    uri = f"s3://bucket/{uuid.uuid4()}{server}"
    expected = multiset(Table(str(source)).read())

    def run() -> tuple[int, int]:
        snapshot = take_snapshot(str(source))
        report = optimize(snapshot, uri, SETTINGS, runner=TaskRunner(memory_bytes=memory_bytes, threads=2))
        return report.written, report.finished

    assert run() == (2, 0)
    assert multiset(Table(uri).read()) == expected
    assert run() == (0, 2)
    target = target_at(uri)
    *_, lost = sorted(info.path for info in list_tree(locate(uri)) if "ds=2026-01-02" in info.path)
    target.filesystem.delete_file(lost)  # as a killed run leaves it
    assert run() == (1, 1)
    assert multiset(Table(uri).read()) == expected


def test_a_table_in_a_store_is_rewritten_beside_itself(tmp_path: Path, server: str) -> None:
    source = warehouse(tmp_path / "in", days=1)
    uri = f"s3://bucket/{uuid.uuid4()}{server}"
    optimize(take_snapshot(str(source)), uri, SETTINGS, runner=TaskRunner(threads=2))
    with pytest.raises(TableError, match=r"overlap: got s3://bucket/[-0-9a-f]+ and s3://bucket/[-0-9a-f]+/x, expected"):
        Table(uri).optimize(uri.replace("?", "/x?"))
    beside = Table(uri).optimize(uri.replace("?", "-beside?"), threads=1)
    assert beside.after.rows == take_snapshot(str(source)).rows


def test_the_usage_record_in_a_store(tmp_path: Path, server: str) -> None:
    snapshot = take_snapshot(str(warehouse(tmp_path / "in", days=1)))
    work = f"s3://bucket/work{server}"
    for job in ("one", "two"):
        record_usage(work, snapshot, ["word"], snapshot.rows_per_row_group, job=job)
    assert [use.job for use in load_uses(work, snapshot.uri)] == ["one", "two"]
