"""Order the rows of a block, as its job says: permuted, or by what a column holds.

Runs in: the processes that compute blocks, and where plans and rebases find the rows of a step. Pure: the
same values and request give the same order on every machine. An index may name some of the rows that are read, or one
of them more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.ordering.balanced_rows import balanced_rows
from feedline.blocks.ordering.bucketed_rows import bucketed_rows
from feedline.blocks.permutation import draw_rows, permuted_rows, run_starts
from feedline.blocks.piece_chunks import column_values
from feedline.blocks.request import BlockDraws, BlockRequest, RowOrder
from feedline.errors import DataError
from feedline.warehouse.reading.fragment import Chunk, Fragment
from feedline.warehouse.reading.quanta import quanta_of
from feedline.warehouse.storage.faults import label


def ordered_rows(
    order: RowOrder | None, request: BlockRequest, values: Callable[[int], pl.Series]
) -> NDArray[np.int64] | None:
    """int64 [rows of the block]: which of the rows of its pieces, laid end to end, each row is; None in plan order.
    values: `order_values` of the rows of a piece (an index)."""
    if request.permutation is None:
        return None
    if order is None:
        return permuted_rows(request.rows, None, *request.permutation)
    if order.kind == "balance":
        assert request.shares is not None
        lengths = np.concatenate([_lengths(order, values(index)) for index in range(len(request.pieces))])
        return balanced_rows(lengths, request.shares, *request.permutation)
    if order.kind == "buckets":
        assert request.buckets is not None
        of_pieces = [_lengths(order, values(index)) for index in range(len(request.pieces))]
        return bucketed_rows(of_pieces, order.bounds, request.buckets, *request.permutation)
    if order.kind == "draws":
        assert request.draws is not None
        drawn = drawn_rows(request, request.draws, values)
        return drawn[permuted_rows(len(drawn), None, *request.permutation)]
    starts, rows = list[NDArray[np.int64]](), 0
    for index, piece in enumerate(request.pieces):  # a run ends with its piece
        starts.append(run_starts(values(index)) + rows)
        rows += piece.rows
    return permuted_rows(rows, np.concatenate(starts), *request.permutation)


def drawn_rows(request: BlockRequest, draws: BlockDraws, values: Callable[[int], pl.Series]) -> NDArray[np.int64]:
    """int64 [draws]: the rows that are drawn of those of the pieces, laid end to end, in their order. values: their
    weights."""
    found, first = list[NDArray[np.int64]](), 0
    for index, (piece, own) in enumerate(zip(request.pieces, draws.pieces, strict=True)):
        weights, rows, of_piece = values(index), 0, list[NDArray[np.int64]]()
        for position, count in enumerate(own.groups):
            stop = rows + piece.fragment.rows_of(position)
            of_group = weights.slice(rows, stop - rows)
            of_piece.append(rows + group_draws(of_group, count, draws.key, piece.fragment, position))
            rows = stop
        found.append(first + np.concatenate(of_piece)[own.skip : own.skip + own.rows])
        first += rows
    return np.concatenate(found)


def group_draws(
    weights: pl.Series, draws: int, key: Sequence[int | str], fragment: Fragment, position: int
) -> NDArray[np.int64]:
    """int64 [draws]: the rows that are drawn of a row group of a fragment. weights: of its kept rows. key: of the
    epoch. Raises DataError for weights that are none."""
    try:
        quanta = quanta_of(weights).of_rows
    except ValueError as error:
        place = label(fragment.path, fragment.row_groups[position])
        raise DataError(
            f"weights in column {weights.name!r} {error} ({place}). Leave such rows out with source.where"
        ) from error
    return draw_rows(quanta, draws, *key, fragment.path, fragment.row_groups[position])


def order_values(order: RowOrder, column: pl.Series) -> pl.Series:
    """What decides the order of rows, of their values in the order's column: the values, or the lengths of lists (of a
    null 0)."""
    return column.list.len().fill_null(0) if order.by_length else column


def chunk_order(order: RowOrder, chunk: Chunk) -> pl.Series:
    """`order_values` of a chunk's rows."""
    if order.by_length:
        return order_values(order, chunk.frame.get_column(order.column))  # lists of codes are as long
    return order_values(order, column_values(chunk, order.column))


def _lengths(order: RowOrder, values: pl.Series) -> NDArray[np.int64]:
    lengths = values.to_numpy().astype(np.int64)
    return lengths if order.most is None else np.minimum(lengths, order.most)
