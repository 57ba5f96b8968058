"""What can be done with a pipeline.yaml from Python? Plan it, transform with it, iterate it, look at it with Dask.

Runs in: any process. The feeder uses `Pipeline.resolve` with its Dask cluster for the counting pass; `batches` and
`transform` need no Dask, no ring and no other process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.artifacts.store import ArtifactSetRef
from feedline.artifacts.type_records import save_types
from feedline.blocks.compute import run_block
from feedline.blocks.request import BlockRequest, BlockResult
from feedline.errors import FeedlineError, StateError
from feedline.fitting.fit_report import FitReport
from feedline.fitting.passes import Say, fit_pipeline
from feedline.fitting.reduction import Workers, threads_here
from feedline.loader.encoding.encode import EncodedRows
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import measures, merge
from feedline.loader.encoding.slot import draft, write
from feedline.loader.facts import Hello, describe_bad_files
from feedline.loader.row_arrays import Encoded
from feedline.loader.state import checked_rewritten, checked_state
from feedline.planning.agreement import agree_on_snapshot
from feedline.planning.binding import artifact_set_key, artifacts_dir, planned_schema
from feedline.planning.plan import Plan, make_plan, select
from feedline.planning.rebase import comparable, rebase
from feedline.planning.resolve import Start, ready
from feedline.planning.schedule import Schedule, rank_lanes
from feedline.planning.skip_bad_files import Take, good_snapshot
from feedline.planning.table_snapshot import fresh_snapshot, snapshot_of_source
from feedline.resources import available_cores
from feedline.service.quality_monitor import QualityMonitor
from feedline.service.steps import segments_of
from feedline.serving.encoder import Serving
from feedline.serving.row_forms import Rows
from feedline.spec import PipelineSpec, load_spec
from feedline.spec.pipeline_spec import json_schema
from feedline.transforms.catalogue import op_schema
from feedline.warehouse.bad_files import save_skipped
from feedline.warehouse.rebase.remaining_rows import Rebase, split_name
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

if TYPE_CHECKING:
    from feedline.loader.batch import Batch


class Pipeline:
    """A pipeline.yaml, resolved against the op registry, and against its table when that is needed."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.spec = spec
        self._serving = Serving(spec)
        self._monitors: list[QualityMonitor] = []

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], set: Mapping[str, object] | None = None) -> Pipeline:
        """Read a pipeline.yaml, with overrides. Raises SpecError naming file, line and path."""
        return cls(load_spec(path, set or {}))

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The JSON Schema of pipeline.yaml, ops included."""
        return json_schema(op_schema())

    # -- planning -------------------------------------------------------------------------------------------------

    def snapshot(self, *, map: Map | None = None) -> Snapshot:
        """The table as it is now, saved in work_dir; `map` reads the footers (default: threads of this process).

        With `on_bad_file: skip` it is the table without its bad files, and rows are counted to find them. A saved
        snapshot that `source.snapshot` names is the table.
        """
        return self._taken(snapshot_of_source, map)

    def _taken(self, take: Take, map: Map | None) -> Snapshot:
        spec = self.spec
        try:
            if spec.source.on_bad_file == "skip":
                snapshot = good_snapshot(spec, count=lambda table, map: select(spec, table, map), take=take, map=map)
            else:
                snapshot = take(spec, map=map)
                save_skipped(spec.work_dir, snapshot.id, ())
            snapshot.save(spec.work_dir)
        except FeedlineError:
            raise
        except OSError as error:
            raise spec.error(("work_dir",), f"cannot be written: {error}. Name a folder that can be") from error
        return snapshot

    def plan(self, *, world_size: int = 1, snapshot: Snapshot | None = None, map: Map | None = None) -> Plan:
        """The exact plan for a number of ranks, on a new snapshot unless one is given."""
        return _dry_plan(self.spec, snapshot or self.snapshot(map=map), _lanes(self.spec, world_size), map)

    def resolve(self, hello: Hello, *, job: str, map: Map | None = None, workers: Workers | None = None) -> Plan:
        """The plan that a trainer's hello asks for: its state's, or one that all ranks of this start agree on.

        With `fit: auto` what is not fitted yet is, by `workers`.

        Raises StateError, with both values, where the trainer's state belongs to another plan or other features.
        """
        start = Start(job=job, rank=hello.rank, world_size=hello.world_size)
        _refuse_other_numbers(self.spec, hello.to_json())
        lanes = self.spec.lanes or hello.lanes or hello.world_size
        rank_lanes(lanes, hello.rank, hello.world_size)
        if hello.rebase is not None:
            return self._rebased(hello, start, lanes=lanes, map=map, workers=workers)
        named, asked = hello.snapshot, hello.features
        snapshot, rest = _named(self.spec, named) if named is not None else (self._agreed(start, map), None)
        plan = self._ready(snapshot, lanes=lanes, rebase=rest, map=map, workers=workers, start=start, features=asked)
        _refuse_others(plan, hello.to_json())
        return plan

    def plan_for(self, state: Mapping[str, Any], *, map: Map | None = None) -> Plan:
        """The plan that a state belongs to. Raises StateError where it is of another plan or other features."""
        checked = checked_state(state)
        _refuse_other_numbers(self.spec, checked)
        snapshot, rest = _named(self.spec, checked["snapshot"])
        asked = checked["features"]
        plan = self._ready(snapshot, lanes=checked["lanes"], rebase=rest, map=map, features=asked)
        _refuse_others(plan, checked)
        return plan

    def rebase(self, state: Mapping[str, Any], *, rewritten: str = "error", map: Map | None = None) -> Plan:
        """The plan of a state's run on the table as it is now: of the state's epoch, what was not delivered is left.

        `plan.state_after(state)` continues there. A table that is as it was gives the state's own plan. `rewritten`
        says what becomes of rows of which nobody knows whether they were delivered: error, skip or repeat. A saved
        snapshot that `source.snapshot` names is not looked at. Raises StateError for rows in doubt, where the state is
        of another plan, and where the new table cannot be compared with the old one.
        """
        checked, policy = checked_state(state), checked_rewritten(rewritten)
        _refuse_other_numbers(self.spec, checked)
        before, rest = _named(self.spec, checked["snapshot"])
        old = make_plan(self.spec, before, lanes=checked["lanes"], map=map, rebase=rest)
        _refuse_others(old, {"plan": checked["plan"]})
        epoch, step = checked["epoch"], checked["step"]
        if step >= old.schedule(epoch).steps:
            epoch, step = epoch + 1, 0
        snapshot = self._taken(fresh_snapshot, map)
        if snapshot.id == old.snapshot.id:
            return old
        comparable(old, snapshot)
        new = make_plan(self.spec, snapshot, lanes=old.lanes, map=map)
        made = rebase(old, new, epoch=epoch, step=step, rewritten=policy, map=map)
        made.save(self.spec.work_dir)
        return replace(new, rebase=made)

    def _rebased(self, hello: Hello, start: Start, *, lanes: int, map: Map | None, workers: Workers | None) -> Plan:
        """The rebase that all ranks of this start agree on: one makes it, the others load it."""
        asked, features = hello.rebase, hello.features
        assert asked is not None
        agreed = agree_on_snapshot(
            self.spec.work_dir,
            hashlib.sha256(json.dumps([start.job, asked.to_json()], sort_keys=True).encode()).hexdigest(),
            rank=start.rank,
            world_size=start.world_size,
            take=lambda: self.rebase(asked.state, rewritten=asked.rewritten, map=map).snapshot_name,
            environment=os.environ,
        )
        snapshot, rest = _named(self.spec, agreed)
        plan = self._ready(snapshot, lanes=lanes, rebase=rest, map=map, workers=workers, start=start, features=features)
        _refuse_others(plan, {"features": features})
        return plan

    def _ready(
        self,
        snapshot: Snapshot,
        *,
        lanes: int,
        rebase: Rebase | None = None,
        map: Map | None = None,
        workers: Workers | None = None,
        start: Start | None = None,
        features: str | None = None,
    ) -> Plan:
        """A plan whose features know what they have to."""

        def made(artifacts: ArtifactSetRef | None = None) -> Plan:
            return make_plan(self.spec, snapshot, lanes=lanes, map=map, rebase=rebase, artifacts=artifacts)

        def fit_missing() -> str | None:
            return self.fit(missing=True, snapshot=snapshot, workers=workers).manifest

        return _recorded(ready(made(), made, fit_missing, start=start, features=features))

    def _agreed(self, start: Start, map: Map | None) -> Snapshot:
        """The snapshot that all ranks of this start read."""
        taken: list[Snapshot] = []

        def take() -> str:
            taken.append(self.snapshot(map=map))
            return taken[0].id

        agreed = agree_on_snapshot(
            self.spec.work_dir,
            start.job,
            rank=start.rank,
            world_size=start.world_size,
            take=take,
            environment=os.environ,
        )
        return taken[0] if taken else Snapshot.load(self.spec.work_dir, agreed)

    # -- fitting --------------------------------------------------------------------------------------------------

    def fit(
        self,
        *,
        missing: bool = False,
        snapshot: Snapshot | None = None,
        workers: Workers | None = None,
        map: Map | None = None,
        say: Say = lambda progress: None,
    ) -> FitReport:
        """Learn what the ops have to know from the rows of `fit.where`, and make it what counts, with golden vectors.

        missing: only what is missing. workers: who does it (default: threads of this process). `say` hears of every
        task that is done. Raises SpecError, PlanError where there is no row to learn from, and what reading raises;
        then what counted before still counts, unless only the golden vectors could not be written.
        """
        snapshot = snapshot or self.snapshot(map=map)
        try:
            if workers is not None:
                return fit_pipeline(self.spec, snapshot, workers, keep=missing, say=say)
            threads = self.spec.cluster.threads
            with threads_here(available_cores() if threads == "auto" else threads) as here:
                return fit_pipeline(self.spec, snapshot, here, keep=missing, say=say)
        finally:  # not before: rows that are transformed meanwhile would keep the set that is being replaced
            self._serving = Serving(self.spec)

    # -- using ----------------------------------------------------------------------------------------------------

    def transform(self, data: Rows) -> Encoded:
        """Encode rows exactly as training does: needs no table, no labels, no Dask, no torch. Threads may share it.

        `data`: Arrow, Polars, pandas, columns by name, a list of dicts, or one dict of a row's values. Raises SpecError
        where a column is missing or of a kind that the features do not take, DataError for nulls and for values that do
        not fit.
        """
        return self._serving.transform(data)

    @property
    def schema(self) -> BatchSchema:
        """Every column of a batch, as `dataset.schema` has it: a model is made of it, where there is no table, too.

        The table is looked at where no types of it are recorded. Raises SpecError where something is not fitted yet.
        """
        return self._serving.schema(lambda: self.snapshot().schema)

    def batches(
        self,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        step: int = 0,
        snapshot: Snapshot | None = None,
        plan: Plan | None = None,
    ) -> Iterator[Batch]:
        """The batches of one rank and epoch, from a step on, made in this process and thread: no ring, no Dask.

        The oracle of tests, the way to debug with pdb, and the way on a machine without Linux. `plan`: that of a state
        (`plan_for`) or of a rebase, not a new one.
        """
        plan = plan or self._fresh(world_size, snapshot)
        plan.require_fitted()
        _warn(plan)
        monitor = QualityMonitor(plan.layout.schema, plan.job.features, plan.on_expect)
        self._monitors.append(monitor)
        return iterate(plan, monitor, epoch=epoch, rank=rank, world_size=world_size, step=step)

    def quality(self) -> dict[str, dict[str, Any]]:
        """What the features' values were like in the blocks that `batches` delivered, by feature and measure."""
        counted = [(monitor.schema, total) for monitor in self._monitors if (total := monitor.total) is not None]
        return measures(merge([total for _, total in counted]), counted[0][0]) if counted else {}

    def _fresh(self, world_size: int, snapshot: Snapshot | None = None) -> Plan:
        """A plan to be used at once."""
        return self._ready(snapshot or self.snapshot(), lanes=_lanes(self.spec, world_size)).without_gaps()

    def to_dask(self, epoch: int = 0, *, world_size: int = 1) -> Any:
        """A Dask DataFrame of Arrow-typed feature columns; its partitions are the epoch's blocks, lane after lane.

        Rows that the tail policy would drop are there too.
        """
        from feedline.service.plan_frame import blocks_to_dask  # noqa: PLC0415 -- 0.35 s of pandas that feeders do not need

        plan = self._fresh(world_size)
        _warn(plan)
        return blocks_to_dask(plan.job, _all_blocks(plan, epoch))


