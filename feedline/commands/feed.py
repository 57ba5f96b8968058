"""Run a feeder process: read the spec, start its cluster, serve its trainers.

Runs in: the feeder, `python -m feedline feed`, which reads its pipeline from standard input. It serves the trainer at
the other end of a connection and ends with it; or the ranks of a host, and ends with the last of them; or the trainers
of `feedline run`, until that ends.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from feedline.blocks.environment import Reach
from feedline.blocks.jobs import compile_job
from feedline.commands.exit_status import end_with
from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import ClusterError, FeederError, FeedlineError, SpecError
from feedline.loader.ring.channel import Channel, ChannelClosedError, adopt
from feedline.loader.ring.launch import (
    LOCK_S,
    FeederTask,
    begins_with_threads,
    describe_workers,
    feeder_threads,
    log_path,
    memory_share,
    pool_processes,
)
from feedline.loader.ring.rendezvous import HostListener, Listener, job_fingerprint, socket_path
from feedline.loader.wire.codec import pack
from feedline.loader.wire.facts import FeederEvent, FeederFacts, Hello
from feedline.loader.wire.ring_messages import FeederFailure
from feedline.native.kernels import missing_kernels
from feedline.planning.agreement import RunStart, verify_agreement
from feedline.planning.plan import Plan
from feedline.planning.resolve import Fit, resolve_hello
from feedline.planning.source_plan import SourcePlan, first_fragment
from feedline.planning.table_features import required_functions
from feedline.resources.allocators import use_huge_pages
from feedline.resources.cgroups import available_memory_bytes, widen_affinity
from feedline.service.cluster.attempts import serve_blocks
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import WorkerCluster, open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder.feeder import Door, Feeder
from feedline.service.feeder.feeder_process import Ownership, ignore_sigterm, keep_log_short, startup_seconds
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import SessionSetup, TrainerSession, show_window_changes
from feedline.service.feeder_status import StatusGatherer
from feedline.service.log_lines import write_log_lines
from feedline.service.monitoring.feeder_watch import remove_dead_targets, watch_feeder
from feedline.service.page.page_server import PageServer, is_installed
from feedline.service.pool.spawner import ImportingSpawner, Spawner
from feedline.service.pool.zygote import Zygote
from feedline.service.worker_demand import Demand, feeder_name, job_name
from feedline.transforms.registry.op import find_op
from feedline.transforms.registry.user_functions import calls_of, keep_pandas_out
from feedline.warehouse.optimize.usage import record_usage
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import stop_waiting

# --------------------------------------------------------------------------------------------------------------------
# What the sessions of a feeder share: the pipeline, its cluster, and the planner.


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """The pipeline, and what is served of it. spawner: starts processes that compute blocks (None: threads do). parent:
    the process that started the feeder. scratch: its folder for Dask's workers, removed at the end. restarts: feeders
    of these ranks that died before it."""

    spec: PipelineSpec
    task: FeederTask
    spawner: Spawner | None = None
    parent: int | None = None
    scratch: str | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class FeederSessions:
    """What all sessions of a feeder share."""

    request: FeedRequest
    cluster: Cluster
    planner: Planner
    demand: Demand | None
    status: StatusGatherer
    page: PageServer | None  # of `status`

    @property
    def doors(self) -> list[PageServer]:
        """What the feeder's loop polls beside the sockets of trainers."""
        return [] if self.page is None else [self.page]

    @property
    def live_page(self) -> str | None:
        return None if self.page is None else self.page.address

    def open(
        self,
        channel: Channel,
        *,
        rank: int | None,
        wake: Callable[[], None],
        admit: Callable[[Hello], bool] = lambda hello: True,
        on_plan: Callable[[Plan], None] = lambda plan: None,
    ) -> TrainerSession:
        """A session for the trainer at the other end of a channel."""
        request, log = self.request, None
        if request.scratch is not None and log_path(request.scratch).exists():
            log = str(log_path(request.scratch))
        setup = SessionSetup(
            cluster=self.cluster,
            planner=self.planner,
            world_size=request.task.world_size,
            memory_bytes=memory_share(request.spec, local_ranks=request.task.local_ranks),
            about=FeederFacts(
                imports_s=startup_seconds(), log=log, dashboard=None, live_page=self.live_page, feeder=os.getpid()
            ),
        )
        return TrainerSession(channel, setup, rank=rank, wake=wake, admit=admit, on_plan=on_plan)


