"""The plan of one source: what it delivers from its snapshot and selected rows, as schedules and block requests.

Runs in: the feeder, the CLI, `Pipeline.batches`. It only computes; `make_plan` reads. `Plan` puts sources together.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.environment import Environment
from feedline.blocks.request import BlockDraws, BlockRequest, Job, PieceDraws, PieceRequest
from feedline.config import PipelineSpec
from feedline.config.chosen_features import column_group_name
from feedline.dataclass import dataclass
from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import has_column
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.state import PLAN_VERSION
from feedline.loader.wire.facts import BadFileFacts
from feedline.planning.bucket_schedule import BucketSchedule
from feedline.planning.epoch_snapshot import Border
from feedline.planning.histories import list_bytes, stored_columns
from feedline.planning.length_columns import length_facts
from feedline.planning.mixing import (
    BlockSizes,
    MixingWindow,
    RowBytes,
    block_sizes,
    choose_window,
    least_block_rows,
    shuffle_facts,
)
from feedline.planning.nulls import Gaps, find_gaps
from feedline.planning.read_columns import ReadColumns
from feedline.planning.schedule import Block, Piece, Schedule
from feedline.planning.table_features import require_fitted
from feedline.planning.weighted_rows import DRAWS_VERSION, RowWeights
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.bad_files import BadFile
from feedline.warehouse.reading.columns import column_bytes
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, Bools, BoundSample
from feedline.warehouse.rebase.remaining_rows import Rebase
from feedline.warehouse.selection.exclusion import covers
from feedline.warehouse.selection.pruning_report import deciding_parts, needed_bytes
from feedline.warehouse.selection.row_measures import LengthCounts
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import Splits, plan_splits


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """A resolved source, independent of epoch and rank: features, filter and sample of a pipeline, bound to a snapshot
    of its table, with the selected rows of each row group. An epoch of it is a pass through these rows.

    With a `rebase`, one epoch is only its remaining rows; all others are whole. border: that before the one epoch that
    reads this snapshot of a followed table. lengths: with `batch.buckets`. run_window: that of the run (None: the one
    that bytes choose for this source alone). whole: the plan of all features, if this one computes only those of a
    column group, for the same rows and steps. weights: by which rows are drawn with replacement. salt: of permutations,
    the name of one of several sources; share: the part of a lane's rows of a step that this source has.
    """

    spec: PipelineSpec
    snapshot: Snapshot
    where: BoundExpression | None
    sample: BoundSample | None
    selection: Selection
    features: CompiledFeatures
    job: Job
    layout: SlotLayout
    lanes: int
    skipped: tuple[BadFile, ...] = ()
    border: Border | None = None
    rebase: Rebase | None = None
    lengths: LengthCounts | None = None
    run_window: MixingWindow | None = None
    whole: SourcePlan | None = None
    weights: RowWeights | None = None
    salt: tuple[str, ...] = ()
    share: Fraction = Fraction(1)

    @cached_property
    def row_bytes(self) -> RowBytes:
        """The compressed bytes that blocks read per row; of lists of histories, what they take at most."""
        kept = self.selection.rows > 0
        nbytes, rows = int(self.row_group_bytes[kept].sum()), int(self.selection.rows.sum())
        stored = int(self.snapshot.rows_per_row_group[kept].sum())
        lists = list_bytes(self.features.features)
        return RowBytes(selected=nbytes / max(rows, 1) + lists, stored=nbytes / max(stored, 1) + lists, rows=rows)

    def require_fitted(self) -> None:
        """Raise SpecError, with the command that helps, where a feature has no artifact."""
        require_fitted(self.spec, self.features)

    @cached_property
    def gaps(self) -> Gaps:
        """Nulls of selected rows that features cannot hold, and columns that files lack, according to footers."""
        gaps = find_gaps(self._read_columns, self.snapshot, self.selection.rows, self.where)
        is_checked = covers(self.selection.exclusion, self.features_fingerprint)
        return replace(gaps, nulls=()) if is_checked else gaps

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that blocks read, including those of filter and sample.

        A column of which blocks read parts is included if a row group that keeps rows stores it: a map is not, if all
        its keys are stored as columns of their own.
        """
        parts = [name for name in self.parts if not has_column(self.snapshot.schema, name)]
        kept = self.selection.rows > 0
        unread = {name for name, sizes in column_bytes(self.snapshot, parts) if not sizes[kept].any()}
        names = self._read_columns.columns(self.snapshot.schema)
        return tuple(name for name in names if name not in unread or name in self.parts)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The same, as column parts where only parts of them are read."""
        return self._read_columns.parts(self.snapshot.schema)

    @cached_property
    def _read_columns(self) -> ReadColumns:
        return ReadColumns.of(self.spec, self.features, self.where, self.sample)

    @cached_property
    def row_group_bytes(self) -> NDArray[np.int64]:
        """Compressed bytes that blocks read, per row group; the filter's columns count only where rows are filtered. A
        struct counts as a whole, whichever of its fields are read."""
        marking = [part for mark in self._read_columns.marks for part in mark.parts]
        read = frozenset(stored_columns(self.spec, [*self.features.parts, *self.job.kept_columns, *marking]))
        whole = self.selection.kept_rows == self.snapshot.rows_per_row_group
        weigh = self.sample is not None and SAMPLE_WEIGHT in read
        needs = deciding_parts(self.selection.proofs, self.where, self.sample, whole=whole, weigh=weigh)
        return needed_bytes(self.snapshot, [(read, np.ones(len(whole), np.bool_)), *needs])

    def with_window(self, window: MixingWindow) -> SourcePlan:
        """This plan with the window of its run."""
        return self if window == self.window else replace(self, run_window=window)

    @cached_property
    def window(self) -> MixingWindow:
        """The rows that a lane mixes."""
        return self.run_window or choose_window(self.spec.shuffle, (self.whole or self).row_bytes, self.lanes)

    @cached_property
    def sizes(self) -> BlockSizes:
        """The rows of splits, blocks and windows."""
        row_bytes, shuffle = (self.whole or self).row_bytes, self.spec.shuffle
        sizes = block_sizes(self.spec.source, shuffle, self.lanes, self.window, row_bytes, self.share)
        if self.snapshot.histories:
            lists = list_bytes((self.whole or self).features.features)
            sizes = replace(sizes, block_rows=max(sizes.block_rows, least_block_rows(lists)))
        return sizes

    @cached_property
    def splits(self) -> Splits:
        snapshot, sizes = self.snapshot, self.sizes
        kept = None if sizes.kept_rows is None else (self.selection.rows, sizes.kept_rows)
        return plan_splits(snapshot.rows_per_row_group, snapshot.file_of_row_group, sizes.split_rows, kept=kept)

    @cached_property
    def split_rows(self) -> NDArray[np.int64]:
        """Selected rows per split."""
        return self._per_split(self.selection.rows)

    @cached_property
    def _remaining_rows(self) -> NDArray[np.int64]:
        return self.selection.rows if self.rebase is None else self.rebase.remaining(self.selection)

    def remaining_rows(self, epoch: int) -> NDArray[np.int64]:
        """int64 [row groups]: the rows that an epoch delivers, or drops at its end."""
        if self.weights is not None:
            return self.weights.draws_in(epoch, *self.salt)
        return self.selection.rows if self.rest(epoch) is None else self._remaining_rows

    def rest(self, epoch: int) -> Rebase | None:
        """The rebase of an epoch; None for a whole epoch."""
        return self.rebase if self.rebase is not None and self.rebase.epoch == epoch else None

    def _per_split(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        ends = np.concatenate(([0], np.cumsum(rows, dtype=np.int64)))
        return ends[self.splits.stop_row_group] - ends[self.splits.first_row_group]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides which rows come when."""
        return hashlib.sha256(json.dumps(fingerprint_facts(self), sort_keys=True).encode()).hexdigest()[:32]

    @property
    def features_fingerprint(self) -> str:
        """A digest of everything that decides what a row becomes, in all features of the pipeline."""
        fingerprint = (self.whole or self).features.fingerprint
        if self.snapshot.histories:
            content = [fingerprint, *sorted(history.version for history in self.snapshot.histories)]
            fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return fingerprint[:32]

    @property
    def needs_artifacts(self) -> bool:
        """Whether features use what a fit, a file or an array holds: another artifact set would make another plan."""
        return bool(self.features.missing_fits or self.job.artifacts.readings or self.job.artifacts.manifest)

    def bad_files(self) -> tuple[BadFileFacts, ...]:
        return tuple(BadFileFacts(path=bad.file, reason=bad.reason, rows=bad.rows) for bad in self.skipped)

    @property
    def seed(self) -> int:
        return self.spec.shuffle.seed if self.spec.shuffle is not None else 0

    def schedule(self, epoch: int) -> Schedule:
        """The epoch's schedule. Raises PlanError where it has no step."""
        return self._schedule(epoch, self._per_split(self.remaining_rows(epoch)), self.rest(epoch))

    def _schedule(self, epoch: int, split_rows: NDArray[np.int64], rest: Rebase | None) -> Schedule:
        options: dict[str, Any] = {}
        if self.lengths is not None:
            groups = np.stack([self.splits.first_row_group, self.splits.stop_row_group], axis=1)
            sizes = self.spec.batch.bucket_rows
            options = {"group_rows": self.lengths.rows, "split_groups": groups, "sizes": sizes}
        return (BucketSchedule if options else Schedule)(
            split_rows=split_rows,
            lanes=self.lanes,
            batch_size=self.spec.batch.size,
            tail=self.spec.batch.tail,
            block_rows=self.sizes.block_rows,
            window_rows=self.sizes.window_rows,
            shuffle=self.spec.shuffle is not None,
            seed=self.seed,
            epoch=epoch,
            first_step=0 if rest is None else rest.first_step,
            salt=self.salt if rest is None else (*self.salt, rest.id),
            shares=self.spec.batch.balance is not None,
            cut_splits=self.weights is not None or bool(self.snapshot.histories),
            **options,
        )

    @cached_property
    def whole_schedule(self) -> Schedule:
        """The schedule of a whole epoch, the first."""
        return self._schedule(0, self.split_rows, None)

    def in_environment(self, environment: Environment) -> SourcePlan:
        """This plan for workers of another environment."""
        return replace(self, job=replace(self.job, environment=environment))

    def request(self, block: Block, epoch: int) -> BlockRequest:
        """What the block's task reads and how it permutes."""
        shuffle, rest = self.spec.shuffle, self.rest(epoch)
        pieces, draws, nbytes = list[PieceRequest](), list[PieceDraws](), 0
        for piece in block.pieces:
            request, groups = _piece_of(self, piece, epoch, rest)
            nbytes += int(self.row_group_bytes[groups].sum())
            if self.weights is not None:  # draws are of all rows of the row groups
                counts = tuple(self.remaining_rows(epoch)[groups].tolist())
                draws.append(PieceDraws(groups=counts, skip=request.skip, rows=request.rows))
                request = replace(request, skip=0, rows=sum(map(request.fragment.rows_of, range(len(groups)))))
            pieces.append(request)
        salt = self.salt if rest is None else (*self.salt, rest.id)
        key: tuple[int | str, ...] = ("rows", self.seed, epoch, block.lane, block.index, *salt)
        return BlockRequest(
            pieces=tuple(pieces),
            rows=block.rows,
            permutation=key if shuffle and shuffle.rows else None,
            nbytes=nbytes,
            epoch=epoch,
            shares=block.shares,
            buckets=block.buckets,
            draws=BlockDraws(key=(self.seed, epoch, *self.salt), pieces=tuple(draws)) if draws else None,
        )

    @property
    def snapshot_name(self) -> str:
        """The snapshot's name in a state: its id and, after an at sign, that of its epoch's border, and after a plus
        sign that of the rebase."""
        name = self.snapshot.id if self.border is None else self.border.name
        return name if self.rebase is None else f"{name}+{self.rebase.id}"


