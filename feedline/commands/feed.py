"""Run a feeder process: read the spec, start its cluster, serve its trainers.

Runs in: the feeder, `python -m feedline feed`, which reads overrides from standard input. It serves the trainer at the
other end of a connection and ends with it; or the ranks of a host, and ends with the last of them; or the trainers of
`feedline run`, until that ends.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from feedline.blocks.jobs import compile_job
from feedline.blocks.reach import Reach
from feedline.commands.exit_status import end_with
from feedline.errors import FeederError, FeedlineError, SpecError
from feedline.loader.ring.channel import Channel, ChannelClosedError, adopt
from feedline.loader.ring.host_feeder import HostListener
from feedline.loader.ring.launch import feeder_threads, log_path, memory_share, read_overrides
from feedline.loader.ring.rendezvous import Listener, job_fingerprint, socket_path
from feedline.loader.wire.codec import pack
from feedline.loader.wire.facts import FeederEvent, FeederFacts, Hello
from feedline.loader.wire.ring_messages import FeederFailure
from feedline.planning.agreement import RunStart, verify
from feedline.planning.plan import Plan, code_of, first_fragment
from feedline.planning.resolve import resolve_hello
from feedline.resources import use_huge_pages, widen_affinity
from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder.feeder import Feeder
from feedline.service.feeder.feeder_process import Ownership, ignore_sigterm, keep_log_short, startup_seconds
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import TrainerSession, show_window_changes
from feedline.service.log_lines import write_log_lines
from feedline.service.scaling.demand import Demand
from feedline.spec import PipelineSpec, load_spec
from feedline.transforms.registry.user_functions import keep_pandas_out
from feedline.warehouse.optimize.usage import record_usage
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import stop_waiting

logger = logging.getLogger(__name__)

_STATUS_S = 0.5
# A feeder of a host's ranks waits so long for the first one.
_FIRST_RANK_S = 60.0
# The last events of a feeder may take so long to be read.
_LAST_EVENTS_S = 5.0
# How long a thread keeps the interpreter's lock while others wait for it. By default 5 ms: as long as a block of narrow
# rows, whose thread asks for it after each native call, while Dask is imported and the loop delivers beside it.
_LOCK_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """The pipeline, the ranks to serve, the number of ranks in all and on this host, the cores to use.

    pipeline: its content, if it is no file; `path` is the folder that its paths are relative to then. ranks: empty if
    their trainers name them. parent: the process that started the feeder. scratch: its folder for Dask's workers,
    removed at the end.
    """

    path: str
    overrides: dict[str, object]
    ranks: Sequence[int]
    world_size: int
    local_ranks: int
    cores: int
    parent: int | None = None
    scratch: str | None = None
    pipeline: dict[str, object] | None = None


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a feeder as FeedlineDataset and `feedline run` start it, and end the process with its exit status."""
    startup_seconds()
    use_huge_pages(False)  # until the first batch is out
    gc.freeze()  # what was imported stays
    gc.enable()
    sys.setswitchinterval(_LOCK_S)
    end_with(partial(_feed, arguments), at_once=True)


