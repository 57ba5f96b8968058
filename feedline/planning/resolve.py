"""Resolve a pipeline to the plan that a trainer, a state or a rebase asks for.

Runs in: the feeder of each rank, the CLI, `Pipeline`. A new run takes a snapshot of its table, the same for all ranks
of a start; a state names its own, which is in `work_dir`. A state of another plan, or of other features, is refused
with both values. Artifacts that are missing are fitted by the caller's `fit`, where pipeline.yaml says `fit: auto`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from feedline.artifacts.store import ArtifactSetRef
from feedline.artifacts.type_records import save_types
from feedline.blocks.jobs import batch_schema
from feedline.config import PipelineSpec
from feedline.config.chosen_features import choose_features, column_group_name
from feedline.errors import FeedlineError, PlanError, StateError, TableError
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.state import checked_state, refuse_step_beyond
from feedline.loader.wire.codec import to_values
from feedline.loader.wire.facts import Hello
from feedline.planning.agreement import RunStart, choose_once
from feedline.planning.artifact_choice import resolve_artifacts
from feedline.planning.epoch_schedule import PassPlace
from feedline.planning.epoch_snapshot import Border, load_border, split_border, window_border
from feedline.planning.exclusions import explain_exclusion, load_exclusion, with_exclusion_of
from feedline.planning.generations import explain_generations, record_generations
from feedline.planning.length_columns import bucket_counts
from feedline.planning.make_plan import (
    FrozenSource,
    column_schema,
    count_rows,
    load_frozen,
    plan_source,
    plan_sources,
    read_epochs,
    require_step,
    snapshot_names,
)
from feedline.planning.mixing import MixingWindow
from feedline.planning.next_epoch_snapshot import (
    FollowRequest,
    NothingLandedError,
    border_of_epoch,
    first_border,
    rebased_border,
)
from feedline.planning.plan import Plan
from feedline.planning.read_columns import ReadColumns
from feedline.planning.rebase import rebase, require_comparable
from feedline.planning.schedule import rank_lanes
from feedline.planning.skip_bad_files import Take, good_snapshot
from feedline.planning.source_plan import SourcePlan, group_name
from feedline.planning.table_features import artifact_set_key, artifacts_dir, served_schema
from feedline.planning.table_snapshot import as_read, fresh_snapshot, snapshot_of_source, writing_to_work_dir
from feedline.transforms.compile.compiled import compile_some
from feedline.transforms.registry.user_code import functions_of
from feedline.warehouse.bad_files import save_skipped
from feedline.warehouse.rebase.remaining_rows import split_name
from feedline.warehouse.selection.exclusion import Exclusion
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

# --------------------------------------------------------------------------------------------------------------------
# Plan a column group: some of a pipeline's features, for the rows and steps of the plan of all of them. batches`.
# Window and block sizes depend on the bytes that blocks read per row: those of the plan of all features decide, or
# the groups of a job would not read the same rows.


def plan_column_group(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan of some features, by their names or those of their groups (see `choose_features`); of all for no name.

    plan: of the pipeline. The result has the same snapshot, rows, steps and fingerprints; features, layout, job and
    columns are those of the group. Raises SpecError for unknown names.
    """
    sources = tuple(_plan_group(each, names) for each in plan.sources)
    return plan if all(map(operator.is_, sources, plan.sources)) else replace(plan, sources=sources)


def _plan_group(plan: SourcePlan, names: Sequence[str]) -> SourcePlan:
    whole = plan.whole or plan
    if not names:
        return whole
    features = compile_some(whole.features, choose_features(whole.spec, names))
    columns = ReadColumns.of(whole.spec, features, whole.where, whole.sample)
    schema = pa.ipc.read_schema(pa.py_buffer(whole.job.schema))
    job = replace(
        whole.job,
        features=features.features,
        schema=column_schema(schema, columns),
        code=functions_of(features.features),
        auto=read_epochs(whole.spec, columns, whole.snapshot, whole.selection),
    )
    return replace(whole, features=features, layout=SlotLayout(batch_schema(features)), job=job, whole=whole)


# --------------------------------------------------------------------------------------------------------------------

# Fits what is missing on the snapshot of each source and returns the manifest of the artifact set.
Fit = Callable[[Sequence[Snapshot]], str | None]


def current_snapshots(spec: PipelineSpec, *, map: Map | None = None) -> tuple[Snapshot, ...]:
    """The snapshot of each source, as `current_snapshot`."""
    return tuple(current_snapshot(each, map=map) for each in spec.per_source())


