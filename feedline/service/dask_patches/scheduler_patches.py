"""Change Dask's scheduler: what it is asked, what it keeps, and how workers leave it.

Runs in: the scheduler, on its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Scheduler
from distributed.spans import SpansSchedulerExtension

from feedline.service.dask_patches.versions import allow, require

# A `worker-saturation` with which no task waits in the queue. Dask reads infinity only when it starts.
_NO_QUEUE = 1e6
_SILENCE_S, _DASKS_SILENCE_S = 20.0, 300.0


class PagelessScheduler(Scheduler):
    """A scheduler that opens no port for HTTP. Overrides: `ServerNode.start_http_server`. Why: Dask has no setting."""

    def start_http_server(self, *_: object, **__: object) -> None:
        pass


def scheduler_class(*, http: bool) -> type[Scheduler]:
    """Dask's class, or the one without an HTTP server. Raises ClusterError."""
    if not http:
        require("schedulers open no port for HTTP")
    return Scheduler if http else PagelessScheduler


def replace_adaptive_target(scheduler: Scheduler, own: Callable[..., int], remote: Callable[..., int]) -> None:
    """Answer how many workers there should be with `own` in this process, and with `remote` to others. Raises
    ClusterError.

    Replaces: `Scheduler.adaptive_target`, which dask-kubernetes' and other handlers call, and the handler of that name,
    which `Adaptive` asks through its connection. Why: Dask's answer is about the tasks that it holds, which a feeder
    limits to a window. A subclass of `Adaptive` would serve clusters of this process only.
    """
    require("clusters follow the demand of jobs")
    node: Any = scheduler
    node.adaptive_target = own
    node.handlers["adaptive_target"] = remote


class TaskQueue:
    """A scheduler's queue of tasks, which can be bypassed. Raises ClusterError.

    Replaces: the value of `SchedulerState.WORKER_SATURATION`, which Dask reads from its configuration when the
    scheduler starts. Why: Dask never queues tasks that are restricted to workers. They would keep all workers full, and
    those of feeders without a route, of counts and of fits would wait in the queue for ever; on a worker, priorities
    order them.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        require("routes share workers with other tasks")
        self._scheduler: Any = scheduler
        self._saturation = float(self._scheduler.WORKER_SATURATION)

    def bypass(self, wanted: bool, stimulus_id: str) -> None:
        """Use the queue no more, or again. Called with each report."""
        scheduler, saturation = self._scheduler, self._saturation
        if math.isinf(saturation) or wanted == (saturation != scheduler.WORKER_SATURATION):
            return
        scheduler.WORKER_SATURATION = _NO_QUEUE if wanted else saturation
        for worker in scheduler.workers.values():
            scheduler.check_idle_saturated(worker)
        scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)


def finish_before_retirement(scheduler: Scheduler) -> None:
    """Let workers that are retired end their running tasks first, if they know how (`service/worker/departure.py`).

    Replaces: the handler `retire_workers`, which every kind of scale-in calls. Why: it gives up what a worker runs,
    which is then computed twice.
    """
    if not allow("the ends of running tasks when workers are retired: they are computed twice"):
        return
    node: Any = scheduler
    retire = node.handlers["retire_workers"]

    async def retire_workers(workers: list[Any] | None = None, names: list[Any] | None = None, **options: Any) -> Any:
        removal = {name: options.pop(name) for name in ("close_workers", "remove", "stimulus_id") if name in options}
        if workers is None and names is None:
            addresses = list(node.workers_to_close(**options))
        else:  # Dask's own clusters give the names of workers as their addresses
            asked = {str(name) for name in [*(workers or ()), *(names or ())]}
            addresses = [address for address, each in node.workers.items() if {address, str(each.name)} & asked]
        await asyncio.gather(*(_finish(node, address) for address in addresses))
        return await retire(workers=addresses, **removal)

    node.handlers["retire_workers"] = retire_workers


async def _finish(scheduler: Any, address: str) -> None:
    with contextlib.suppress(Exception):  # a worker that does not know how, or is gone
        await scheduler.rpc(address).feedline_finish()


class _EmptySpans(SpansSchedulerExtension):
    """Dask's record of spans, always empty."""

    def observe_tasks(self, *_: object, **__: object) -> dict[Any, Any]:
        return {}

    def heartbeat(self, *_: object) -> None:
        """Ignore the counters of a worker."""


def drop_spans(scheduler: Scheduler) -> None:
    """Keep no spans from now on: Dask's record of the groups of tasks that there were.

    Replaces: the extension `spans`; without any, heartbeats of workers would fail. Why: the groups of all tasks that
    there ever were are kept, and each worker keeps counters for them: a few kB per block here, and 1 kB there.
    """
    if allow("dropping spans, which saves memory"):
        scheduler.extensions["spans"] = _EmptySpans(scheduler)


def remove_silent_workers(scheduler: Scheduler) -> None:
    """Remove workers that have been silent for 20 seconds.

    Replaces: `Scheduler.worker_ttl`, and the time of its periodic callback `worker-ttl`, unless Dask's configuration
    says another time than its default. Why: a preload comes too late for the configuration, by which Dask would wait
    for five to ten minutes: it looks once in that time. Not for a feeder's own workers, its nannies' care:
    docs/decisions/0025-half-open-connections.md.
    """
    node: Any = scheduler
    configured_s = parse_timedelta(dask.config.get("distributed.scheduler.worker-ttl"))
    look = node.periodic_callbacks.get("worker-ttl")
    if look is None or not node.worker_ttl == configured_s == _DASKS_SILENCE_S:
        return
    if not allow("removing silent workers early"):
        return
    node.worker_ttl = _SILENCE_S
    look.callback_time = 1000 * _SILENCE_S / 8
    if look.is_running():  # with its first look five minutes from now
        look.stop()
        look.start()
