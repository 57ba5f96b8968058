"""Resolve a pipeline to the plan that a trainer, a state or a rebase asks for.

Runs in: the feeder of each rank, the CLI, `Pipeline`. A new run takes a snapshot of its table, the same for all ranks
of a start; a state names its own, which is in `work_dir`. A state of another plan, or of other features, is refused
with both values. Artifacts that are missing are fitted by the caller's `fit`, where pipeline.yaml says `fit: auto`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedline.artifacts.store import ArtifactSetRef
from feedline.artifacts.type_records import save_types
from feedline.errors import FeedlineError, PlanError, StateError, TableError
from feedline.loader.state import checked_state
from feedline.loader.wire.codec import to_values
from feedline.loader.wire.facts import Hello, RebaseRequest
from feedline.planning.agreement import RunStart, choose_once
from feedline.planning.artifact_choice import resolve_artifacts
from feedline.planning.binding.fitted_artifacts import artifact_set_key, artifacts_dir
from feedline.planning.binding.selected_rows import bound_sample, bound_where
from feedline.planning.binding.table_features import planned_schema
from feedline.planning.column_groups import plan_column_group
from feedline.planning.follow.border import Border, load_border, split_border
from feedline.planning.follow.next_border import (
    FollowRequest,
    NothingLandedError,
    border_of_epoch,
    first_border,
    rebased_border,
)
from feedline.planning.lengths.length_columns import bucket_counts
from feedline.planning.make_plan import make_plan
from feedline.planning.plan import Plan, group_name
from feedline.planning.rebase import rebase, require_comparable
from feedline.planning.rows.exclusions import explain_exclusion, load_exclusion, with_exclusion_of
from feedline.planning.schedule import rank_lanes
from feedline.planning.skip_bad_files import Take, good_snapshot
from feedline.planning.table_snapshot import as_read, fresh_snapshot, snapshot_of_source
from feedline.spec import PipelineSpec
from feedline.spec.chosen_features import column_group_name
from feedline.warehouse.bad_files import save_skipped
from feedline.warehouse.rebase.remaining_rows import Rebase, split_name
from feedline.warehouse.selection.exclusion import Exclusion
from feedline.warehouse.selection.select import Selection, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

# Fits what is missing on a snapshot and returns the manifest of the artifact set.
Fit = Callable[[Snapshot], str | None]


def current_snapshot(
    spec: PipelineSpec,
    *,
    take: Take = snapshot_of_source,
    map: Map | None = None,
    earlier: Callable[[], Snapshot | None] = lambda: None,
) -> Snapshot:
    """The snapshot that `take` takes, saved in `work_dir`; with `on_bad_file: skip`, without bad files. earlier: see
    `select_rows`."""
    try:
        if spec.source.on_bad_file == "skip":
            snapshot = good_snapshot(
                spec, count=lambda table, map: _count_rows(spec, table, map, earlier), take=take, map=map
            )
        else:
            snapshot = take(spec, map=map)
            save_skipped(spec.work_dir, snapshot.id, ())
        snapshot.save(spec.work_dir)
    except FeedlineError:
        raise
    except OSError as error:
        raise spec.error(("work_dir",), f"cannot be written: {error}. Name a writable folder") from error
    return snapshot


def _count_rows(
    spec: PipelineSpec,
    snapshot: Snapshot,
    map: Map | None,
    earlier: Callable[[], Snapshot | None] = lambda: None,
) -> Selection:
    """The counting pass; its counts are kept in work_dir."""
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    return select_rows(snapshot, where, sample=sample, work_dir=spec.work_dir, map=map, earlier=earlier)


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
    spec: PipelineSpec, hello: Hello, *, start: RunStart, fit: Fit, map: Map | None = None, plans: Sequence[Plan] = ()
) -> Plan:
    """The plan that a trainer's hello asks for: its state's, or one that all ranks of its start agree on.

    start: takes what is agreed on, for `verify_agreement`. plans: of the spec, for other ranks in this process. One on
    the same snapshot and with the same artifacts is returned; one on the same snapshot is not counted again.

    A hello with an epoch asks for the plan of that epoch of a followed table; where the run has ended before, the plan
    of its last epoch is returned. Raises NothingLandedError while that epoch has no rows, and StateError, with both
    values, where the trainer's state belongs to another plan or other features.
    """
    _refuse_other_settings(spec, to_values(hello))
    lanes = spec.lanes or hello.lanes or hello.world_size
    rank_lanes(lanes, hello.rank, hello.world_size)
    start = replace(start, lanes=lanes)
    plan_id, features = hello.plan, hello.features
    taken: Snapshot | None = None
    if hello.rebase is not None:
        name, plan_id = _agreed_rebase(spec, hello.rebase, start, map)  # the hello's is that before the rebase
    elif hello.snapshot is not None:
        name = _name_at(spec, hello.snapshot, hello.epoch, lanes=lanes, start=start, map=map)
        plan_id = plan_id if name == hello.snapshot else None  # it is of another epoch
    else:
        name, taken = _agreed_snapshot(spec, start, map, epoch=hello.epoch or 0)
    plans = [each for each in plans if (each.snapshot_name, each.lanes) == (name, lanes)]
    alike = next(iter(plans), None)
    plans = [each for each in plans if group_name(each) == start.column_group]
    plan = next((each for each in plans if features == each.features_fingerprint or not each.needs_artifacts), None)
    if plan is None:
        if alike is not None:
            table = _NamedTable(snapshot=alike.snapshot, rebase=alike.rebase, border=alike.border)
        else:
            table = _load_named(spec, name, taken)
        plan = resolve_snapshot(
            spec,
            table.snapshot,
            lanes=lanes,
            rebase=table.rebase,
            border=table.border,
            fit=fit,
            map=map,
            start=start,
            features=features,
            alike=alike,
        )
        plan = plan_column_group(plan, hello.column_group)
        plan = next((each for each in plans if each.job.artifacts == plan.job.artifacts), plan)
    plan = plan.matching(plan_id)
    _refuse_other_plan(plan, {"plan": plan_id, "features": features})
    return plan


def resolve_state(spec: PipelineSpec, state: Mapping[str, Any], *, fit: Fit, map: Map | None = None) -> Plan:
    """The plan that a state belongs to. Raises StateError where it is of another plan or other features."""
    fields = checked_state(state)
    _refuse_other_settings(spec, fields)
    table = _load_named(spec, fields["snapshot"])
    plan = resolve_snapshot(
        spec,
        table.snapshot,
        lanes=fields["lanes"],
        rebase=table.rebase,
        border=table.border,
        fit=fit,
        map=map,
        features=fields["features"],
    )
    plan = plan.matching(fields["plan"])
    _refuse_other_plan(plan, fields)
    return plan


def resolve_next(spec: PipelineSpec, plan: Plan, *, fit: Fit, map: Map | None = None) -> Plan | None:
    """The plan of the epoch after that of a plan of a followed table; None where the run ends with it. Raises PlanError
    while that epoch has no rows, and for a plan that is not of an epoch."""
    if plan.border is None:
        raise PlanError("the plan is not of an epoch of a followed table: expected one of a run. See source.follow")
    request = _follow_request(spec, lanes=plan.lanes, start=None, map=map)
    try:
        border = border_of_epoch(request, plan.border, plan.border.epoch + 1)
    except NothingLandedError as error:
        raise PlanError(f"epoch {plan.border.epoch + 1} cannot begin yet: {error}. Ask again later") from None
    if border.epoch == plan.border.epoch:
        return None
    table = _load_named(spec, border.name)
    features = plan.features_fingerprint
    after = resolve_snapshot(spec, table.snapshot, lanes=plan.lanes, border=border, fit=fit, map=map, features=features)
    _refuse_other_plan(after, {"features": features})
    return after


def resolve_followed(spec: PipelineSpec, snapshot: Snapshot, *, lanes: int, fit: Fit, map: Map | None = None) -> Plan:
    """The plan of the first epoch of a new run on a followed table."""
    border = first_border(spec, snapshot, 0)
    return resolve_snapshot(spec, snapshot, lanes=lanes, border=border, fit=fit, map=map)


def resolve_rebase(spec: PipelineSpec, state: Mapping[str, Any], *, map: Map | None = None) -> Plan:
    """The plan of a state's run on the table as it is now, of the state's version; see `Pipeline.rebase`."""
    fields = checked_state(state)
    _refuse_other_settings(spec, fields)
    follow = spec.source.follow
    if follow is not None and follow.epoch == "new":
        raise StateError(
            "an epoch of a followed table cannot be rebased with `epoch: new`: the rows that earlier epochs have read "
            "are not told apart in rewritten files. Restore the files, or start a new run"
        )
    table = _load_named(spec, fields["snapshot"])
    old = make_plan(
        spec,
        table.snapshot,
        lanes=fields["lanes"],
        map=map,
        rebase=table.rebase,
        border=table.border,
        exclude=False,
    )
    old = with_exclusion_of(old, fields["plan"])
    lengths = bucket_counts(spec, old.snapshot, old.where, old.sample, old.selection, map)
    old = replace(old, lengths=lengths)
    _refuse_other_plan(old, {"plan": fields["plan"]})
    epoch, step = fields["epoch"], fields["step"]
    if step >= old.schedule(epoch).steps:
        epoch, step = epoch + 1, 0
    excluded = load_exclusion(spec)
    if excluded is None:
        snapshot = current_snapshot(spec, take=fresh_snapshot, map=map)
    else:
        snapshot = _snapshot_of(spec, excluded)
    if snapshot.id == old.snapshot.id and _id(excluded) == _id(old.selection.exclusion):
        return old
    require_comparable(old, snapshot)
    border = None if old.border is None else rebased_border(spec, old.border, snapshot, epoch)
    new = make_plan(spec, snapshot, lanes=old.lanes, map=map, border=border).at(old.version, old.window)
    rest = rebase(old, new, epoch=epoch, step=step, map=map)
    rest.save(spec.work_dir)
    return replace(new, rebase=rest)


def resolve_snapshot(
    spec: PipelineSpec,
    snapshot: Snapshot,
    *,
    lanes: int,
    fit: Fit,
    rebase: Rebase | None = None,
    border: Border | None = None,
    map: Map | None = None,
    start: RunStart | None = None,
    features: str | None = None,
    alike: Plan | None = None,
) -> Plan:
    """A plan on a snapshot, with every artifact that its features need. features: the fingerprint of a state. border:
    of the epoch that it is of. alike: another plan of the spec on this snapshot."""
    selection = None if alike is None else alike.selection

    def plan_with(artifacts: ArtifactSetRef | None = None) -> Plan:
        return make_plan(
            spec,
            snapshot,
            lanes=lanes,
            map=map,
            rebase=rebase,
            artifacts=artifacts,
            selection=selection,
            border=border,
            earlier=lambda: _snapshot_before(spec, border),
        )

    plan = resolve_artifacts(plan_with(), plan_with, lambda: fit(snapshot), start=start, features=features)
    return _with_recorded_types(plan)


def preview_plan(spec: PipelineSpec, snapshot: Snapshot, *, lanes: int, map: Map | None = None) -> Plan:
    """A plan on a snapshot with the artifacts that exist, enough to compute rows and steps."""
    return _with_recorded_types(make_plan(spec, snapshot, lanes=lanes, map=map), fill=True)


def lanes_for(lanes: int | None, world_size: int) -> int:
    """The lanes of a new run, by pipeline.yaml or else its world size, which must divide them (PlanError)."""
    lanes = lanes or world_size
    rank_lanes(lanes, 0, world_size)
    return lanes


def _agreed_snapshot(
    spec: PipelineSpec, start: RunStart, map: Map | None, *, epoch: int
) -> tuple[str, Snapshot | None]:
    """The name of the snapshot that all ranks of this start read; the snapshot itself, if this rank takes it. epoch:
    the first of a run on a followed table."""
    snapshots: list[Snapshot] = []

    def take() -> str:
        snapshots.append(snapshot := current_snapshot(spec, map=map))
        return snapshot.id if spec.source.follow is None else first_border(spec, snapshot, epoch).name

    name = choose_once(start, spec.work_dir, take)
    return name, next(iter(snapshots), None)


def _name_at(spec: PipelineSpec, name: str, epoch: int | None, *, lanes: int, start: RunStart, map: Map | None) -> str:
    """The name of the snapshot that an epoch reads, in the run of a named one."""
    _, border_id = split_border(split_name(name)[0])
    if epoch is None or border_id is None or spec.source.follow is None:
        return name
    border = load_border(spec.work_dir, border_id)
    after = border_of_epoch(_follow_request(spec, lanes=lanes, start=start, map=map), border, epoch)
    return name if after == border else after.name


def _follow_request(spec: PipelineSpec, *, lanes: int, start: RunStart | None, map: Map | None) -> FollowRequest:
    return FollowRequest(
        spec=spec,
        take=lambda take, before: current_snapshot(spec, take=take, map=map, earlier=lambda: before),
        count=lambda snapshot: int(_count_rows(spec, snapshot, map).rows.sum()),
        fewest_rows=lanes * spec.batch.size if spec.batch.tail == "drop" else 1,
        start=start,
    )


def _snapshot_before(spec: PipelineSpec, border: Border | None) -> Snapshot | None:
    """The snapshot of the epoch before a border's, where its files are among those of the border's."""
    follow = spec.source.follow
    if border is None or not border.previous or follow is None or follow.epoch == "new":
        return None
    with contextlib.suppress(FeedlineError):
        return Snapshot.load(spec.work_dir, load_border(spec.work_dir, border.previous).snapshot)
    return None


def _agreed_rebase(spec: PipelineSpec, request: RebaseRequest, start: RunStart, map: Map | None) -> tuple[str, str]:
    """The name of the rebase that all ranks of this start use, and its plan's fingerprint, from the first rank."""

    def compute() -> str:
        plan = resolve_rebase(spec, request.state, map=map)
        return f"{plan.fingerprint}:{plan.snapshot_name}"

    content = json.dumps([start.job, to_values(request)], sort_keys=True)
    agreed = choose_once(replace(start, job=hashlib.sha256(content.encode()).hexdigest()), spec.work_dir, compute)
    fingerprint, _, name = agreed.partition(":")
    return name, fingerprint


