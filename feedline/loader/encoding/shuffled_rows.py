"""Encoded rows in another order, gathered when they are written into a slot: one copy instead of three.

Runs in: the processes that encode blocks, which choose the order, and those that write slots or pack blocks. The parts
of a block stay as they were encoded; besides them there is the order, and the offsets that ragged features have in it,
so that batches are measured and cut as from rows in order. Blocks whose lists are all coded are encoded in their order
instead (`encode`). Without the compiled kernel, rows are gathered at once (`take`), with the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.loader.encoding.encoded_rows import EncodedRows, group_inverse, take, with_values
from feedline.native import rows as native
from feedline.native.unique_rows import UniqueRows, chosen_unique


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledRows:
    """The rows of `parts`, laid end to end, in the order of `index`: row i is row `index[i]` of them.

    part: uint16 [N], the part that it is of. starts: the first row of each part. arrays: those of the parts. offsets,
    int64 [N + 1] from 0 for each sparse feature, extra and groups: as in `EncodedRows`, in the new order.
    """

    parts: tuple[EncodedRows, ...]
    index: NDArray[np.int64]
    part: NDArray[np.uint16]
    starts: NDArray[np.int64]
    arrays: native.PartArrays
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
    return _shuffle([with_values(part) for part in parts], index)


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
        arrays=_arrays(parts),
        offsets=tuple(_offsets([part.offsets[column] for part in parts], index) for column in columns),
        extra=tuple(pa.concat_arrays(arrays).take(chosen) for arrays in zip(*extras, strict=True)),
        groups=tuple(_shuffle_group(groups, index) for groups in zip(*(part.groups for part in parts), strict=True)),
    )


def _shuffle_group(groups: Sequence[UniqueRows[EncodedRows]], index: NDArray[np.int64]) -> UniqueRows[ShuffledRows]:
    chosen, inverse = chosen_unique(group_inverse(groups), index)
    return UniqueRows(_shuffle([group.rows for group in groups], chosen), inverse)


def _offsets(parts: Sequence[NDArray[np.int64]], index: NDArray[np.int64]) -> NDArray[np.int64]:
    # Lists of 2 and 0 values in one part and 3 in the other, in the order 2, 0, 1 -> [0, 3, 5, 5]
    lengths = np.concatenate([np.diff(offsets) for offsets in parts])
    offsets = np.zeros(len(index) + 1, dtype=np.int64)
    np.cumsum(lengths.take(index), out=offsets[1:])
    return offsets


def _arrays(parts: Sequence[EncodedRows]) -> native.PartArrays:
    """The arrays of the parts, as slots are written of them."""
    categorical, values = range(len(parts[0].categorical)), range(len(parts[0].values))
    return (
        tuple(part.dense for part in parts),
        tuple(part.labels for part in parts),
        tuple(tuple(part.categorical[index] for part in parts) for index in categorical),
        tuple(tuple(np.asarray(part.values[index]) for part in parts) for index in values),
        tuple(_weights(parts, index) for index in values),
        tuple(tuple(part.offsets[index] for part in parts) for index in values),
    )


def _weights(parts: Sequence[EncodedRows], index: int) -> tuple[NDArray[np.float32], ...] | None:
    weights = tuple(array for part in parts if (array := part.weights[index]) is not None)
    return weights or None
