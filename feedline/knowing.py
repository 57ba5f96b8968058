"""With which artifacts does a run work? Those that count, the same on all ranks of a start; or it makes them first.

Runs in: the feeder of each rank, `Pipeline.batches`. A plan is made with the set of fits that counts at that moment.
Where features need fits, ranks that start together agree on one set, as they do on a snapshot, so that a `feedline fit`
in between is no matter; with `fit: auto` the rank that comes first makes what is missing while the others wait.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from feedline.agreement import agree_on_snapshot
from feedline.artifacts import KnowledgeRef
from feedline.binding import artifacts_dir, knowledge_ref
from feedline.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A rank of how many, and the job that they start together."""

    job: str
    rank: int
    world_size: int


def ready(
    plan: Plan, again: Callable[[KnowledgeRef], Plan], fit_missing: Callable[[], str | None], start: Start | None = None
) -> Plan:
    """The plan with all that its ops have to know; `again` makes it with another set of fits.

    Raises SpecError where something was not fitted and is not to be fitted by the way.
    """
    if not plan.features.wanted and plan.job.knowledge.manifest is None:
        return plan

    def take() -> str:
        if plan.features.wanted and plan.spec.fit.auto:
            return fit_missing() or ""
        plan.require_fitted()
        return plan.job.knowledge.manifest or ""

    if start is None:
        manifest = take()
    else:
        named = hashlib.sha256(json.dumps([start.job, "artifacts", artifacts_dir(plan.spec)]).encode()).hexdigest()
        manifest = agree_on_snapshot(
            plan.spec.work_dir,
            named,
            rank=start.rank,
            world_size=start.world_size,
            take=take,
            environment=os.environ,
        )
    if manifest != plan.job.knowledge.manifest:
        plan = again(knowledge_ref(plan.spec, manifest))
    plan.require_fitted()
    return plan
