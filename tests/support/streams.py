"""A stream of blocks for tests: a lane whose blocks, a step each, are computed by a function of the test."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from loop_waits import no_waits
from pipelines import PATIENCE_S, eventually

from feedline.blocks.request import BlockResult
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.wire.facts import BlockStats
from feedline.planning.schedule import Block
from feedline.service.cluster import attempts
from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder.delivery import Delivery, StreamBlocks
from feedline.service.feeder.window import Window, WindowLimits

ROWS = 4


class Stream:
    """A lane of blocks, a step each, computed by a function of (block index, key)."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, work: Callable[[int, str], Any]) -> None:
        Stream.work = staticmethod(work)
        monkeypatch.setattr(attempts, "run_block", run)
        self.cluster = cluster
        self.woken = threading.Event()

    def open(self, name: str, blocks: int, **options: Any) -> Delivery:
        made = (Block(lane=0, index=n, first_step=n, last_step=n, **BLOCK) for n in range(blocks))
        stream = StreamBlocks(
            name=name,
            blocks=made,
            job_of=lambda block: SimpleNamespace(digest=name),  # what every task is given
            request=lambda block: SimpleNamespace(index=block.index, rows=ROWS, pieces=PIECES),
            layout=None,
        )
        options = {"window": window(fixed_blocks=4), **options}
        return Delivery(self.cluster, stream, wake=self.woken.set, stats=BlockStats(), **options)

    def read(self, delivery: Delivery, steps: range) -> list[Any]:
        """What the steps get, in order."""
        read = []
        for step in steps:
            delivery.pump(step)

            def arrived(step: int = step) -> Any:
                with no_waits():
                    self.cluster.look(waiting=True)
                    delivery.look(starved=True)
                    return delivery.get(0, step)

            rows = eventually(arrived)
            assert rows is not None, f"block {step} never came"
            read.append(rows[0].value)
            delivery.drop(step)
        return read


def hedged(delivery: Delivery) -> bool:
    """Whether a block is computed twice, once the scheduler has said where the late ones are."""

    def look() -> int:
        with no_waits():
            delivery.look(starved=True)
        return delivery.stats.resubmitted

    return bool(eventually(look))


def missing(delivery: Delivery, step: int) -> str:
    """What the feeder says of a step that lacks blocks."""
    with no_waits():
        blocks = delivery.missing(step)
    concurrent.futures.wait([blocks.places], PATIENCE_S)
    with no_waits():
        return blocks.describe()


PIECES = (SimpleNamespace(fragment=SimpleNamespace(path="day=1/part-0.parquet")),)
BLOCK: dict[str, Any] = {"start": 0, "rows": ROWS, "pieces": ()}


def window(**changes: int) -> Window:
    return Window(WindowLimits(**{"open_blocks": 1, "memory_bytes": 1 << 30, **changes}))


def run(job: Any, request: Any, key: str, packed: bool) -> BlockResult:
    """Instead of a block's own task."""
    value = Stream.work(request.index, key)
    return BlockResult(
        key=key,
        rows=ROWS,
        parts=(SimpleNamespace(value=value, nbytes=8),),
        image=None,
        times=BlockTimes(read_s=0.1, transform_s=0, encode_s=0),
        nbytes_read=0,
        quality=None,
    )
