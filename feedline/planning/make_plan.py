"""Make the plan of a pipeline on the snapshots of its sources: features, filter and sample are bound to the columns of
each, and rows counted. The batches of several sources must have the same columns.

Runs in: the feeder, the CLI, `Pipeline.batches`. It reads footer facts, artifacts and, in the counting pass, tables.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import partial

import pyarrow as pa

from feedline.artifacts.store import ArtifactSetRef, StoredArtifactSet
from feedline.blocks.environment import local_environment
from feedline.blocks.jobs import batch_schema
from feedline.blocks.request import Job, ReadEpochs, Runs
from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, NoStepError, PlanError, StateError
from feedline.expressions import BoundExpression
from feedline.loader.encoding.layout import SlotColumn, SlotLayout
from feedline.planning.epoch_snapshot import Border, load_border, split_border, window_border
from feedline.planning.exclusions import named_exclusion
from feedline.planning.generations import recorded_generations
from feedline.planning.length_columns import bucket_counts, length_order
from feedline.planning.plan import Plan
from feedline.planning.read_columns import ReadColumns, bound_sample, bound_where, require_columns, rows_of
from feedline.planning.recording import recording_of
from feedline.planning.short_histories import with_long_histories
from feedline.planning.source_plan import SourcePlan
from feedline.planning.table_features import (
    artifact_set_ref,
    compile_spec,
    planned_schema,
    refuse_constant_groups,
    required_functions,
)
from feedline.planning.table_snapshot import as_read, cache_ref
from feedline.planning.weighted_rows import weigh_rows, weight_order
from feedline.warehouse.bad_files import load_skipped
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT
from feedline.warehouse.rebase.remaining_rows import Rebase, split_name
from feedline.warehouse.selection.column_bounds import value_ranges
from feedline.warehouse.selection.pruning_report import needed_bytes
from feedline.warehouse.selection.select import Selection, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import locate
from feedline.warehouse.storage.parallel import Map
from feedline.warehouse.storage.retry import is_local

_LITERAL = 40  # characters of a value in a message
# What the columns of a batch must have in common, as errors name it.
_COMMON = ("dtype", "unit", "width", "weighted", "num_embeddings", "lookups", "dedup", "arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSource:
    """What a source's plan is made of. rebase: the rest of its pass. border: of the epoch that reads it, of a followed
    table. selection: where another plan of the spec has counted on this snapshot. earlier: a snapshot whose counts hold
    for unchanged files."""

    snapshot: Snapshot
    rebase: Rebase | None = None
    border: Border | None = None
    selection: Selection | None = None
    earlier: Callable[[], Snapshot | None] = lambda: None

    @classmethod
    def of(cls, plan: SourcePlan) -> FrozenSource:
        """What another plan of the same source is made of."""
        return cls(snapshot=plan.snapshot, rebase=plan.rebase, border=plan.border, selection=plan.selection)


def snapshot_names(spec: PipelineSpec, name: str) -> list[str]:
    """The name of each source's snapshot. Raises StateError where it is the name of another number of sources."""
    names, sources = name.split(","), len(spec.per_source())
    if len(names) != sources:
        raise StateError(
            f"the state belongs to another plan: it has snapshots of {len(names)} sources, pipeline.yaml has "
            f"{sources}. Use the pipeline.yaml and overrides of the run that saved it"
        )
    return names


def load_frozen(
    spec: PipelineSpec, name: str, taken: Sequence[Snapshot] | None = None, features: str | None = None
) -> list[FrozenSource]:
    """Load what a name stands for, of each source. taken: their snapshots, if these are at hand. features: the
    fingerprint of a run's, whose histories keep their generations as long as their files are there."""
    frozen, generations = list[FrozenSource](), recorded_generations(spec.work_dir, features)
    for index, (source, source_name) in enumerate(zip(spec.per_source(), snapshot_names(spec, name), strict=True)):
        of_border, rest = split_name(source_name)
        id, border_id = split_border(of_border)
        snapshot = Snapshot.load(source.work_dir, id) if taken is None else taken[index]
        snapshot = as_read(source, snapshot, generations) if taken is None else snapshot
        border = border_named(source, id, border_id)
        frozen.append(
            FrozenSource(
                snapshot=snapshot,
                rebase=None if rest is None else Rebase.load(source.work_dir, rest),
                border=border,
                earlier=partial(_snapshot_before, source, border),
            )
        )
    return frozen