def _all_blocks(plan: Plan, epoch: int) -> list[BlockRequest]:
    """The epoch's blocks, lane after lane, with the rows that a tail drops."""
    schedule = plan.schedule(epoch)
    return [
        plan.request(block, epoch)
        for lane in range(plan.lanes)
        for block in schedule.blocks(lane, everything=True)
        if schedule.lane_bounds(lane)[0] < schedule.lane_bounds(lane)[1]
    ]


def _dry_plan(spec: PipelineSpec, snapshot: Snapshot, lanes: int, map: Map | None) -> Plan:
    return _recorded(make_plan(spec, snapshot, lanes=lanes, map=map), fill=True)


def _recorded(plan: Plan, *, fill: bool = False) -> Plan:
    """The plan, after the types of its table's columns were kept for serving; `fill`: those that nobody kept.

    A run needs no record, so one goes on where the folder of artifacts cannot be written; serving says what it lacks.
    """
    spec = plan.spec
    with contextlib.suppress(FeedlineError, OSError):
        save_types(artifacts_dir(spec), artifact_set_key(spec), planned_schema(spec, plan.snapshot.schema), fill=fill)
    return plan


def _lanes(spec: PipelineSpec, world_size: int) -> int:
    lanes = spec.lanes or world_size
    rank_lanes(lanes, 0, world_size)
    return lanes


