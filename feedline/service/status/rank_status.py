"""The status of a rank: what its session has counted, and what its plan reads and prunes.

Runs in: the feeder, about once a second, in the thread of its loop. A plan is described once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from feedline.loader.wire.run_status import PlanStatus, RankStatus, ReadPart, planning_state
from feedline.planning.plan import Plan
from feedline.planning.sources.mixed_plan import RunPlan
from feedline.service.feeder.trainer_session import TrainerSession
from feedline.service.status.shown_text import shown_finding
from feedline.warehouse.selection.pruning_report import count_files, stages_of


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


def plan_status(plan: RunPlan) -> PlanStatus:
    """What a plan delivers in an epoch, and which parts of its tables it reads."""
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


def _read_parts(plan: Plan, *, named: bool) -> Iterator[ReadPart]:
    """The table's files, and its row groups after each stage that drops some. named: say which source it is."""
    snapshot, selection = plan.snapshot, plan.selection
    head = f"{plan.spec.source_name}: " if named else ""
    kept_groups, sizes = selection.rows > 0, plan.row_group_bytes
    files = count_files(snapshot, kept_groups)
    nbytes = int(sizes[kept_groups].sum())
    yield ReadPart(what=f"{head}files", total=len(snapshot.files), kept=files, nbytes=nbytes)
    before = len(kept_groups)
    stages = stages_of(snapshot, selection.verdicts, rows=selection.kept_rows, matched=selection.matched)
    for stage in (*stages, None):
        row_groups, name = (kept_groups, "exclusions") if stage is None else (stage.row_groups, stage.name)
        kept = int(np.count_nonzero(row_groups))
        if name in ("partitions", "statistics") or kept < before:
            size = int(sizes[row_groups].sum())
            yield ReadPart(what=f"{head}row groups by {name}", total=before, kept=kept, nbytes=size)
        before = kept