def border_named(spec: PipelineSpec, snapshot: str, id: str | None) -> Border | None:
    """The border that a state names. Raises StateError for one of a run that is none of this pipeline's."""
    if spec.windows is None:
        return None if id is None else load_border(spec.work_dir, id)
    if id is None or int(id, 16) >= spec.windows.count:
        got = "none" if id is None else f"window {int(id, 16):,}"
        raise StateError(
            f"the state belongs to another plan: it is of {got}, expected one of the {spec.windows.count:,} windows of "
            "pipeline.yaml. Use the pipeline.yaml and overrides of the run that saved it"
        )
    return window_border(snapshot, int(id, 16))


def _snapshot_before(spec: PipelineSpec, border: Border | None) -> Snapshot | None:
    """The snapshot of the epoch before a border's, where its files are among those of the border's."""
    follow = spec.source.follow
    if border is None or not border.previous or follow is None or follow.epoch == "new":
        return None
    with contextlib.suppress(FeedlineError):
        return Snapshot.load(spec.work_dir, load_border(spec.work_dir, border.previous).snapshot)
    return None


def plan_sources(
    spec: PipelineSpec,
    frozen: Sequence[FrozenSource],
    *,
    lanes: int,
    map: Map | None = None,
    artifacts: ArtifactSetRef | None = None,
    exclude: bool = True,
) -> Plan:
    """Resolve a spec against each source. Options: as of `plan_source`.

    Raises SpecError, with file, line and path, where pipeline.yaml does not match a table, and where the sources'
    batches would differ.
    """
    plans: list[SourcePlan] = []
    for source, parts in zip(spec.per_source(), frozen, strict=True):
        ref = artifacts
        if ref is None and plans and (manifest := plans[0].job.artifacts.manifest) is not None:
            ref = artifact_set_ref(source, manifest)  # a fit may have ended meanwhile
        plans.append(plan_source(source, parts, lanes=lanes, map=map, artifacts=ref, exclude=exclude))
    for named, plan in zip(spec.sources[1:], plans[1:], strict=True):
        _refuse_differences(spec, plans[0], plan, named.name)
    return Plan.of(spec, plans)


def plan_source(
    spec: PipelineSpec,
    frozen: FrozenSource,
    *,
    lanes: int,
    map: Map | None = None,
    artifacts: ArtifactSetRef | None = None,
    exclude: bool = True,
) -> SourcePlan:
    """Resolve a spec against one source; `map` runs the counting pass (default: threads of this process).

    `artifacts`: the artifact set to use (default: the current one); some may be missing, see `Plan.require_fitted`.
    `exclude`: leave out the rows of `source.exclude`; if not, buckets are not counted either.

    Raises SpecError, with file, line and path, where pipeline.yaml does not match the table.
    """
    snapshot, selection = frozen.snapshot, frozen.selection
    if spec.windows is not None:
        spec = spec.in_window(0 if frozen.border is None else frozen.border.epoch)
    ref = replace(artifact_set_ref(spec) if artifacts is None else artifacts, rows=rows_of(spec.source, snapshot))
    stored = StoredArtifactSet(ref, newest=artifacts is None)
    schema = planned_schema(spec, snapshot.schema, snapshot.histories)
    features = compile_spec(spec, schema, artifacts=stored)
    refuse_constant_groups(spec, features, snapshot.partition_columns)
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    columns = ReadColumns.of(spec, features, where, sample)
    order = _run_order(spec, snapshot) or length_order(spec, snapshot) or weight_order(spec, snapshot)
    if spec.source.schema_rules.missing == "error":
        require_columns(spec, snapshot, columns.parts(snapshot.schema), where)
    if selection is None:
        selection = count_rows(spec, snapshot, map, frozen.earlier)
        excluded = named_exclusion(spec, snapshot) if exclude else None
        selection = selection.without(with_long_histories(spec, snapshot, selection, excluded, map))
    if not int(selection.rows.sum()):
        raise _empty_error(spec, snapshot, where, selection)
    job = Job(
        features=features.features,
        schema=column_schema(schema, columns),
        where=spec.source.where,
        environment=local_environment(),
        artifacts=stored.pinned_ref,
        sample=None if sample is None else sample.sample,
        record=recording_of(spec, snapshot),
        code=required_functions(spec),
        cache=cache_ref(spec.cache) if spec.cache is not None and spec.cache.mode in ("auto", "features") else None,
        auto=read_epochs(spec, columns, snapshot, selection),
        order=order,
        histories=tuple((history.columns.name, history.version) for history in snapshot.histories),
    )
    return SourcePlan(
        spec=spec,
        snapshot=snapshot,
        where=where,
        sample=sample,
        selection=selection,
        features=features,
        layout=SlotLayout(batch_schema(features)),
        job=job,
        lanes=lanes,
        skipped=load_skipped(spec.work_dir, snapshot.id),
        border=frozen.border,
        rebase=frozen.rebase,
        lengths=bucket_counts(spec, snapshot, selection, map) if exclude else None,
        weights=weigh_rows(spec, snapshot, selection, map) if exclude else None,
        salt=() if spec.source_name is None else (spec.source_name,),
        share=Fraction(spec.batch.size, spec.whole.batch.size),
    )


