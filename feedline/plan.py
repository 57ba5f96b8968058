"""What does a pipeline deliver, exactly? A spec, a snapshot and the rows it selects, as schedules and block requests.

Runs in: the feeder, the CLI, `Pipeline.batches`. `make_plan` does the reading (footers' facts, the counting pass);
the `Plan` it returns only computes. Two fingerprints: `plan` decides which rows come when, `features` what a row
becomes.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.errors import PlanError
from feedline.expressions import BoundExpression, bind_where
from feedline.features import FeatureSpec
from feedline.loader.layout import SlotLayout
from feedline.loader.schedule import PLAN_VERSION, Block, Piece, Schedule
from feedline.loader.state import rebased_state
from feedline.service.tasks import BlockRequest, Job, PieceRequest, batch_schema, local_environment
from feedline.spec import PipelineSpec
from feedline.transforms.compile import CompiledFeatures, compile_features
from feedline.transforms.registry import OpError
from feedline.warehouse.identity import identity_of, kind_of
from feedline.warehouse.reading import fragment_at
from feedline.warehouse.rebases import Rebase
from feedline.warehouse.records import Recording, is_local
from feedline.warehouse.selection import Selection, select_rows
from feedline.warehouse.snapshot import Snapshot
from feedline.warehouse.splits import Splits, plan_splits

# Identities are 8 bytes per selected row, in `work_dir`: more of them than this are written for `source.row_key` only.
RECORDED_ROWS = 100_000_000

Map = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved pipeline: everything but the epoch and the rank.

    With a `rebase`, one epoch is only the rest of it; all others are whole.
    """

    spec: PipelineSpec
    snapshot: Snapshot
    where: BoundExpression | None
    selection: Selection
    splits: Splits
    features: CompiledFeatures
    layout: SlotLayout
    job: Job
    lanes: int
    rebase: Rebase | None = None

    @property
    def name(self) -> str:
        return "".join(character if character.isalnum() else "_" for character in self.spec.name)

    @cached_property
    def split_rows(self) -> NDArray[np.int64]:
        """Selected rows per split."""
        return self._per_split(self.selection.rows)

    @cached_property
    def _left(self) -> NDArray[np.int64]:
        """Rows per row group that the rebased epoch still delivers."""
        return self.selection.rows if self.rebase is None else self.rebase.remaining(self.selection.rows)

    def rest(self, epoch: int) -> Rebase | None:
        """What an epoch is the rest of; None for a whole epoch."""
        return self.rebase if self.rebase is not None and self.rebase.epoch == epoch else None

    def _per_split(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        ends = np.concatenate(([0], np.cumsum(rows, dtype=np.int64)))
        return ends[self.splits.stop_row_group] - ends[self.splits.first_row_group]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The source columns that blocks read, the filter's included."""
        names = dict.fromkeys(self.features.columns)
        names.update(dict.fromkeys(sorted(self.where.columns) if self.where is not None else ()))
        if self.job.by is not None:
            names[self.job.by] = None
        if self.job.record is not None:
            names.update(dict.fromkeys(self.job.record.identity.names))
        return tuple(names)

    @cached_property
    def row_group_bytes(self) -> NDArray[np.int64]:
        """Compressed bytes of the columns that blocks read, per row group."""
        total = np.zeros(len(self.selection.rows), dtype=np.int64)
        for name in self.columns:
            if name not in self.snapshot.partition_columns:
                total += self.snapshot.column_facts(name).field("bytes").to_numpy()
        return total

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that decides which rows come when."""
        facts = {
            "version": PLAN_VERSION,
            "snapshot": self.snapshot.id,
            "where": self.spec.source.where,
            "split_rows": self.spec.source.split_rows,
            "shuffle": self.spec.shuffle.model_dump() if self.spec.shuffle is not None else "off",
            "lanes": self.lanes,
            "batch_size": self.spec.batch.size,
            "tail": self.spec.batch.tail,
            **({} if self.rebase is None else {"rebase": self.rebase.id}),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def seed(self) -> int:
        return self.spec.shuffle.seed if self.spec.shuffle is not None else 0

    def schedule(self, epoch: int) -> Schedule:
        """The epoch's schedule. Raises PlanError where it has no step."""
        rest = self.rest(epoch)
        return self._schedule(epoch, self.split_rows if rest is None else self._per_split(self._left), rest)

    def _schedule(self, epoch: int, split_rows: NDArray[np.int64], rest: Rebase | None) -> Schedule:
        shuffle = self.spec.shuffle
        return Schedule(
            split_rows=split_rows,
            lanes=self.lanes,
            batch_size=self.spec.batch.size,
            tail=self.spec.batch.tail,
            block_rows=shuffle.window_rows if shuffle is not None else self.spec.source.split_rows,
            shuffle=shuffle is not None,
            seed=self.seed,
            epoch=epoch,
            first_step=0 if rest is None else rest.first_step,
            salt=() if rest is None else (rest.id,),
        )

    def request(self, block: Block, epoch: int) -> BlockRequest:
        """What the block's task reads and how it permutes."""
        shuffle, rest = self.spec.shuffle, self.rest(epoch)
        pieces, nbytes = [], 0
        for piece in block.pieces:
            request, piece_bytes = self._piece(piece, rest)
            pieces.append(request)
            nbytes += piece_bytes
        salt = () if rest is None else (rest.id,)
        key = ("rows", self.seed, epoch, block.lane, block.index, *salt) if shuffle and shuffle.rows else None
        return BlockRequest(pieces=tuple(pieces), rows=block.rows, permutation=key, nbytes=nbytes)

    @property
    def snapshot_name(self) -> str:
        """What a state calls the snapshot: its id and, after a plus sign, that of the rebase."""
        return self.snapshot.id if self.rebase is None else f"{self.snapshot.id}+{self.rebase.id}"

    def facts(self) -> dict[str, Any]:
        """What a trainer has to know: plain numbers and texts. `steps` and rows are those of a whole epoch."""
        schedule = self._schedule(0, self.split_rows, None)
        return {
            "snapshot": self.snapshot_name,
            "plan": self.fingerprint,
            "features": self.features.fingerprint[:32],
            "seed": self.seed,
            "lanes": self.lanes,
            "batch_size": self.spec.batch.size,
            "steps": schedule.steps,
            "rows": schedule.rows,
            "rows_dropped": schedule.rows_dropped,
            "schema": self.layout.schema.to_json(),
            "rest": self._rest_facts(),
        }

    def state_after(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state that continues a run on this plan, which `Pipeline.rebase` made of the run's state."""
        return rebased_state(self.facts(), state)

    def _rest_facts(self) -> dict[str, Any] | None:
        """The epoch that a rebase shortened: its steps (those before it counted) and the rows that were left."""
        if self.rebase is None:
            return None
        schedule = self.schedule(self.rebase.epoch)
        return {
            "epoch": self.rebase.epoch,
            "first_step": self.rebase.first_step,
            "steps": schedule.steps,
            "rows": schedule.rows,
            "rows_dropped": schedule.rows_dropped,
            "changes": dict(self.rebase.changes),
        }

    def _piece(self, piece: Piece, rest: Rebase | None) -> tuple[PieceRequest, int]:
        """The row groups of the split that hold the piece's rows, and their bytes."""
        first, stop = int(self.splits.first_row_group[piece.split]), int(self.splits.stop_row_group[piece.split])
        left = (self.selection.rows if rest is None else self._left)[first:stop]
        ends = np.cumsum(left)
        low = int(np.searchsorted(ends, piece.start, side="right"))
        high = int(np.searchsorted(ends, piece.stop, side="left")) + 1
        used = first + low + np.flatnonzero(left[low:high])
        fragment = fragment_at(self.snapshot, int(self.splits.file[piece.split]), used, self.selection.rows[used])
        if rest is not None and any(rest.bits(group) for group in used.tolist()):
            fragment = replace(fragment, excluded=tuple(rest.bits(group) for group in used.tolist()))
        skip = piece.start - (int(ends[low - 1]) if low else 0)
        request = PieceRequest(fragment=fragment, skip=skip, rows=piece.stop - piece.start)
        return request, int(self.row_group_bytes[used].sum())


def make_plan(
    spec: PipelineSpec, snapshot: Snapshot, *, lanes: int, map: Map | None = None, rebase: Rebase | None = None
) -> Plan:
    """Resolve a spec against a snapshot; `map` runs the counting pass (default: threads of this process).

    Raises SpecError for whatever in pipeline.yaml does not fit the table, with its place.
    """
    features = compile_spec(spec, snapshot.schema)
    where = None
    if spec.source.where is not None:
        where = _bound_where(spec, snapshot.schema)
    by = spec.shuffle.by if spec.shuffle is not None else None
    if by is not None and by not in snapshot.schema.names:
        near = difflib.get_close_matches(by, snapshot.schema.names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(snapshot.schema.names[:20])}"
        raise spec.error(("shuffle", "by"), f"column {by!r} is not in the table. {hint}")
    selection = (
        select_rows(snapshot, where, work_dir=spec.work_dir)
        if map is None
        else select_rows(snapshot, where, work_dir=spec.work_dir, map=map)
    )
    if not int(selection.rows.sum()):
        if snapshot.rows == 0:
            raise PlanError(
                f"the table has no rows: got {len(snapshot.files)} files without rows at {spec.source.table}"
            )
        raise spec.error(
            ("source", "where"), f"the filter keeps no row: got 0 of {snapshot.rows:,} rows for {spec.source.where!r}"
        )
    return Plan(
        spec=spec,
        snapshot=snapshot,
        where=where,
        selection=selection,
        splits=plan_splits(snapshot.rows_per_row_group, snapshot.file_of_row_group, spec.source.split_rows),
        features=features,
        layout=SlotLayout(batch_schema(features)),
        job=_job(spec, snapshot, selection, features, where, by),
        lanes=lanes,
        rebase=rebase,
    )


def compile_spec(
    spec: PipelineSpec, schema: pa.Schema, features: Sequence[FeatureSpec] | None = None
) -> CompiledFeatures:
    """The spec's features (or some of them) against a schema; errors carry file, line and path."""
    try:
        return compile_features(spec.features if features is None else features, schema)
    except OpError as error:
        raise spec.error(error.path, error.message) from error


def _bound_where(spec: PipelineSpec, schema: pa.Schema) -> BoundExpression:
    assert spec.source.where is not None
    try:
        return bind_where(spec.source.where, schema)
    except ValueError as error:
        raise spec.error(("source", "where"), str(error)) from error


def _job(
    spec: PipelineSpec,
    snapshot: Snapshot,
    selection: Selection,
    features: CompiledFeatures,
    where: BoundExpression | None,
    by: str | None,
) -> Job:
    read = [*features.columns, *([by] if by is not None else ())]
    record = recording_of(spec, snapshot, read, rows=int(selection.rows.sum()))
    needed = {*read, *(where.columns if where is not None else ()), *(record.identity.names if record else ())}
    used = pa.schema([field for field in snapshot.schema if field.name in needed])
    return Job(
        features=spec.features,
        schema=used.serialize().to_pybytes(),
        where=spec.source.where,
        by=by,
        environment=local_environment(),
        record=record,
    )


def recording_of(spec: PipelineSpec, snapshot: Snapshot, columns: Sequence[str], *, rows: int) -> Recording | None:
    """Where and as what the identities of rows are recorded, for a later rebase; None where that is left out.

    Raises SpecError for a `source.row_key` that is not in the files, or of a kind that cannot be told apart.
    """
    key = spec.source.row_key
    if key is None and (rows > RECORDED_ROWS or not is_local(spec.work_dir)):
        return None
    stored = pa.schema([snapshot.schema.field(name) for name in snapshot.file_columns])
    for name in key or ():
        index = snapshot.schema.get_index(name)
        if index < 0 or (name in stored.names and kind_of(stored.field(name).type) is None):
            got = "no column of that name" if index < 0 else str(snapshot.schema.field(name).type)
            raise spec.error(
                ("source", "row_key"),
                f"{name!r} cannot name a row: got {got}, expected a column of numbers, times, texts or lists",
            )
    by = spec.shuffle.by if spec.shuffle is not None else None
    sample = spec.source.sample
    kept = json.dumps([spec.source.where, sample.model_dump() if sample is not None else None])
    identity = identity_of(stored, columns, key=key, by=by, kept=kept)
    if identity is None:
        return None
    return Recording(identity=identity, work_dir=spec.work_dir)
