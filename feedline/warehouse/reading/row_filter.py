"""Decide which rows of a decoded chunk stay, and the weight of each.

Pure; runs wherever rows are read, on the calling thread. First `where` decides, then the sample. What statistics have
proven of a whole row group (`WHERE_TRUE`, `SAMPLED`, `UNSAMPLED`) need not be evaluated, and its columns need not be
read: `RowFilter.for_row_group` is the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from feedline.expressions import BoundExpression
from feedline.warehouse.reading.sample import Bools, BoundSample, weights

# What statistics may prove of a row group, as bits: `where` is true of all its rows; the sample's own `where` is true
# of all of them; or of none.
WHERE_TRUE, SAMPLED, UNSAMPLED = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """`stays`: bool [rows], None where all stay; `matched`: rows that `where` keeps, before the sample.

    `weights`: float32 [rows], the column `sample_weight` of every row, where it was asked for.
    """

    stays: Bools | None
    matched: int
    weights: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Conditions on the rows of one table. `weigh`: give weights; `decide`: rows may be dropped, not only weighed."""

    where: BoundExpression | None = None
    sample: BoundSample | None = None
    weigh: bool = False
    decide: bool = True

    @property
    def parts(self) -> frozenset[str]:
        """What has to be read to decide: columns, and parts of columns."""
        own = self.where.parts if self.where is not None else frozenset()
        sample = self.sample
        if sample is None or not (self.decide or self.weigh):
            return own
        if self.decide:
            return own | sample.parts
        return own | (sample.where.parts if sample.where is not None else frozenset())

    @property
    def idle(self) -> bool:
        """Whether every row stays and none is weighed."""
        return self.where is None and not self.weigh and (self.sample is None or not self.decide)

    def for_row_group(self, *, proven: int, whole: bool) -> RowFilter:
        """The conditions left for a row group of which something is proven, or which is known to stay whole."""
        where, sample = self.where, self.sample
        if whole or proven & WHERE_TRUE:
            where = None
        if proven & UNSAMPLED:
            sample = None
        elif sample is not None and proven & SAMPLED:
            sample = replace(sample, where=None)
        return replace(self, where=where, sample=sample, decide=not whole)

    def apply(self, data: pa.RecordBatch, path: str, first_row: int) -> FilterResult:
        """Judge rows; `first_row` is the index of the first one in its file, at `path` below the table's root."""
        stays = None if self.where is None else true_rows(data, self.where)
        matched = data.num_rows if stays is None else int(np.count_nonzero(stays))
        sample = self.sample
        if sample is None:
            same = np.ones(data.num_rows, np.float32) if self.weigh else None
            return FilterResult(stays=stays, matched=matched, weights=same)
        sampled = None if sample.where is None else true_rows(data, sample.where)
        if self.decide:
            chosen = sample.chosen(data, path, first_row)
            if sampled is not None:
                chosen |= ~sampled
            stays = chosen if stays is None else stays & chosen
        heavy = weights(sample.sample, sampled, data.num_rows) if self.weigh else None
        return FilterResult(stays=stays, matched=matched, weights=heavy)


def true_rows(data: pa.RecordBatch, where: BoundExpression) -> Bools:
    """bool [rows]: where a condition is true; where it is null, it is not."""
    frame = pl.from_arrow(data.select([name for name in data.schema.names if name in where.parts]))
    assert isinstance(frame, pl.DataFrame)
    kept: Bools = frame.select(where.narrow).to_series().fill_null(False).to_numpy()
    return kept
