"""Does `build` write to an object store, and finish there what a killed run began? A real S3 server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from sample_logs import END_NS, drawn_logs, spec_of, write_logs

from feedline import Table
from feedline.config.build_spec import BuildSpec
from feedline.errors import TableError
from feedline.warehouse.building.build import build, read_records
from feedline.warehouse.optimize.optimize import TaskRunner
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.locations import list_tree, locate


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


def built(spec: BuildSpec) -> tuple[str, ...]:
    return build(spec, now_ns=END_NS, until_ns=END_NS, runner=TaskRunner(threads=2, memory_bytes=1 << 30)).built


def test_a_table_is_built_in_a_store_and_finished_there(tmp_path: Path, server: str) -> None:
    write_logs(drawn_logs(51, rows=60), tmp_path / "logs", files=1)
    here = spec_of(tmp_path)
    built(here)
    expected = Table(tmp_path / "out").read()
    uri = f"s3://bucket/samples{server}"
    spec = here.model_copy(update={"out": here.out.model_copy(update={"table": uri})})
    assert built(spec) == ("ds=2026-01-01", "ds=2026-01-02")
    assert Table(uri).read().equals(expected)
    assert built(spec) == ()
    location = locate(uri)
    paths = {info.path: info for info in list_tree(location)}
    markers = sorted(path for path in paths if path.endswith("_SUCCESS"))
    files = sorted(path for path in paths if path.endswith(".parquet"))
    assert len(markers) == 2
    location.filesystem.delete_file(markers[1])  # as a run leaves it that was killed while its files were landing
    location.filesystem.delete_file(files[-1])
    assert set(read_records(uri)) == {"ds=2026-01-01"}
    assert built(spec) == ("ds=2026-01-02",)
    assert Table(uri).read().equals(expected)


def test_a_run_that_was_replaced_in_a_store_fails(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_logs(drawn_logs(52, rows=60, days=1), tmp_path / "logs", files=1)
    here = spec_of(tmp_path)
    uri = f"s3://bucket/replaced{server}"
    spec = here.model_copy(update={"out": here.out.model_copy(update={"table": uri})})
    take = Claim.take

    def taken_twice(self: Claim) -> None:
        take(self)
        take(Claim(uri=self.uri, hidden=self.hidden, file=self.file, name=self.name))  # another run begins

    monkeypatch.setattr(Claim, "take", taken_twice)
    with pytest.raises(TableError, match="is no longer this run's"):
        built(spec)
    assert read_records(uri) == {}
