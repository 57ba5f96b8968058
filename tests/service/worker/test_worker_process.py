"""`feedline worker`, and `dask worker` with the preload, as processes of a deployment."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from distributed import Client, LocalCluster, wait
from pipelines import PATIENCE_S, eventually
from processes import ended, ended_here, feedline, free_port, running
from schedulers import workers_now

from feedline.native.kernels import kernels_text
from feedline.resources.cgroups import available_cores
from feedline.resources.instructions import DISABLE, cpu_environment
from feedline.service.worker.worker_process import worker_environment
from feedline.service.worker_cores import count_cores

PRELOAD = "feedline.service.worker.preload"


def a_scheduler(port: int = 0) -> LocalCluster:
    """A scheduler in this process."""
    return LocalCluster(
        n_workers=0,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        scheduler_port=port,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )


def test_workers_end_their_blocks_on_sigterm_and_one_outlives_its_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With and without a nanny, two processes stopped while each runs a task: each task runs once, and both end with
    status 0. Before, `feedline worker` connects again to a scheduler that has come back, on the same port, and is
    reached at its contact address."""
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)  # which a test before may have set in this process
    record = tmp_path / "record"

    def work(seconds: float) -> None:
        with record.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(seconds)

    def describe() -> dict[str, object]:
        variables = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "ARROW_DEFAULT_MEMORY_POOL", DISABLE)
        return {"torch": "torch" in sys.modules, **{name: os.environ.get(name) for name in variables}}

    with contextlib.ExitStack() as programs:
        with a_scheduler() as first, Client(first) as client:
            address = first.scheduler_address
            port = free_port()
            where = ("--port", port, "--contact-address", f"localhost:{port}")
            options = ("--threads", 1, "--name", "ours", "--cpu", "x86-64-v3", "--scratch", tmp_path)
            ours = programs.enter_context(feedline("worker", address, *options, *where))
            ours.line(f"worker tcp://localhost:{port} serves {address} with 1 threads, kernels: {kernels_text()}")
            [description] = client.run(describe).values()
            assert description == {
                "torch": False,
                "POLARS_MAX_THREADS": "1",
                "OMP_NUM_THREADS": "1",
                "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
                DISABLE: cpu_environment("x86-64-v3")[DISABLE],
            }
        ours.line("is gone")
        with a_scheduler(int(address.rpartition(":")[2])) as second, Client(second) as client:
            dask = (sys.executable, "-m", "dask", "worker", address, "--nthreads", 1, "--no-dashboard")
            other = programs.enter_context(
                running(*dask, "--preload", PRELOAD, "--preload-nanny", PRELOAD, cwd=tmp_path)
            )
            ours.line(f"worker tcp://localhost:{port} serves {address}")
            client.wait_for_workers(2, timeout=60)
            cpus = len(os.sched_getaffinity(0))
            cores = count_cores(second.scheduler.workers.values())
            assert cores == min(cpus, 2 * available_cores()), "those of one host"
            tasks = [client.submit(work, 0.5, pure=False) for _ in range(2)]
            assert eventually(lambda: record.exists() and len(record.read_text().split()) == 2)
            for program in (ours, other):
                program.send(signal.SIGTERM)
            assert not wait(tasks, timeout=PATIENCE_S).not_done
            client.gather(tasks)
            del tasks  # a feeder drops what it has fetched
            assert [program.wait() for program in (ours, other)] == [0, 0]
            assert len(set(record.read_text().split())) == len(record.read_text().split()) == 2
            assert eventually(lambda: not workers_now(client))


def test_a_worker_that_finds_no_scheduler_says_why():
    address = "tcp://127.0.0.1:9"
    command = ended("worker", address, "--wait-s", "0")
    assert command.returncode == 1
    assert f"no Dask scheduler answers at {address}: got none in 0 s, the last time" in command.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tls://h:1"], "tls:// needs certificates"),
        (["tls://h:1", "--tls-ca", "ca.pem"], "--tls-cert, --tls-key missing"),
        (["tcp://10.0.0.1:1"], "unencrypted and not on this machine"),
        (["scheduler"], "tcp://host:port or tls://host:port"),
        (["tcp://127.0.0.1:1", "--port", "9000", "--contact-address", "nat"], "got 'nat', expected HOST:PORT"),
        (["tcp://127.0.0.1:1", "--contact-address", "nat:9000"], "without --port"),
        (["tcp://127.0.0.1:1", "--host", "0.0.0.0"], "unencrypted and not only on this machine"),
    ],
)
def test_wrong_input_of_the_command(arguments: list[str], expected: str):
    command = ended_here("worker", *arguments)
    assert command.returncode == 2
    assert expected in command.stderr


def test_an_environment_that_is_set_stays_but_for_numpys_instructions():
    made = worker_environment(4, "native", {"MALLOC_ARENA_MAX": "9", "HOME": "/h"})
    assert (made["MALLOC_ARENA_MAX"], made["HOME"], made["POLARS_MAX_THREADS"]) == ("9", "/h", "4")
    again = worker_environment(4, "x86-64-v3", {**made, DISABLE: "SSE42"})
    assert again[DISABLE] == cpu_environment("x86-64-v3")[DISABLE]
