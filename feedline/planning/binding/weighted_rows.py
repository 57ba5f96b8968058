"""Rows drawn with replacement (`shuffle.weights`): how often an epoch draws from each row group.

Runs in: the feeder, the CLI, `Pipeline`. An epoch draws as many rows as filter and sample keep. A row group gets its
expected number of draws, rounded down or up by one offset for the whole table (systematic sampling); within it, rows
are drawn independently (`permutation.draw_rows`). So a row of q quanta, of Q in the table, is drawn N*q/Q times of N on
average. `weigh_rows` reads the table once, as the counting pass does; all else is pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.permutation import random_words
from feedline.blocks.request import RowOrder
from feedline.expressions import BoundExpression
from feedline.spec import PipelineSpec
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.reading.quanta import MOST_QUANTA, can_weigh, quanta_of
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.selection.row_measures import measure_rows
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

Int64s = NDArray[np.int64]

_PATH = ("shuffle", "weights")


@dataclass(frozen=True, slots=True)
class _Quanta:
    """The sum of a column's quanta."""

    column: str
    name: str = "quanta 1"
    width: int = 1

    def of(self, values: pl.Series) -> Int64s:
        return np.array([quanta_of(values).sum()], np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowWeights:
    """The weights of a table's selected rows. quanta: int64 [row groups]. rows: that an epoch draws. seed: of the
    shuffle."""

    column: str
    quanta: Int64s
    rows: int
    seed: int
    _epochs: dict[tuple[int | str, ...], Int64s] = field(default_factory=dict, repr=False)

    def draws_in(self, epoch: int, *salt: str) -> Int64s:
        """int64 [row groups]: how many rows an epoch draws from each. salt: of permutations."""
        key: tuple[int | str, ...] = (self.seed, epoch, *salt)
        if key not in self._epochs:
            self._epochs[key] = draws_of_groups(self.quanta, self.rows, *key)
        return self._epochs[key]


def draws_of_groups(quanta: Int64s, draws: int, *key: int | str) -> Int64s:
    """int64 [row groups]: how many of the draws fall into each row group. quanta: int64 [row groups], their sums."""
    ends = np.cumsum(quanta.astype(object))  # of which products with `draws` exceed 64 bits
    total = int(ends[-1]) if len(ends) else 0
    if not total:
        return np.zeros(len(quanta), np.int64)
    offset = int(random_words(1, "offset", *key)[0]) % total
    until = (ends * draws + offset) // total
    return np.diff(until, prepend=offset // total).astype(np.int64)


def weight_order(spec: PipelineSpec, snapshot: Snapshot) -> RowOrder | None:
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
    return RowOrder(column=name, kind="draws")


def weigh_rows(
    spec: PipelineSpec,
    snapshot: Snapshot,
    selection: Selection,
    where: BoundExpression | None,
    *,
    sample: BoundSample | None,
    map: Map | None,
) -> RowWeights | None:
    """The weights of the selected rows; None without `shuffle.weights`. Raises SpecError where none can be drawn,
    DataError for a weight that is null, negative or not finite, with file, row group and row."""
    order = weight_order(spec, snapshot)
    if order is None or spec.shuffle is None:
        return None
    measure = _Quanta(order.column)
    measured = measure_rows(snapshot, selection, measure, where, sample=sample, work_dir=spec.work_dir, map=map)
    quanta = measured[:, 0]
    total = int(quanta.sum(dtype=object)) if len(quanta) else 0
    if not 0 < total <= MOST_QUANTA:
        rule = "sum to zero, so that no row can be drawn" if not total else f"sum to more than {MOST_QUANTA:,} quanta"
        remedy = "Name another column" if not total else "Divide them by a constant"
        raise spec.error(_PATH, f"the weights {rule}: got {total:,} of {int(selection.rows.sum()):,} rows. {remedy}")
    return RowWeights(column=order.column, quanta=quanta, rows=int(selection.rows.sum()), seed=spec.shuffle.seed)
