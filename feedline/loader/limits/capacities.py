"""The capacities that a pipeline and its feeder's counts name.

Runs in: whatever explains a run. Pure; no torch.
"""

from __future__ import annotations

from feedline.loader.limits.run_facts import Capacity
from feedline.loader.wire.facts import FeederStats
from feedline.spec import PipelineSpec


def capacity_of(
    spec: PipelineSpec,
    stats: FeederStats,
    *,
    cores: float,
    workers: int = 0,
    store_bytes_per_s: float | None = None,
) -> Capacity:
    """The capacities of one trainer's blocks. cores: of this host; workers: of a cluster (0: as pipeline.yaml says)."""
    form, threads = spec.cluster.kind, max(stats.threads, 1)
    limits = spec.cluster.workers
    own = form in ("threads", "processes")
    return Capacity(
        cores=cores if own else float(threads),
        threads=threads,
        workers=workers or (1 if limits is None else limits.min),
        form=form,
        own_cores=own,
        store_bytes_per_s=store_bytes_per_s,
        window=stats.window,
        window_reason=stats.window_reason,
        epochs=spec.epochs,
        cached=spec.cache is not None and not spec.cache.is_off,
    )
