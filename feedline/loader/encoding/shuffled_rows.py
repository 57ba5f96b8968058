"""Encoded rows in another order, gathered when they are written into a slot: one copy instead of three.

Runs in: the processes that encode blocks, which choose the order, and those that write slots or pack blocks. The parts
of a block stay as they were encoded; besides them there is the order, and the offsets that ragged features have in it,
so that batches are measured and cut as from rows in order. Blocks whose lists are all coded are encoded in their order
instead (`encode`). Without the compiled kernel, rows are gathered at once (`take`), with the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.loader.encoding.encoded_rows import EncodedRows, group_inverse, take
from feedline.native import rows as native
from feedline.native.unique_rows import UniqueRows, chosen_unique


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledRows:
    """The rows of `parts`, laid end to end, in the order of `index`: row i is row `index[i]` of them.

    part: uint16 [N], the part that it is of. starts: the first row of each part. offsets, int64 [N + 1] from 0 for each
    sparse feature, extra and groups: as in `EncodedRows`, in the new order.
    """

    parts: tuple[EncodedRows, ...]
    index: NDArray[np.int64]
    part: NDArray[np.uint16]
    starts: NDArray[np.int64]
    offsets: tuple[NDArray[np.int64], ...]
    extra: tuple[pa.Array, ...]
    groups: tuple[UniqueRows[ShuffledRows], ...] = ()

    @property
    def rows(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        arrays: tuple[NDArray[Any], ...] = (self.index, self.part, *self.offsets)
        for group in self.groups:  # whose parts are those of `parts`
            arrays += (group.inverse, group.rows.index, group.rows.part, *group.rows.offsets)
        return sum(part.nbytes for part in self.parts) + sum(array.nbytes for array in arrays)

    def __sizeof__(self) -> int:
        return self.nbytes  # Dask calls this on every task's result

    def rows_at(self, start: int, stop: int) -> EncodedRows:
        """Rows [start, stop), gathered."""
        return take(self.parts, self.index[start:stop])


Rows = EncodedRows | ShuffledRows


def shuffle(parts: Sequence[EncodedRows], index: NDArray[np.int64]) -> Rows:
    """The rows of the parts in the order of `index`, a permutation of all of them."""
    if not native.COMPILED or len(parts) > np.iinfo(np.uint16).max:
        return take(parts, index)
    return _shuffle(parts, index)


def _shuffle(parts: Sequence[EncodedRows], index: NDArray[np.int64]) -> ShuffledRows:
    heights = [part.rows for part in parts]
    starts = np.cumsum([0, *heights[:-1]])
    columns = range(len(parts[0].offsets))
    extras, chosen = [part.extra for part in parts], pa.array(index)
    return ShuffledRows(
        parts=tuple(parts),
        index=index,
        part=native.parts_of(index, starts),
        starts=starts,
        offsets=tuple(_offsets([part.offsets[column] for part in parts], index) for column in columns),
        extra=tuple(pa.concat_arrays(arrays).take(chosen) for arrays in zip(*extras, strict=True)),
        groups=tuple(_shuffle_group(groups, index) for groups in zip(*(part.groups for part in parts), strict=True)),
    )


def _shuffle_group(groups: Sequence[UniqueRows[EncodedRows]], index: NDArray[np.int64]) -> UniqueRows[ShuffledRows]:
    chosen, inverse = chosen_unique(group_inverse(groups), index)
    return UniqueRows(_shuffle([group.rows for group in groups], chosen), inverse)


def _offsets(parts: Sequence[NDArray[np.int64]], index: NDArray[np.int64]) -> NDArray[np.int64]:
    lengths = np.concatenate([np.diff(offsets) for offsets in parts])
    offsets = np.zeros(len(index) + 1, dtype=np.int64)
    np.cumsum(lengths.take(index), out=offsets[1:])
    return offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Where rows are written: slices of a slot's arrays, each contiguous."""

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    categorical: Sequence[NDArray[np.int64]]
    values: Sequence[NDArray[Any]]
    weights: Sequence[NDArray[np.float32] | None]


def gather(rows: ShuffledRows, start: int, stop: int, targets: Targets) -> None:
    """Write rows [start, stop) into arrays of as many rows; offsets, lengths and extras are the caller's."""
    parts = rows.parts
    chosen = rows.index[start:stop], rows.part[start:stop], rows.starts
    columns: list[native.Column] = [
        (targets.dense, 4 * targets.dense.shape[1], tuple(part.dense for part in parts)),
        (targets.labels, 4 * targets.labels.shape[1], tuple(part.labels for part in parts)),
    ]
    for column, target in enumerate(targets.categorical):
        columns.append((target, 8, tuple(part.categorical[column] for part in parts)))
    native.gather(columns, *chosen)
    lists: list[native.RaggedColumn] = []
    for feature, values in enumerate(targets.values):
        offsets = tuple(part.offsets[feature] for part in parts)
        ends = rows.offsets[feature][start : stop + 1]
        lists.append((values, values.itemsize, ends, offsets, tuple(part.values[feature] for part in parts)))
        target_weights = targets.weights[feature]
        if target_weights is not None:
            weights = tuple(array for part in parts if (array := part.weights[feature]) is not None)
            lists.append((target_weights, 4, ends, offsets, weights))
    native.gather_lists(lists, *chosen)
