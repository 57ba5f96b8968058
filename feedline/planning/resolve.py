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
from dataclasses import replace
from typing import Any

from feedline.artifacts.store import ArtifactSetRef
from feedline.artifacts.type_records import save_types
from feedline.errors import FeedlineError, StateError, TableError
from feedline.loader.state import checked_state
from feedline.loader.wire.codec import to_values
from feedline.loader.wire.facts import Hello, RebaseRequest
from feedline.planning.agreement import RunStart, choose_once
from feedline.planning.artifact_choice import resolve_artifacts
from feedline.planning.binding.fitted_artifacts import artifact_set_key, artifacts_dir
from feedline.planning.binding.selected_rows import bound_sample, bound_where
from feedline.planning.binding.table_features import planned_schema
from feedline.planning.make_plan import make_plan
from feedline.planning.plan import Plan
from feedline.planning.rebase import rebase, require_comparable
from feedline.planning.rows.exclusions import explain_exclusion, load_exclusion, with_exclusion_of
from feedline.planning.schedule import rank_lanes
from feedline.planning.skip_bad_files import Take, good_snapshot
from feedline.planning.table_snapshot import as_read, fresh_snapshot, snapshot_of_source
from feedline.spec import PipelineSpec
from feedline.warehouse.bad_files import save_skipped
from feedline.warehouse.rebase.remaining_rows import Rebase, split_name
from feedline.warehouse.selection.exclusion import Exclusion
from feedline.warehouse.selection.select import Selection, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

# Fits what is missing on a snapshot and returns the manifest of the artifact set.
Fit = Callable[[Snapshot], str | None]


def current_snapshot(spec: PipelineSpec, *, take: Take = snapshot_of_source, map: Map | None = None) -> Snapshot:
    """The snapshot that `take` takes, saved in `work_dir`; with `on_bad_file: skip`, without bad files."""
    try:
        if spec.source.on_bad_file == "skip":
            snapshot = good_snapshot(spec, count=lambda table, map: _count_rows(spec, table, map), take=take, map=map)
        else:
            snapshot = take(spec, map=map)
            save_skipped(spec.work_dir, snapshot.id, ())
        snapshot.save(spec.work_dir)
    except FeedlineError:
        raise
    except OSError as error:
        raise spec.error(("work_dir",), f"cannot be written: {error}. Name a writable folder") from error
    return snapshot


def _count_rows(spec: PipelineSpec, snapshot: Snapshot, map: Map | None) -> Selection:
    """The counting pass; its counts are kept in work_dir."""
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    return select_rows(snapshot, where, sample=sample, work_dir=spec.work_dir, map=map)


def start_of(hello: Hello, *, job: str) -> RunStart:
    """The start that a trainer's hello belongs to."""
    return RunStart(job=job, rank=hello.global_rank, world_size=hello.global_size, connected=hello.connected)


def resolve_hello(
    spec: PipelineSpec, hello: Hello, *, start: RunStart, fit: Fit, map: Map | None = None, plans: Sequence[Plan] = ()
) -> Plan:
    """The plan that a trainer's hello asks for: its state's, or one that all ranks of its start agree on.

    start: takes what is agreed on, for `verify_agreement`. plans: of the spec, for other ranks in this process. One on
    the same snapshot and with the same artifacts is returned; one on the same snapshot is not counted again.

    Raises StateError, with both values, where the trainer's state belongs to another plan or other features.
    """
    _refuse_other_settings(spec, to_values(hello))
    lanes = spec.lanes or hello.lanes or hello.world_size
    rank_lanes(lanes, hello.rank, hello.world_size)
    plan_id, features = hello.plan, hello.features
    taken: Snapshot | None = None
    if hello.rebase is not None:
        name, plan_id = _agreed_rebase(spec, hello.rebase, start, map)  # the hello's is that before the rebase
    elif hello.snapshot is not None:
        name = hello.snapshot
    else:
        name, taken = _agreed_snapshot(spec, start, map)
    plans = [each for each in plans if (each.snapshot_name, each.lanes) == (name, lanes)]
    plan = next((each for each in plans if features == each.features_fingerprint or not each.needs_artifacts), None)
    if plan is None:
        alike = next(iter(plans), None)
        if alike is not None:
            snapshot, rest = alike.snapshot, alike.rebase
        else:
            snapshot, rest = _load_named(spec, name) if taken is None else (taken, None)
        plan = resolve_snapshot(
            spec, snapshot, lanes=lanes, rebase=rest, fit=fit, map=map, start=start, features=features, alike=alike
        )
        plan = next((each for each in plans if each.job.artifacts == plan.job.artifacts), plan)
    plan = plan.matching(plan_id)
    _refuse_other_plan(plan, {"plan": plan_id, "features": features})
    return plan


def resolve_state(spec: PipelineSpec, state: Mapping[str, Any], *, fit: Fit, map: Map | None = None) -> Plan:
    """The plan that a state belongs to. Raises StateError where it is of another plan or other features."""
    fields = checked_state(state)
    _refuse_other_settings(spec, fields)
    snapshot, rest = _load_named(spec, fields["snapshot"])
    lanes, features = fields["lanes"], fields["features"]
    plan = resolve_snapshot(spec, snapshot, lanes=lanes, rebase=rest, fit=fit, map=map, features=features)
    plan = plan.matching(fields["plan"])
    _refuse_other_plan(plan, fields)
    return plan


def resolve_rebase(spec: PipelineSpec, state: Mapping[str, Any], *, map: Map | None = None) -> Plan:
    """The plan of a state's run on the table as it is now, of the state's version; see `Pipeline.rebase`."""
    fields = checked_state(state)
    _refuse_other_settings(spec, fields)
    before, rest = _load_named(spec, fields["snapshot"])
    old = make_plan(spec, before, lanes=fields["lanes"], map=map, rebase=rest, exclude=False)
    old = with_exclusion_of(old, fields["plan"])
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
    new = make_plan(spec, snapshot, lanes=old.lanes, map=map).at(old.version, old.window)
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
    map: Map | None = None,
    start: RunStart | None = None,
    features: str | None = None,
    alike: Plan | None = None,
) -> Plan:
    """A plan on a snapshot, with every artifact that its features need. features: the fingerprint of a state. alike:
    another plan of the spec on this snapshot."""
    selection = None if alike is None else alike.selection

    def plan_with(artifacts: ArtifactSetRef | None = None) -> Plan:
        return make_plan(spec, snapshot, lanes=lanes, map=map, rebase=rebase, artifacts=artifacts, selection=selection)

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


def _agreed_snapshot(spec: PipelineSpec, start: RunStart, map: Map | None) -> tuple[str, Snapshot | None]:
    """The name of the snapshot that all ranks of this start read; the snapshot itself, if this rank takes it."""
    snapshots: list[Snapshot] = []

    def take() -> str:
        snapshots.append(current_snapshot(spec, map=map))
        return snapshots[0].id

    name = choose_once(start, spec.work_dir, take)
    return name, next(iter(snapshots), None)


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


def _load_named(spec: PipelineSpec, name: str) -> tuple[Snapshot, Rebase | None]:
    id, rest = split_name(name)
    snapshot = as_read(spec, Snapshot.load(spec.work_dir, id))
    return snapshot, None if rest is None else Rebase.load(spec.work_dir, rest)


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
