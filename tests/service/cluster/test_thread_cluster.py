"""Blocks in threads of the feeder: retries, errors, and first rows before the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pipelines import eventually

from feedline import Pipeline
from feedline.blocks.block_encoder import HandOver
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import keep_job
from feedline.config.cluster_section import ClusterSpec
from feedline.errors import DataError
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.slot import RowSlice
from feedline.loader.wire.facts import BlockStats
from feedline.planning.plan import Plan
from feedline.service.cluster import attempts
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder.delivery import Delivery, StreamBlocks
from feedline.service.feeder.steps import segments_of
from feedline.service.feeder.window import Window, WindowLimits
from feedline.workbench.generate.generate import clicks_pipeline


@pytest.fixture
def plan(clicks: Path, tmp_path: Path) -> Plan:
    path = tmp_path / "pipeline.yaml"
    shape: dict[str, Any] = {"dense": 4, "ids": 4, "histories": 2, "batch_size": 256}
    path.write_text(clicks_pipeline(str(clicks), work_dir=str(tmp_path), tail="partial", **shape))
    return Pipeline.from_yaml(path, {"source.split_rows": 1024, "shuffle": "off"}).plan()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(open_cluster(ClusterRequest(ClusterSpec(dashboard=False), threads=2, early=True))) as cluster:
        yield cluster


def delivery_of(plan: Plan, cluster: Cluster, **changes: int) -> Delivery:
    window = Window(WindowLimits(open_blocks=1, memory_bytes=1 << 30, fixed_blocks=2))
    blocks = replace(StreamBlocks.of(plan, 0, range(1)), **changes)
    return Delivery(cluster, blocks, window=window, wake=lambda: None, stats=BlockStats())


class Blocks:
    """A plan's blocks on a cluster."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.blocks = list(plan.schedule(0).blocks_of(range(1), first_step=0))
        self.plan = plan

        keep_job(plan.source.job)
        self.delivery = delivery_of(plan, cluster, batch_rows=0)

    def read(self, number: int) -> tuple[EncodedRows, ...]:
        block = self.blocks[number]
        self.delivery.pump(block.first_step)

        def arrived() -> tuple[EncodedRows, ...] | None:
            self.delivery.look()  # submits again what paused after a failure
            return self.delivery.get(0, block.index)

        rows = eventually(arrived)
        assert rows is not None
        self.delivery.drop(block.last_step)
        return rows


def test_a_failed_block_is_retried_in_early_threads_or_is_the_same_error(
    plan: Plan, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    blocks = Blocks(plan, cluster)
    computed: list[str] = []

    def run(job: Any, request: Any, key: str, packed: bool) -> Any:
        computed.append(key)
        if request == plan.request(blocks.blocks[1], 0):
            raise DataError("a value is out of range")
        if "-b0-" in key and key.endswith("-a0-r"):
            raise OSError("the disk is away")
        return run_block(job, request, key, packed)

    monkeypatch.setattr(attempts, "run_block", run)
    with closing(blocks.delivery):
        assert sum(part.rows for part in blocks.read(0)) == blocks.blocks[0].rows
        assert [key.rpartition("-a")[2] for key in computed if "-b0-" in key] == ["0-r", "1-r"]
        with pytest.raises(DataError, match="a value is out of range"):
            blocks.read(1)


def test_a_step_is_ready_before_its_block(plan: Plan, cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Its first rows come while the rest of the block is computed, to all that share it; counts come with the rest."""
    finish, calls = threading.Event(), []

    def run(job: Any, request: Any, key: str, packed: bool, hand_over: HandOver | None = None) -> Any:
        result = run_block(job, request, key, packed, hand_over)
        calls.append(hand_over)
        assert hand_over is None or finish.wait(10)
        return result

    monkeypatch.setattr(attempts, "run_block", run)
    keep_job(plan.source.job)
    schedule = plan.schedule(0)
    blocks = list(schedule.blocks_of(range(1), first_step=0))

    def step(delivery: Delivery, number: int) -> list[RowSlice]:
        slices = eventually(lambda: segments_of(schedule, range(1), number, delivery.get))
        assert slices is not None
        return slices

    last = blocks[0].last_step
    with closing(delivery_of(plan, cluster)) as one, closing(delivery_of(plan, cluster)) as two:
        one.pump(0)
        first = step(one, 0)
        two.pump(0)
        assert [each.encoded for each in step(two, 0)] == [each.encoded for each in first]
        assert segments_of(schedule, range(1), last, one.get) is None  # whose rows are the last of the block
        finish.set()
        step(one, last)
        assert [(block.index, quality.rows) for block, quality in one.drop(last - 1)] == []
        step(one, last + 1)
        assert [(block.index, quality.rows) for block, quality in one.drop(last)] == [(0, blocks[0].rows)]
    assert [each.rows for each in calls if each is not None] == [schedule.batch_size]  # once, and of no later block