def current_snapshot(
    spec: PipelineSpec,
    *,
    take: Take = snapshot_of_source,
    map: Map | None = None,
    earlier: Callable[[], Snapshot | None] = lambda: None,
) -> Snapshot:
    """The snapshot that `take` takes, saved in `work_dir`; with `on_bad_file: skip`, without bad files. earlier: see
    `select_rows`."""
    with writing_to_work_dir(spec):
        if spec.source.on_bad_file == "skip":
            snapshot = good_snapshot(
                spec, count=lambda table, map: count_rows(spec, table, map, earlier), take=take, map=map
            )
        else:
            snapshot = take(spec, map=map)
            save_skipped(spec.work_dir, snapshot.id, ())
        snapshot.save(spec.work_dir)
    return snapshot


def start_of(hello: Hello, *, job: str) -> RunStart:
    """The start that a trainer's hello belongs to."""
    return RunStart(
        job=job,
        rank=hello.global_rank,
        world_size=hello.global_size,
        connected=hello.connected,
        column_group=column_group_name(hello.column_group),
    )


def resolve_hello(
    spec: PipelineSpec,
    hello: Hello,
    *,
    start: RunStart,
    fit: Fit,
    map: Map | None = None,
    plans: Sequence[Plan] = (),
) -> Plan:
    """The plan that a trainer's hello asks for: its state's, or one that all ranks of its start agree on.

    start: takes what is agreed on, for `verify_agreement`. plans: of the spec, for other ranks in this process. One on
    the same snapshots and with the same artifacts is returned; one on the same snapshots is not counted again.

    A hello with an epoch asks for the plan of that epoch of a followed table; where the run has ended before, the plan
    of its last epoch is returned. Raises NothingLandedError while that epoch has no rows, and StateError, with both
    values, where the trainer's state belongs to another plan or other features.
    """
    _refuse_other_settings(spec, to_values(hello))
    lanes = spec.lanes or hello.lanes or hello.world_size
    rank_lanes(lanes, hello.rank, hello.world_size)
    start = replace(start, lanes=lanes)
    plan_id, features, window = hello.plan, hello.features, _window_of(to_values(hello))
    taken: tuple[Snapshot, ...] | None = None
    if hello.rebase is not None:
        name, plan_id = _agreed_rebase(spec, hello.rebase, start, map)  # the hello's is that before the rebase
    elif hello.snapshot is not None:
        name = _name_at(spec, hello.snapshot, hello.epoch, lanes=lanes, start=start, map=map)
        if name != hello.snapshot:
            plan_id = window = None  # they are of another epoch
            features = None if spec.histories and spec.windows is None else features  # a new generation joins there
    else:
        name, taken = _agreed_snapshots(spec, start, map, epoch=hello.epoch or 0)
    plans = [each for each in plans if (each.snapshot_name, each.lanes) == (name, lanes)]
    alike = next(iter(plans), None)
    plans = [each for each in plans if group_name(each.sources[0]) == start.column_group]
    plan = next((each for each in plans if features == each.features_fingerprint or not each.needs_artifacts), None)
    if plan is None:
        if alike is not None:
            frozen = [FrozenSource.of(each) for each in alike.sources]
        else:
            frozen = load_frozen(spec, name, taken, features)
        plan = resolve_frozen(spec, frozen, lanes=lanes, fit=fit, map=map, start=start, features=features)
        plan = plan_column_group(plan, hello.column_group)
        artifacts = [job.artifacts for job in plan.jobs]
        plan = next((each for each in plans if [job.artifacts for job in each.jobs] == artifacts), plan)
    plan = plan.with_window(window)
    _refuse_other_plan(plan, {"plan": plan_id, "features": features})
    return plan


def resolve_state(spec: PipelineSpec, state: Mapping[str, Any], *, fit: Fit, map: Map | None = None) -> Plan:
    """The plan that a state belongs to. Raises StateError where it is of another plan or other features."""
    fields = checked_state(state)
    _refuse_other_settings(spec, fields)
    lanes, features = fields["lanes"], fields["features"]
    frozen = load_frozen(spec, fields["snapshot"], features=features)
    plan = resolve_frozen(spec, frozen, lanes=lanes, fit=fit, map=map, features=features)
    plan = plan.with_window(_window_of(fields))
    _refuse_other_plan(plan, fields)
    refuse_step_beyond(fields, plan.facts())
    return plan


