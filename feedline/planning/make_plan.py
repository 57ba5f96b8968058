"""Make the plan of a pipeline on a snapshot: features, filter and sample bound to its columns, and rows counted.

Runs in: the feeder, the CLI, `Pipeline.batches`. It reads footer facts, artifacts and, in the counting pass, the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from feedline.artifacts.store import ArtifactSetRef, StoredArtifactSet
from feedline.blocks.batch_schema import batch_schema
from feedline.blocks.environment import local_environment
from feedline.blocks.request import Job, ReadEpochs, RowOrder
from feedline.errors import FeedlineError, NoStepError, PlanError
from feedline.expressions import BoundExpression
from feedline.loader.encoding.layout import SlotLayout
from feedline.planning.binding.fitted_artifacts import artifact_set_ref
from feedline.planning.binding.read_columns import ReadColumns, require_columns
from feedline.planning.binding.recording import recording_of
from feedline.planning.binding.selected_rows import bound_sample, bound_where, rows_of
from feedline.planning.binding.table_features import (
    compile_spec,
    planned_schema,
    refuse_constant_groups,
    required_functions,
)
from feedline.planning.binding.weighted_rows import weigh_rows, weight_order
from feedline.planning.follow.border import Border
from feedline.planning.lengths.length_columns import bucket_counts, length_order
from feedline.planning.plan import Plan
from feedline.planning.rows.exclusions import exclude_rows
from feedline.planning.table_snapshot import as_read, cache_ref
from feedline.spec import PipelineSpec
from feedline.spec.cache_section import CacheSpec
from feedline.warehouse.bad_files import load_skipped
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT
from feedline.warehouse.rebase.recorded_rows import Recording
from feedline.warehouse.rebase.remaining_rows import Rebase
from feedline.warehouse.selection.column_bounds import value_ranges
from feedline.warehouse.selection.pruning_report import needed_bytes
from feedline.warehouse.selection.select import Selection, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import locate
from feedline.warehouse.storage.parallel import Map
from feedline.warehouse.storage.retry import is_local

_LITERAL = 40  # characters of a value in a message


def make_plan(
    spec: PipelineSpec,
    snapshot: Snapshot,
    *,
    lanes: int,
    map: Map | None = None,
    rebase: Rebase | None = None,
    artifacts: ArtifactSetRef | None = None,
    selection: Selection | None = None,
    exclude: bool = True,
    border: Border | None = None,
    earlier: Callable[[], Snapshot | None] = lambda: None,
) -> Plan:
    """Resolve a spec against a snapshot; `map` runs the counting pass (default: threads of this process).

    `artifacts`: the artifact set to use (default: the current one); some may be missing, see `Plan.require_fitted`.
    `selection`: that of another plan of the spec on this snapshot, which is not counted again. `exclude`: leave out the
    rows of `source.exclude`; if not, buckets are not counted either. `border`: of the epoch of a followed table that
    the plan is of. `earlier`: a snapshot whose counts hold for unchanged files.

    Raises SpecError, with file, line and path, where pipeline.yaml does not match the table.
    """
    stored = _artifact_set(spec, snapshot, artifacts)
    schema = planned_schema(spec, snapshot.schema)
    features = compile_spec(spec, schema, artifacts=stored)
    refuse_constant_groups(spec, features, snapshot.partition_columns)
    where = bound_where(spec, snapshot.schema)
    sample = bound_sample(spec, snapshot.schema)
    columns = ReadColumns.of(spec, features, where, sample)
    ordering = _shuffle_column(spec, snapshot), length_order(spec, snapshot) or weight_order(spec, snapshot)
    if spec.source.schema_rules.missing == "error":
        require_columns(spec, snapshot, columns.parts(snapshot.schema), where)
    if selection is None:
        selection = select_rows(snapshot, where, sample=sample, work_dir=spec.work_dir, map=map, earlier=earlier)
        selection = exclude_rows(spec, snapshot, selection) if exclude else selection
    if not int(selection.rows.sum()):
        raise _empty_error(spec, snapshot, where, selection)
    record, auto = recording_of(spec, snapshot), read_epochs(spec, columns, snapshot, selection)
    return Plan(
        spec=spec,
        snapshot=snapshot,
        where=where,
        sample=sample,
        selection=selection,
        features=features,
        layout=SlotLayout(batch_schema(features)),
        job=_job(spec, schema, columns, ordering, record, stored.pinned_ref, auto),
        lanes=lanes,
        skipped=load_skipped(spec.work_dir, snapshot.id),
        border=border,
        rebase=rebase,
        lengths=bucket_counts(spec, snapshot, where, sample, selection, map) if exclude else None,
        weights=weigh_rows(spec, snapshot, selection, where, sample=sample, map=map) if exclude else None,
        salt=() if spec.source_name is None else (spec.source_name,),
        share=Fraction(spec.batch.size, spec.whole.batch.size),
    )


def require_step(
    spec: PipelineSpec, snapshot: Snapshot, *, lanes: int, map: Map | None, earlier: Callable[[], Snapshot | None]
) -> None:
    """Plan an epoch of a followed table, whose counts are kept for the plan that is made later. Raises NoStepError
    where its rows make no step, and whatever else keeps it from being planned."""
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    selection = select_rows(snapshot, where, sample=sample, work_dir=spec.work_dir, map=map, earlier=earlier)
    if not selection.rows.any():
        raise NoStepError(f"none of {snapshot.rows:,} rows is selected")
    plan = make_plan(spec, as_read(spec, snapshot), lanes=lanes, map=map, earlier=earlier)
    plan.whole_schedule  # noqa: B018 -- raises NoStepError
    plan.without_gaps()


def _shuffle_column(spec: PipelineSpec, snapshot: Snapshot) -> str | None:
    """`shuffle.by`. Raises SpecError where the table has no such column."""
    by = spec.shuffle.by if spec.shuffle is not None else None
    if by == SAMPLE_WEIGHT and spec.source.sample is not None:
        message = f"shuffle.by cannot be {by}, which source.sample generates: expected a column of the table"
        raise spec.error(("shuffle", "by"), f"{message}. Rename the table's column")
    if by is not None and by not in snapshot.schema.names:
        hint = nearest_hint(by, snapshot.schema.names)
        raise spec.error(("shuffle", "by"), f"column {by!r} is not in the table. {hint}")
    return by


def _empty_error(
    spec: PipelineSpec, snapshot: Snapshot, where: BoundExpression | None, selection: Selection
) -> FeedlineError:
    if snapshot.rows == 0:
        return PlanError(f"the table has no rows: got {len(snapshot.files)} files without rows at {spec.source.table}")
    matched = selection.report.matched.rows
    if selection.report.kept.rows:
        message = f"every selected row is excluded: got {selection.report.kept.rows:,} bad rows, expected others"
        return spec.error(("source", "exclude"), f"{message}. See what is wrong with `feedline check --rows`")
    if matched and spec.source.sample is not None:
        fraction = spec.source.sample.fraction
        message = f"the sample keeps no row: got 0 of {matched:,} rows with the fraction {fraction}"
        other = "smaller" if spec.source.sample.rest else "larger"
        return spec.error(("source", "sample", "fraction"), f"{message}. Name a {other} one, or another seed")
    message = f"the filter keeps no row: got 0 of {snapshot.rows:,} rows for {spec.source.where!r}"
    return spec.error(("source", "where"), f"{message}{_describe_ranges(snapshot, where)}")


def _describe_ranges(snapshot: Snapshot, where: BoundExpression | None) -> str:
    """The range of each column of a filter that has statistics: `. In the table day is 0 … 3`."""
    words = []
    for name, bounds in value_ranges(snapshot, sorted(where.columns) if where is not None else ()).items():
        low, high = ("null", "null") if bounds is None else map(_literal, bounds)
        words.append(f"{name} is {low}" if low == high else f"{name} is {low} … {high}")
    return f". In the table {', '.join(words)}" if words else ""


def _literal(value: object) -> str:
    text = str(value) if isinstance(value, int | float | Decimal) else json.dumps(str(value), ensure_ascii=False)
    return text if len(text) <= _LITERAL else f"{text[: _LITERAL - 2]}…{text[-1]}"


def _artifact_set(spec: PipelineSpec, snapshot: Snapshot, artifacts: ArtifactSetRef | None) -> StoredArtifactSet:
    """The artifact set, with the rows of this plan, to recognise those that a fit has seen."""
    ref = replace(artifact_set_ref(spec) if artifacts is None else artifacts, rows=rows_of(spec.source, snapshot))
    return StoredArtifactSet(ref, newest=artifacts is None)


def _job(
    spec: PipelineSpec,
    schema: pa.Schema,
    columns: ReadColumns,
    ordering: tuple[str | None, RowOrder | None],
    record: Recording | None,
    artifacts: ArtifactSetRef,
    auto: ReadEpochs | None,
) -> Job:
    return Job(
        features=columns.features.features,
        schema=column_schema(schema, columns),
        where=spec.source.where,
        by=ordering[0],
        order=ordering[1],
        environment=local_environment(),
        sample=None if columns.sample is None else columns.sample.sample,
        record=record,
        artifacts=artifacts,
        code=required_functions(spec),
        cache=_features_cache(spec.cache),
        auto=auto,
    )


def column_schema(schema: pa.Schema, columns: ReadColumns) -> bytes:
    """The columns of a schema that blocks read, as a job names them: in Arrow's IPC format."""
    names = set(columns.columns(schema))
    return pa.schema([field for field in schema if field.name in names]).serialize().to_pybytes()  # type: ignore[no-any-return]


def _features_cache(cache: CacheSpec | None) -> CacheRef | None:
    """The cache that blocks take finished features from, and add them to."""
    if cache is None or cache.mode not in ("auto", "features"):
        return None
    return cache_ref(cache)


def read_epochs(
    spec: PipelineSpec, columns: ReadColumns, snapshot: Snapshot, selection: Selection
) -> ReadEpochs | None:
    """What a cache that decides for itself needs to know."""
    if spec.cache is None or spec.cache.mode != "auto":
        return None
    kept = selection.rows > 0
    store_bytes = 0
    if not is_local(locate(snapshot.uri).filesystem):
        parts = frozenset(columns.parts(snapshot.schema))
        store_bytes = int(needed_bytes(snapshot, [(parts, kept)]).sum())
    return ReadEpochs(
        epochs=spec.epochs, rows=int(selection.rows.sum()), row_groups=int(kept.sum()), store_bytes=store_bytes
    )
