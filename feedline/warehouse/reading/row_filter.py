"""Decide which rows of a decoded chunk stay, and the weight of each.

Pure; runs wherever rows are read, on the calling thread. `where` is applied first, then the sample. Conditions that
statistics prove for a whole row group (`WHERE_TRUE`, `SAMPLED`, `UNSAMPLED`) are not evaluated and their columns not
read: `RowFilter.for_row_group` returns what remains.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.expressions import BoundExpression
from feedline.warehouse.reading.coded_conditions import EntryTruths, worth_codes
from feedline.warehouse.reading.sample import Bools, BoundSample, sample_weights

# Bits of what statistics can prove about a row group: `where` is true for all its rows; the sample's own `where` is
# true for all of them; for none of them.
WHERE_TRUE, SAMPLED, UNSAMPLED = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """The rows to keep. `stays`: bool [rows], None if all stay; `matched`: rows that `where` keeps before sampling.

    `weights`: float32 [rows], the column `sample_weight`, if requested.
    """

    stays: Bools | None
    matched: int
    weights: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """The conditions on a table's rows. `weigh`: compute weights; `decide`: rows may be dropped, not only weighed.

    `truths`: what is known about the dictionaries of the columns that come as codes, kept from chunk to chunk.
    """

    where: BoundExpression | None = None
    sample: BoundSample | None = None
    weigh: bool = False
    decide: bool = True
    truths: EntryTruths = field(default_factory=EntryTruths, compare=False, repr=False)

    @property
    def parts(self) -> frozenset[str]:
        """The columns and column parts to read."""
        return self._key.union(*(where.parts for where in self._conditions))

    def coded(self, rows: int) -> frozenset[str]:
        """The columns, of those to read, to decode to codes and a dictionary in a row group of so many rows."""
        codable = [worth_codes(where, rows) for where in self._conditions]
        by_row = [where.parts - columns for where, columns in zip(self._conditions, codable, strict=True)]
        return frozenset[str]().union(*codable).difference(self._key, *by_row)

    @property
    def _conditions(self) -> list[BoundExpression]:
        sampled = self.sample.where if self.sample is not None and (self.decide or self.weigh) else None
        return [where for where in (self.where, sampled) if where is not None]

    @property
    def _key(self) -> frozenset[str]:
        return frozenset(self.sample.sample.key if self.sample is not None and self.decide else ())

    @property
    def idle(self) -> bool:
        """Whether every row stays and no weights are computed."""
        return self.where is None and not self.weigh and (self.sample is None or not self.decide)

    def for_row_group(self, *, proofs: int, whole: bool) -> RowFilter:
        """Return the conditions still to be evaluated, given a row group's `proofs`; `whole`: all its rows stay."""
        where, sample = self.where, self.sample
        if whole or proofs & WHERE_TRUE:
            where = None
        if proofs & UNSAMPLED:
            sample = None
        elif sample is not None and proofs & SAMPLED:
            sample = replace(sample, where=None)
        return replace(self, where=where, sample=sample, decide=not whole)

    def apply(self, data: pa.RecordBatch, path: str, first_row: int) -> FilterResult:
        """Evaluate the conditions; `first_row`: the first row's index in its file, `path`: that file below the root."""
        stays = None if self.where is None else self.truths.true_rows(data, self.where)
        matched = data.num_rows if stays is None else int(np.count_nonzero(stays))
        sample = self.sample
        if sample is None:
            same = np.ones(data.num_rows, np.float32) if self.weigh else None
            return FilterResult(stays=stays, matched=matched, weights=same)
        sampled = None if sample.where is None else self.truths.true_rows(data, sample.where)
        if self.decide:
            keep = sample.hash_mask(data, path, first_row)
            if sampled is not None:
                keep |= ~sampled
            stays = keep if stays is None else stays & keep
        heavy = sample_weights(sample.sample, sampled, data.num_rows) if self.weigh else None
        return FilterResult(stays=stays, matched=matched, weights=heavy)
