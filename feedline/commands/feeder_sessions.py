"""What the sessions of a feeder share: the pipeline, its cluster, and the planner.

Runs in: the feeder.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from feedline.blocks.jobs import compile_job
from feedline.blocks.reach import Reach
from feedline.loader.ring.channel import Channel
from feedline.loader.ring.launch import feeder_threads, log_path, memory_share
from feedline.loader.ring.rendezvous import job_fingerprint
from feedline.loader.wire.facts import FeederFacts, Hello
from feedline.planning.agreement import RunStart, verify_agreement
from feedline.planning.binding.table_features import required_functions
from feedline.planning.plan import Plan
from feedline.planning.resolve import Fit, resolve_hello
from feedline.planning.source_plan import SourcePlan, first_fragment
from feedline.resources.allocators import use_huge_pages
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.feeder.feeder_process import ignore_sigterm, keep_log_short, startup_seconds
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import TrainerSession
from feedline.service.feeder_status import StatusGatherer
from feedline.service.monitoring.feeder_watch import remove_dead_targets, watch_feeder
from feedline.service.worker_demand import Demand, feeder_name, job_name
from feedline.spec import PipelineSpec
from feedline.transforms.registry.user_functions import keep_pandas_out
from feedline.warehouse.optimize.usage import record_usage
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import stop_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """The pipeline, as `PipelineSpec.packed`, the ranks to serve, the number of ranks in all and on this host, the
    cores to use.

    ranks: empty if their trainers name them. parent: the process that started the feeder. scratch: its folder for
    Dask's workers, removed at the end. restarts: feeders of these ranks that died before it. column_group: the features
    of the one whose trainers a feeder of `feedline run` waits for. epochs: that it serves in all (0: its trainers
    decide).
    """

    pipeline: bytes
    ranks: Sequence[int]
    world_size: int
    local_ranks: int
    cores: int
    parent: int | None = None
    scratch: str | None = None
    restarts: int = 0
    column_group: Sequence[str] = ()
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class FeederSessions:
    """What all sessions of a feeder share."""

    request: FeedRequest
    spec: PipelineSpec
    cluster: Cluster
    planner: Planner
    demand: Demand | None
    status: StatusGatherer

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
        return TrainerSession(
            channel,
            self.cluster,
            self.planner,
            rank=rank,
            world_size=request.world_size,
            memory_bytes=memory_share(self.spec, local_ranks=request.local_ranks),
            about=FeederFacts(imports_s=startup_seconds(), log=log, dashboard=None, feeder=os.getpid()),
            wake=wake,
            admit=admit,
            on_plan=on_plan,
        )


@contextlib.contextmanager
def open_sessions(request: FeedRequest, *, early: bool = False) -> Iterator[FeederSessions]:
    """Start the cluster and the planner. early: serve trainers before the cluster is up, and has workers that fit."""
    if request.scratch is not None and log_path(request.scratch).exists():
        keep_log_short()
    spec = PipelineSpec.unpacked(request.pipeline)
    code = required_functions(spec)
    keep_pandas_out(code)
    if spec.cluster.kind != "threads":
        use_huge_pages(True)  # processes that are started inherit the setting
    threads = feeder_threads(spec, cores=request.cores)
    demand = None if spec.cluster.kind == "threads" else Demand(spec.name, job_fingerprint(spec), spec.cluster)
    report = None if demand is None else demand.first_report()
    # A thread connects: a signal then interrupts the wait for it, and the cluster that it has started is closed.
    in_thread = early or spec.cluster.kind != "threads"
    cluster = open_cluster(
        spec.cluster, threads=threads, early=in_thread, elastic=True, report=report, code=code, metrics=spec.metrics
    )
    planner = status = None
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
            job=job_name(spec.name, job_fingerprint(spec)) if demand is None else demand.job,
            feeder=feeder_name() if demand is None else demand.feeder,
            ranks=request.ranks,
            world_size=request.world_size,
            cores=request.cores,
            restarts=request.restarts,
            epochs=request.epochs,
        )
        watched = watch_feeder(spec.metrics, spec.traces, lambda: gatherer.status, request.ranks)
        with watched as cluster.on_block:
            yield FeederSessions(request, spec, cluster, planner, demand, status)
    finally:
        ignore_sigterm()
        if status is not None:
            status.close()
        stop_waiting()
        cluster.close()  # native code of tasks must not run in threads when the interpreter ends
        if planner is not None:
            planner.close()
        remove_dead_targets(spec.metrics)  # of workers that were killed


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
        if spec.cluster.kind == "threads" and not each.needs_artifacts:
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

        return Pipeline(spec).fit(missing=True, snapshot=snapshots, workers=DaskWorkers(cluster)).manifest

    return fit