def fingerprint_facts(plan: SourcePlan) -> dict[str, Any]:
    """Everything that decides which rows come when: what a plan's fingerprint is a digest of."""
    facts: dict[str, Any] = {
        "version": PLAN_VERSION,
        "snapshot": plan.snapshot.id,
        "where": plan.spec.source.where,
        "split_rows": plan.spec.source.split_rows,
        "shuffle": shuffle_facts(plan.spec.shuffle, plan.window),
        "lanes": plan.lanes,
        "batch_size": plan.spec.batch.size,
        "tail": plan.spec.batch.tail,
        **({} if plan.rebase is None else {"rebase": plan.rebase.id}),
        **({} if not plan.salt else {"salt": plan.salt, "share": str(plan.share)}),
        **length_facts(plan.spec.batch),
        **({} if plan.weights is None else {"weights": [plan.weights.column, DRAWS_VERSION]}),
        **({} if plan.spec.source.follow is None else {"follow": plan.spec.source.follow.epoch}),
        **({} if not plan.snapshot.histories else {"cut": True, "block_rows": plan.sizes.block_rows}),
    }
    if plan.sample is not None:
        facts["sample"] = plan.sample.sample.to_json()
    if (excludes := plan.selection.excludes) is not None:
        facts["exclude"] = excludes.id
    return facts


