"""Bind the features of a pipeline.yaml, and its deduplicated groups, to the columns of a table.

Runs in: the feeder, the CLI, `Pipeline`. Compiling may read artifacts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from feedline.artifacts.artifact_sets import ArtifactSetKey, FitSource, Refusal, fit_source, join_sources
from feedline.artifacts.store import ArtifactSetRef, StoredArtifactSet
from feedline.config import PipelineSpec
from feedline.config.features import FeatureSpec, canonical_json
from feedline.errors import SpecError
from feedline.expressions.column_parts import has_column
from feedline.expressions.types import nearest
from feedline.planning.histories import stored_columns
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.compile.dedup_groups import assign_groups, named_columns, refuse_empty_groups
from feedline.transforms.learning.learner import ArtifactSet, FitRequest
from feedline.transforms.registry.op import OpError
from feedline.transforms.registry.user_code import functions_of
from feedline.transforms.registry.user_functions import RequiredFunction
from feedline.warehouse.reading.sample import Sample, with_weight
from feedline.warehouse.snapshot.history_ref import HistoryRef, with_lists
from feedline.warehouse.storage.locations import below

# --------------------------------------------------------------------------------------------------------------------
# Name the artifact set of a pipeline, and refuse features whose artifacts are missing.

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
    sources = [
        fit_source(
            each.source.table, spec.fit.where, None if sample is None else sample.fitted.to_json(), each.source.explode
        )
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


# --------------------------------------------------------------------------------------------------------------------


def planned_schema(spec: PipelineSpec, schema: pa.Schema, histories: Sequence[HistoryRef] = ()) -> pa.Schema:
    """The columns that features may name: the table's, with a sample `sample_weight`, and lists of histories.

    Raises SpecError where a feature names `sample_weight` and the table has a column of that name beside the sample,
    and where a deduplicated group names a column that is not there.
    """
    planned = schema
    if spec.source.sample is not None:
        for feature in spec.features:
            try:
                with_weight(schema, named_columns(feature))
            except SpecError as error:
                raise spec.error(feature.path, f"{feature.name}: {error}") from None
        planned = with_weight(schema, ())
    for group in spec.dedup:
        for name in group.columns:
            if not has_column(planned, name):
                remedy = nearest(name, planned.names) or ". Remove it"
                message = f"unknown column: got {name!r}, expected a column of the table{remedy}"
                raise spec.error((*group.path, "columns"), message)
    return with_lists(planned, histories)


def served_schema(spec: PipelineSpec, schemas: Sequence[pa.Schema], histories: Sequence[HistoryRef] = ()) -> pa.Schema:
    """The columns of the tables (of each source), with their types, that serving may name: of several tables first
    those that the pipeline's own features read there, then all others."""
    specs = spec.per_source()
    planned = [planned_schema(each, schema, histories) for each, schema in zip(specs, schemas, strict=True)]
    if len(planned) == 1:
        return planned[0]
    fields: dict[str, pa.Field] = {}
    for each, schema in zip(specs, planned, strict=True):
        own = [feature for feature in each.features if feature in spec.features]
        read = set().union(*map(named_columns, own))
        fields = {**{field.name: field for field in schema if field.name in read}, **fields}
    for schema in planned:
        fields = {**{field.name: field for field in schema}, **fields}
    return pa.schema(list(fields.values()))


def compile_spec(
    spec: PipelineSpec,
    schema: pa.Schema,
    features: Sequence[FeatureSpec] | None = None,
    *,
    artifacts: ArtifactSet | None = None,
) -> CompiledFeatures:
    """Compile the spec's features (or some of them) against a schema; errors carry file, line and path. `artifacts`:
    the artifact set (default: the current one)."""
    artifacts = StoredArtifactSet(artifact_set_ref(spec)) if artifacts is None else artifacts
    features = grouped_features(spec) if features is None else features
    try:
        return compile_features(features, schema, artifacts)
    except OpError as error:
        raise spec.error(error.path, error.message) from error


def grouped_features(spec: PipelineSpec) -> tuple[FeatureSpec, ...]:
    """The spec's features, each with the deduplicated group that it belongs to."""
    if not spec.dedup:
        return spec.features
    stored = partial(stored_columns, spec)
    features = assign_groups(spec.features, spec.dedup, out_of_fold=spec.fit.out_of_fold, stored=stored)
    try:
        refuse_empty_groups(features, spec.dedup, out_of_fold=spec.fit.out_of_fold, stored=stored)
    except OpError as error:
        raise spec.error(error.path, error.message) from error
    return features


def refuse_constant_groups(spec: PipelineSpec, features: CompiledFeatures, partition_columns: Collection[str]) -> None:
    """Raise SpecError for a deduplicated group of partition keys alone, which never change within a file."""
    reads: dict[str, set[str]] = {}
    for feature, output in zip(features.features, features.outputs, strict=True):
        if feature.dedup is not None:
            reads.setdefault(feature.dedup, set()).update(output.reads)
    for name, columns in reads.items():
        if columns.issubset(partition_columns):
            path = next(group.path for group in spec.dedup if group.name == name)
            message = f"group {name!r} reads partition keys alone: got {', '.join(sorted(columns))}, which are constant"
            raise spec.error(path, f"{message} in every file. Leave its features out of groups, or name more columns")


def required_functions(spec: PipelineSpec) -> tuple[RequiredFunction, ...]:
    """The user's functions that the spec's features call; errors carry file, line and path."""
    try:
        return functions_of(tuple(dict.fromkeys(feature for each in spec.per_source() for feature in each.features)))
    except OpError as error:
        raise spec.error(error.path, error.message) from error
