"""The ports of a pipeline's local cluster, who may connect to them, and the limit of open files."""

from __future__ import annotations

import copy
import os
import resource
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import dask
import psutil
import pytest
from distributed import Client, Security
from pipelines import descendants
from schedulers import workers_now

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.service.cluster.open_cluster import open_cluster, require_open_files
from feedline.service.cluster.request import ClusterRequest


@contextmanager
def cluster_of(**keys: object) -> Iterator[Any]:
    with closing(open_cluster(ClusterRequest(ClusterSpec.model_validate(keys), threads=1))) as cluster:
        cluster.check_workers()
        yield cluster


def listening() -> set[tuple[str, int]]:
    """Addresses on which this process and its children listen."""
    processes = [psutil.Process(pid) for pid in (os.getpid(), *descendants())]
    found = [each for process in processes for each in process.net_connections("inet")]
    return {(each.laddr.ip, each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN}


def speaks_http(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        try:
            return connection.recv(4) == b"HTTP"
        except ConnectionResetError:
            return False


def test_threads_and_processes_of_the_feeder_listen_on_no_port():
    before = listening()
    with cluster_of(threads=1) as cluster:
        assert (cluster.dashboard, cluster.dask) == (None, None)
        assert listening() == before


def test_the_pages_of_the_dashboard_are_loaded_when_one_is_opened():
    """Several requests at once load them once; metrics and unknown pages have their usual answers."""
    before = listening()
    with cluster_of(workers=1, threads=1) as cluster:
        assert {host for host, _ in listening() - before} == {"127.0.0.1"}
        applications = cluster._connected._cluster.scheduler.http_application.applications
        assert str(cluster.dashboard).endswith("/status")
        root = str(cluster.dashboard).removesuffix("/status")
        with urlopen(f"{root}/health", timeout=30) as answer:
            assert answer.read() == b"ok"
        assert [type(each).__name__ for each in applications] == ["DashboardOnDemand"]
        with ThreadPoolExecutor(3) as threads:
            pages = threads.map(urlopen, [f"{root}/status", f"{root}/", f"{root}/workers"])
            assert [b"bokeh" in page.read().lower() for page in pages] == [True] * 3
        assert [type(each).__name__ for each in applications] == ["DaskBokehTornado"] * 2  # Dask's, and ours
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{root}/there-is-no-such-page", timeout=30)


def test_worker_processes_with_a_temporary_key():
    """Scheduler, nanny and worker listen, on loopback; none of them to who has no key, and none speaks HTTP."""
    before = listening()
    with cluster_of(workers=1, tls="temporary", dashboard=False) as cluster:
        client = cluster.client
        assert client.submit(sum, [1, 2]).result() == 3
        address = client.scheduler.address
        known = workers_now(client)
        workers = [*(worker["nanny"] for worker in known.values()), *known]
        assert [each.split("://")[0] for each in (address, *workers)] == ["tls"] * 3
        opened = listening() - before
        assert {f"tls://{host}:{port}" for host, port in opened} == {address, *workers}
        assert {host for host, _ in opened} == {"127.0.0.1"}
        assert not any(speaks_http(each) for each in opened)
        for stranger in (Security(), Security.temporary()):
            where = address if stranger.require_encryption else address.replace("tls://", "tcp://")
            with pytest.raises((OSError, TypeError)):
                Client(where, security=stranger, timeout=1, set_as_default=False)


def test_a_temporary_key_without_cryptography_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    with pytest.raises(ClusterError, match=r"temporary needs a package .* pip install 'feedline\[tls\]'"):
        open_cluster(ClusterRequest(ClusterSpec.model_validate({"workers": 1, "tls": "temporary"}), threads=1))


USERS_CONFIG = {
    "scheduler": {"idle-timeout": "1s", "no-workers-timeout": "1s", "pickle": False, "preload": ["no_such_module"]},
    "worker": {"preload": ["no_such_module"], "lifetime": {"duration": "1s"}, "resources": {"GPU": 1}},
    "nanny": {"preload": ["no_such_module"], "environ": {"PYTHONPATH": "/nowhere"}},
    "client": {"preload": ["no_such_module"], "security-loader": "no_such_module.load"},
    "comm": {"require-encryption": True, "default-scheme": "tls"},
}


def test_a_private_cluster_takes_nothing_of_the_user_s_dask_that_would_break_it(monkeypatch: pytest.MonkeyPatch):
    """In the files of this process, and in the environment, which a worker process reads itself."""
    for section, keys in USERS_CONFIG.items():
        monkeypatch.setenv(f"DASK_DISTRIBUTED__{section.upper()}", repr(keys))
    with dask.config.set({f"distributed.{name}": keys for name, keys in USERS_CONFIG.items()}):
        with cluster_of(workers=1, threads=1) as cluster:
            settings = cluster.client.submit(lambda: copy.deepcopy(dask.config.get("distributed"))).result()
            assert cluster.client.submit(os.environ.get, "PYTHONPATH").result() != "/nowhere"
        assert dask.config.get("distributed.scheduler.idle-timeout") == "1s", "the user's again"
    assert settings["scheduler"]["idle-timeout"] is None
    assert "pickle" not in settings["scheduler"]
    assert settings["comm"]["require-encryption"] is None
    assert [settings[role]["preload"] for role in ("scheduler", "worker", "nanny", "client")] == [[], [], [], []]
    assert settings["scheduler"]["worker-saturation"] == "inf", "Feedline's own, above Dask's defaults"


THREADS, PROCESSES = ClusterSpec(), ClusterSpec.model_validate({"workers": {"min": 1, "max": 100}})
THREADED = ClusterSpec(workers=70, threads=8)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Soft and hard."""
    limits = [0, 0]
    monkeypatch.setattr(resource, "getrlimit", lambda number: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda number, values: limits.__setitem__(slice(None), values))
    return limits


@pytest.mark.parametrize(
    ("spec", "before", "after"),
    [
        (THREADS, [1024, 4096], [1024, 4096]),
        (THREADS, [30, 4096], [64, 4096]),
        (THREADS, [30, -1], [64, -1]),
        (PROCESSES, [1024, 4096], [1664, 4096]),
        (THREADED, [1024, 4096], [1674, 4096]),
        (PROCESSES, [-1, -1], [-1, -1]),
    ],
)
def test_a_limit_is_raised_as_far_as_needed(limits: list[int], spec: ClusterSpec, before: list[int], after: list[int]):
    limits[:] = before
    require_open_files(spec)
    assert limits == after


@pytest.mark.parametrize(("hard", "after"), [(4096, 264), (100, 100)])
def test_a_limit_is_raised_for_the_seats_of_a_pool_as_far_as_it_may(limits: list[int], hard: int, after: int):
    limits[:] = 70, hard
    require_open_files(ClusterSpec(), seats=200)
    assert limits == [after, hard]


def test_a_limit_that_may_not_be_raised_is_refused(limits: list[int]):
    limits[:] = 40, 40
    with pytest.raises(ClusterError, match=r"is too low: got 40 \(ulimit -n\), expected at least 64\. Raise it"):
        require_open_files(THREADS)
    limits[:] = 1024, 1024
    with pytest.raises(ClusterError, match=r"least 1,664 with 100 worker processes\. .* or lower cluster.workers"):
        require_open_files(PROCESSES)
