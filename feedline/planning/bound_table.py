"""A pipeline bound to a snapshot of its table: the rows that it selects, and the columns that its blocks read.

Runs in: the feeder, the CLI, `Pipeline`. It only computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.request import Job, kept_columns
from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import has_column
from feedline.planning.binding.fitted_artifacts import require_fitted
from feedline.planning.binding.read_columns import ReadColumns
from feedline.planning.mixing import RowBytes
from feedline.planning.nulls import Gaps, find_gaps
from feedline.spec import PipelineSpec
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.reading.columns import column_bytes
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.selection.exclusion import covers
from feedline.warehouse.selection.pruning_report import deciding_parts, needed_bytes
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class BoundTable:
    """Features, filter and sample of a pipeline, bound to a table, with the selected rows of each row group."""

    spec: PipelineSpec
    snapshot: Snapshot
    where: BoundExpression | None
    sample: BoundSample | None
    selection: Selection
    features: CompiledFeatures
    job: Job

    @cached_property
    def row_bytes(self) -> RowBytes:
        """The compressed bytes that blocks read per row."""
        kept = self.selection.rows > 0
        nbytes, rows = int(self.row_group_bytes[kept].sum()), int(self.selection.rows.sum())
        stored = int(self.snapshot.rows_per_row_group[kept].sum())
        return RowBytes(selected=nbytes / max(rows, 1), stored=nbytes / max(stored, 1), rows=rows)

    @property
    def features_fingerprint(self) -> str:
        """A digest of everything that decides what a row becomes."""
        return self.features.fingerprint[:32]

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
        read = frozenset([*self.features.parts, *kept_columns(self.job), *marking])
        whole = self.selection.kept_rows == self.snapshot.rows_per_row_group
        weigh = self.sample is not None and SAMPLE_WEIGHT in read
        needs = deciding_parts(self.selection.proofs, self.where, self.sample, whole=whole, weigh=weigh)
        return needed_bytes(self.snapshot, [(read, np.ones(len(whole), np.bool_)), *needs])
