"""Several hosts: a training over two of them, and workers that do not see what the feeder sees.

Hosts are network namespaces with a link between them, where this user may make them, else two addresses of loopback.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place, furnished, image, oracle
from processes import SUPPORT, DaskCluster, ended_here, finished, free_port, role_files, running

from feedline import FeedlineDataset
from feedline.errors import ClusterError, FeedlineError


def namespaces(*flags: str) -> bool:
    """Whether this user may make namespaces of these kinds."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *flags, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("d")
    shutil.copytree(clicks, folder / "table")
    with furnished(folder, folder / "table") as place:
        yield place


def hiding(folder: Path) -> list[str]:
    """A command's beginning that runs the rest of it where a folder is empty."""
    script = f'mount -t tmpfs none {shlex.quote(str(folder))} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


@pytest.mark.nightly  # what is decided is tested in tests/blocks/test_reach.py
@pytest.mark.skipif(not namespaces("--mount"), reason="needs the right to make mount namespaces")
def test_workers_that_do_not_see_the_table_are_named(place: Place, tmp_path: Path):
    with DaskCluster(tmp_path / "dask", workers=0) as dask:
        dask.start_worker(within=hiding(place.table))
        cluster = {"scheduler": dask.address, "wait_s": 20}
        path = place.write("blind.yaml", cluster=cluster)
        blind = r"cannot read the table: .*(does not exist|is gone).*; but the feeder on .* reads it\. Mount it"
        with FeedlineDataset(path) as dataset, pytest.raises(ClusterError, match=f"worker tcp://.* {blind}"):
            len(dataset)  # by its footers, which the workers read
        oracle(path)
        with FeedlineDataset(path) as dataset, pytest.raises(ClusterError, match=f"a worker on .* {blind}"):
            len(dataset)  # before the first block

        dask.start_worker()
        with FeedlineDataset(path) as dataset:
            assert [image(batch) for batch in dataset] == oracle(path)

        shutil.rmtree(place.table)
        fresh = place.write("gone.yaml", work_dir="fresh", cluster=cluster)
        with FeedlineDataset(fresh) as dataset, pytest.raises(FeedlineError, match="does not exist") as gone:
            len(dataset)
        assert "but the feeder" not in str(gone.value)


@dataclass(frozen=True)
class Host:
    """A host: the beginning of a command that runs there, and its address."""

    within: tuple[str, ...]
    address: str


@pytest.fixture
def two_hosts() -> Iterator[list[Host]]:
    names = [f"feedline-{os.getpid()}-{number}" for number in range(2)]
    addresses = ["10.213.47.1", "10.213.47.2"]
    if shutil.which("ip") is None or finished("ip", "netns", "add", names[0]).returncode:
        yield [Host((), f"127.0.0.{number}") for number in (1, 2)]
        return
    ends = [f"fl{os.getpid() % 100_000}{letter}" for letter in "ab"]
    commands = [
        f"ip netns add {names[1]}",
        f"ip link add {ends[0]} netns {names[0]} type veth peer name {ends[1]} netns {names[1]}",
        *(
            f"ip -n {name} {words}"
            for name, end, address in zip(names, ends, addresses, strict=True)
            for words in (f"addr add {address}/24 dev {end}", f"link set {end} up", "link set lo up")
        ),
    ]
    try:
        for command in commands:
            done = finished(*command.split())
            assert done.returncode == 0, f"{command}: {done.stderr}"
        yield [Host(("ip", "netns", "exec", name), address) for name, address in zip(names, addresses, strict=True)]
    finally:
        for name in names:
            finished("ip", "netns", "delete", name)


@pytest.mark.nightly  # a cluster with certificates: test_log_lines.py; ranks: test_host_feeder.py, test_torchrun.py
def test_two_hosts_train_on_one_cluster_with_certificates(place: Place, tmp_path: Path, two_hosts: list[Host]):
    """Footers are read, and rows counted, once for both."""
    certs, port, first = tmp_path / "certs", free_port(), two_hosts[0]
    assert ended_here("certs", certs, "--host", first.address).returncode == 0
    address = f"tls://{first.address}:{port}"

    def start(host: Host, *words: object, **variables: str) -> Any:
        folder = tmp_path / host.address
        own = {name: str(folder / name) for name in ("TMPDIR", "XDG_RUNTIME_DIR")}
        for path in own.values():
            Path(path).mkdir(parents=True, mode=0o700, exist_ok=True)
        return stack.enter_context(running(*host.within, *words, env={**os.environ, **own, **variables}))

    with ExitStack() as stack:
        files = role_files(certs, "scheduler")
        start(
            *(first, Path(sys.executable).with_name("dask"), "scheduler", "--no-dashboard"),
            *("--host", first.address, "--port", port, "--preload", "feedline.service.scheduler.preload"),
            *("--tls-ca-file", files["ca"], "--tls-cert", files["cert"], "--tls-key", files["key"]),
        ).line("Scheduler at")
        files = role_files(certs, "worker")
        for host in two_hosts:
            start(
                *(host, sys.executable, "-m", "feedline", "worker", address, "--threads", 1, "--cpu", "native"),
                *("--tls-ca", files["ca"], "--tls-cert", files["cert"], "--tls-key", files["key"]),
            ).line(rf"worker tls://{re.escape(host.address)}:\d+ serves")
        where = {"where": "dwell is not None"}
        shape = {"source": where, "lanes": 2, "batch": {"tail": "pad"}}
        cluster = {"scheduler": address, "tls": role_files(certs, "client"), "wait_s": 30}
        path = place.write("hosts.yaml", **shape, cluster=cluster)
        ranks = [
            start(
                *(host, sys.executable, SUPPORT / "training_loop.py", path, tmp_path / f"{rank}.pt"),
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="1",
                TORCHELASTIC_RUN_ID="two-hosts",
                TORCHELASTIC_RESTART_COUNT="0",
            )
            for rank, host in enumerate(two_hosts)
        ]
        for rank in ranks:
            assert rank.wait() == 0, rank.text
        counted = start(first, sys.executable, "-c", COUNT, address, *role_files(certs, "client").values())
        assert counted.wait() == 0, counted.text
        assert counted.text.split() == ["2"], "one task read the footers, and one counted"
    alone = place.write("alone.yaml", **shape, work_dir="alone")
    for number, rank in enumerate(ranks):
        digests = [line.split()[2] for line in rank.lines if re.match(r"\d+ \d+ [0-9a-f]{64}$", line)]
        assert digests == [sha256(each).hexdigest() for each in oracle(alone, rank=number, world_size=2)]


COUNT = """
import sys
from distributed import Client, Security
address, ca, cert, key = sys.argv[1:]
security = Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)
def count(dask_scheduler):
    return dask_scheduler.task_prefixes["feedline-count"].state_counts["memory"]
with Client(address, security=security) as client:
    print(client.run_on_scheduler(count))
"""