def resolve_next(spec: PipelineSpec, plan: Plan, *, fit: Fit, map: Map | None = None) -> Plan | None:
    """The plan of the epoch after that of a plan of followed tables; None where the run ends with it. Raises PlanError
    while that epoch has no rows, and for a plan that is not of an epoch."""
    if plan.epoch is None:
        raise PlanError("the plan is not of an epoch of a followed table: expected one of a run. See source.follow")
    try:
        name = _name_at(spec, plan.snapshot_name, plan.epoch + 1, lanes=plan.lanes, start=None, map=map)
    except NothingLandedError as error:
        raise PlanError(f"epoch {plan.epoch + 1} cannot begin yet: {error}. Ask again later") from None
    if name == plan.snapshot_name:
        return None
    features = None if spec.histories and spec.windows is None else plan.features_fingerprint
    frozen = load_frozen(spec, name, features=features)
    after = resolve_frozen(spec, frozen, lanes=plan.lanes, fit=fit, map=map, features=features)
    _refuse_other_plan(after, {"features": features})
    return after


def resolve_rebase(spec: PipelineSpec, state: Mapping[str, Any], *, map: Map | None = None) -> Plan:
    """The plan of a state's run on the tables as they are now; see `Pipeline.rebase`. A source
    whose table has not changed stays as it is."""
    fields = checked_state(state)
    _refuse_other_settings(spec, fields)
    refuse_rebase(spec)
    frozen = load_frozen(spec, fields["snapshot"])
    old = plan_sources(spec, frozen, lanes=fields["lanes"], map=map, exclude=spec.is_mixed)
    old = old.with_window(_window_of(fields))
    if not spec.is_mixed:
        own = with_exclusion_of(old.source, fields["plan"])
        lengths = bucket_counts(spec, own.snapshot, own.selection, map)
        old = old.with_sources([replace(own, lengths=lengths)])
    _refuse_other_plan(old, {"plan": fields["plan"]})
    refuse_step_beyond(fields, old.facts())
    epoch, step = fields["epoch"], fields["step"]
    if step >= old.schedule(epoch).steps:
        epoch, step = epoch + 1, 0
    new = tuple(
        _rebased(each, place, epoch, map, began=place.began if spec.is_mixed else None)
        for each, place in zip(old.sources, old.places(epoch, step), strict=True)
    )
    if all(one is other for one, other in zip(new, old.sources, strict=True)):
        return old
    return old.with_sources(new)


def refuse_rebase(spec: PipelineSpec) -> None:
    """Raise StateError for a pipeline no run of which can be rebased, whatever its table."""
    if spec.shuffle is not None and spec.shuffle.weights is not None:
        raise StateError(
            "a run that draws rows by weight cannot be rebased: got shuffle.weights, by which a delivered row may come "
            "again. Continue on the state's snapshot, or begin the next epoch on the table as it is now"
        )
    if any(feature.min_history for feature in spec.features):
        raise StateError(
            "a run that leaves short histories out cannot be rebased: got min_history. Continue on the state's "
            "snapshot, or start a new run on the table as it is now"
        )
    if spec.windows is not None:
        raise StateError(
            "a run whose epochs are windows cannot be rebased in one: got windows, whose rows times alone tell apart. "
            "Continue on the state's snapshot, or start a new run on the table as it is now"
        )
    for each in spec.per_source():
        follow = each.source.follow
        if follow is not None and follow.epoch == "new":
            raise StateError(
                "an epoch of a followed table cannot be rebased with `epoch: new`: the rows that earlier epochs have "
                "read are not told apart in rewritten files. Restore the files, or start a new run"
            )


def _rebased(old: SourcePlan, place: PassPlace, epoch: int, map: Map | None, *, began: int | None) -> SourcePlan:
    """The plan of a source on its table as it is now, without the rows that its pass has delivered; the old one where
    nothing has changed. epoch: of the run. began: of `Rebase`."""
    spec, excluded = old.spec, load_exclusion(old.spec)
    if excluded is None:
        snapshot = current_snapshot(spec, take=fresh_snapshot, map=map)
    else:
        snapshot = _snapshot_of(spec, excluded)
    if snapshot.id == old.snapshot.id and _id(excluded) == _id(old.selection.exclusion):
        return old
    require_comparable(old, snapshot)
    border = None if old.border is None else rebased_border(spec, old.border, snapshot, epoch)
    new = plan_source(spec, FrozenSource(snapshot=snapshot, border=border), lanes=old.lanes, map=map).with_window(
        old.window
    )
    rest = rebase(old, new, epoch=place.number, step=place.step, began=began, map=map)
    rest.save(spec.work_dir)
    return replace(new, rebase=rest)


