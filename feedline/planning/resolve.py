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
from feedline.errors import FeedlineError, StateError
from feedline.loader.state import checked_state
from feedline.loader.wire.codec import to_values
from feedline.loader.wire.facts import Hello, RebaseRequest
from feedline.planning.agreement import RunStart, choose_once
from feedline.planning.artifact_choice import resolve_artifacts
from feedline.planning.binding.fitted_artifacts import artifact_set_key, artifacts_dir
from feedline.planning.binding.selected_rows import bound_sample, bound_where
from feedline.planning.binding.table_features import served_schema
from feedline.planning.make_plan import make_plan
from feedline.planning.plan import Plan
from feedline.planning.rebase import rebase, require_comparable
from feedline.planning.schedule import rank_lanes
from feedline.planning.skip_bad_files import Take, good_snapshot
from feedline.planning.sources.make_mixed_plan import FrozenSource, plan_sources
from feedline.planning.sources.mixed_plan import RunPlan
from feedline.planning.sources.source_passes import PassPlace
from feedline.planning.table_snapshot import as_read, fresh_snapshot, snapshot_of_source
from feedline.spec import PipelineSpec
from feedline.warehouse.bad_files import save_skipped
from feedline.warehouse.rebase.remaining_rows import Rebase, split_name
from feedline.warehouse.selection.select import Selection, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

# Fits what is missing on the snapshot of each source and returns the manifest of the artifact set.
Fit = Callable[[Sequence[Snapshot]], str | None]


def current_snapshots(
    spec: PipelineSpec, *, take: Take = snapshot_of_source, map: Map | None = None
) -> tuple[Snapshot, ...]:
    """The snapshot of each source, as `current_snapshot`."""
    return tuple(current_snapshot(each, take=take, map=map) for each in spec.per_source())


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
    spec: PipelineSpec,
    hello: Hello,
    *,
    start: RunStart,
    fit: Fit,
    map: Map | None = None,
    plans: Sequence[RunPlan] = (),
) -> RunPlan:
    """The plan that a trainer's hello asks for: its state's, or one that all ranks of its start agree on.

    start: takes what is agreed on, for `verify_agreement`. plans: of the spec, for other ranks in this process. One on
    the same snapshot and with the same artifacts is returned; one on the same snapshot is not counted again.

    Raises StateError, with both values, where the trainer's state belongs to another plan or other features.
    """
    _refuse_other_settings(spec, to_values(hello))
    lanes = spec.lanes or hello.lanes or hello.world_size
    rank_lanes(lanes, hello.rank, hello.world_size)
    plan_id, features = hello.plan, hello.features
    taken: tuple[Snapshot, ...] | None = None
    if hello.rebase is not None:
        name, plan_id = _agreed_rebase(spec, hello.rebase, start, map)  # the hello's is that before the rebase
    elif hello.snapshot is not None:
        name = hello.snapshot
    else:
        name, taken = _agreed_snapshots(spec, start, map)
    plans = [each for each in plans if (each.snapshot_name, each.lanes) == (name, lanes)]
    plan = next((each for each in plans if features == each.features_fingerprint or not each.needs_artifacts), None)
    if plan is None:
        alike = next(iter(plans), None)
        if alike is not None:
            frozen = [FrozenSource.of(each) for each in alike.sources]
        else:
            frozen = _load_named(spec, name) if taken is None else [FrozenSource(snapshot=each) for each in taken]
        plan = resolve_frozen(spec, frozen, lanes=lanes, fit=fit, map=map, start=start, features=features)
        artifacts = [job.artifacts for job in plan.jobs]
        plan = next((each for each in plans if [job.artifacts for job in each.jobs] == artifacts), plan)
    plan = plan.matching(plan_id)
    _refuse_other_plan(plan, {"plan": plan_id, "features": features})
    return plan


def resolve_state(spec: PipelineSpec, state: Mapping[str, Any], *, fit: Fit, map: Map | None = None) -> RunPlan:
    """The plan that a state belongs to. Raises StateError where it is of another plan or other features."""
    fields = checked_state(state)
    _refuse_other_settings(spec, fields)
    frozen, lanes, features = _load_named(spec, fields["snapshot"]), fields["lanes"], fields["features"]
    plan = resolve_frozen(spec, frozen, lanes=lanes, fit=fit, map=map, features=features)
    plan = plan.matching(fields["plan"])
    _refuse_other_plan(plan, fields)
    return plan


def resolve_rebase(spec: PipelineSpec, state: Mapping[str, Any], *, map: Map | None = None) -> RunPlan:
    """The plan of a state's run on the tables as they are now, of the state's version; see `Pipeline.rebase`. A source
    whose table has not changed stays as it is."""
    fields = checked_state(state)
    _refuse_other_settings(spec, fields)
    old = plan_sources(spec, _load_named(spec, fields["snapshot"]), lanes=fields["lanes"], map=map)
    old = old.matching(fields["plan"])
    _refuse_other_plan(old, {"plan": fields["plan"]})
    epoch, step = fields["epoch"], fields["step"]
    if step >= old.schedule(epoch).steps:
        epoch, step = epoch + 1, 0
    places = old.places(epoch, step)
    snapshots = current_snapshots(spec, take=fresh_snapshot, map=map)
    if [each.id for each in snapshots] == [each.snapshot.id for each in old.sources]:
        return old
    new = old.sources
    for index, (each, snapshot, place) in enumerate(zip(old.sources, snapshots, places, strict=True)):
        if snapshot.id != each.snapshot.id:
            new = (*new[:index], _rebased(each, snapshot, place, map), *new[index + 1 :])
    return old.with_sources(new)


