"""What can be done with a pipeline.yaml from Python? Plan it, transform with it, iterate it, look at it with Dask.

Runs in: any process. The feeder uses `Pipeline.resolve` with its Dask cluster for the counting pass; `batches` and
`transform` need no Dask, no ring and no other process.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.agreement import agree_on_snapshot
from feedline.bad_file_texts import warning_of
from feedline.errors import DataError, FeedlineError, StateError
from feedline.extraction import project
from feedline.loader.cutting import segments_of
from feedline.loader.encode import EncodedRows, encode
from feedline.loader.quality import measures, merge
from feedline.loader.schedule import Schedule, rank_lanes
from feedline.loader.slot import draft, write
from feedline.loader.state import checked_rewritten, checked_state
from feedline.plan import Map, Plan, compile_spec, make_plan, select
from feedline.rebasing import comparable, rebase
from feedline.service.observing import Observed
from feedline.service.tasks import BlockResult, batch_schema, run_block
from feedline.skipping import Take, good_snapshot
from feedline.sources import fresh_snapshot, snapshot_of_source
from feedline.spec import PipelineSpec, json_schema, load_spec
from feedline.transforms.catalogue import op_schema
from feedline.transforms.compile import CompiledFeatures
from feedline.warehouse.bad_files import save_skipped
from feedline.warehouse.rebases import Rebase, split_name
from feedline.warehouse.snapshot import Snapshot

if TYPE_CHECKING:
    from feedline.loader.batch import Batch

_SERVED = ("dense", "categorical", "sparse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """What `Pipeline.transform` makes of N rows.

    dense: float32 [N, D]. categorical: int64 [N, K]. sparse[name]: (values [V], offsets int64 [N + 1] from 0).
    weights[name]: float32 [V] beside the values, of the weighted features only. `names` lists the features of each
    group in their order.
    """

    rows: int
    dense: NDArray[np.float32]
    categorical: NDArray[np.int64]
    sparse: dict[str, tuple[NDArray[Any], NDArray[np.int64]]]
    weights: dict[str, NDArray[np.float32]]
    names: dict[str, tuple[str, ...]]


class Pipeline:
    """A pipeline.yaml, resolved against the op registry, and against its table when that is needed."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.spec = spec
        self._compiled: tuple[pa.Schema, CompiledFeatures] | None = None
        self._observed: list[Observed] = []

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
        lanes = self.spec.lanes or world_size
        rank_lanes(lanes, 0, world_size)
        return make_plan(self.spec, snapshot or self.snapshot(map=map), lanes=lanes, map=map)

    def resolve(self, hello: Mapping[str, Any], *, job: str, map: Map | None = None) -> Plan:
        """The plan that a trainer's hello asks for: its state's, or one that all ranks of this start agree on.

        Raises StateError, with both values, where the trainer's state belongs to another plan or other features.
        """
        rank, world_size = int(hello["rank"]), int(hello["world_size"])
        self._refuse_other_numbers(hello)
        lanes = self.spec.lanes or hello.get("lanes") or world_size
        rank_lanes(lanes, rank, world_size)
        if hello.get("rebase") is not None:
            return self._rebased(hello, job=job, lanes=lanes, map=map)
        named = hello.get("snapshot")
        if named is not None:
            plan = self._named(str(named), lanes=lanes, map=map)
        else:
            plan = make_plan(self.spec, self._agreed(job, rank, world_size, map), lanes=lanes, map=map)
        _refuse_others(plan, hello)
        return plan

    def plan_for(self, state: Mapping[str, Any], *, map: Map | None = None) -> Plan:
        """The plan that a state belongs to. Raises StateError where it is of another plan or other features."""
        checked = checked_state(state)
        self._refuse_other_numbers(checked)
        plan = self._named(checked["snapshot"], lanes=checked["lanes"], map=map)
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
        self._refuse_other_numbers(checked)
        old = self._named(checked["snapshot"], lanes=checked["lanes"], map=map)
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

    def _rebased(self, hello: Mapping[str, Any], *, job: str, lanes: int, map: Map | None) -> Plan:
        """The rebase that all ranks of this start agree on: one makes it, the others load it."""
        asked = hello["rebase"]
        made: list[Plan] = []

        def take() -> str:
            made.append(self.rebase(asked["state"], rewritten=asked["rewritten"], map=map))
            return made[0].snapshot_name

        agreed = agree_on_snapshot(
            self.spec.work_dir,
            hashlib.sha256(json.dumps([job, asked], sort_keys=True).encode()).hexdigest(),
            rank=int(hello["rank"]),
            world_size=int(hello["world_size"]),
            take=take,
            environment=os.environ,
        )
        plan = made[0] if made else self._named(agreed, lanes=lanes, map=map)
        _refuse_others(plan, {"features": hello.get("features")})
        return plan

    def _named(self, name: str, *, lanes: int, map: Map | None) -> Plan:
        """The plan on the snapshot, and with the rebase, that a state names."""
        id, rest = split_name(name)
        rebased = Rebase.load(self.spec.work_dir, rest) if rest is not None else None
        return make_plan(self.spec, Snapshot.load(self.spec.work_dir, id), lanes=lanes, map=map, rebase=rebased)

    @property
    def _seed(self) -> int:
        return self.spec.shuffle.seed if self.spec.shuffle is not None else 0

    def _refuse_other_numbers(self, state: Mapping[str, Any]) -> None:
        for key, mine in (("seed", self._seed), ("batch_size", self.spec.batch.size), ("lanes", self.spec.lanes)):
            theirs = state.get(key)
            if theirs is not None and mine is not None and theirs != mine:
                raise StateError(
                    f"the state belongs to another plan: its {key} is {theirs}, pipeline.yaml's is {mine}. Use the "
                    f"pipeline.yaml and overrides of the run that saved it"
                )

    def _agreed(self, job: str, rank: int, world_size: int, map: Map | None) -> Snapshot:
        """The snapshot that all ranks of this start read."""
        taken: list[Snapshot] = []

        def take() -> str:
            taken.append(self.snapshot(map=map))
            return taken[0].id

        agreed = agree_on_snapshot(
            self.spec.work_dir, job, rank=rank, world_size=world_size, take=take, environment=os.environ
        )
        return taken[0] if taken else Snapshot.load(self.spec.work_dir, agreed)

    # -- using ----------------------------------------------------------------------------------------------------

    def transform(self, data: pa.Table | pa.RecordBatch | pl.DataFrame) -> Encoded:
        """Encode rows exactly as training does: needs no table, no labels, no Dask, no torch.

        Raises SpecError where a column is missing or of a kind that the features do not take, DataError for nulls.
        """
        if not isinstance(data, pa.Table | pa.RecordBatch | pl.DataFrame):
            raise DataError(f"transform takes a table: got {type(data).__name__}, expected Arrow or Polars")
        schema = data.head(0).to_arrow().schema if isinstance(data, pl.DataFrame) else data.schema
        features = self._served(schema)
        columns = batch_schema(features)
        encoded = encode(features.apply(project(data, features.parts)), columns)
        return Encoded(
            rows=encoded.rows,
            dense=encoded.dense,
            categorical=np.array(encoded.categorical, np.int64).reshape(len(encoded.categorical), encoded.rows).T,
            sparse={
                column.name: (values, offsets)
                for column, values, offsets in zip(columns.sparse, encoded.values, encoded.offsets, strict=True)
            },
            weights={
                column.name: weights
                for column, weights in zip(columns.sparse, encoded.weights, strict=True)
                if weights is not None
            },
            names={group: tuple(column.name for column in columns.group(group)) for group in _SERVED},
        )

    def _served(self, schema: pa.Schema) -> CompiledFeatures:
        if self._compiled is None or not self._compiled[0].equals(schema):
            served = tuple(feature for feature in self.spec.features if feature.group in _SERVED)
            self._compiled = schema, compile_spec(self.spec, schema, served)
        return self._compiled[1]

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
        plan = plan or self.plan(world_size=world_size, snapshot=snapshot)
        _warn_of_bad_files(plan)
        observed = Observed(plan.layout.schema, plan.job.features, plan.on_expect)
        self._observed.append(observed)
        return iterate(plan, observed, epoch=epoch, rank=rank, world_size=world_size, step=step)

    def quality(self) -> dict[str, dict[str, Any]]:
        """What the features' values were like in the blocks that `batches` delivered, by feature and measure."""
        counted = [(observed.schema, total) for observed in self._observed if (total := observed.total) is not None]
        return measures(merge([total for _, total in counted]), counted[0][0]) if counted else {}

    def to_dask(self, epoch: int = 0, *, world_size: int = 1) -> Any:
        """A Dask DataFrame of Arrow-typed feature columns; its partitions are the epoch's blocks, lane after lane.

        Rows that the tail policy would drop are there too.
        """
        from feedline.service.frame import blocks_to_dask  # noqa: PLC0415 -- 0.35 s of pandas that feeders do not need

        plan = self.plan(world_size=world_size)
        _warn_of_bad_files(plan)
        schedule = plan.schedule(epoch)
        requests = [
            plan.request(block, epoch)
            for lane in range(plan.lanes)
            for block in schedule.blocks(lane, everything=True)
            if schedule.lane_bounds(lane)[0] < schedule.lane_bounds(lane)[1]
        ]
        return blocks_to_dask(plan.job, requests)


