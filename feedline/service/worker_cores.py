"""The cores of a cluster's hosts: each worker tells its scheduler once, which counts those of a host once.

Runs in: Dask workers, which send theirs when they register; the scheduler. Two workers of a host share its cores, while
a limit of a container counts per worker: a host gives the cores on which any of its workers may run, but no more than
all of its workers may use. See docs/decisions/0079-verdicts-by-a-linear-bound.md.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from distributed import Worker

from feedline.errors import FeederError
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.job_reports import WorkerCores
from feedline.resources.cgroups import affinity, available_cores

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a host, unlike its name


def report_cores(worker: Worker) -> None:
    """Have a worker that has not registered yet send its cores when it does, in the table that Dask has for that."""
    worker.startup_information["feedline-cores"] = _packed_cores


def _packed_cores(_worker: Worker) -> str:
    cpus = affinity() or range(os.cpu_count() or 1)
    cores = WorkerCores(host=_host(), cpus=tuple(sorted(cpus)), cores=available_cores())
    return pack(cores).decode()


def _host() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def count_cores(workers: Iterable[Any]) -> int:
    """The cores of the hosts of Dask's `WorkerState`s; of a worker that has sent none, one per thread."""
    unknown = 0
    hosts: dict[str, list[WorkerCores]] = {}
    for worker in workers:
        try:
            cores = unpack(WorkerCores, worker.extra["feedline-cores"].encode())
        except (KeyError, AttributeError, FeederError):  # without Feedline's preload, or of another version
            unknown += worker.nthreads
        else:
            hosts.setdefault(cores.host, []).append(cores)
    return unknown + sum(map(_cores_of_host, hosts.values()))


def _cores_of_host(workers: list[WorkerCores]) -> int:
    # Two containers of 4 cores each: on the same 6 CPUs they have 6, on all 64 of the host 8.
    cpus = {cpu for each in workers for cpu in each.cpus}
    return min(len(cpus), sum(each.cores for each in workers))
