"""Workers that are forked, or import for themselves, are the same but for their cost, and none outlives its feeder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import SUPPORT, all_gone, finished, running
from s3_store import KEYS, put, s3_server

pytestmark = pytest.mark.slow

FEEDER = SUPPORT / "worker_feeder.py"
KINDS = ["fork", "import"]
# Of those that import, too, `facts` has the signal of their parent's death, and those that they ignore.
FORKED = ["fork", pytest.param("import", marks=pytest.mark.nightly)]
# Where an imported worker finds the tests' functions.
PLACE = {"PYTHONPATH": str(SUPPORT)}


def fed(kind: str, case: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a case to its end."""
    return finished(sys.executable, FEEDER, kind, case, *arguments, env={**os.environ, **PLACE, **variables})


def answer(run: subprocess.CompletedProcess[str]) -> Any:
    """What a case found; nothing else may have been printed."""
    assert (run.returncode, run.stderr) == (0, "")
    return json.loads(run.stdout)


@pytest.fixture(scope="module", params=KINDS)
def facts(request: pytest.FixtureRequest) -> Any:
    """What two workers of a feeder found, of 1 and 3 threads."""
    return answer(fed(request.param, "facts"))


def test_random_numbers_differ_between_workers(facts: Any):
    for generator in ("numpy", "random"):
        assert len({worker[generator] for worker in facts["workers"]}) == 2


def test_each_worker_has_the_threads_that_it_is_given(facts: Any):
    assert [(worker["polars"], worker["rows"]) for worker in facts["workers"]] == [(1, 500), (3, 500)]


def test_workers_have_huge_pages_though_their_feeder_has_none(facts: Any):
    assert all(worker["has huge pages"] for worker in facts["workers"])


def test_workers_ignore_what_a_terminal_sends_to_all_processes(facts: Any):
    assert all({signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= {*worker["ignored"]} for worker in facts["workers"])


def test_workers_share_no_descriptor_with_their_feeder_but_the_streams(facts: Any):
    shared = {facts["descriptors"][number] for number in "12"} | {"/dev/null"}
    for worker in facts["workers"]:
        assert worker["descriptors"]["0"] == "/dev/null"
        assert set(worker["descriptors"].values()) & set(facts["descriptors"].values()) <= shared


def test_workers_die_with_the_process_that_started_them(facts: Any):
    assert {worker["death signal"] for worker in facts["workers"]} == {signal.SIGKILL}
    assert {worker["parent"] for worker in facts["workers"]} == {facts["parent"]}


def test_workers_collect_garbage_but_not_what_was_imported(facts: Any):
    assert all(worker["collects"] and worker["frozen"] > 50_000 for worker in facts["workers"])


def test_workers_have_a_name(facts: Any):
    assert {worker["name"] for worker in facts["workers"]} == {"feedline-block"}


def test_a_process_that_used_a_runtime_is_refused():
    at_first, beside, after_it, with_s3, with_query, error = answer(fed("fork", "refusals"))
    assert at_first is after_it is None
    assert "beside" in beside
    assert "S3" in with_s3
    assert "polars" in with_query or "tokio" in with_query or "async-executor" in with_query or "S3" in with_query
    assert error == f"workers cannot be forked: {with_query}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_status_tells_how_a_worker_ended(kind: str):
    run = fed(kind, "statuses")
    found = json.loads(run.stdout)
    assert found["reported"] == {"die": -9, "fail": 1, "exit": 7, "stay": -9, "hang up": 0}
    assert not found["stayed"]
    assert run.stderr.count("Traceback") == run.stderr.count("ValueError: a task fails") == 1


def test_a_killed_zygote_takes_its_workers_along_and_the_feeder_knows():
    found = answer(fed("fork", "dead_zygote"))
    assert found["statuses"] == [-9, -9]
    assert found["received"] == [0, 0]
    assert found["error"].startswith("the process that forks workers has ended: ")
    assert not found["alive"]


def test_a_worker_without_room_for_its_descriptors_is_an_error():
    found = answer(fed("fork", "few_descriptors"))
    assert found["error"] == "a worker process cannot be forked: Too many open files"
    assert found["rows"] == 500


@pytest.mark.parametrize("kind", FORKED)
def test_signals_to_all_processes_are_left_to_the_trainer(kind: str):
    assert answer(fed(kind, "signals")) == 500


@pytest.mark.parametrize("kind", FORKED)
def test_nothing_outlives_a_killed_feeder(kind: str):
    with running(sys.executable, FEEDER, kind, "hold", env={**os.environ, **PLACE}) as feeder:
        processes = [psutil.Process(pid) for pid in json.loads(feeder.line(r"^\[.*\]$")[0])]
        os.kill(feeder.pid, signal.SIGKILL)
        assert all_gone(processes)


def test_a_worker_whose_feeder_is_gone_already_ends():
    run = finished(
        *(sys.executable, "-P", "-m", "feedline", "block-worker", "worker_tasks:stay", 1, os.getppid()),
        env={**os.environ, **PLACE},
    )
    assert (run.returncode, run.stdout, run.stderr) == (1, "", "")


def test_the_command_of_a_worker_is_internal():
    run = finished(sys.executable, "-P", "-m", "feedline", "block-worker")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "error: `feedline block-worker` is internal: feeders start it. Use `feedline run`\n"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """A Parquet file, and where its copy is in S3: endpoint and key."""
    path = tmp_path_factory.mktemp("stored") / "part.parquet"
    pq.write_table(pa.table({"a": range(1000)}), path, compression="zstd", row_group_size=100)
    with s3_server() as port:
        put(port, "bucket")
        put(port, "bucket/part.parquet", path.read_bytes())
        yield path, f"127.0.0.1:{port}", "bucket/part.parquet"


# Nightly against the newest Polars and pyarrow: neither promises that it works in a forked process.
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_many_forked_workers_read_files_and_s3_and_end(count: int, stored: tuple[Path, str, str]):
    run = fed("fork", "crowd", count, *stored, **KEYS)
    printed, found = run.stdout.splitlines()
    assert (run.returncode, run.stderr, printed) == (0, "", "printed once")
    assert json.loads(found) == {"answers": [[sum(range(1000))] * 4], "statuses": [0]}
