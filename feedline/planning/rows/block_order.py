"""The order of a block's rows: the permutation that its task applies to the rows of its pieces, laid end to end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.permutation import permuted_rows, run_starts
from feedline.blocks.request import BlockRequest


def block_order(
    request: BlockRequest, by: str | None, shuffle_values: Callable[[int], pl.Series]
) -> NDArray[np.int64] | None:
    """The permutation of a block's rows; None in plan order. by: `shuffle.by`. shuffle_values: its values in the rows
    of a piece (an index); a run ends with its piece."""
    if request.permutation is None:
        return None
    if by is None:
        return permuted_rows(request.rows, None, *request.permutation)
    starts, rows = list[NDArray[np.int64]](), 0
    for index, piece in enumerate(request.pieces):
        starts.append(run_starts(shuffle_values(index)) + rows)
        rows += piece.rows
    return permuted_rows(request.rows, np.concatenate(starts), *request.permutation)