def _rebased(old: Plan, snapshot: Snapshot, place: PassPlace, map: Map | None) -> Plan:
    """The plan of a source on a newer snapshot, without the rows that its pass has delivered."""
    require_comparable(old, snapshot)
    new = make_plan(old.spec, snapshot, lanes=old.lanes, map=map).at(old.version, old.window)
    rest = rebase(old, new, epoch=place.number, step=place.step, began=place.began, map=map)
    rest.save(old.spec.work_dir)
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
) -> RunPlan:
    """A plan on the snapshot of each source, with every artifact that its features need. features: the fingerprint of a
    state."""

    def plan_with(artifacts: ArtifactSetRef | None = None) -> RunPlan:
        return plan_sources(spec, frozen, lanes=lanes, map=map, artifacts=artifacts)

    snapshots = [each.snapshot for each in frozen]
    plan = resolve_artifacts(plan_with(), plan_with, lambda: fit(snapshots), start=start, features=features)
    return _with_recorded_types(plan)


def resolve_snapshots(
    spec: PipelineSpec, snapshots: Sequence[Snapshot], *, lanes: int, fit: Fit, map: Map | None = None
) -> RunPlan:
    """The plan of a new run on the snapshot of each source, with every artifact that its features need."""
    return resolve_frozen(spec, [FrozenSource(snapshot=each) for each in snapshots], lanes=lanes, fit=fit, map=map)


def preview_plan(spec: PipelineSpec, snapshots: Sequence[Snapshot], *, lanes: int, map: Map | None = None) -> RunPlan:
    """A plan on the snapshot of each source with the artifacts that exist, enough to compute rows and steps."""
    frozen = [FrozenSource(snapshot=each) for each in snapshots]
    return _with_recorded_types(plan_sources(spec, frozen, lanes=lanes, map=map), fill=True)


def lanes_for(lanes: int | None, world_size: int) -> int:
    """The lanes of a new run, by pipeline.yaml or else its world size, which must divide them (PlanError)."""
    lanes = lanes or world_size
    rank_lanes(lanes, 0, world_size)
    return lanes


def _agreed_snapshots(spec: PipelineSpec, start: RunStart, map: Map | None) -> tuple[str, tuple[Snapshot, ...] | None]:
    """The name of the snapshots that all ranks of this start read; and these, if this rank takes them."""
    taken: list[tuple[Snapshot, ...]] = []

    def take() -> str:
        taken.append(current_snapshots(spec, map=map))
        return ",".join(each.id for each in taken[0])

    name = choose_once(start, spec.work_dir, take)
    return name, next(iter(taken), None)


def _agreed_rebase(spec: PipelineSpec, request: RebaseRequest, start: RunStart, map: Map | None) -> tuple[str, str]:
    """The name of the rebase that all ranks of this start use, and its plan's fingerprint, from the first rank."""

    def compute() -> str:
        plan = resolve_rebase(spec, request.state, map=map)
        return f"{plan.fingerprint}:{plan.snapshot_name}"

    content = json.dumps([start.job, to_values(request)], sort_keys=True)
    agreed = choose_once(replace(start, job=hashlib.sha256(content.encode()).hexdigest()), spec.work_dir, compute)
    fingerprint, _, name = agreed.partition(":")
    return name, fingerprint


def _load_named(spec: PipelineSpec, name: str) -> list[FrozenSource]:
    """The snapshot of each source, and the rebase, that a state's name of them names. Raises StateError where it is the
    name of another number of sources."""
    names, specs = name.split(","), spec.per_source()
    if len(names) != len(specs):
        raise StateError(
            f"the state belongs to another plan: it has snapshots of {len(names)} sources, pipeline.yaml has "
            f"{len(specs)}. Use the pipeline.yaml and overrides of the run that saved it"
        )
    return [_load_frozen(each, own) for each, own in zip(specs, names, strict=True)]


def _load_frozen(spec: PipelineSpec, name: str) -> FrozenSource:
    id, rest = split_name(name)
    snapshot = as_read(spec, Snapshot.load(spec.work_dir, id))
    return FrozenSource(snapshot=snapshot, rebase=None if rest is None else Rebase.load(spec.work_dir, rest))


def _with_recorded_types(plan: RunPlan, *, fill: bool = False) -> RunPlan:
    """Save the types of the tables' columns for serving, where the artifacts folder can be written, and return the
    plan; `fill`: save only missing types."""
    spec = plan.spec
    if spec.source_name is not None:
        return plan  # of one source alone, while serving has the pipeline's features
    with contextlib.suppress(FeedlineError, OSError):
        schema = served_schema(spec, [each.snapshot.schema for each in plan.sources])
        save_types(artifacts_dir(spec), artifact_set_key(spec), schema, fill=fill)
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


def _refuse_other_plan(plan: RunPlan, state: Mapping[str, Any]) -> None:
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
            raise StateError(f"the state belongs to another {key}: got {theirs}, expected {mine}. {remedy}")
