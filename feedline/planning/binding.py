"""Bind the parts of a pipeline.yaml to the columns of a table; errors name file, line and path.

Runs in: the feeder, the CLI, `Pipeline`. Pure, except that compiling may read artifacts. `ReadColumns` says which
columns a pipeline reads, for plans, blocks, `feedline check` and reports.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from feedline.artifacts.artifact_sets import ArtifactSetKey, Refusal, fit_source
from feedline.artifacts.store import ArtifactSetRef, StoredArtifactSet
from feedline.errors import ExpressionError, SpecError
from feedline.expressions import BoundExpression, bind_where
from feedline.expressions.column_parts import has_column
from feedline.expressions.types import nearest
from feedline.spec import PipelineSpec
from feedline.spec.features import FeatureSpec
from feedline.spec.positions import Path
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.compile.dedup_groups import assign_groups, named_columns, refuse_empty_groups
from feedline.transforms.learning.learner import ArtifactSet, FitRequest
from feedline.transforms.registry.op import OpError
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample, Sample, bind_sample, with_weight
from feedline.warehouse.reading.seen_rows import Mark, TableRows, bind_marks, source_names
from feedline.warehouse.rebase.recorded_rows import Recording
from feedline.warehouse.rebase.row_identity import identity_of, kind_of, unkeyed_identity
from feedline.warehouse.selection.missing_columns import first_absence
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import below, join, redact


def artifacts_dir(spec: PipelineSpec) -> str:
    """The folder of the pipeline's artifacts."""
    return spec.artifacts.folder or below(spec.work_dir, "artifacts")


def artifact_set_key(spec: PipelineSpec, *, served: bool = False) -> ArtifactSetKey:
    """The identity of the pipeline's artifact set."""
    sample = Sample.of(spec.source.sample)
    return ArtifactSetKey(
        pipeline=spec.name,
        source=fit_source(spec.source.table, spec.fit.where, None if sample is None else asdict(sample)),
        shared_from=spec.artifacts.shared,
        served=served,
    )


def artifact_set_ref(spec: PipelineSpec, manifest: str | None = None, *, served: bool = False) -> ArtifactSetRef:
    """A job's artifact set: a manifest, or the key to look it up by. `served`: for rows that no fit has seen."""
    return ArtifactSetRef(
        folder=artifacts_dir(spec),
        manifest=manifest,
        out_of_fold=spec.fit.out_of_fold and not served,
        base_dir=spec.base_dir,
        request=artifact_set_key(spec, served=served),
    )


def rows_of(spec: PipelineSpec, snapshot: Snapshot) -> TableRows:
    """The rows that a run of the spec reads: table, filter and sample."""
    return TableRows(
        root=redact(snapshot.uri),
        sources=source_names(spec.source.table, spec.source.format),
        where=spec.source.where,
        sample=Sample.of(spec.source.sample),
    )


def require_fitted(
    spec: PipelineSpec, features: CompiledFeatures, stored: StoredArtifactSet | None = None, *, served: bool = False
) -> None:
    """Raise SpecError, with the command that helps, where a feature has no artifact.

    stored: the artifact set (default: that of the features). served: there is no table to fit on, whatever
    pipeline.yaml says.
    """
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
    return (
        f"; and {len(features.missing_fits) - _MAX_MISSING} more" if len(features.missing_fits) > _MAX_MISSING else ""
    )


_MAX_MISSING = 5  # missing artifacts in one message


def _found_instead(artifacts: ArtifactSet, fit: FitRequest) -> str:
    return artifacts.explain_missing(fit) if isinstance(artifacts, StoredArtifactSet) else "got no artifact"


def _feature_name(fit: FitRequest) -> str:
    """The name of the feature in pipeline.yaml."""
    return fit.feature.partition(" (input ")[0]


def compile_spec(
    spec: PipelineSpec,
    schema: pa.Schema,
    features: Sequence[FeatureSpec] | None = None,
    *,
    artifacts: ArtifactSet | None = None,
) -> CompiledFeatures:
    """Compile the spec's features (or some of them) against a schema; errors carry file, line and path.

    `artifacts`: the artifact set (default: the current one).
    """
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
    features = assign_groups(spec.features, spec.dedup, out_of_fold=spec.fit.out_of_fold)
    try:
        refuse_empty_groups(features, spec.dedup, out_of_fold=spec.fit.out_of_fold)
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


def bound_where(
    spec: PipelineSpec, schema: pa.Schema, *, text: str | None = None, path: Path = ("source", "where")
) -> BoundExpression | None:
    """`source.where`, or the expression at another path, bound to the table's columns; None where there is none."""
    text = spec.source.where if text is None else text
    try:
        return None if text is None else bind_where(text, schema)
    except ValueError as error:
        raise spec.error(path, str(error)) from error


def planned_schema(spec: PipelineSpec, schema: pa.Schema) -> pa.Schema:
    """The columns that features may name: the table's and, with a sample, `sample_weight`.

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
    return planned


def bound_sample(spec: PipelineSpec, schema: pa.Schema) -> BoundSample | None:
    """`source.sample`, bound to the table's columns."""
    sample = Sample.of(spec.source.sample)
    if sample is None:
        return None
    try:
        return bind_sample(sample, schema)
    except ValueError as error:
        part = "where" if isinstance(error, ExpressionError) else "key"
        raise spec.error(("source", "sample", part), str(error)) from error