def count_rows(
    spec: PipelineSpec, snapshot: Snapshot, map: Map | None, earlier: Callable[[], Snapshot | None]
) -> Selection:
    """The counting pass; its counts are kept in work_dir. earlier: see `select_rows`."""
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    return select_rows(snapshot, where, sample=sample, work_dir=spec.work_dir, map=map, earlier=earlier)


def require_step(
    spec: PipelineSpec, snapshot: Snapshot, *, lanes: int, map: Map | None, earlier: Callable[[], Snapshot | None]
) -> None:
    """Plan an epoch of a followed table, whose counts are kept for the plan that is made later. Raises NoStepError
    where its rows make no step, and whatever else keeps it from being planned."""
    if not count_rows(spec, snapshot, map, earlier).rows.any():
        raise NoStepError(f"none of {snapshot.rows:,} rows is selected")
    plan = plan_source(spec, FrozenSource(snapshot=as_read(spec, snapshot), earlier=earlier), lanes=lanes, map=map)
    plan.gaps.refuse(plan.whole_schedule.rows_dropped)  # the schedule raises NoStepError


def _run_order(spec: PipelineSpec, snapshot: Snapshot) -> Runs | None:
    """The order of `shuffle.by`. Raises SpecError where the table has no such column."""
    by = spec.shuffle.by if spec.shuffle is not None else None
    if by is None:
        return None
    if by == SAMPLE_WEIGHT and spec.source.sample is not None:
        message = f"shuffle.by cannot be {by}, which source.sample generates: expected a column of the table"
        raise spec.error(("shuffle", "by"), f"{message}. Rename the table's column")
    if by not in snapshot.schema.names:
        hint = nearest_hint(by, snapshot.schema.names)
        raise spec.error(("shuffle", "by"), f"column {by!r} is not in the table. {hint}")
    return Runs(by)


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


def column_schema(schema: pa.Schema, columns: ReadColumns) -> bytes:
    """The columns of a schema that blocks read, as a job names them: in Arrow's IPC format."""
    names = {*columns.columns(schema), *columns.features.columns}
    return pa.schema([field for field in schema if field.name in names]).serialize().to_pybytes()  # type: ignore[no-any-return]


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


def _refuse_differences(spec: PipelineSpec, first: SourcePlan, other: SourcePlan, other_name: str) -> None:
    """Raise SpecError for a feature whose values differ in type, or in what they were learnt from."""
    first_name = spec.sources[0].name
    for index, (column, theirs) in enumerate(zip(first.layout.schema, other.layout.schema, strict=True)):
        name = column.name
        path = next((feature.path for feature in other.spec.features if feature.name == name), ("sources",))
        differing = next((key for key in _COMMON if getattr(column, key) != getattr(theirs, key)), None)
        if differing is not None:
            got, expected = _describe(theirs, differing), _describe(column, differing)
            message = f"the batches of two sources differ in {name!r}: got {got} of source {other_name}, expected "
            raise spec.error(path, f"{message}{expected} as of {first_name}. Change its ops, or the column's type")
        if first.features.fits_of(index) != other.features.fits_of(index):
            message = f"{name!r} learns from other values in source {other_name} than in {first_name}"
            remedy = "A feature learns once, from all sources: redefine its column or expression, and keep its ops"
            raise spec.error(path, f"{message}: got {theirs.chain}, expected {column.chain}. {remedy}")


def _describe(column: SlotColumn, key: str) -> str:
    """What differs: a type, or how many values or ids there are."""
    if key in ("dtype", "arrow", "unit"):
        return column.arrow or column.dtype
    if key == "width":
        return f"{column.width} values"
    if key == "num_embeddings":
        return "no bound of its ids" if column.num_embeddings is None else f"ids below {column.num_embeddings:,}"
    if key == "dedup":
        return "no deduplicated group" if column.dedup is None else f"the deduplicated group {column.dedup!r}"
    return "weights" if column.weighted else f"no weights, {column.lookups} lookups"