def resolve_frozen(
    spec: PipelineSpec,
    frozen: Sequence[FrozenSource],
    *,
    lanes: int,
    fit: Fit,
    map: Map | None = None,
    start: RunStart | None = None,
    features: str | None = None,
) -> Plan:
    """A plan on the snapshot of each source, with every artifact that its features need. features: the fingerprint of a
    state."""

    def plan_with(artifacts: ArtifactSetRef | None = None) -> Plan:
        return plan_sources(spec, frozen, lanes=lanes, map=map, artifacts=artifacts)

    snapshots = [each.snapshot for each in frozen]
    plan = resolve_artifacts(plan_with(), plan_with, lambda: fit(snapshots), start=start, features=features)
    record_generations(plan)
    return _with_recorded_types(plan)


def resolve_snapshots(
    spec: PipelineSpec, snapshots: Sequence[Snapshot], *, lanes: int, fit: Fit, map: Map | None = None
) -> Plan:
    """The plan of a new run on the snapshot of each source, with every artifact that its features need; of its first
    epoch, where a table is followed."""
    frozen = [
        FrozenSource(snapshot=snapshot, border=None if not each.is_followed else _begin_border(each, snapshot, 0))
        for each, snapshot in zip(spec.per_source(), snapshots, strict=True)
    ]
    return resolve_frozen(spec, frozen, lanes=lanes, fit=fit, map=map)


def preview_plan(spec: PipelineSpec, snapshots: Sequence[Snapshot], *, lanes: int, map: Map | None = None) -> Plan:
    """A plan on the snapshot of each source with the artifacts that exist, enough to compute rows and steps."""
    frozen = [FrozenSource(snapshot=each) for each in snapshots]
    return _with_recorded_types(plan_sources(spec, frozen, lanes=lanes, map=map), fill=True)


def lanes_for(lanes: int | None, world_size: int) -> int:
    """The lanes of a new run, by pipeline.yaml or else its world size, which must divide them (PlanError)."""
    lanes = lanes or world_size
    rank_lanes(lanes, 0, world_size)
    return lanes


def _agreed_snapshots(
    spec: PipelineSpec, start: RunStart, map: Map | None, *, epoch: int
) -> tuple[str, tuple[Snapshot, ...] | None]:
    """The name of the snapshots that all ranks of this start read; and these, if this rank takes them. epoch: the first
    of a run on followed tables."""
    taken: list[tuple[Snapshot, ...]] = []

    def take() -> str:
        taken.append(snapshots := current_snapshots(spec, map=map))
        return ",".join(
            snapshot.id if not each.is_followed else _begin_border(each, snapshot, epoch).name
            for each, snapshot in zip(spec.per_source(), snapshots, strict=True)
        )

    name = choose_once(start, spec.work_dir, take)
    return name, next(iter(taken), None)


def _begin_border(spec: PipelineSpec, snapshot: Snapshot, epoch: int) -> Border:
    """The border before the first epoch of a run. Raises PlanError where there is no window for it."""
    if spec.windows is None:
        return first_border(spec, snapshot, epoch)
    if epoch >= spec.windows.count:
        raise PlanError(
            f"epoch {epoch} has no window: expected one of {spec.windows.count:,}. Name a later windows.until"
        )
    return window_border(snapshot.id, epoch)


def _name_at(
    spec: PipelineSpec, name: str, epoch: int | None, *, lanes: int, start: RunStart | None, map: Map | None
) -> str:
    """The name of the snapshots that an epoch reads, in the run of named ones; the same where the run ends before it,
    as one followed table has ended."""
    if epoch is None:
        return name
    names = []
    for each, own in zip(spec.per_source(), snapshot_names(spec, name), strict=True):
        _, border_id = split_border(split_name(own)[0])
        if each.windows is not None:
            if epoch >= each.windows.count:
                return name
            names.append(window_border(split_border(own)[0], epoch).name)
            continue
        if border_id is None or each.source.follow is None:
            names.append(own)
            continue
        border = load_border(each.work_dir, border_id)
        after = border_of_epoch(_follow_request(each, lanes=lanes, start=start, map=map), border, epoch)
        if after.epoch != epoch:
            return name
        names.append(own if after == border else after.name)
    return ",".join(names)


