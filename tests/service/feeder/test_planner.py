"""Plans are made in a thread, which can be asked what it is doing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pipelines import eventually

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError, PlanError
from feedline.loader.wire.facts import Hello
from feedline.loader.wire.run_status import planning_state
from feedline.planning.artifact_choice import fit_artifacts
from feedline.planning.next_epoch_snapshot import NothingLandedError
from feedline.planning.resolve import resolve_hello
from feedline.planning.schedule import Schedule
from feedline.progress import report_progress
from feedline.service.cluster import dask_cluster
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.scheduler_connection import SchedulerConnection
from feedline.service.feeder.planner import Planner, _Waiting, activity
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.footer_tasks import read_footers
from feedline.warehouse.snapshot.snapshot import Snapshot


def test_a_request_under_way_says_what_it_does():
    reading, go_on, answered = threading.Event(), threading.Event(), threading.Event()

    def slow_map(function: Any, tasks: list[Any]) -> Iterator[Any]:
        reading.set()
        go_on.wait(30)
        raise PlanError("the store is gone")

    def resolve(*_: object) -> Any:
        return list(read_footers("/nowhere", [(0, "part.parquet", 100)], slow_map))

    with contextlib.closing(Planner(resolve, job="f" * 64)) as planner:
        future, _ = planner.plan(Hello(rank=0, world_size=1), answered.set)
        assert reading.wait(30)
        assert planner.describe() == "it has been planning for 0 s, and reads footers of the table's files"
        go_on.set()
        assert answered.wait(30)
        with pytest.raises(PlanError, match="the store is gone"):
            future.result()


def test_an_epoch_is_ordered_beside_the_caller():
    ordering, go_on, answered = threading.Event(), threading.Event(), threading.Event()

    class SlowPlan:
        def schedule(self, epoch: int) -> Schedule:
            ordering.set()
            go_on.wait(30)
            return Schedule(
                split_rows=np.array([100, 50]),
                lanes=2,
                batch_size=10,
                tail="drop",
                block_rows=20,
                shuffle=True,
                seed=1,
                epoch=epoch,
            )

    plan: Any = SlowPlan()
    with contextlib.closing(Planner(lambda *_: plan, job="f" * 64)) as planner:
        assert planner.plan(Hello(rank=0, world_size=1), lambda: None)[0].result(30) is plan
        future = planner.schedule(plan, 3, range(2), answered.set)
        assert ordering.wait(30)
        assert not future.done(), "the caller's thread goes on"
        go_on.set()
        assert answered.wait(30)
        schedule = future.result()
        assert {"order", "_lanes"} <= vars(schedule).keys(), "nothing is left for the caller to compute"
        assert planner.schedule(plan, 3, range(1), lambda: None).result(30) is schedule, "one for all sessions"


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([threading.Event.wait, SchedulerConnection.await_scheduler], "waits for the Dask cluster"),
        ([Cluster.map, select_rows], "counts the rows that the filter and the sample keep"),
        ([pq.read_metadata, list_table, select_rows], "lists the table"),
        ([Snapshot.load], "takes or reads the table's snapshot"),
        ([resolve_hello], "resolves the pipeline"),
    ],
)
def test_the_innermost_known_call_names_the_activity(calls: list[Any], words: str):
    assert activity([call.__code__ for call in calls]) == words


def test_a_cluster_that_connects_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    connecting, go_on, answered = threading.Event(), threading.Event(), threading.Event()

    def start(*_: object, **__: object) -> Any:
        connecting.set()
        go_on.wait(30)
        raise ClusterError("no scheduler answers")

    monkeypatch.setattr(dask_cluster, "open_dask", start)
    spec = ClusterSpec(scheduler="tcp://127.0.0.1:1")
    cluster: Any = open_cluster(ClusterRequest(spec, threads=1, early=True))
    with contextlib.closing(Planner(lambda *_: cluster.client, job="f" * 64)) as planner:
        future, _ = planner.plan(Hello(rank=0, world_size=1), answered.set)
        assert connecting.wait(30)
        assert eventually(lambda: planner.describe().endswith(", and waits for the Dask cluster"))
        go_on.set()
        assert answered.wait(30)
        with pytest.raises(ClusterError, match="no scheduler answers"):
            future.result()
    cluster.close()


def test_fits_are_an_activity():
    found: list[str] = []

    def fit() -> None:
        found.append(planner.describe())
        report_progress("fitting, pass 1 of 2", 10, 40, "rows")
        found.append(planner.describe())
        raise PlanError("no table")

    def resolve(*_: object) -> Any:
        return fit_artifacts(fit)

    with contextlib.closing(Planner(resolve, job="f" * 64)) as planner:
        future, _ = planner.plan(Hello(rank=0, world_size=1), lambda: None)
        with pytest.raises(PlanError, match="no table"):
            future.result(30)
    assert found[0].endswith(", and fits artifacts")
    assert found[1].endswith(", and fits artifacts (fitting, pass 1 of 2: 10 of 40 rows)")


class FollowedPlan:
    """A plan that a weak reference may point to."""


def test_a_plan_that_waits_for_files_to_land_delays_no_other():
    clock, plan, nothing = [0.0], FollowedPlan(), [True]

    def resolve(hello: Hello, *_: object) -> Any:
        if hello.epoch and nothing:
            raise NothingLandedError("no new file has landed")
        return plan

    with contextlib.closing(Planner(resolve, job="f" * 64, now_s=lambda: clock[0])) as planner:
        waiting, given_up = (planner.plan(Hello(rank=0, world_size=1, epoch=1), lambda: None)[0] for _ in range(2))
        assert planner.plan(Hello(rank=0, world_size=1), lambda: None)[0].result(30) is plan
        words = "for files to land at the epoch's border: no new file has landed. It looks again every "
        assert eventually(lambda: words in planner.describe())
        assert not waiting.done()
        assert planner.progress is not None
        assert planning_state(planner.progress) == "waiting for files"
        assert given_up.cancel()
        nothing.clear()
        clock[0] = 100.0
        assert waiting.result(30) is plan


def test_the_end_of_a_followed_run_is_seen_when_it_comes():
    waiting, nothing = _Waiting(run=object, since_s=0.0), NothingLandedError("no new file has landed")
    for pause_s in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        waiting.look_later(nothing, 100.0)
        assert waiting.due_s == 100.0 + pause_s
    nothing.ends_in_s = 3.0
    waiting.look_later(nothing, 100.0)
    assert 103.0 < waiting.due_s < 104.0