def _named(spec: PipelineSpec, name: str) -> tuple[Snapshot, Rebase | None]:
    """The snapshot, and the rebase, that a state names."""
    id, rest = split_name(name)
    return Snapshot.load(spec.work_dir, id), None if rest is None else Rebase.load(spec.work_dir, rest)


def _refuse_other_numbers(spec: PipelineSpec, state: Mapping[str, Any]) -> None:
    seed = spec.shuffle.seed if spec.shuffle is not None else 0
    for key, mine in (("seed", seed), ("batch_size", spec.batch.size), ("lanes", spec.lanes)):
        theirs = state.get(key)
        if theirs is not None and mine is not None and theirs != mine:
            raise StateError(
                f"the state belongs to another plan: its {key} is {theirs}, pipeline.yaml's is {mine}. Use the "
                f"pipeline.yaml and overrides of the run that saved it"
            )


def _refuse_others(plan: Plan, state: Mapping[str, Any]) -> None:
    """Raise StateError, with both values, for a state of another plan or other features."""
    facts = plan.facts()
    for key, remedy in (
        ("plan", "Use the pipeline.yaml and overrides of the run that saved the state"),
        ("features", 'Pass features="changed" to load_state_dict to keep the position with new features'),
    ):
        theirs = state.get(key)
        if theirs is not None and theirs != getattr(facts, key):
            raise StateError(
                f"the state belongs to another {key}: got {theirs}, expected {getattr(facts, key)}. {remedy}"
            )