@contextlib.contextmanager
def open_sessions(request: FeedRequest, *, early: bool = False) -> Iterator[FeederSessions]:
    """Start the cluster and the planner. early: serve trainers before the cluster is up, and has workers that fit."""
    if request.scratch is not None and log_path(request.scratch).exists():
        keep_log_short()
    spec = request.spec
    code = required_functions(spec)
    keep_pandas_out(code)
    if spec.cluster.is_dask:
        use_huge_pages(True)  # processes that are started inherit the setting
    threads = feeder_threads(spec, cores=request.task.cores)
    demand = Demand(spec.name, job_fingerprint(spec), spec.cluster) if spec.cluster.is_dask else None
    report = None if demand is None else demand.first_report()
    cluster = open_cluster(
        ClusterRequest(
            spec.cluster,
            threads=threads,
            early=True,  # a signal then interrupts the wait for it, and the cluster that was started is closed
            spawner=request.spawner,
            processes=spec.cluster.processes or pool_processes(threads, memory_bytes=available_memory_bytes()),
            threads_first=begins_with_threads(spec, cores=request.task.cores),
            elastic=True,
            report=report,
            code=code,
            metrics=spec.metrics,
        )
    )
    logger.info("blocks are computed by %s", describe_workers(spec, cores=request.task.cores))
    planner = status = page = None
    try:
        if not early:
            cluster.check_workers(code)
        planner = Planner(
            partial(_resolve, spec, cluster),
            job=job_fingerprint(spec),
            verify=lambda start: verify_agreement(start, spec.work_dir),
        )
        gatherer = status = StatusGatherer(
            spec,
            cluster,
            request.task,
            job=job_name(spec.name, job_fingerprint(spec)) if demand is None else demand.job,
            feeder=feeder_name() if demand is None else demand.feeder,
            restarts=request.restarts,
        )
        page = _open_page(gatherer) if spec.cluster.dashboard else None
        watched = watch_feeder(spec.metrics, spec.traces, lambda: gatherer.status, request.task.ranks)
        with watched as cluster.on_block:
            yield FeederSessions(request, cluster, planner, demand, status, page)
    finally:
        ignore_sigterm()
        if page is not None:
            page.close()
        if status is not None:
            status.close()
        stop_waiting()
        cluster.close()  # native code of tasks must not run in threads when the interpreter ends
        if planner is not None:
            planner.close()
        remove_dead_targets(spec.metrics)  # of workers that were killed


def _open_page(gatherer: StatusGatherer) -> PageServer | None:
    if not is_installed():
        logger.info("there is no live page without Bokeh: pip install 'feedline[dashboard]'")
        return None
    try:
        return PageServer(lambda: [gatherer.status])
    except OSError as error:
        logger.warning("there is no live page of this feeder: %s", error)
        return None


def _resolve(spec: PipelineSpec, cluster: Cluster, hello: Hello, start: RunStart, plans: Sequence[Plan]) -> Plan:
    """Resolve the plan that a trainer requests; rank 0 of a new job adds it to the usage record."""
    fit = _fit_on(spec, cluster)
    plan = resolve_hello(spec, hello, start=start, fit=fit, map=cluster.map, plans=plans)
    if hello.snapshot is None and hello.rebase is None:  # a resumed run may have delivered those rows
        plan.without_gaps()
    if not any(plan is each for each in plans):
        plan = plan.in_environment(cluster.environment)
    for each in plan.sources:
        cluster.check_job(each.job, _reach_of(each))
        if not spec.cluster.is_dask and not each.needs_artifacts:
            compile_job(each.job, each.features)
        if hello.global_rank == 0 and hello.snapshot is None:  # else it is resumed, with its first snapshot
            record_usage(spec.work_dir, each.snapshot, each.parts, each.selection.rows, job=spec.name)
    return plan