def _feed(arguments: Sequence[str]) -> NoReturn:
    parser = argparse.ArgumentParser(prog="feedline feed")
    parser.add_argument("path")
    parser.add_argument("--ranks", default="")
    for name in ("--world-size", "--local-ranks", "--cores"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--cpus", default="")
    for name in ("--fd", "--lock", "--parent"):
        parser.add_argument(name, type=int)
    parser.add_argument("--host", type=Path)
    parser.add_argument("--scratch")
    parser.add_argument("--listen", action="store_true")
    options = parser.parse_args(arguments)
    write_log_lines()
    if options.cpus:
        widen_affinity([int(cpu) for cpu in options.cpus.split(",")])
    overrides, pipeline = read_overrides(sys.stdin.buffer.read())
    request = FeedRequest(
        path=options.path,
        pipeline=pipeline,
        overrides=overrides,
        ranks=[int(rank) for rank in options.ranks.split(",") if rank],
        world_size=options.world_size,
        local_ranks=options.local_ranks,
        cores=options.cores,
        parent=options.parent,
        scratch=options.scratch,
    )
    if options.listen:
        sys.exit(feed_listening(request))
    if options.fd is None:
        raise SpecError("`feedline feed` needs --fd or --listen: it is internal. Use `feedline run`")
    if options.host is None or options.lock is None:
        sys.exit(feed_over(options.fd, request))
    sys.exit(feed_host(HostListener(options.host, listening=options.fd, lock=options.lock), request))


def feed_over(fd: int, request: FeedRequest) -> int:
    """Serve the trainer at the other end of an inherited connection. Returns the exit status."""
    startup_seconds()
    show_window_changes()
    channel = adopt(fd)
    ownership = Ownership(request.scratch, is_owned=channel.is_connected)
    failures: list[Exception] = []

    def ended(session: TrainerSession, error: Exception | None) -> None:
        failures.extend([] if error is None else [error])

    with ownership.signals():
        ownership.add(request.parent or os.getppid())
        try:
            with _sessions(request, early=True) as sessions:
                feeder = Feeder(sessions.cluster, on_end=ended, demand=sessions.demand)
                feeder.add(sessions.open(channel, rank=request.ranks[0], wake=feeder.wake))
                feeder.serve(until=lambda: ownership.is_ending or not feeder.sessions)
        except FeedlineError as error:
            _refuse(channel, error)
            failures.append(error)
    for failure in failures:
        logger.error("%s", failure)
    return 1 if failures else 0


def feed_host(listener: HostListener, request: FeedRequest) -> int:
    """Serve the ranks of a host, which connect to one socket; ends with the last of them. Returns the exit status."""
    startup_seconds()
    show_window_changes()
    feeders: list[Feeder] = []
    ownership = Ownership(request.scratch, is_owned=lambda: any(map(_is_owner, feeders)))
    with ownership.signals(), contextlib.closing(listener):
        try:
            with _sessions(request, early=True) as sessions:
                door = _HostDoor(listener, sessions, ownership)
                feeder = Feeder(sessions.cluster, doors=[door], demand=sessions.demand)
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


class _HostDoor:
    """Where the ranks of a host connect. A second trainer of a rank is told to start a feeder of its own."""

    def __init__(self, listener: HostListener, sessions: _Sessions, ownership: Ownership) -> None:
        self._listener = listener
        self._sessions = sessions
        self._ownership = ownership
        self.has_served = False
        self.feeder: Feeder | None = None

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> TrainerSession | None:
        assert self.feeder is not None
        channel = self._listener.accept()
        if channel is None:
            return None
        self._ownership.add(channel.peer_pid())
        self.has_served = True
        return self._sessions.open(channel, rank=None, wake=self.feeder.wake, admit=self._admit)

    def _admit(self, hello: Hello) -> bool:
        assert self.feeder is not None
        served = [session for session in self.feeder.sessions if session.global_rank == hello.global_rank]
        return not any(session.channel.is_connected() for session in served)


def feed_listening(request: FeedRequest) -> int:
    """Serve trainers that connect to their rank's socket, one at a time per rank, until the parent process ends.

    Reports events to the parent as JSON lines on standard output: "ready" with the dashboard, "trainer" when one
    connects, "plan", "stats" with the progress, and "left" when it disconnects, with the error if there was one.
    """
    startup_seconds()
    show_window_changes()
    ownership = Ownership(request.scratch)
    with ownership.signals(), contextlib.ExitStack() as stack:
        ownership.add(request.parent or os.getppid())
        sessions = stack.enter_context(_sessions(request))
        job = job_fingerprint(sessions.spec)
        pipe = stack.enter_context(contextlib.closing(_EventPipe()))
        doors = {}
        events = threading.Lock()  # a session's "left" comes after its "stats"
        for rank in request.ranks:
            try:
                listener = Listener(socket_path(job, rank, request.world_size))
            except FeederError as error:  # starting again would not help
                pipe.put(FeederEvent(type="refused", rank=rank, error=str(error)))
                return 1
            stack.callback(listener.close)
            doors[rank] = _RankDoor(listener, sessions, rank, pipe)

        def ended(session: TrainerSession, error: Exception | None) -> None:
            assert session.rank is not None
            with events:
                doors[session.rank].on_end(session, error)

        feeder = Feeder(sessions.cluster, doors=list(doors.values()), on_end=ended, demand=sessions.demand)
        for rank, door in doors.items():
            door.open(feeder)
            pipe.put(FeederEvent(type="ready", rank=rank, dashboard=sessions.cluster.dashboard, pid=os.getpid()))
        threading.Thread(target=_report, args=(feeder, events, pipe), name="feedline-report", daemon=True).start()
        feeder.serve(until=lambda: ownership.is_ending)
    return 0


class _RankDoor:
    """Where the trainers of one rank connect, one after the other."""

    def __init__(self, listener: Listener, sessions: _Sessions, rank: int, pipe: _EventPipe) -> None:
        self._listener = listener
        self._sessions = sessions
        self._rank = rank
        self._pipe = pipe
        self._feeder: Feeder | None = None

    def open(self, feeder: Feeder) -> None:
        """Start listening."""
        self._feeder = feeder
        self._listener.open()

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> TrainerSession | None:
        assert self._feeder is not None
        channel = self._listener.accept()
        if channel is None:
            return None
        self._pipe.put(FeederEvent(type="trainer", rank=self._rank, pid=channel.peer_pid()))
        return self._sessions.open(channel, rank=self._rank, wake=self._feeder.wake, on_plan=self._print_plan)

    def on_end(self, session: TrainerSession, error: Exception | None) -> None:
        """Listen for the next trainer, and report."""
        self._listener.open()
        total = session.monitor.total
        event = FeederEvent(
            type="left",
            rank=self._rank,
            error=None if error is None else f"{type(error).__name__}: {error}",
            stats=session.counters.stats(),
            quality=None if total is None else total.to_bytes(),
        )
        self._pipe.put(event)  # from now on the next trainer can connect

    def _print_plan(self, plan: Plan) -> None:
        self._pipe.put(FeederEvent(type="plan", rank=self._rank, plan=plan.facts()))


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
                pipe.put(FeederEvent(type="stats", rank=session.rank, stats=session.counters.stats()))


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


class _Sessions:
    """What all sessions of a feeder share: spec, cluster, planner."""

    def __init__(
        self, request: FeedRequest, spec: PipelineSpec, cluster: Cluster, planner: Planner, demand: Demand | None
    ) -> None:
        self._request = request
        self._planner = planner
        self.spec = spec
        self.cluster = cluster
        self.demand = demand

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
        request, log = self._request, None
        if request.scratch is not None and log_path(request.scratch).exists():
            log = str(log_path(request.scratch))
        return TrainerSession(
            channel,
            self.cluster,
            self._planner,
            rank=rank,
            world_size=request.world_size,
            memory_bytes=memory_share(self.spec, local_ranks=request.local_ranks),
            about=FeederFacts(imports_s=startup_seconds(), log=log, dashboard=None, feeder=os.getpid()),
            wake=wake,
            admit=admit,
            on_plan=on_plan,
        )


@contextlib.contextmanager
def _sessions(request: FeedRequest, *, early: bool = False) -> Iterator[_Sessions]:
    """early: serve trainers before the cluster is up, and has workers that fit."""
    if request.scratch is not None and log_path(request.scratch).exists():
        keep_log_short()
    spec = load_spec(request.pipeline or request.path, request.overrides, base_dir=request.path)
    code = code_of(spec)
    keep_pandas_out(code)
    if spec.cluster.kind != "threads":
        use_huge_pages(True)  # processes that are started inherit the setting
    threads = feeder_threads(spec, cores=request.cores)
    demand = None if spec.cluster.kind == "threads" else Demand(spec.name, job_fingerprint(spec), spec.cluster)
    report = None if demand is None else demand.first_report()
    # A thread connects: a signal then interrupts the wait for it, and the cluster that it has started is closed.
    in_thread = early or spec.cluster.kind != "threads"
    cluster = Cluster(spec.cluster, threads=threads, early=in_thread, elastic=True, report=report, code=code)
    planner = None
    try:
        if not early:
            cluster.check_workers(code)
        planner = Planner(
            partial(_resolve, spec, cluster),
            job=job_fingerprint(spec),
            verify=lambda start: verify(start, spec.work_dir),
        )
        yield _Sessions(request, spec, cluster, planner, demand)
    finally:
        ignore_sigterm()
        stop_waiting()
        cluster.close()  # native code of tasks must not run in threads when the interpreter ends
        if planner is not None:
            planner.close()


def _resolve(spec: PipelineSpec, cluster: Cluster, hello: Hello, start: RunStart, plans: Sequence[Plan]) -> Plan:
    """Resolve the plan that a trainer requests; rank 0 of a new job adds it to the usage record."""
    fit = _fit_on(spec, cluster)
    plan = resolve_hello(spec, hello, start=start, fit=fit, map=cluster.map, plans=plans)
    if hello.snapshot is None and hello.rebase is None:  # a resumed run may have delivered those rows
        plan.without_gaps()
    if not any(plan is each for each in plans):
        plan = replace(plan, job=replace(plan.job, environment=cluster.environment))
    cluster.check_job(plan.job, _reach_of(plan))
    if spec.cluster.kind == "threads" and not plan.needs_artifacts:
        compile_job(plan.job, plan.features)
    if hello.global_rank == 0 and hello.snapshot is None:  # else it is resumed, with its first snapshot
        record_usage(spec.work_dir, plan.snapshot, plan.parts, plan.selection.rows, job=spec.name)
    return plan


def _reach_of(plan: Plan) -> Reach:
    record = plan.job.record
    return Reach(
        host=platform.node(),
        fragment=first_fragment(plan),
        work_dir=None if record is None else record.work_dir,
        snapshot=plan.snapshot.file_name,
    )


def _fit_on(spec: PipelineSpec, cluster: Cluster) -> Callable[[Snapshot], str | None]:
    """Fits missing artifacts on the cluster."""

    def fit(snapshot: Snapshot) -> str | None:
        from feedline.pipeline import Pipeline  # noqa: PLC0415 -- 0.1 s of imports that most feeders do not need
        from feedline.service.cluster.fit_workers import DaskWorkers  # noqa: PLC0415 -- imports Dask

        return Pipeline(spec).fit(missing=True, snapshot=snapshot, workers=DaskWorkers(cluster)).manifest

    return fit
