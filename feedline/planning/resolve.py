"""With which artifacts does a run work? Those that count, the same on all ranks of a start; or it makes them first.

Runs in: the feeder of each rank, `Pipeline.batches`. A plan is made with the set of fits that counts at that moment.
Where features need fits, ranks that start together agree on one set, as they do on a snapshot, so that a `feedline fit`
in between is no matter; with `fit: auto` the rank that comes first makes what is missing while the others wait. Which
set it was is noted in `work_dir` under the fingerprint of the features, which states carry: who goes on finds the set
that was begun with, whatever was fitted since.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from feedline.artifacts.store import ArtifactSetRef, load_manifest
from feedline.errors import CorruptFileError, SpecError
from feedline.planning.agreement import agree_on_snapshot
from feedline.planning.binding import artifact_set_key, artifact_set_ref, artifacts_dir, set_refusal
from feedline.planning.plan import Plan
from feedline.spec import PipelineSpec
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, locate


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A rank of how many, and the job that they start together."""

    job: str
    rank: int
    world_size: int


def ready(
    plan: Plan,
    again: Callable[[ArtifactSetRef], Plan],
    fit_missing: Callable[[], str | None],
    *,
    start: Start | None = None,
    features: str | None = None,
) -> Plan:
    """The plan with all that its ops have to know; `again` makes it with another set of fits.

    features: the fingerprint that a state has, which may belong to a set of fits that was replaced since. Raises
    SpecError where something was not fitted and is not to be fitted by the way.
    """
    if not plan.features.missing_fits and plan.job.artifacts.manifest is None:
        return plan
    if features is not None and (known := _known(plan, features)) is not None:
        before = plan if known == plan.job.artifacts.manifest else again(artifact_set_ref(plan.spec, known))
        if not before.features.missing_fits and _name(before) == features:
            return before

    def take() -> str:
        if plan.features.missing_fits and _may_fit(plan):
            return fit_missing() or ""
        plan.require_fitted()
        return plan.job.artifacts.manifest or ""

    if start is None:
        manifest = take()
    else:
        asked = [start.job, "artifacts", artifacts_dir(plan.spec), repr(artifact_set_key(plan.spec))]
        named = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        manifest = agree_on_snapshot(
            plan.spec.work_dir,
            named,
            rank=start.rank,
            world_size=start.world_size,
            take=take,
            environment=os.environ,
        )
    if manifest != plan.job.artifacts.manifest:
        plan = again(artifact_set_ref(plan.spec, manifest))
    plan.require_fitted()
    _note(plan)
    return plan


def _may_fit(plan: Plan) -> bool:
    """Whether `fit: auto` learns what is missing: not what another pipeline's fits or another table's stand for."""
    refusal = set_refusal(plan.features.artifacts)
    return plan.spec.fit.auto and plan.spec.artifacts.shared is None and not (refusal is not None and refusal.final)


def _name(plan: Plan) -> str:
    return plan.facts().features


def _note(plan: Plan) -> None:
    """Writes down which set of fits the features were made with, unless that is known."""
    name, manifest = _name(plan), plan.job.artifacts.manifest
    if _known(plan, name) != manifest:
        place = locate(absolute(plan.spec.work_dir))
        content_store.put(place, _file(plan.spec, name), [json.dumps({"manifest": manifest}).encode()])


def _known(plan: Plan, name: str) -> str | None:
    """The set of fits that features of that fingerprint were made with, if it is noted and there."""
    place = locate(absolute(plan.spec.work_dir))
    for file in (_file(plan.spec, name), f"features/{name}.json"):  # the second one is of earlier versions
        try:
            manifest = str(json.loads(bytes(content_store.get(place, file)))["manifest"])
            load_manifest(artifacts_dir(plan.spec), manifest)
        except (FileNotFoundError, CorruptFileError, SpecError, ValueError, KeyError, TypeError):
            continue
        return manifest
    return None


def _file(spec: PipelineSpec, name: str) -> str:
    """Of this pipeline and folder: another's set of the same features may lie in another folder, or go before."""
    request = artifact_set_key(spec)
    content = json.dumps([request.owner, absolute(artifacts_dir(spec))])
    return f"features/{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"
