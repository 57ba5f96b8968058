"""Gather the status of a feeder, and publish it: to the process, to its Dask scheduler, and as files.

Runs in: the feeder. `look` and `end` are called in the thread of its loop; a thread writes the files, so that a slow
disk or store delays no batch.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np

from feedline.config import PipelineSpec
from feedline.errors import DataError, FeedlineError
from feedline.loader.ring.launch import FeederTask
from feedline.loader.ring.status_files import StatusFile
from feedline.loader.wire.facts import FeederStats
from feedline.loader.wire.run_status import (
    FeederDecision,
    FeederStatus,
    PlanStatus,
    RankStatus,
    ReadPart,
    planning_state,
)
from feedline.native.kernels import compiled_kernels
from feedline.planning.plan import Plan
from feedline.planning.source_plan import SourcePlan
from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder.trainer_session import TrainerSession
from feedline.service.last_runs import LastRun
from feedline.version import VERSION
from feedline.warehouse.selection.pruning_report import count_files, stages_of
from feedline.warehouse.storage.faults import safe_text
from feedline.warehouse.storage.locations import redact

logger = logging.getLogger(__name__)

# Errors begin with the thing and the rule; what follows this word quotes the value that broke it.
_GOT = ": got "
# Measures of quality that are values of rows, in a complaint about an expectation.
_VALUES = re.compile(r"\bgot (min|max) [^,;]+")


def shown_text(text: str) -> str:
    """A line of a log or an error, up to the value that it quotes."""
    head, got, _ = safe_text(text).partition(_GOT)
    return f"{head} (the log has the value)" if got else head


@lru_cache(maxsize=1024)  # the same few, once a second
def shown_finding(complaint: str) -> str:
    """A complaint about the quality of a feature: with rates and counts, without its smallest and largest value."""
    return _VALUES.sub(r"got \1 …", safe_text(complaint))


_KEPT = 50
_TOPICS: dict[str, Literal["window", "workers", "cache", "cluster"]] = {
    "feedline.window": "window",
    "feedline.scaling": "workers",
    "feedline.cache": "cache",
    "feedline.service.cluster": "cluster",  # of all its modules, which log warnings only
}


class DecisionLog(logging.Handler):
    """The last decisions that were logged, from `begin` to `close`."""

    def __init__(self) -> None:
        super().__init__()
        self._last: deque[FeederDecision] = deque(maxlen=_KEPT)

    def begin(self) -> None:
        for name in _TOPICS:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line. Logging calls this."""
        topic = next(topic for name, topic in _TOPICS.items() if f"{record.name}.".startswith(f"{name}."))
        self._last.append(FeederDecision(at_s=record.created, topic=topic, text=shown_text(record.getMessage())))

    def last(self) -> tuple[FeederDecision, ...]:
        return tuple(self._last)

    def close(self) -> None:
        for name in _TOPICS:
            logging.getLogger(name).removeHandler(self)
        super().close()


def rank_status(session: TrainerSession, plan: PlanStatus | None, *, trainer: int, trainers: int) -> RankStatus:
    """The status of the rank of a session. trainer: its process id; trainers: of this rank that have come so far."""
    counters, load = session.counters, session.load()
    state: Literal["feeding", "planning", "waiting for files", "waiting"] = "feeding"
    if session.streams.plan is None and session.global_rank is None:
        state = "waiting"
    elif session.streams.plan is None or session.planning is not None:  # or of the next epoch of a followed table
        state = planning_state(session.planning)
    return RankStatus(
        rank=-1 if session.rank is None else session.rank,
        state=state,
        stats=counters.stats(),
        stalled_s=counters.stalled_s,
        step_s=session.pace.known_step_s,
        starved=session.starved,
        ready=load.ready,
        held_bytes=session.streams.held_bytes,
        trainer=trainer,
        trainers=trainers,
        plan=plan,
        problems=session.monitor.problems(),
        findings=tuple(map(shown_finding, session.monitor.findings)),
    )


def plan_status(plan: Plan) -> PlanStatus:
    facts = plan.facts()
    return PlanStatus(
        plan=facts.plan,
        snapshot=facts.snapshot,
        rows=facts.rows,
        rows_dropped=facts.rows_dropped,
        steps=facts.steps,
        batch_size=facts.batch_size,
        pruning=tuple(part for each in plan.sources for part in _read_parts(each, named=len(plan.sources) > 1)),
    )


def _read_parts(plan: SourcePlan, *, named: bool) -> Iterator[ReadPart]:
    """The table's files, and its row groups after each stage that drops some. named: say which source it is."""
    snapshot, selection = plan.snapshot, plan.selection
    head = f"{plan.spec.source_name}: " if named else ""
    kept_groups, sizes = selection.rows > 0, plan.row_group_bytes
    files = count_files(snapshot, kept_groups)
    nbytes = int(sizes[kept_groups].sum())
    yield ReadPart(what=f"{head}files", total=len(snapshot.files), kept=files, nbytes=nbytes)
    before = len(kept_groups)
    for stage in (*stages_of(snapshot, selection.verdicts), None):
        row_groups, name = (kept_groups, "exclusions") if stage is None else (stage.row_groups, stage.name)
        kept = int(np.count_nonzero(row_groups))
        if name in ("partitions", "statistics") or kept < before:
            size = int(sizes[row_groups].sum())
            yield ReadPart(what=f"{head}row groups by {name}", total=before, kept=kept, nbytes=size)
        before = kept


# How often the live file is written.
_WRITE_S = 2.0
# A feeder's end waits so long for its last status to be written: the processes it belongs to are gone.
_LAST_S = 3.0