def _reach_of(plan: SourcePlan) -> Reach:
    record = plan.job.record
    return Reach(
        host=platform.node(),
        fragment=first_fragment(plan),
        work_dir=None if record is None else record.work_dir,
        snapshot=plan.snapshot.file_name,
    )


def _fit_on(spec: PipelineSpec, cluster: Cluster) -> Fit:
    """Fits missing artifacts on the cluster."""

    def fit(snapshots: Sequence[Snapshot]) -> str | None:
        from feedline.pipeline import Pipeline  # noqa: PLC0415 -- 0.1 s of imports that most feeders do not need
        from feedline.service.cluster.fit_workers import DaskWorkers  # noqa: PLC0415 -- imports Dask

        workers = DaskWorkers(cluster) if isinstance(cluster, WorkerCluster) else None
        return Pipeline(spec).fit(missing=True, snapshot=snapshots, workers=workers).manifest

    return fit


# --------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

_STATUS_S = 0.5
# A feeder of a host's ranks waits so long for the first one.
_FIRST_RANK_S = 60.0
# The last events of a feeder may take so long to be read.
_LAST_EVENTS_S = 5.0


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a feeder as FeedlineDataset and `feedline run` start it, and end the process with its exit status."""
    startup_seconds()
    use_huge_pages(False)  # until the first batch is out
    gc.freeze()  # what was imported stays
    gc.enable()
    sys.setswitchinterval(LOCK_S)
    end_with(partial(_feed, arguments), at_once=True)


def _feed(arguments: Sequence[str]) -> NoReturn:
    parser = argparse.ArgumentParser(prog="feedline feed")
    parser.add_argument("path", help="of the pipeline, for those who list processes")
    for name in ("--ranks", "--cpus"):
        parser.add_argument(name, type=lambda text: [int(number) for number in text.split(",")], default=[])
    for name in ("--world-size", "--local-ranks", "--cores"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--fd", "--lock", "--parent"):
        parser.add_argument(name, type=int)
    for name in ("--restarts", "--epochs"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--host", type=Path)
    parser.add_argument("--scratch")
    parser.add_argument("--features", type=json.loads, default=[])
    parser.add_argument("--listen", action="store_true")
    options = parser.parse_args(arguments)
    write_log_lines()
    show_window_changes()
    if complaint := missing_kernels():
        logger.warning(complaint)
    if options.cpus:
        widen_affinity(options.cpus)
    spec = PipelineSpec.unpacked(sys.stdin.buffer.read())
    _import_for_blocks(spec)
    request = FeedRequest(
        spec=spec,
        spawner=_spawner(spec),  # before the first thread
        task=FeederTask(
            ranks=options.ranks,
            world_size=options.world_size,
            local_ranks=options.local_ranks,
            cores=options.cores,
            cpus=options.cpus,
            column_group=options.features,
            epochs=options.epochs,
        ),
        parent=options.parent,
        scratch=options.scratch,
        restarts=options.restarts,
    )
    if options.listen:
        sys.exit(feed_listening(request))
    if options.fd is None:
        raise SpecError("`feedline feed` needs --fd or --listen: it is internal. Use `feedline run`")
    if options.host is None or options.lock is None:
        sys.exit(feed_over(options.fd, request))
    sys.exit(feed_host(HostListener(options.host, listening=options.fd, lock=options.lock), request))


def _import_for_blocks(spec: PipelineSpec) -> None:
    """Import what the pipeline's blocks need and few others do, before worker processes are forked: each of them would
    import it again."""
    for call in calls_of(spec.features):
        find_op(call.op)
    if spec.shuffle is not None:
        import numpy.random  # noqa: F401, PLC0415 -- 5 ms, for permutations


def _spawner(spec: PipelineSpec) -> Spawner | None:
    """What starts worker processes, if the pipeline's blocks are computed by any of this feeder."""
    if spec.cluster.kind != "pool":
        return None
    if spec.cluster.fork:
        try:
            return Zygote.start(serve_blocks)
        except ClusterError as error:
            logger.warning("%s: each worker process imports for itself", error)
    return ImportingSpawner(serve_blocks)


