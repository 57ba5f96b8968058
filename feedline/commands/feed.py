"""Run a feeder process: read the spec, start its cluster, serve its trainer.

Runs in: the feeder (`python -m feedline feed`). It serves the trainer at the other end of a connection and ends with
it, or listens for trainers, one after the other, until `feedline run` ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from feedline.errors import FeedlineError
from feedline.loader.encoding.quality import Quality
from feedline.loader.facts import FeederFacts, Hello
from feedline.loader.ring.channel import Channel, ChannelClosedError, adopt
from feedline.loader.ring.launch import feeder_threads, log_path, shorten_log
from feedline.loader.ring.messages import FeederFailure
from feedline.loader.ring.rendezvous import Listener, job_fingerprint, socket_path
from feedline.pipeline import Pipeline
from feedline.planning.plan import Plan, code_of
from feedline.resources import available_memory_bytes
from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder import Feeder
from feedline.service.fit_workers import DaskWorkers
from feedline.service.supervisor import FeederEvent
from feedline.service.trainer_session import FeederCounters, window_logger
from feedline.spec import PipelineSpec, load_spec
from feedline.warehouse.optimize.usage import record_usage
from feedline.warehouse.storage.parallel import stop_waiting

# Default memory of a feeder: this, or its share of half of the free memory if that is less.
_MEMORY_BYTES = 4 * 2**30
_STATUS_S = 0.5
_LOG_CHECK_S = 5.0
# Time for the orderly shutdown of an orphan; after that it is killed.
_SHUTDOWN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """The pipeline, the rank, the number of ranks in all and on this host.

    parent: the process that started the feeder. scratch: its folder for Dask's workers, removed at the end. dashboard:
    load the dashboard's pages before the first batch.
    """

    path: str
    overrides: dict[str, object]
    rank: int
    world_size: int
    local_ranks: int
    parent: int | None = None
    scratch: str | None = None
    dashboard: bool = False


def _show_window_changes() -> None:
    """Write a line to standard error (or the feeder's log) whenever the window changes."""
    window_logger.setLevel(logging.INFO)
    window_logger.addHandler(logging.StreamHandler())


@functools.cache
def startup_seconds() -> float:
    """Seconds from the start of this process to the first call, made after its imports."""
    started_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def memory_budget(spec: PipelineSpec, *, local_ranks: int) -> int:
    """Bytes that one feeder may use for its ring and blocks in flight."""
    return spec.memory or min(_MEMORY_BYTES, available_memory_bytes() // 2 // local_ranks)


def feed_over(fd: int, request: FeedRequest) -> int:
    """Serve the trainer at the other end of an inherited connection. Returns the exit status."""
    startup_seconds()
    _show_window_changes()
    channel = adopt(fd)
    log = None
    if request.scratch is not None:
        log = str(log_path(request.scratch))
        threading.Thread(target=_keep_log_short, name="feedline-log", daemon=True).start()
    with _feeder_signals(request, channel):
        try:
            with _cluster_for(request) as (pipeline, cluster):
                _serve(channel, pipeline, cluster, request, FeederCounters(), log=log)
        except FeedlineError as error:
            with contextlib.suppress(ChannelClosedError):
                channel.send_json(FeederFailure(name=type(error).__name__, message=str(error)).to_json())
            print(error, file=sys.stderr)
            return 1
        finally:
            channel.close()
    return 0


def feed_listening(request: FeedRequest) -> int:
    """Serve trainers that connect to this rank's socket, one at a time, until the parent process ends.

    Reports events to the parent as JSON lines on standard output: "ready" with the dashboard, "trainer" when one
    connects, "plan", "stats" with the progress, and "left" when it disconnects, with the error if there was one.
    """
    startup_seconds()
    _show_window_changes()
    with _feeder_signals(request), _cluster_for(request) as (pipeline, cluster):
        listener = Listener(socket_path(job_fingerprint(pipeline.spec), request.rank, request.world_size))
        try:
            listener.open()
            _print(FeederEvent(type="ready", dashboard=cluster.dashboard, pid=os.getpid()))
            while True:
                channel = listener.accept()
                if channel is not None:
                    event = _serve_and_report(channel, pipeline, cluster, request)
                    listener.open()
                    _print(event)  # from now on the next trainer can connect
        finally:
            listener.close()


def _serve_and_report(channel: Channel, pipeline: Pipeline, cluster: Cluster, request: FeedRequest) -> FeederEvent:
    """Serve one trainer; returns the event of its disconnection."""
    counters = FeederCounters()
    disconnected = threading.Event()
    reporter = threading.Thread(target=_report, args=(counters, disconnected), daemon=True)
    reporter.start()
    _print(FeederEvent(type="trainer", pid=channel.peer_pid()))
    error = None
    quality: list[Quality] = []
    try:
        _serve(channel, pipeline, cluster, request, counters, on_plan=_print_plan, on_quality=quality.append)
    except FeedlineError as failure:
        error = f"{type(failure).__name__}: {failure}"
    finally:
        channel.close()
        disconnected.set()
        reporter.join()
    return FeederEvent(type="left", error=error, stats=counters.stats(), quality=tuple(quality))


def _report(counters: FeederCounters, disconnected: threading.Event) -> None:
    """Report statistics periodically, and soon after the first batch: a feeder that dies then has made progress."""
    ticks, progress = 0, False
    while not disconnected.wait(_STATUS_S / 5):
        ticks += 1
        if ticks % 5 == 0 or progress != (counters.batches > 0):
            progress = counters.batches > 0
            _print(FeederEvent(type="stats", stats=counters.stats()))


def _print(event: FeederEvent) -> None:
    print(json.dumps(event.to_json()), flush=True)


def _print_plan(plan: Plan) -> None:
    _print(FeederEvent(type="plan", plan=plan.facts()))


def _serve(
    channel: Channel,
    pipeline: Pipeline,
    cluster: Cluster,
    request: FeedRequest,
    counters: FeederCounters,
    *,
    log: str | None = None,
    on_plan: Callable[[Plan], None] = lambda plan: None,
    on_quality: Callable[[Quality], None] = lambda quality: None,
) -> None:
    def resolve(hello: Hello) -> Plan:
        plan = _resolve(pipeline, cluster, request, hello)
        on_plan(plan)
        return plan

    feeder = Feeder(
        channel,
        cluster,
        resolve,
        rank=request.rank,
        world_size=request.world_size,
        memory_bytes=memory_budget(pipeline.spec, local_ranks=request.local_ranks),
        counters=counters,
        about=FeederFacts(imports_s=startup_seconds(), log=log, dashboard=None, feeder=os.getpid()),
    )
    try:
        feeder.serve()
    finally:
        if (total := feeder.session.monitor.total) is not None:
            on_quality(total)


def _resolve(pipeline: Pipeline, cluster: Cluster, request: FeedRequest, hello: Hello) -> Plan:
    """Resolve the plan that a trainer requests; rank 0 of a new job adds it to the usage record."""
    job = job_fingerprint(pipeline.spec)
    plan = pipeline.resolve(hello, job=job, map=cluster.map, workers=DaskWorkers(cluster))
    if hello.snapshot is None and hello.rebase is None:  # a resumed run may have delivered those rows
        plan.without_gaps()
    plan = replace(plan, job=replace(plan.job, environment=cluster.environment))
    cluster.check_job(plan.job)
    if request.rank == 0 and hello.snapshot is None:  # else it is resumed, with its first snapshot
        spec = pipeline.spec
        record_usage(spec.work_dir, plan.snapshot, plan.parts, plan.selection.rows, job=spec.name)
    return plan


@contextlib.contextmanager
def _cluster_for(request: FeedRequest) -> Iterator[tuple[Pipeline, Cluster]]:
    spec = load_spec(request.path, request.overrides)
    cluster = Cluster(spec.cluster, threads=feeder_threads(spec, local_ranks=request.local_ranks))
    try:
        cluster.check_workers(code_of(spec))
        if request.dashboard:
            cluster.load_dashboard()
        yield Pipeline(spec), cluster
    finally:
        _ignore_sigterm()
        stop_waiting()
        cluster.close()  # native code of tasks must not run in threads when the interpreter ends


@contextlib.contextmanager
def _feeder_signals(request: FeedRequest, trainer: Channel | None = None) -> Iterator[None]:
    """Set the feeder's signal handlers, and remove its scratch folder at the end.

    Ctrl-C is left to the parent, and so are the signals that a job's launcher sends to all processes before it ends the
    job: a trainer then saves its state while its feeder still delivers batches. The end of the connection to the
    `trainer` that started this feeder, SIGTERM after that, and the parent's death end it in order; SIGTERM alone ends
    only a feeder of `feedline run`.
    """
    orphaned = threading.Event()

    def end(signum: int, _frame: object) -> None:
        if trainer is None or orphaned.is_set() or not trainer.is_connected():
            _ignore_sigterm()
            raise SystemExit(128 + signum)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGUSR1, signal.SIGUSR2, *((signal.SIGHUP,) if trainer is not None else ())):
        signal.signal(number, signal.SIG_IGN)  # inherited by its child processes
    signal.signal(signal.SIGTERM, end)
    try:
        watch_parent(request.parent, lambda: _end_as_orphan(orphaned, request.scratch))
        yield
    finally:
        _ignore_sigterm()
        _remove_scratch(request.scratch)


def _ignore_sigterm() -> None:
    """Protect the shutdown from a second SIGTERM and from the parent's death."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end_as_orphan(orphaned: threading.Event, scratch: str | None) -> None:
    """Runs in a thread: shut down in order, or kill the process if the main thread is stuck."""
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SHUTDOWN_S)
    _remove_scratch(scratch)
    os.kill(os.getpid(), signal.SIGKILL)


def _remove_scratch(scratch: str | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _keep_log_short() -> None:
    """Runs in a thread for the life of the process."""
    while True:
        shorten_log(sys.stderr.fileno())
        time.sleep(_LOG_CHECK_S)


def watch_parent(parent: int | None, then: Callable[[], None]) -> None:
    """Call `then` from a thread when the parent process ends, even if the main thread is busy.

    The parent is the process that started the feeder; the program in FEEDLINE_COMMAND may stand between them.
    """
    pidfd = None
    with contextlib.suppress(ProcessLookupError):  # it is gone already
        pidfd = os.pidfd_open(os.getppid() if parent is None else parent)

    def watch() -> None:
        if pidfd is not None:
            select.select([pidfd], [], [])
        then()

    threading.Thread(target=watch, name="feedline-parent", daemon=True).start()
