"""A scheduler counts the cores of each host once, whatever its workers are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from feedline.loader.wire.codec import pack
from feedline.loader.wire.job_reports import JobAnswer, WorkerCores
from feedline.service.cluster.fair_share import FairShare
from feedline.service.worker_cores import count_cores

WHOLE = range(8)


def worker(host: str, cpus: range = WHOLE, cores: int = 8) -> Any:
    sent = pack(WorkerCores(host=host, cpus=tuple(cpus), cores=cores)).decode()
    return SimpleNamespace(extra={"feedline-cores": sent}, nthreads=3)


def silent(**extra: object) -> Any:
    return SimpleNamespace(extra=extra, nthreads=3)


@pytest.mark.parametrize(
    ("workers", "cores"),
    [
        ([], 0),
        ([worker("a")] * 4, 8),
        ([worker("a"), worker("a"), worker("b")], 16),
        ([worker("a", cores=2)] * 3, 6),  # containers with a quota
        ([worker("a", cores=2)] * 9, 8),
        ([worker("a", cores=2), worker("a")], 8),
        ([worker("a", range(2), 2)] * 2, 2),  # two that share two cores
        ([worker("a", range(2), 2), worker("a", range(2, 4), 2)], 4),
        ([silent(), silent()], 6),
        ([silent(), worker("a")], 11),
        ([silent(**{"feedline-cores": '{"wire": 1}'}), silent(**{"feedline-cores": 5}), worker("a")], 14),
    ],
)
def test_cores_of_hosts(workers: list[Any], cores: int):
    assert count_cores(workers) == cores


@pytest.mark.parametrize(("threads", "all_threads", "cores"), [(8, 8, 16.0), (2, 8, 4.0), (9, 8, 16.0)])
def test_a_job_can_count_on_its_share_of_the_cores(threads: int, all_threads: int, cores: float):
    share = FairShare()
    assert share.cores(threads, all_threads) == 0.0, "unknown"
    share.update(JobAnswer(now_s=0.0, virtual_start_s=0.0, threads=2.0, workers=4, jobs=2, cores=16), 0.0)
    assert share.cores(threads, all_threads) == cores