def feed_over(fd: int, request: FeedRequest) -> int:
    """Serve the trainer at the other end of an inherited connection. Returns the exit status."""
    channel = adopt(fd)
    ownership = Ownership(request.scratch, is_owned=channel.is_connected)
    failures: list[Exception] = []

    def ended(session: TrainerSession, error: Exception | None) -> None:
        failures.extend([] if error is None else [error])

    with ownership.signals():
        ownership.add(request.parent or os.getppid())
        try:
            with open_sessions(request, early=True) as sessions:
                feeder = Feeder(
                    sessions.cluster,
                    doors=sessions.doors,
                    on_end=ended,
                    demand=sessions.demand,
                    status=sessions.status,
                )
                feeder.add(sessions.open(channel, rank=request.task.ranks[0], wake=feeder.wake))
                feeder.serve(until=lambda: ownership.is_ending or not feeder.sessions)
        except FeedlineError as error:
            _refuse(channel, error)
            failures.append(error)
    for failure in failures:
        logger.error("%s", failure)
    return 1 if failures else 0


def feed_host(listener: HostListener, request: FeedRequest) -> int:
    """Serve the ranks of a host, which connect to one socket; ends with the last of them. Returns the exit status."""
    feeders: list[Feeder] = []
    ownership = Ownership(request.scratch, is_owned=lambda: any(map(_is_owner, feeders)))
    with ownership.signals(), contextlib.closing(listener):
        try:
            with open_sessions(request, early=True) as sessions:
                door = _HostDoor(listener, sessions, ownership)
                doors: list[Door] = [door, *sessions.doors]
                feeder = Feeder(sessions.cluster, doors=doors, demand=sessions.demand, status=sessions.status)
                feeders.append(feeder)
                door.feeder = feeder
                deadline_s = time.monotonic() + _FIRST_RANK_S

                def is_idle() -> bool:
                    return not feeder.sessions and (door.has_served or time.monotonic() > deadline_s)

                feeder.serve(until=lambda: ownership.is_ending or is_idle())
                listener.stop()
        except FeedlineError as error:
            while (channel := listener.accept()) is not None:
                _refuse(channel, error)
            logger.error("%s", error)  # noqa: TRY400 -- without a traceback: it is for a person
            return 1
    return 0


def _is_owner(feeder: Feeder) -> bool:
    return any(session.channel.is_connected() for session in feeder.sessions)


def _refuse(channel: Channel, error: FeedlineError) -> None:
    """Send the error that keeps the feeder from serving, and close the connection."""
    with contextlib.suppress(ChannelClosedError):
        channel.send_message(FeederFailure(name=type(error).__name__, message=str(error)))
    channel.close()


@dataclass(slots=True, eq=False)
class _HostDoor:
    """Where the ranks of a host connect. A second trainer of a rank is told to start a feeder of its own."""

    listener: HostListener
    sessions: FeederSessions
    ownership: Ownership
    has_served: bool = False
    feeder: Feeder | None = None

    def fileno(self) -> int:
        return self.listener.fileno()

    def accept(self) -> TrainerSession | None:
        assert self.feeder is not None
        channel = self.listener.accept()
        if channel is None:
            return None
        self.ownership.add(channel.peer_pid())
        self.has_served = True
        return self.sessions.open(channel, rank=None, wake=self.feeder.wake, admit=self._admit)

    def _admit(self, hello: Hello) -> bool:
        assert self.feeder is not None
        served = [session for session in self.feeder.sessions if session.global_rank == hello.global_rank]
        return not any(session.channel.is_connected() for session in served)


