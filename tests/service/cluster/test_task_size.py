"""A task takes at most 4 kB of the scheduler's memory and of the wire, whatever its plan is.

Counted at the client's connection: the message that Dask's scheduler gets for one block, as it is serialized. The 4 kB
include a table's path of 80 characters, and the times of files written one after another, 1 ms apart. A longer path
takes a byte per character. Times compress worse the more they differ: spread over a month, those of 48 files take 160
bytes more.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import LocalCluster
from distributed.protocol import dumps
from rewritten import Rewritten, state_at, steps
from streams import window

from feedline import Pipeline
from feedline.config.cluster_section import ClusterSpec
from feedline.loader.wire.facts import BlockStats
from feedline.planning.plan import Plan
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder.delivery import Delivery, StreamBlocks

MOST_BYTES = 4_128  # with the address of the feeder's shared memory
ROWS = 8_192  # of a block
PATH_CHARACTERS = 80  # of a table's path
WRITTEN_NS, APART_NS = 1_767_225_600_000_000_000, 1_000_000  # when files were written


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A scheduler without workers, which keeps every task that it gets."""
    with (
        LocalCluster(
            n_workers=0,
            processes=False,
            protocol="tcp://",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as local,
        contextlib.closing(
            open_cluster(ClusterRequest(ClusterSpec(scheduler=local.scheduler_address, wait_s=30), threads=1))
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path wherever the tests run, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path).resolve()


def place_in(folder: Path, name: str) -> Path:
    """A new folder in which the path of the table has PATH_CHARACTERS."""
    missing = PATH_CHARACTERS - len(str(folder / name / "warehouse"))
    assert missing >= 0, "the temporary folder's path is too long"
    place = folder / (name + "_" * missing)
    place.mkdir()
    return place


def write_table(folder: Path, files: int) -> None:
    """Rows of 1.5 blocks in so many files, with keys of their own; each footer has another digest."""
    random = np.random.default_rng(files)
    late = np.random.default_rng(0).integers(0, APART_NS, files)
    for index in range(files):
        rows = 3 * ROWS // 2 // files
        table = pa.table(
            {
                "price": random.random(rows),
                "item": random.integers(0, 1000, rows),
                "user": np.sort(random.integers(0, 50, rows)),
            }
        )
        path = folder / "warehouse" / f"ds=2026-01-{index % 28 + 1:02d}" / f"part-{index:05d}-c000.zstd.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        written_ns = WRITTEN_NS + index * APART_NS + int(late[index])
        os.utime(path, ns=(written_ns, written_ns))


def plan_of(folder: Path, files: int, features: dict[str, Any], **shuffle: Any) -> Plan:
    write_table(folder, files)
    spec = {
        "version": 1,
        "name": "a-pipeline-with-a-name-of-usual-length",
        "work_dir": "work",
        "source": {"table": "warehouse", "where": "item < 900", "split_rows": ROWS},
        "features": features,
        "batch": {"size": 256},
        "shuffle": {"window_rows": 16 * ROWS, **shuffle},
    }
    (folder / "pipeline.yaml").write_text(json.dumps(spec))
    return Pipeline.from_yaml(folder / "pipeline.yaml").plan()


def joined_features(folder: Path) -> dict[str, Any]:
    pq.write_table(pa.table({"item": range(1000), "brand": [f"b{n}" for n in range(1000)]}), folder / "items.parquet")
    join = {"join_external": {"table": "items.parquet", "on": "item", "take": "brand", "missing": "none"}}
    return {"categorical": {"brand": {"column": "item", "ops": [join, {"hash_bucket": 100}]}}}


def rebased_plan(folder: Path) -> Plan:
    place = Rewritten(folder)
    place.fill()
    pipeline = place.pipeline(shuffle={"seed": 5, "window_rows": 150})
    plan = pipeline.plan()
    step = plan.schedule(0).steps // 2
    steps(pipeline, plan, 0, 0, step)
    place.rewrite()
    return pipeline.rebase(state_at(plan, 0, step))


def message_bytes(cluster: Cluster, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """The bytes of the message of each block in the first window, and the most pieces of a block."""
    messages: list[Any] = []
    monkeypatch.setattr(cluster.client, "_send_to_scheduler", messages.append)
    blocks = StreamBlocks.of(plan, 0, range(plan.lanes))
    requests = []

    def request(block: Any) -> Any:
        requests.append(plan.request(block, 0))
        return requests[-1]

    blocks = replace(blocks, name=f"{plan.name}-{plan.fingerprint[:8]}-e0", request=request, batch_rows=0)
    delivery = Delivery(cluster, blocks, window=window(fixed_blocks=32), wake=lambda: None, stats=BlockStats())
    delivery.pump(10**9)
    sent = [message for message in messages if message["op"] == "update-graph"]
    assert len(sent) == len(requests) > 0
    sizes = [sum(memoryview(frame).nbytes for frame in dumps(message)) for message in sent]
    delivery.close()
    return sizes, max(len(each.pieces) for each in requests)


def test_a_task_is_small_whatever_its_plan_is(folder: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    dense: dict[str, Any] = {"dense": {"price": []}}
    many = {"dense": {f"price_{number}": {"column": "price", "ops": [{"clip": number}]} for number in range(600)}}
    places = {name: place_in(folder, name) for name in ("one", "small", "by", "join", "wide", "rebase")}
    plans = {
        "one": plan_of(places["one"], 1, dense),
        "small": plan_of(places["small"], 64, dense),
        "by": plan_of(places["by"], 64, dense, by="user"),
        "join": plan_of(places["join"], 3, joined_features(places["join"])),
        "wide": plan_of(places["wide"], 3, many),
        "rebase": rebased_plan(places["rebase"]),
    }
    pieces = {}
    for name, plan in plans.items():
        sizes, pieces[name] = message_bytes(cluster, plan, monkeypatch)
        assert max(sizes) <= MOST_BYTES, name
        assert min(sizes) > 500, "whole messages were counted"
    assert pieces["one"] == 1
    assert min(pieces["small"], pieces["by"]) >= 45
    assert plans["rebase"].source.rebase is not None
    assert len(plans["wide"].layout.schema) == 600
