"""A feeder's status, for tests to vary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from feedline.loader.wire.facts import FeederStats
from feedline.loader.wire.run_status import FeederStatus, RankStatus

STATUS = FeederStatus(
    job="ctr",
    feeder="a",
    name="clicks",
    pipeline="p.yaml",
    host="h",
    pid=7,
    version="0.1.0",
    started_s=1.0,
    now_s=2.0,
    epochs=1,
    form="threads",
    cores=2.0,
    cpu_s=0.5,
    workers=1,
    threads=2,
    ranks=(),
)


def status_of(*, step: int = 0, ranks: tuple[int, ...] = (0,), **others: Any) -> FeederStatus:
    """The status of a feeder whose ranks are before a step."""
    stats = FeederStats(step=step, steps=10, rows=100 * step, batches=step)
    feeding = (RankStatus(rank=rank, state="feeding", stats=stats, trainers=1) for rank in ranks)
    return replace(STATUS, ranks=tuple(feeding), **others)
