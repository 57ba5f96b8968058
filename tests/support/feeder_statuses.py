"""A feeder's status, for tests to vary."""

from __future__ import annotations

from feedline.loader.wire.facts import FeederStats
from feedline.loader.wire.run_status import FeederStatus, RankStatus


def status_of(
    *, feeder: str = "a", job: str = "ctr", step: int = 0, now_s: float = 2.0, ranks: tuple[int, ...] = (0,)
) -> FeederStatus:
    """The status of a feeder whose ranks are before a step."""
    stats = FeederStats(step=step, steps=10, rows=100 * step, batches=step)
    return FeederStatus(
        job=job,
        feeder=feeder,
        name="clicks",
        pipeline="p.yaml",
        host="h",
        pid=7,
        version="0.1.0",
        started_s=1.0,
        now_s=now_s,
        epochs=1,
        form="threads",
        cores=2.0,
        cpu_s=0.5,
        workers=1,
        threads=2,
        ranks=tuple(RankStatus(rank=rank, state="feeding", stats=stats, trainers=1) for rank in ranks),
    )
