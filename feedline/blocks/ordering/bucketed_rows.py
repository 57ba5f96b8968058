"""Order a block's rows bucket after bucket, and within each as blocks without buckets are: permuted, or balanced.

Runs in: the processes that compute blocks, and where plans find the rows of a step. Pure. A block at the
border of a lane reads row groups of which other rows are the neighbour's: of each bucket those of some ordinals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.ordering.balanced_rows import balanced_rows
from feedline.blocks.permutation import permutation
from feedline.blocks.request import BucketRows
from feedline.errors import DataError
from feedline.warehouse.selection.length_counts import bucket_of

Int64s = NDArray[np.int64]


def bucketed_rows(lengths: Sequence[Int64s], bounds: Sequence[int], buckets: BucketRows, *key: int | str) -> Int64s:
    """int64 [rows of the block]: which of the rows of its pieces, laid end to end, each row is. lengths: of the rows of
    each piece. Raises DataError where a bucket has another number of rows than was counted."""
    of_pieces = [bucket_of(each, bounds) for each in lengths]
    for piece, ranges in buckets.parts:
        of_pieces[piece] = _within(of_pieces[piece], ranges)
    bucket, every = np.concatenate(of_pieces), np.concatenate(lengths)
    orders = [np.empty(0, np.int64)]
    for number, rows in enumerate(buckets.rows):
        own = np.flatnonzero(bucket == number)
        if len(own) != rows:
            raise DataError(
                f"a block has another number of rows of up to {bounds[number]:,} elements than was counted: got "
                f"{len(own):,}, expected {rows:,}. Delete the counts in work_dir and run again"
            )
        if not rows:
            continue
        if buckets.shares:
            orders.append(own[balanced_rows(every[own], buckets.shares[number], *key, number)])
        else:
            orders.append(own[permutation(rows, *key, number)])
    return np.concatenate(orders)


def _within(bucket: Int64s, ranges: Sequence[tuple[int, int]]) -> Int64s:
    """int64 [rows]: the bucket of each row, -1 for rows beyond the range of ordinals of their bucket."""
    found = np.full(len(bucket), -1)
    for number, (start, stop) in enumerate(ranges):
        found[np.flatnonzero(bucket == number)[start:stop]] = number
    return found