def _follow_request(spec: PipelineSpec, *, lanes: int, start: RunStart | None, map: Map | None) -> FollowRequest:
    return FollowRequest(
        spec=spec,
        take=lambda take, before: current_snapshot(spec, take=take, map=map, earlier=lambda: before),
        plan=lambda snapshot, before: require_step(spec, snapshot, lanes=lanes, map=map, earlier=lambda: before),
        start=start,
    )


def _agreed_rebase(spec: PipelineSpec, state: Mapping[str, Any], start: RunStart, map: Map | None) -> tuple[str, str]:
    """The name of the rebase that all ranks of this start use, and its plan's fingerprint, from the first rank."""

    def compute() -> str:
        plan = resolve_rebase(spec, state, map=map)
        return f"{plan.fingerprint}:{plan.snapshot_name}"

    content = json.dumps([start.job, dict(state)], sort_keys=True)
    agreed = choose_once(replace(start, job=hashlib.sha256(content.encode()).hexdigest()), spec.work_dir, compute)
    fingerprint, _, name = agreed.partition(":")
    return name, fingerprint


def _snapshot_of(spec: PipelineSpec, exclusion: Exclusion) -> Snapshot:
    id = exclusion.origin.snapshot
    try:
        return as_read(spec, Snapshot.load(spec.work_dir, id))
    except TableError as error:
        remedy = "Write an exclusion of the table as it is, with `feedline check --rows` and this work_dir"
        raise spec.error(("source", "exclude"), f"its snapshot cannot be read: {error}. {remedy}") from error


def _id(exclusion: Exclusion | None) -> str | None:
    """What names the rows that a plan leaves out; None where it leaves out none."""
    return exclusion.id if exclusion is not None and exclusion.rows else None


def _with_recorded_types(plan: Plan, *, fill: bool = False) -> Plan:
    """Save the types of the tables' columns for serving, where the artifacts folder can be written, and return the
    plan; `fill`: save only missing types."""
    spec = plan.spec
    if spec.source_name is not None:
        return plan  # of one source alone, while serving has the pipeline's features
    with contextlib.suppress(FeedlineError, OSError):
        tables = [each.snapshot for each in plan.sources]
        schema = served_schema(spec, [table.schema for table in tables], tables[0].histories)
        save_types(artifacts_dir(spec), artifact_set_key(spec), schema, fill=fill)
    return plan


def _refuse_other_settings(spec: PipelineSpec, state: Mapping[str, Any]) -> None:
    """Raise StateError, with both values, where pipeline.yaml states another number than a state."""
    seed, window_rows = (0, None) if spec.shuffle is None else (spec.shuffle.seed, spec.shuffle.window_rows)
    mine_by_key = {"seed": seed, "batch_size": spec.batch.size, "lanes": spec.lanes, "window_rows": window_rows}
    for key, mine in mine_by_key.items():
        theirs = state.get(key)
        if theirs is not None and mine is not None and theirs != mine:
            raise StateError(
                f"the state belongs to another plan: its {key} is {theirs}, pipeline.yaml's is {mine}. Use the "
                f"pipeline.yaml and overrides of the run that saved it"
            )


def _window_of(state: Mapping[str, Any]) -> MixingWindow | None:
    """The window of the run that a state or a hello continues; None of a new run, or if it mixes nothing."""
    rows, blocks = state.get("window_rows"), state.get("window_blocks")
    return MixingWindow(rows=rows, blocks=blocks) if rows and blocks else None


def _refuse_other_plan(plan: Plan, state: Mapping[str, Any]) -> None:
    """Raise StateError, with both values, for a state of another plan or other features."""
    for key, mine, remedy in (
        ("plan", plan.fingerprint, "Use the pipeline.yaml and overrides of the run that saved the state"),
        (
            "features",
            plan.features_fingerprint,
            'Pass features="changed" to load_state_dict to keep the position with new features',
        ),
    ):
        theirs = state.get(key)
        if theirs is not None and theirs != mine:
            if key == "plan" and not plan.names:
                remedy = explain_exclusion(plan.source, theirs) or remedy
            if key == "features":
                remedy = explain_generations(plan, theirs) or remedy
            raise StateError(f"the state belongs to another {key}: got {theirs}, expected {mine}. {remedy}")
