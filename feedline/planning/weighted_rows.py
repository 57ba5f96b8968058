"""Rows drawn with replacement (`shuffle.weights`): how often an epoch draws from each row group.

Runs in: the feeder, the CLI, `Pipeline`. An epoch draws as many rows as filter and sample keep. A row group gets its
expected number of draws, rounded down or up by one offset for the whole table (systematic sampling); within it, rows
are drawn independently (`permutation.draw_rows`). So a row of q quanta of 2^e, of a sum W in the table, is drawn
N * q * 2^e / W times of N on average, whatever the scales of row groups: their sums are integers of any size.
`weigh_rows` reads the table once, as the counting pass does; all else is pure.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.permutation import random_words
from feedline.blocks.request import Draws
from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import NoStepError
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.reading.row_weights import EXACT, can_weigh, quanta_of
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT
from feedline.warehouse.selection.row_measures import measure_rows
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

Int64s = NDArray[np.int64]
Integers = NDArray[np.object_]

DRAWS_VERSION = 2  # of the function from weights, seed and epoch to draws: part of a plan's fingerprint

_PATH = ("shuffle", "weights")
_RAISED = 1200  # beyond the exponent of quanta of the smallest float
_HIGHEST = 2**16  # beyond all exponents


@dataclass(frozen=True, slots=True)
class _Quanta:
    """The sum of a column's quanta, their exponent, raised so that none is negative, and precision."""

    column: str
    name: str = "quanta 2"
    width: int = 3

    def of(self, values: pl.Series) -> Int64s:
        quanta = quanta_of(values)
        return np.array([quanta.of_rows.sum(), quanta.exponent + _RAISED, quanta.precision], np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowWeights:
    """The weights of a table's selected rows. quanta: int64 [row groups], of 2^exponents, int64 [row groups].
    precision: a positive weight is rounded by 2^-precision of itself at most. rows: that an epoch draws. seed: of the
    shuffle."""

    column: str
    quanta: Int64s
    exponents: Int64s
    precision: int
    rows: int
    seed: int
    _epochs: dict[tuple[int | str, ...], Int64s] = field(default_factory=dict, repr=False)

    def draws_in(self, epoch: int, *salt: str) -> Int64s:
        """int64 [row groups]: how many rows an epoch draws from each. salt: of permutations."""
        key: tuple[int | str, ...] = (self.seed, epoch, *salt)
        if key not in self._epochs:
            self._epochs[key] = draws_of_groups(self.sums, self.rows, *key)
        return self._epochs[key]

    @property
    def sums(self) -> Integers:
        """Integers [row groups]: the sums of their weights, in units of the smallest quantum."""
        some = self.quanta > 0
        shifts = np.where(some, self.exponents - self.exponents[some].min(initial=_HIGHEST), 0)
        sums: Integers = self.quanta.astype(object) << shifts.astype(object)
        return sums


def draws_of_groups(sums: Integers, draws: int, *key: int | str) -> Int64s:
    """int64 [row groups]: how many of the draws fall into each row group. sums: the weights of the row groups."""
    # sums [1, 2], 5 draws, an offset of half a draw: until 1.67 and 5 draws, rounded at .5 -> [2, 3]
    ends = np.cumsum(sums)
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        return np.zeros(len(sums), np.int64)
    offset = int(random_words(1, "offset", *key)[0]) * total >> 64
    until: Integers = (ends * draws + offset) // total
    return np.diff(until, prepend=offset // total).astype(np.int64)


def weight_order(spec: PipelineSpec, snapshot: Snapshot) -> Draws | None:
    """How blocks draw rows by `shuffle.weights`. Raises SpecError where the table has no such column, or it does not
    hold numbers."""
    name = spec.shuffle.weights if spec.shuffle is not None else None
    if name is None:
        return None
    if name == SAMPLE_WEIGHT and spec.source.sample is not None:
        message = f"shuffle.weights cannot be {name}, which source.sample generates: expected a column of the table"
        raise spec.error(_PATH, f"{message}. Draw from all rows, or weigh the sample's rows by it in the loss")
    if name not in snapshot.schema.names:
        raise spec.error(_PATH, f"column {name!r} is not in the table. {nearest_hint(name, snapshot.schema.names)}")
    kind = snapshot.schema.field(name).type
    if not can_weigh(pl.from_arrow(snapshot.schema.empty_table().select([name])).dtypes[0]):  # type: ignore[union-attr]
        raise spec.error(_PATH, f"column {name!r} cannot weigh rows: got {kind}, expected integers, floats or booleans")
    return Draws(name)


def weigh_rows(
    spec: PipelineSpec,
    snapshot: Snapshot,
    selection: Selection,
    map: Map | None,
) -> RowWeights | None:
    """The weights of the selected rows; None without `shuffle.weights`. Raises NoStepError where none can be drawn,
    DataError for a weight that is null, negative or not finite, with file, row group and row."""
    order = weight_order(spec, snapshot)
    if order is None or spec.shuffle is None:
        return None
    measure = _Quanta(order.column)
    measured = measure_rows(snapshot, selection, measure, work_dir=spec.work_dir, map=map)
    quanta, exponents, precisions = measured.T
    rows = int(selection.rows.sum())
    if not quanta.any():
        rule = f"the weights sum to zero, so that no row can be drawn: got 0 of {rows:,} rows"
        raise NoStepError(str(spec.error(_PATH, f"{rule}. Name another column")))
    return RowWeights(
        column=order.column,
        quanta=quanta,
        exponents=exponents - _RAISED,
        precision=int(precisions[quanta > 0].min(initial=EXACT)),
        rows=rows,
        seed=spec.shuffle.seed,
    )