def _piece_of(
    plan: SourcePlan, piece: Piece, epoch: int, rest: Rebase | None
) -> tuple[PieceRequest, NDArray[np.int64]]:
    """The row groups of the split that hold the piece's rows: what to read of them, and their indices in the table."""
    first, stop = int(plan.splits.first_row_group[piece.split]), int(plan.splits.stop_row_group[piece.split])
    # row groups with 5, 0 and 7 rows left, rows [3, 8) of them: the first and the third, after 3 rows
    remaining = plan.remaining_rows(epoch)[first:stop]
    ends = np.cumsum(remaining)
    low = int(np.searchsorted(ends, piece.start, side="right"))
    high = int(np.searchsorted(ends, piece.stop, side="left")) + 1
    groups = first + low + np.flatnonzero(remaining[low:high])
    more_excluded = None if rest is None else rest.bits
    fragment = plan.selection.fragment(plan.snapshot, groups, more_excluded=more_excluded)
    skip = piece.start - (int(ends[low - 1]) if low else 0)
    return PieceRequest(fragment=fragment, skip=skip, rows=piece.stop - piece.start), groups


def left_out(plan: SourcePlan, row_group: int, epoch: int) -> Bools:
    """bool [rows that filter and sample keep of a row group]: those that an epoch leaves out, as they are bad or, of a
    rebased one, were delivered before."""
    mask, rest = plan.selection.excluded_mask(row_group), plan.rest(epoch)
    return mask if rest is None else mask | rest.mask(row_group, len(mask))


def group_name(plan: SourcePlan) -> str:
    """The name of the column group whose features a plan computes; empty for all features."""
    return "" if plan.whole is None else column_group_name([feature.name for feature in plan.features.features])


def first_fragment(plan: SourcePlan) -> Fragment:
    """The first row group that keeps rows."""
    return plan.selection.fragment(plan.snapshot, np.flatnonzero(plan.selection.rows > 0)[:1])
