"""Choose the artifact set for a run. Ranks that start together use the same manifest; with `fit: auto`, the first rank
fits what is missing.

Runs in: the feeder of each rank, `Pipeline.batches`. The manifest is recorded in `work_dir` under the fingerprint of
the features, which states carry: a resumed run finds the set that it began with, whatever was fitted since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

from feedline.artifacts.store import ArtifactSetRef, load_manifest
from feedline.config import PipelineSpec
from feedline.errors import CorruptFileError, SpecError
from feedline.planning.agreement import RunStart, choose_once
from feedline.planning.plan import Plan
from feedline.planning.table_features import artifact_set_key, artifact_set_ref, artifacts_dir, set_refusal
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, locate


def resolve_artifacts(
    plan: Plan,
    plan_with: Callable[[ArtifactSetRef], Plan],
    fit_missing: Callable[[], str | None],
    *,
    start: RunStart | None = None,
    features: str | None = None,
) -> Plan:
    """The plan with every artifact that its features need.

    plan_with: makes the plan with another artifact set. fit_missing: fits what is missing and returns the manifest.
    features: the fingerprint in a state, of an artifact set that may have been replaced since. Raises SpecError where
    an artifact is missing and `fit: auto` does not apply.
    """
    if plan.is_fitted and _manifest(plan) is None:
        return plan
    if features is not None and (manifest := _recorded_manifest(plan.spec, features)) is not None:
        same = manifest == _manifest(plan)
        earlier = plan if same else plan_with(artifact_set_ref(plan.spec, manifest))
        if earlier.is_fitted and earlier.features_fingerprint == features:
            return earlier

    def choose() -> str:
        if not plan.is_fitted and _may_fit(plan):
            return fit_artifacts(fit_missing)
        plan.require_fitted()
        return _manifest(plan) or ""

    manifest = choose() if start is None else choose_once(_artifact_start(plan.spec, start), plan.spec.work_dir, choose)
    if manifest != _manifest(plan):
        plan = plan_with(artifact_set_ref(plan.spec, manifest))
    plan.require_fitted()
    _record_manifest(plan)
    return plan


def fit_artifacts(fit_missing: Callable[[], str | None]) -> str:
    """Fit what is missing. Returns the manifest."""
    return fit_missing() or ""


def _artifact_start(spec: PipelineSpec, start: RunStart) -> RunStart:
    content = json.dumps([start.job, "artifacts", artifacts_dir(spec), repr(artifact_set_key(spec))])
    return replace(start, job=hashlib.sha256(content.encode()).hexdigest())


def _manifest(plan: Plan) -> str | None:
    return plan.sources[0].job.artifacts.manifest


def _may_fit(plan: Plan) -> bool:
    """Whether `fit: auto` fits what is missing: not for artifacts of another pipeline or table."""
    refusal = set_refusal(plan.sources[0].features.artifacts)
    return plan.spec.fit.auto and plan.spec.artifacts.shared is None and not (refusal is not None and refusal.final)


def _record_manifest(plan: Plan) -> None:
    features, manifest = plan.features_fingerprint, _manifest(plan)
    if _recorded_manifest(plan.spec, features) != manifest:
        location = locate(absolute(plan.spec.work_dir))
        content_store.put(location, _record_name(plan.spec, features), [json.dumps({"manifest": manifest}).encode()])


def _recorded_manifest(spec: PipelineSpec, features: str) -> str | None:
    """The manifest recorded for features of this fingerprint; None where there is none or it is gone."""
    location = locate(absolute(spec.work_dir))
    try:
        content = json.loads(bytes(content_store.get(location, _record_name(spec, features))))
        manifest = str(content["manifest"])
        load_manifest(artifacts_dir(spec), manifest)
    except (FileNotFoundError, CorruptFileError, SpecError, ValueError, KeyError, TypeError):
        return None
    return manifest


def _record_name(spec: PipelineSpec, features: str) -> str:
    """A name for this pipeline and artifacts folder: equal features may have another artifact set elsewhere."""
    content = json.dumps([artifact_set_key(spec).owner, absolute(artifacts_dir(spec))])
    return f"features/{features}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"