def _snapshot_of(spec: PipelineSpec, exclusion: Exclusion) -> Snapshot:
    """The snapshot that an exclusion belongs to."""
    id = exclusion.origin.snapshot
    try:
        return as_read(spec, Snapshot.load(spec.work_dir, id))
    except TableError as error:
        remedy = "Write an exclusion of the table as it is, with `feedline check --rows` and this work_dir"
        raise spec.error(("source", "exclude"), f"its snapshot cannot be read: {error}. {remedy}") from error


def _id(exclusion: Exclusion | None) -> str | None:
    """What names the rows that a plan leaves out; None where it leaves out none."""
    return exclusion.id if exclusion is not None and exclusion.rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedTable:
    """What a state's `snapshot` names."""

    snapshot: Snapshot
    rebase: Rebase | None
    border: Border | None


def _load_named(spec: PipelineSpec, name: str, taken: Snapshot | None = None) -> _NamedTable:
    """Load what a name stands for. taken: its snapshot, if that is at hand."""
    name, rest = split_name(name)
    id, border = split_border(name)
    return _NamedTable(
        snapshot=as_read(spec, Snapshot.load(spec.work_dir, id)) if taken is None else taken,
        rebase=None if rest is None else Rebase.load(spec.work_dir, rest),
        border=None if border is None else load_border(spec.work_dir, border),
    )


def _with_recorded_types(plan: Plan, *, fill: bool = False) -> Plan:
    """Save the types of the table's columns for serving, where the artifacts folder can be written, and return the
    plan; `fill`: save only missing types."""
    spec = plan.spec
    with contextlib.suppress(FeedlineError, OSError):
        save_types(artifacts_dir(spec), artifact_set_key(spec), planned_schema(spec, plan.snapshot.schema), fill=fill)
    return plan


def _refuse_other_settings(spec: PipelineSpec, state: Mapping[str, Any]) -> None:
    seed = spec.shuffle.seed if spec.shuffle is not None else 0
    for key, mine in (("seed", seed), ("batch_size", spec.batch.size), ("lanes", spec.lanes)):
        theirs = state.get(key)
        if theirs is not None and mine is not None and theirs != mine:
            raise StateError(
                f"the state belongs to another plan: its {key} is {theirs}, pipeline.yaml's is {mine}. Use the "
                f"pipeline.yaml and overrides of the run that saved it"
            )


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
            remedy = (explain_exclusion(plan, theirs) if key == "plan" else None) or remedy
            raise StateError(f"the state belongs to another {key}: got {theirs}, expected {mine}. {remedy}")