def _refuse_others(plan: Plan, state: Mapping[str, Any]) -> None:
    """Raise StateError, with both values, for a state of another plan or other features."""
    facts = plan.facts()
    for key, remedy in (
        ("plan", "Use the pipeline.yaml and overrides of the run that saved the state"),
        ("features", 'Pass features="changed" to load_state_dict to keep the position with new features'),
    ):
        theirs = state.get(key)
        if theirs is not None and theirs != facts[key]:
            raise StateError(f"the state belongs to another {key}: got {theirs}, expected {facts[key]}. {remedy}")


def _warn_of_bad_files(plan: Plan) -> None:
    if plan.skipped:
        warnings.warn(warning_of(plan.bad_files()), UserWarning, stacklevel=3)


def iterate(
    plan: Plan, observed: Observed, *, epoch: int, rank: int, world_size: int, step: int = 0
) -> Iterator[Batch]:
    """The batches of a plan, computed one block at a time."""
    from feedline.loader.batch import Batch  # noqa: PLC0415 -- brings torch, which feeders and the CLI never load

    schedule: Schedule = plan.schedule(epoch)
    lanes = rank_lanes(plan.lanes, rank, world_size)
    blocks = {(block.lane, block.index): block for block in schedule.blocks_of(lanes, first_step=step)}
    borders = {lane: schedule.block_starts(lane) for lane in lanes}
    results: dict[tuple[int, int], BlockResult] = {}
    observed.begin(epoch)

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
        observed.add(number, [(block, result.quality) for block, result in done if schedule.has_rows(block.lane)])
        yield Batch.over(plan.layout, buffer)
    for text in observed.end():
        warnings.warn(text, UserWarning, stacklevel=2)
