"""A batch takes few calls of the feeder's loop beside its block, and a block few calls of Dask's loop.

All of them take the interpreter's lock from the threads that compute blocks. What is counted does not depend on time:
the limits of a batch are less than a call above it, those of a task a fifth.
"""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from call_counts import calls_of
from pipelines import PATIENCE_S, eventually

from feedline import Pipeline
from feedline.loader.ring.channel import Channel, pair
from feedline.loader.wire.facts import FeederFacts, Hello
from feedline.loader.wire.ring_messages import BeginStream, FeederFailure, PlanRequest
from feedline.native import rows
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.feeder import trainer_session
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import TrainerSession
from feedline.spec.cluster_section import ClusterSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from feeder_loop import ReadyBlocks, write_pipeline

BATCHES = 512


def read(channel: Channel) -> int:
    """Free the slots that are announced; how many."""
    batches = 0
    while (arrival := channel.receive(wait=False)) is not None:
        assert not isinstance(arrival[1], FeederFailure), arrival[1]
        if arrival[0] == b"R":
            channel.free(arrival[2], arrival[3])
            batches += 1
    return batches


@pytest.mark.skipif(not rows.COMPILED, reason="installed without a compiler: numpy writes slots")
@pytest.mark.parametrize(("shuffled", "most"), [(False, 58), (True, 58)])
def test_a_small_batch_of_a_block_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffled: bool, most: float
):
    """By receiving what the trainer has freed, and by writing and announcing what follows, a ring full at a time."""
    monkeypatch.setattr(trainer_session, "_REPORT_S", 3600.0)
    path = write_pipeline(tmp_path, BATCHES, shuffled=shuffled)
    plan = Pipeline.from_yaml(path, {"lanes": 1}).plan()
    trainer, theirs = pair()
    with closing(ReadyBlocks(plan)) as cluster, closing(Planner(lambda *_: plan, job="calls")) as planner:
        about = FeederFacts(imports_s=0.0, log=None, dashboard=None, feeder=0)
        session = TrainerSession(
            Channel(theirs),
            cluster,
            planner,
            rank=0,
            world_size=1,
            memory_bytes=1 << 28,
            about=about,
            wake=lambda: None,
        )

        def turn() -> None:
            session.receive()
            while session.runnable:
                session.advance()

        try:
            trainer.send_message(PlanRequest(number=1, hello=Hello(rank=0, world_size=1)))
            assert eventually(lambda: (turn(), trainer.receive(wait=False))[1]), "the plan's facts"
            trainer.send_message(BeginStream(stream=1, epoch=0, step=0, last=True, seen=None))
            assert eventually(lambda: (turn(), read(trainer))[1])
            warm = sum((turn(), read(trainer))[1] for _ in range(8))
            assert warm >= 8
            calls = batches = 0
            while batches < BATCHES // 2:
                calls += calls_of(turn)
                found = read(trainer)
                assert found
                batches += found
            assert calls / batches <= most
        finally:
            session.close()
            session.channel.close()
            trainer.close()


def test_a_task_of_the_cluster_in_the_feeder():
    """Of Dask's loop, which runs its scheduler, its worker and its client; and of the feeder's thread."""
    tasks, arrived = 100, threading.Semaphore(0)
    counted = [0]

    def profile(_: Any, event: str, __: Any) -> None:
        counted[0] += event in ("call", "c_call")

    def compute(cluster: Cluster, first: int) -> None:
        for number in range(first, first + tasks):
            key = f"feedline-block-calls-{number}"
            task = cluster.start(int, key=key, arrived=lambda *_: arrived.release(), priority=-number)
            assert arrived.acquire(timeout=PATIENCE_S)
            assert task is not None
            task.cancel()

    with closing(open_cluster(ClusterSpec(dashboard=False), threads=1)) as cluster:
        cluster.check_workers()
        compute(cluster, 0)
        loop: Any = cluster.client.loop
        profiled = threading.Event()
        loop.add_callback(lambda: (sys.setprofile(profile), profiled.set()))
        assert profiled.wait(PATIENCE_S)
        own = calls_of(lambda: compute(cluster, tasks))
        profiled.clear()
        loop.add_callback(lambda: (sys.setprofile(None), profiled.set()))
        assert profiled.wait(PATIENCE_S)
    assert counted[0] / tasks <= 2600
    assert own / tasks <= 310