def bound_marks(spec: PipelineSpec, features: CompiledFeatures) -> tuple[Mark, ...]:
    """Conditions that recognise rows which fits have seen. Raises SpecError where the table's rows do not show it."""
    try:
        return bind_marks(features.marks, features.schema)
    except ValueError as error:
        cause = str(error).partition("\n")[0]
        raise spec.error(
            ("fit",),
            f"filter and sample of the fit do not tell which rows of this table it has seen: got {cause}. "
            "Fit again on this table, or write `out_of_fold: false` if no fit has seen its rows",
        ) from error


def require_columns(
    spec: PipelineSpec, snapshot: Snapshot, columns: Collection[str], where: BoundExpression | None
) -> None:
    """Raise SpecError where a file that may be read lacks one of these columns."""
    absence = first_absence(snapshot, columns, where)
    if absence is not None:
        name, path, files = absence
        raise spec.error(
            ("source", "schema", "missing"),
            f"column {name!r} is not in {join(redact(snapshot.uri), path)}: got {files} files without it, expected "
            f"none. Leave them out with source.where, or write `missing: null`",
        )


def recording_of(spec: PipelineSpec, snapshot: Snapshot) -> Recording | None:
    """Where and how a plan's blocks record the identities of rows; None without a `source.row_key`.

    Raises SpecError for a key that is not in the files, or of a type that cannot be hashed.
    """
    key, schema = spec.source.row_key, snapshot.schema
    if key is None:
        return None
    for name in key:
        if name not in schema.names or kind_of(schema.field(name).type) is None:
            got = str(schema.field(name).type) if name in schema.names else "no column of that name"
            message = f"{name!r} cannot identify rows: got {got}, expected a column of numbers, times, strings or lists"
            raise spec.error(("source", "row_key"), message)
    stored, by, kept = _identity_inputs(spec, snapshot, key)
    identity = identity_of(stored, key, by=by, kept=kept)
    if identity is None:
        raise spec.error(
            ("source", "row_key"), f"consists of partition keys: got {', '.join(key)}. Name a column of the files"
        )
    return Recording(identity=identity, work_dir=spec.work_dir)


def unkeyed_recording(spec: PipelineSpec, snapshot: Snapshot, columns: Sequence[str]) -> Recording | None:
    """Where a run of an earlier version may have recorded identities without a row key."""
    stored, by, kept = _identity_inputs(spec, snapshot, columns)
    identity = unkeyed_identity(stored, columns, by=by, kept=kept)
    return None if identity is None else Recording(identity=identity, work_dir=spec.work_dir)


def _identity_inputs(spec: PipelineSpec, snapshot: Snapshot, names: Sequence[str]) -> tuple[pa.Schema, str | None, str]:
    """The stored columns among `names` and `shuffle.by`; the latter; and what decides which rows are kept, as JSON."""
    by, sample = spec.shuffle.by if spec.shuffle is not None else None, spec.source.sample
    not_stored = {*snapshot.partition_columns, SAMPLE_WEIGHT if sample is not None else ""}
    read = dict.fromkeys([*names, *([by] if by is not None else [])])
    stored = pa.schema([field_of(snapshot.schema, name) for name in read if name not in not_stored])
    return stored, by, json.dumps([spec.source.where, sample.model_dump() if sample is not None else None])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadColumns:
    """The columns of its table that a pipeline reads: for features, filter, sample, marks and as keys.

    keys: `shuffle.by` and the row key. marks: conditions that recognise rows which fits have seen.
    """

    features: CompiledFeatures
    where: BoundExpression | None
    sample: BoundSample | None
    keys: tuple[str, ...]
    marks: tuple[Mark, ...] = ()

    @classmethod
    def of(
        cls,
        spec: PipelineSpec,
        features: CompiledFeatures,
        where: BoundExpression | None,
        sample: BoundSample | None,
    ) -> ReadColumns:
        """The columns of a spec bound to its table. Raises SpecError where rows that fits saw cannot be recognised."""
        marks = bound_marks(spec, features)
        by = (spec.shuffle.by,) if spec.shuffle is not None and spec.shuffle.by is not None else ()
        keys = (*by, *(spec.source.row_key or ()))
        return cls(features=features, where=where, sample=sample, keys=keys, marks=marks)

    def columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that blocks read, each once; partition keys may be among them.

        `sample_weight` is one of them only where the schema has it: otherwise the sample generates it.
        """
        conditions = [sorted(condition.columns) for condition in self._conditions]
        return self._unique([self.features.columns, self.keys, *conditions], schema)

    def parts(self, schema: pa.Schema) -> tuple[str, ...]:
        """The same, as column parts where only parts of them are read."""
        conditions = [sorted(condition.parts) for condition in self._conditions]
        return self._unique([self.features.parts, self.keys, *conditions], schema)

    @property
    def _conditions(self) -> list[BoundExpression | BoundSample | Mark]:
        return [condition for condition in (self.where, self.sample, *self.marks) if condition is not None]

    def _unique(self, names: Sequence[Sequence[str]], schema: pa.Schema) -> tuple[str, ...]:
        generated = self.sample is not None and not has_column(schema, SAMPLE_WEIGHT)
        not_read = {SAMPLE_WEIGHT} if generated else set()
        return tuple(dict.fromkeys(name for each in names for name in each if name not in not_read))
