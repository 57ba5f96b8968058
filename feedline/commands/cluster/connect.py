"""Connect a command to its pipeline's cluster, or to one of its own.

Runs in: the process of the command.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager

from rich.console import Console

from feedline.commands.exit_status import exit_on_signals
from feedline.commands.progress_line import ProgressLine
from feedline.config import PipelineSpec
from feedline.config.cluster_section import ClusterSpec
from feedline.loader.ring.launch import feeder_threads
from feedline.loader.ring.rendezvous import job_fingerprint
from feedline.planning.table_features import required_functions
from feedline.resources.cgroups import available_cores
from feedline.resources.scratch import scratch_folder
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import WorkerCluster, open_cluster, require_open_files
from feedline.service.cluster.request import ClusterRequest
from feedline.service.worker_demand import Demand


@contextmanager
def pipeline_cluster(spec: PipelineSpec, *, computes: bool = True) -> Iterator[WorkerCluster | None]:
    """The pipeline's cluster, its workers checked; None if its blocks are computed by threads.

    It reports to the scheduler that it needs one worker, or the least that `cluster.workers` says. computes: its
    workers need the functions of user code.
    """
    if not spec.cluster.is_dask:
        yield None
        return
    with scratch_folder() as scratch:
        # Worker processes of this machine inherit it: a terminal sends Ctrl-C to them, too, but this process ends them
        # in order. A scheduler or a platform may take minutes: a thread connects, and Ctrl-C interrupts the wait.
        own = spec.cluster.kind == "processes"
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if own else signal.getsignal(signal.SIGINT)
        try:
            threads = feeder_threads(spec, cores=available_cores())
            report = Demand(spec.name, job_fingerprint(spec), spec.cluster).first_report()
            require_open_files(spec.cluster)
            cluster = WorkerCluster(
                ClusterRequest(spec.cluster, threads=threads, scratch=str(scratch), early=not own, report=report)
            )
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            cluster.check_workers(required_functions(spec) if computes else ())
            yield cluster
        finally:
            cluster.close()


@contextmanager
def task_cluster(console: Console, stopped: str, *, workers: int | None, threads: int) -> Iterator[Cluster]:
    """A Dask cluster of this machine for the tasks of a command: worker processes, or threads of this one.

    stopped: what is said where a signal ends it.
    """
    spec = ClusterSpec.model_validate({"workers": workers})
    with exit_on_signals(lambda: console.print(stopped)), scratch_folder() as scratch:
        cluster = open_cluster(ClusterRequest(spec, threads=1 if workers else threads, scratch=str(scratch)))
        with closing(cluster), ProgressLine():
            cluster.check_workers()
            yield cluster
