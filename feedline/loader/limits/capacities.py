"""The capacities of a run, by its pipeline or its feeder's status, and by the feeder's counts.

Runs in: whatever explains a run. Pure; no torch.
"""

from __future__ import annotations

from feedline.config import PipelineSpec
from feedline.loader.limits.run_facts import Capacity
from feedline.loader.wire.facts import FeederStats


def capacity_of(
    spec: PipelineSpec,
    stats: FeederStats,
    *,
    cores: float,
    workers: int = 0,
    store_bytes_per_s: float | None = None,
) -> Capacity:
    """The capacities of one trainer's blocks. cores: of this host; workers: of a cluster (0: as pipeline.yaml says)."""
    limits = spec.cluster.workers
    return capacity_in_form(
        spec.cluster.kind,
        stats,
        cores=cores,
        workers=workers or (1 if limits is None else limits.min),
        epochs=spec.epochs,
        cached=spec.cache is not None and not spec.cache.is_off,
        store_bytes_per_s=store_bytes_per_s,
    )


def capacity_in_form(
    form: str,
    stats: FeederStats,
    *,
    cores: float,
    workers: int,
    epochs: int,
    cached: bool,
    store_bytes_per_s: float | None = None,
) -> Capacity:
    """The capacities with a form of `cluster`. cores: of the feeder's host, which workers share in two of the forms; in
    the others they are those of the workers' hosts, or as many as threads where these are unknown."""
    threads = max(stats.threads, 1)
    own = form in ("threads", "processes")
    return Capacity(
        cores=cores if own else stats.cores or float(threads),
        threads=threads,
        workers=workers,
        form=form,
        own_cores=own,
        store_bytes_per_s=store_bytes_per_s,
        window=stats.window,
        window_reason=stats.window_reason,
        epochs=epochs,
        cached=cached,
    )
