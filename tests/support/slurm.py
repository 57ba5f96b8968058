"""A real Slurm of this machine: munged, slurmctld and a slurmd per node in a folder of a test's, without cgroups.

Nodes are this machine (`localhost`), or hosts of `lossy_link`: each then has a name, /etc/hosts and network of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lossy_link import Host
from pipelines import eventually

_DAEMONS = ("munged", "slurmctld", "slurmd")
# A requeued job starts again when its credential has expired, after two minutes by default.
_CONFIG = """\
ClusterName=test
SlurmctldHost={nodes[0][0]}({nodes[0][1]})
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MailProg=/bin/true
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
"""
_NODE = "NodeName={} NodeAddr={} CPUs=4 RealMemory=8000\n"
# A job of the second partition preempts those of the first one, with so many seconds between SIGTERM and the end.
_PARTITIONS = """\
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


def missing_slurm() -> str:
    """Why there can be no Slurm here; empty if there can."""
    lacking = [name for name in (*_DAEMONS, "sbatch") if shutil.which(name, path=_path()) is None]
    if lacking:
        return f"Slurm is not installed: no {', '.join(lacking)}"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports() -> list[int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return [one.getsockname()[1], two.getsockname()[1]]


def named_hosts(folder: Path, hosts: Mapping[str, Host]) -> dict[str, Host]:
    """The same hosts, on which a command finds its own name and those of the others."""
    names = folder / "hosts"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{host.address} {name}\n" for name, host in hosts.items()))

    def named(name: str, host: Host) -> Host:
        script = f'hostname {name} && mount --bind {shlex.quote(str(names))} /etc/hosts && exec "$@"'
        return Host((*host.within, "unshare", "--uts", "--mount", "sh", "-c", script, "sh"), host.address)

    return {name: named(name, host) for name, host in hosts.items()}


@contextmanager
def slurm(folder: Path, hosts: Mapping[str, Host] | None = None) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach it. Leaving ends the daemons; jobs must have ended.

    hosts: the nodes by name (default: this machine); commands run on the first one. munged asks for folders that only
    root may change: /tmp itself has the sticky bit, which serves.
    """
    hosts = hosts or {"localhost": Host((), "127.0.0.1")}
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(64))
    (folder / "munge.key").chmod(0o600)
    config = folder / "slurm.conf"
    nodes = [(name, host.address) for name, host in hosts.items()]
    text = _CONFIG.format(folder=folder, ports=_free_ports(), nodes=nodes)
    config.write_text(text + "".join(_NODE.format(*node) for node in nodes) + _PARTITIONS)
    for name in hosts:
        (folder / f"spool-{name}").mkdir()
    environment = {**os.environ, "SLURM_CONF": str(config), "PATH": _path()}
    munge = [
        f"--{name}={folder}/munge.{end}"
        for name, end in {"key-file": "key", "socket": "sock", "pid-file": "pid"}.items()
    ]
    first = next(iter(hosts.values()))
    daemons = [
        ["munged", "--foreground", "--force", *munge, f"--seed-file={folder}/munge.seed"],
        [*first.within, "slurmctld", "-D"],
        *([*host.within, "slurmd", "-D", "-N", name] for name, host in hosts.items()),
    ]
    with ExitStack() as stack, open(folder / "daemons.log", "wb") as log:
        for words in daemons:
            daemon = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
            stack.callback(daemon.wait, 30)
            stack.callback(daemon.terminate)
            if words[0] == "munged":
                assert eventually((folder / "munge.sock").exists), (folder / "daemons.log").read_text()
        look = (*first.within, "sinfo", "-h", "-N", "-p", "all", "-o", "%t")
        all_idle = ["idle"] * len(hosts)
        assert eventually(lambda: output(environment, *look).split() == all_idle), (folder / "daemons.log").read_text()
        yield environment


def output(environment: dict[str, str], *words: str) -> str:
    """What one of Slurm's commands prints."""
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment, timeout=60
    ).stdout.strip()