class StatusGatherer:
    """The status of one feeder.

    task: what it serves. job, feeder: their names in its reports. restarts: feeders before it that died.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        cluster: Cluster,
        task: FeederTask,
        *,
        job: str,
        feeder: str,
        restarts: int = 0,
    ) -> None:
        self._cluster = cluster
        self._decisions = DecisionLog()
        self._decisions.begin()
        self._plan: tuple[Plan, PlanStatus] | None = None  # the last that was described
        self._trainers: dict[int, int] = {}  # by rank, that have come
        self._sessions: dict[TrainerSession, int] = {}  # the process ids of their trainers
        self._ranks = {rank: RankStatus(rank=rank, state="waiting", stats=FeederStats()) for rank in task.ranks}
        self._has_failed = False
        now_s = time.time()
        self.status = FeederStatus(
            job=job,
            feeder=feeder,
            name=spec.name,
            pipeline=redact(spec.file),
            host=platform.node(),
            pid=os.getpid(),
            version=VERSION,
            kernels=compiled_kernels(),
            started_s=now_s,
            now_s=now_s,
            epochs=task.epochs,
            form=spec.cluster.kind,
            cores=task.cores,
            cpu_s=0.0,
            workers=0,
            threads=0,
            ranks=(),
            restarts=restarts,
        )
        self._files = _StatusWriter(LastRun(spec, task.world_size), lambda: self.status)

    def look(self, sessions: Sequence[TrainerSession]) -> None:
        """Gather the status of the moment, and publish it. Called about once a second. A failure is logged in a line,
        once until it is over: the trainers do not need the status."""
        try:
            self._gather(sessions)
        except Exception as error:
            if not self._has_failed:
                logger.warning("the feeder's status cannot be gathered: %s: %s", type(error).__name__, error)
            self._has_failed = True
            return
        self._has_failed = False
        if (dask := self._cluster.dask) is not None:
            dask.publish(lambda: self.status)
        self._files.start()

    def end(self, session: TrainerSession, error: Exception | None) -> None:
        """Keep what a session that ends has done, and why it ended (None: its trainer left). Call it before the session
        is closed."""
        self.look([session])
        if session.rank is not None and session in self._sessions:
            last = self._ranks[session.rank]
            stats = replace(last.stats, blocks_in_flight=0)  # what it held is dropped
            self._ranks[session.rank] = replace(
                last, state="ended", stats=stats, starved=False, ready=0, held_bytes=0, error=_shown_error(error)
            )
            del self._sessions[session]
            self._publish_ranks()
        self._files.keep()

    def close(self) -> None:
        self._decisions.close()
        self._files.close()

    def _gather(self, sessions: Sequence[TrainerSession]) -> None:
        for session in sessions:
            if session.rank is None:
                continue
            if session not in self._sessions:
                self._sessions[session] = session.channel.peer_pid()
                self._trainers[session.rank] = self._trainers.get(session.rank, 0) + 1
            found = session.streams.plan if session.counters.batches else None  # nothing delays the first batch
            plan = None if found is None else self._described(found)
            pid, trainers = self._sessions[session], self._trainers[session.rank]
            self._ranks[session.rank] = rank_status(session, plan, trainer=pid, trainers=trainers)
        self._publish_ranks()

    def _publish_ranks(self) -> None:
        cluster, dask = self._cluster, self._cluster.dask
        size = cluster.size()
        connection = None if dask is None else dask.connection
        self.status = replace(
            self.status,
            now_s=time.time(),
            form=cluster.form,
            cpu_s=time.process_time(),
            workers=size.workers,
            threads=size.threads,
            ranks=tuple(self._ranks[rank] for rank in sorted(self._ranks)),
            lost=0 if connection is None else connection.lost,
            regained=0 if connection is None else connection.regained,
            decisions=self._decisions.last(),
            dashboard=cluster.dashboard,
        )

    def _described(self, plan: Plan) -> PlanStatus:
        if self._plan is None or self._plan[0] is not plan:
            self._plan = plan, plan_status(plan)
        return self._plan[1]


def _shown_error(error: Exception | None) -> str:
    if error is None:
        return ""
    text = (shown_text if isinstance(error, DataError) else safe_text)(str(error))
    return f"{type(error).__name__}: {text}"


class _StatusWriter:
    """Writes the live file every two seconds, and a run's last status when there is one to keep, in a thread."""

    def __init__(self, last_run: LastRun, status: Callable[[], FeederStatus]) -> None:
        self._last_run, self._status = last_run, status
        self._wake = threading.Event()
        self._is_due = self._is_closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="feedline-status", daemon=True)
            self._thread.start()

    def keep(self) -> None:
        """Keep the status of the moment as the run's last one."""
        self._is_due = True
        self._wake.set()

    def close(self) -> None:
        self._is_closing = True
        self.keep()
        if self._thread is not None:
            self._thread.join(_LAST_S)

    def _write(self) -> None:
        live = _live_file()
        while True:
            is_closing = self._is_closing
            if live is not None and not is_closing:
                try:
                    live.write(self._status())
                except OSError as error:
                    logger.warning("the live status cannot be written: %s", error)
                    live = None
            if self._is_due:
                self._is_due = False
                if any(rank.trainers for rank in self._status().ranks):
                    self._last_run.write(self._status())
            if is_closing:
                break
            if self._wake.wait(_WRITE_S):
                self._wake.clear()
        if live is not None:
            live.remove()


def _live_file() -> StatusFile | None:
    try:
        return StatusFile()
    except (OSError, FeedlineError) as error:
        logger.warning("there is no live status of this feeder: %s", error)
        return None