def _warn(plan: Plan) -> None:
    for text in plan.gaps.warnings():
        warnings.warn(text, UserWarning, stacklevel=3)
    if plan.skipped:
        warnings.warn(describe_bad_files(plan.bad_files()), UserWarning, stacklevel=3)


def iterate(
    plan: Plan, monitor: QualityMonitor, *, epoch: int, rank: int, world_size: int, step: int = 0
) -> Iterator[Batch]:
    """The batches of a plan, computed one block at a time."""
    from feedline.loader.batch import Batch  # noqa: PLC0415 -- brings torch, which feeders and the CLI never load

    schedule: Schedule = plan.schedule(epoch)
    lanes = rank_lanes(plan.lanes, rank, world_size)
    blocks = {(block.lane, block.index): block for block in schedule.blocks_of(lanes, first_step=step)}
    borders = {lane: schedule.block_starts(lane) for lane in lanes}
    results: dict[tuple[int, int], BlockResult] = {}
    monitor.begin(epoch)

    def get(lane: int, index: int) -> tuple[EncodedRows, ...]:
        place = lane, index
        if place not in results:
            results[place] = run_block(plan.job, plan.request(blocks[place], epoch), f"block-{lane}-{index}", False)
        parts = results[place].parts
        assert parts is not None
        return parts

    for number in range(max(step, schedule.first_step), schedule.steps):
        segments = segments_of(schedule, borders, number, get)
        assert segments is not None
        measured = draft(plan.layout, segments, epoch=epoch, step=number)
        buffer = np.empty(measured.placement.nbytes, dtype=np.uint8)
        write(plan.layout, measured, buffer)
        done = [(blocks[place], results.pop(place)) for place in list(results) if blocks[place].last_step <= number]
        monitor.add(number, [(block, result.quality) for block, result in done if schedule.has_rows(block.lane)])
        yield Batch.over(plan.layout, buffer)
    for text in monitor.end():
        warnings.warn(text, UserWarning, stacklevel=2)
