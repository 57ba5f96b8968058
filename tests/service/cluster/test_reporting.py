"""What a feeder reports to its scheduler: what passes demand, and the connections that it keeps meanwhile."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributed import SpecCluster, Worker
from job_reports import REPORT

from feedline.config.cluster_section import ClusterSpec
from feedline.fitting.reduction import map_tasks
from feedline.service.cluster import reporting
from feedline.service.cluster.fit_workers import DaskWorkers
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.reporting import HELD_S, IDLE_S, IdleConnections, PassDemand
from feedline.service.cluster.request import ClusterRequest
from feedline.service.dask_patches.scheduler_patches import PagelessScheduler


def test_a_pass_that_lasts_asks_for_a_thread_per_task_and_later_gives_back():
    demand = PassDemand(grow_after_s=5.0)
    assert [demand.look(tasks, now_s) for now_s, tasks in ((0.0, 0), (2.0, 90), (6.0, 80))] == [0.0, 1.0, 1.0]
    assert demand.look(70, 7.0) == 70.0
    assert demand.look(0, 9.0) == 70.0, "between two waves"
    assert demand.look(60, 11.0) == 70.0, "the second wave has not begun anew"
    assert demand.look(2, 12.0 + HELD_S) == 2.0, "its last tasks"
    assert demand.look(0, 13.0 + 2 * HELD_S) == 0.0
    assert demand.look(50, 14.0 + 2 * HELD_S) == 1.0, "another pass"


def wait_for(path: str, number: int) -> int:
    """Until all workers have come."""
    Path(path, str(number)).touch()
    limit_s = time.monotonic() + 60
    while len(list(Path(path).iterdir())) < 3 and time.monotonic() < limit_s:
        time.sleep(0.01)
    return len(list(Path(path).iterdir()))


def test_a_fit_on_a_cluster_at_rest_gets_the_workers_that_it_can_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Each of three tasks waits for the others, so that one worker of one thread would compute none of them."""
    monkeypatch.setattr(reporting, "_EVERY_S", 0.1)
    caplog.set_level(logging.INFO, "feedline.scaling")
    (tmp_path / "begun").mkdir()
    node = {"protocol": "tcp://", "host": "127.0.0.1", "dashboard": False}
    local = {"nthreads": 1, "memory_limit": 0, "local_directory": str(tmp_path)}
    with SpecCluster(
        scheduler={"cls": PagelessScheduler, "options": {**node, "preload": ["feedline.service.scheduler.preload"]}},
        worker={"cls": Worker, "options": {**node, **local}},
    ) as scaled:
        scaled.adapt(minimum=0, maximum=3, interval="100ms")
        keys = {"scheduler": scaled.scheduler_address, "workers": {"min": 0, "max": 3}, "wait_s": 60}
        spec = ClusterSpec.model_validate({**keys, "cpu": "native", "autoscale": {"grow_after_s": 0.1}})
        report = replace(REPORT, demand_threads=1.0, least_workers=0)
        with closing(open_cluster(ClusterRequest(spec, threads=1, report=report))) as cluster:
            workers = DaskWorkers(cluster)
            assert map_tasks(workers, wait_for, str(tmp_path / "begun"), range(3)) == [3, 3, 3]
            assert "workers needed: 3 tasks of a count or fit are open" in caplog.text


def test_only_idle_connections_to_workers_outside_of_the_route_are_closed():
    closed: list[str] = []
    available = {"member": {1}, "left": {2}, "busy": {3}, "none": set[int]()}
    occupied = {"busy": {4}}

    def remove(address: str, *, reason: str) -> None:
        closed.append(address)
        del available[address]

    pool = SimpleNamespace(available=available, occupied=occupied, remove=remove)
    idle = IdleConnections()
    idle.close_others(pool, {"member"}, 0.0)
    idle.close_others(pool, {"member"}, IDLE_S - 1)
    assert not closed
    idle.close_others(pool, {"member"}, IDLE_S)
    assert closed == ["left"]
    occupied["busy"].clear()
    idle.close_others(pool, {"member"}, 2 * IDLE_S)
    assert closed == ["left"], "idle since now"
    idle.close_others(pool, {"member", "busy"}, 2.5 * IDLE_S)
    idle.close_others(pool, {"member"}, 3 * IDLE_S)
    idle.close_others(pool, (), 9 * IDLE_S)
    assert closed == ["left"], "it was in the route in between, and without one all stay"
    assert set(available) == {"member", "busy", "none"}
