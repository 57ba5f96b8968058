"""A real Slurm of one host, this machine: munged, slurmctld and slurmd in a folder of a test's, without cgroups."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipelines import eventually

_DAEMONS = ("munged", "slurmctld", "slurmd")
_CONFIG = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName=localhost NodeAddr=127.0.0.1 CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
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


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach it. Leaving ends the daemons; jobs must have ended.

    munged asks for folders that only root may change: /tmp itself has the sticky bit, which serves.
    """
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(64))
    (folder / "munge.key").chmod(0o600)
    config = folder / "slurm.conf"
    config.write_text(_CONFIG.format(folder=folder, ports=_free_ports()))
    environment = {**os.environ, "SLURM_CONF": str(config), "PATH": _path()}
    munge = [
        f"--{name}={folder}/munge.{end}"
        for name, end in {"key-file": "key", "socket": "sock", "pid-file": "pid"}.items()
    ]
    with ExitStack() as stack, open(folder / "daemons.log", "wb") as log:
        for words in (
            ["munged", "--foreground", "--force", *munge, f"--seed-file={folder}/munge.seed"],
            ["slurmctld", "-D"],
            ["slurmd", "-D", "-N", "localhost"],
        ):
            daemon = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
            stack.callback(daemon.wait, 30)
            stack.callback(daemon.terminate)
            if words[0] == "munged":
                assert eventually((folder / "munge.sock").exists), (folder / "daemons.log").read_text()
        assert eventually(lambda: "idle" in output(environment, "sinfo", "-h", "-o", "%t")), (
            folder / "daemons.log"
        ).read_text()
        yield environment


def output(environment: dict[str, str], *words: str) -> str:
    """What one of Slurm's commands prints."""
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment, timeout=60
    ).stdout.strip()