def feed_listening(request: FeedRequest) -> int:
    """Serve trainers that connect to their rank's socket, one at a time per rank, until the parent process ends.

    Reports events to the parent as JSON lines on standard output: "ready" with the live page, "trainer" when one
    connects, "plan", "stats" with the progress, and "left" when it disconnects, with the error if there was one.
    """
    ownership = Ownership(request.scratch)
    with ownership.signals(), contextlib.ExitStack() as stack:
        ownership.add(request.parent or os.getppid())
        sessions = stack.enter_context(open_sessions(request))
        job = job_fingerprint(request.spec, request.task.column_group)
        pipe = stack.enter_context(contextlib.closing(_EventPipe()))
        doors = {}
        events = threading.Lock()  # a session's "left" comes after its "stats"
        for rank in request.task.ranks:
            try:
                listener = Listener(socket_path(job, rank, request.task.world_size))
            except FeederError as error:  # starting again would not help
                pipe.put(FeederEvent(type="refused", rank=rank, error=str(error)))
                return 1
            stack.callback(listener.close)
            doors[rank] = _RankDoor(listener, sessions, rank, pipe)

        def ended(session: TrainerSession, error: Exception | None) -> None:
            assert session.rank is not None
            with events:
                doors[session.rank].on_end(session, error)

        feeder = Feeder(
            sessions.cluster,
            doors=[*doors.values(), *sessions.doors],
            on_end=ended,
            demand=sessions.demand,
            status=sessions.status,
        )
        for rank, door in doors.items():
            door.open(feeder)
            dashboard, live_page = sessions.cluster.dashboard, sessions.live_page
            pipe.put(FeederEvent(type="ready", rank=rank, dashboard=dashboard, live_page=live_page, pid=os.getpid()))
        threading.Thread(target=_report, args=(feeder, events, pipe), name="feedline-report", daemon=True).start()
        feeder.serve(until=lambda: ownership.is_ending)
    return 0


@dataclass(slots=True, eq=False)
class _RankDoor:
    """Where the trainers of one rank connect, one after the other."""

    listener: Listener
    sessions: FeederSessions
    rank: int
    pipe: _EventPipe
    feeder: Feeder | None = None

    def open(self, feeder: Feeder) -> None:
        """Start listening."""
        self.feeder = feeder
        self.listener.open()

    def fileno(self) -> int:
        return self.listener.fileno()

    def accept(self) -> TrainerSession | None:
        assert self.feeder is not None
        channel = self.listener.accept()
        if channel is None:
            return None
        self.pipe.put(FeederEvent(type="trainer", rank=self.rank, pid=channel.peer_pid()))
        return self.sessions.open(channel, rank=self.rank, wake=self.feeder.wake, on_plan=self._print_plan)

    def on_end(self, session: TrainerSession, error: Exception | None) -> None:
        """Listen for the next trainer, and report."""
        self.listener.open()
        total = session.monitor.total
        event = FeederEvent(
            type="left",
            rank=self.rank,
            error=None if error is None else f"{type(error).__name__}: {error}",
            stats=session.counters.stats(),
            quality=None if total is None else total.to_bytes(),
        )
        self.pipe.put(event)  # from now on the next trainer can connect

    def _print_plan(self, plan: Plan) -> None:
        self.pipe.put(FeederEvent(type="plan", rank=self.rank, plan=plan.facts()))


def _report(feeder: Feeder, events: threading.Lock, pipe: _EventPipe) -> None:
    """Report statistics periodically, and soon after a first batch: a feeder that dies then has made progress."""
    ticks, begun = 0, set[TrainerSession]()
    while True:
        time.sleep(_STATUS_S / 5)
        ticks += 1
        sessions = set(feeder.sessions)
        new = {session for session in sessions if session.counters.batches} - begun
        begun = (begun | new) & sessions
        if pipe.is_behind:
            continue
        with events:
            for session in (sessions if ticks % 5 == 0 else new) & set(feeder.sessions):
                stats, planning = session.counters.stats(), session.planning
                pipe.put(FeederEvent(type="stats", rank=session.rank, stats=stats, planning=planning))


class _EventPipe:
    """Writes events to `feedline run` from a thread: where that is suspended, the pipe is full, and trainers go on."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[FeederEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="feedline-events", daemon=True)
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        """Whether events wait to be written."""
        return not self._events.empty()

    def put(self, event: FeederEvent) -> None:
        """Write an event, after those before it. Returns at once."""
        self._events.put(event)

    def close(self) -> None:
        """Write what waits, for at most 5 s."""
        self._events.put(None)
        self._thread.join(_LAST_EVENTS_S)

    def _write(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # `feedline run` is gone, and this process ends
            while (event := self._events.get()) is not None:
                print(pack(event).decode(), flush=True)
