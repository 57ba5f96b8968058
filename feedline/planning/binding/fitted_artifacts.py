"""Name the artifact set of a pipeline, and refuse features whose artifacts are missing.

Runs in: the feeder, the CLI, `Pipeline`.
"""

from __future__ import annotations

from typing import Any

from feedline.artifacts.artifact_sets import ArtifactSetKey, FitSource, Refusal, fit_source, join_sources
from feedline.artifacts.store import ArtifactSetRef, StoredArtifactSet
from feedline.spec import PipelineSpec
from feedline.spec.features import canonical_json
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.transforms.learning.learner import ArtifactSet, FitRequest
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.storage.locations import below

_MAX_MISSING = 5  # missing artifacts in one message


def artifacts_dir(spec: PipelineSpec) -> str:
    """The folder of the pipeline's artifacts."""
    return spec.artifacts.folder or below(spec.work_dir, "artifacts")


def artifact_set_key(spec: PipelineSpec, *, served: bool = False) -> ArtifactSetKey:
    """The identity of the pipeline's artifact set: of several sources, the same for each."""
    return ArtifactSetKey(
        pipeline=spec.name,
        source=_fit_source(spec.whole),
        shared_from=spec.artifacts.shared,
        served=served,
        redefined=_redefined(spec.whole),
    )


def _redefined(spec: PipelineSpec) -> tuple[tuple[str, str], ...]:
    """By feature, how the sources of a pipeline define it in its place."""
    found: dict[str, dict[str, Any]] = {}
    for source in spec.sources if spec.is_mixed else ():
        for feature in source.features:
            found.setdefault(feature.name, {})[source.name] = feature.long_form()
    return tuple(sorted((name, canonical_json(definitions)) for name, definitions in found.items()))


def _fit_source(spec: PipelineSpec) -> FitSource:
    """The rows that a pipeline declares for its fits."""
    sources = [
        fit_source(each.source.table, spec.fit.where, None if sample is None else sample.fitted.to_json())
        for each in spec.per_source()
        for sample in [Sample.of(each.source.sample)]
    ]
    if not spec.is_mixed:
        return sources[0]
    return join_sources({each.name: one for each, one in zip(spec.sources, sources, strict=True)})


def artifact_set_ref(spec: PipelineSpec, manifest: str | None = None, *, served: bool = False) -> ArtifactSetRef:
    """A job's artifact set: a manifest, or the key to look it up by. `served`: for rows that no fit has seen."""
    return ArtifactSetRef(
        folder=artifacts_dir(spec),
        manifest=manifest,
        out_of_fold=spec.fit.out_of_fold and not served,
        base_dir=spec.base_dir,
        request=artifact_set_key(spec, served=served),
    )


def require_fitted(
    spec: PipelineSpec, features: CompiledFeatures, stored: StoredArtifactSet | None = None, *, served: bool = False
) -> None:
    """Raise SpecError, with the command that helps, where a feature has no artifact. stored: the artifact set (default:
    that of the features). served: there is no table to fit on, whatever pipeline.yaml says."""
    if not features.missing_fits:
        return
    position = next(
        (feature.path for feature in spec.features if feature.name == _feature_name(features.missing_fits[0])),
        ("features",),
    )
    artifacts = features.artifacts if stored is None else stored
    refusal = set_refusal(artifacts)
    if refusal is not None:
        names = ", ".join(dict.fromkeys(f"{fit.feature}: {fit.op[0]}" for fit in features.missing_fits[:_MAX_MISSING]))
        remedy = refusal.remedy_for(spec.command("fit"))
        raise spec.error(position, f"not fitted: {names}{_and_more(features)}: {refusal.mismatch}. {remedy}")
    missing = [f"{fit.feature}: {fit.op[0]}: {_found_instead(artifacts, fit)}" for fit in features.missing_fits]
    shared = spec.artifacts.shared
    if shared is not None:
        remedy = f"Fit pipeline {shared!r}, whose fits these are: `artifacts: {{from: {shared}}}`"
    else:
        remedy = f"Run `{spec.command('fit')}`" + (" where the table is" if served else ", or write `fit: auto`")
    raise spec.error(position, f"not fitted: {'; '.join(missing[:_MAX_MISSING])}{_and_more(features)}. {remedy}")


def set_refusal(artifacts: ArtifactSet) -> Refusal | None:
    """Why the whole artifact set cannot be used: it belongs to another table or filter; None where it can."""
    return artifacts.refusal() if isinstance(artifacts, StoredArtifactSet) else None


def _and_more(features: CompiledFeatures) -> str:
    more = len(features.missing_fits) - _MAX_MISSING
    return f"; and {more} more" if more > 0 else ""


def _found_instead(artifacts: ArtifactSet, fit: FitRequest) -> str:
    return artifacts.explain_missing(fit) if isinstance(artifacts, StoredArtifactSet) else "got no artifact"


def _feature_name(fit: FitRequest) -> str:
    return fit.feature.partition(" (input ")[0]
