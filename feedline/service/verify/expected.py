"""Compute the digests of the rows that steps should hold, apart from blocks, Dask and rings.

Runs in: the process of `feedline verify`. A row group's kept rows are read whole, transformed and encoded once, and
their digests kept; a step's digests are gathered from them by the rows' places in the plan.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feedline.blocks.jobs import compile_job
from feedline.errors import DataError
from feedline.hashing import Words
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.row_digests import row_digests
from feedline.planning.plan import Plan
from feedline.planning.rows.epoch_rows import EpochRows, LocatedRows
from feedline.planning.rows.kept_rows import KeptRows, read_kept_rows
from feedline.planning.sources.mixed_plan import RunPlan
from feedline.warehouse.storage.faults import label

_CHUNK_ROWS = 32_768  # transformed at once
_KEPT_ROWS = 2**26  # whose digests are kept: 8 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStep:
    """What a rank's batch should hold. rows: by place in the plan. digests: uint64 [rows]."""

    rows: LocatedRows
    digests: Words


class RowGroupDigests:
    """The digests of the rows of a plan's row groups, which depend on no epoch. It keeps those that were used last."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._compiled = compile_job(plan.job)
        self._groups: OrderedDict[int, Words] = OrderedDict()

    def of(self, group: int) -> Words:
        """Digests of a row group's kept rows."""
        if group in self._groups:
            self._groups.move_to_end(group)
        else:
            compiled = self._compiled
            kept = read_kept_rows(self.plan, group, compiled.columns, compiled.marks)
            self._groups[group] = self._digests(group, kept)
            while len(self._groups) > 1 and sum(map(len, self._groups.values())) > _KEPT_ROWS:
                self._groups.popitem(last=False)
        return self._groups[group]

    def _digests(self, group: int, kept: KeptRows) -> Words:
        compiled, parts = self._compiled, [np.empty(0, np.uint64)]
        for start in range(0, kept.frame.height, _CHUNK_ROWS):
            frame = kept.frame.slice(start, _CHUNK_ROWS)
            try:
                features, _ = compiled.features.apply_counting(frame)
                parts.append(row_digests(encode(features, compiled.layout.schema.expanded, None, compiled.filters)))
            except DataError as error:
                snapshot = self.plan.snapshot
                path = snapshot.files["path"][int(snapshot.file_of_row_group[group])].as_py()
                where = label(path, int(snapshot.row_group_in_file[group]))
                row = "" if error.row is None else f", row {int(kept.rows[start + error.row])} of it"
                raise DataError(f"{error} ({where}{row})") from error
        return np.concatenate(parts)


class ExpectedRows:
    """The digests of an epoch's steps. groups: those of the row groups of each source, for several epochs."""

    def __init__(self, plan: RunPlan, epoch: int, groups: Sequence[RowGroupDigests] | None = None) -> None:
        self.plan = plan
        self.steps = EpochRows(plan, epoch)
        self.groups = groups or [RowGroupDigests(each) for each in plan.sources]

    def of_rank(self, step: int, rank: int, world_size: int) -> ExpectedStep:
        """The rows of a rank's batch and their digests. Raises DataError as blocks do, and the errors of reading."""
        rows = self.steps.of_rank(step, rank, world_size)
        digests = np.empty(len(rows), np.uint64)
        for source, of_source in enumerate(self.groups):
            for group in np.unique(rows.group[rows.source == source]).tolist():
                here = (rows.source == source) & (rows.group == group)
                digests[here] = of_source.of(group)[rows.kept[here]]
        return ExpectedStep(rows=rows, digests=digests)
