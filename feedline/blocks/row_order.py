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

from feedline.blocks.permutation import draw_rows, permutation, permuted_runs, run_starts
from feedline.blocks.piece_chunks import column_values
from feedline.blocks.request import (
    Balance,
    BlockDraws,
    BlockRequest,
    BucketRows,
    Buckets,
    Draws,
    RowOrder,
    Runs,
    StepShares,
)
from feedline.errors import DataError
from feedline.warehouse.reading.fragment import Chunk, Fragment
from feedline.warehouse.reading.row_weights import quanta_of
from feedline.warehouse.selection.row_measures import bucket_of
from feedline.warehouse.storage.faults import label

# --------------------------------------------------------------------------------------------------------------------
# Order a block's rows so that its part of every step has nearly the same share of all their elements. A block hands
# out a part of its rows to each of many steps. Rows are dealt to these parts in rounds, the longest first, one row to
# each part in a round: the longest of the round to the part that is furthest below its share. What cannot be levelled
# so is who gets the longest rows. They are dealt in the order of a Weyl sequence, in which neighbouring steps, and
# the blocks from which a step draws at once, are far apart: each step has long and short ones. All lanes use the same
# sequence, so their steps are alike in what is left. docs/decisions/0073-lanes-of-equal-length.md has measurements.
# Rows of equal length, and the rows within a part, are in random order.

# Rows of a part of a step: more, in one round each, would take longer and level no better.
_MOST_ROWS = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: the Weyl sequence of the lowest discrepancy


def balanced_rows(lengths: Int64s, shares: StepShares, *key: int | str) -> Int64s:
    """int64 [rows]: the order of a block's rows. lengths: int64 [rows], of each row. shares: the rows of each step."""
    rows = len(lengths)
    step, size, place = _parts(shares)
    assert int(size.sum()) == rows, f"steps take {int(size.sum())} of {rows} rows"
    shuffled = permutation(rows, *key)
    longest_first = shuffled[np.argsort(-lengths[shuffled], kind="stable")]
    dealt = _deal(lengths[longest_first], size[place])
    step_of_row, chance = np.empty(rows, np.int64), np.empty(rows, np.int64)
    step_of_row[longest_first] = step[place][dealt]
    chance[shuffled] = np.arange(rows)
    return np.lexsort((chance, step_of_row))


def _parts(shares: StepShares) -> tuple[Int64s, Int64s, Int64s]:
    """The parts to which rows are dealt, all of about as many rows: each one's step and rows, and the order in which
    they get the longest rows."""
    # steps get [4, 0, 900] rows -> parts of 4, 225, 225, 225 and 225 rows, of steps 0, 2, 2, 2 and 2
    rows = shares.rows_of_steps
    steps = np.flatnonzero(rows)
    rows = rows[steps]
    usual = min(_MOST_ROWS, int(np.sort(rows)[len(rows) // 2]))
    parts = np.maximum(1, (2 * rows + usual) // (2 * usual))
    step, of = np.repeat(steps, parts), np.repeat(np.arange(len(rows)), parts)
    part = np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
    size = rows[of] * (part + 1) // parts[of] - rows[of] * part // parts[of]
    phase = np.uint64(shares.phase) + (step + shares.first_step).astype(np.uint64) * _GOLDEN
    phase += part.astype(np.uint64) * (np.uint64(2**64 - 1) // parts[of].astype(np.uint64))
    return step, size, np.argsort(phase, kind="stable")


def _deal(lengths: Int64s, size: Int64s) -> Int64s:
    """int64 [rows]: the part that each row joins. lengths: descending. size: int64 [parts], the rows of each."""
    # lengths [9, 5, 4, 1] for two parts of 2 rows: 9 and 5 in a round, then 4 to the part with less -> [0, 1, 1, 0]
    rows, rounds = len(lengths), int(size.max())
    dealt, elements, total, first = np.empty(rows, np.int64), np.zeros(len(size), np.int64), 0, 0
    before = np.full(len(size), rounds // 2)  # smaller parts join as many rounds as they have rows, evenly spread
    for _ in range(rounds):
        after = before + size
        joins = np.flatnonzero(after // rounds > before // rounds)
        before = after
        lack = elements[joins] * rows - size[joins] * total
        joins = joins[np.argsort(lack, kind="stable")]
        dealt[first : first + len(joins)] = joins
        given = lengths[first : first + len(joins)]
        elements[joins] += given
        total += int(given.sum())
        first += len(joins)
    return dealt


# --------------------------------------------------------------------------------------------------------------------
# Order a block's rows bucket after bucket, and within each as blocks without buckets are: permuted, or balanced. A
# block at the border of a lane reads row groups of which other rows are the neighbour's: of each bucket those of some
# ordinals.

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
    # buckets [0, 1, 0, 0, 1], ranges [1, 3) of bucket 0 and [0, 1) of bucket 1 -> [-1, 1, 0, 0, -1]
    found = np.full(len(bucket), -1)
    for number, (start, stop) in enumerate(ranges):
        found[np.flatnonzero(bucket == number)[start:stop]] = number
    return found


# --------------------------------------------------------------------------------------------------------------------


def ordered_rows(
    order: RowOrder | None, request: BlockRequest, values: Callable[[int], pl.Series]
) -> NDArray[np.int64] | None:
    """int64 [rows of the block]: which of the rows of its pieces, laid end to end, each row is; None in plan order.
    values: `order_values` of the rows of a piece (an index)."""
    key = request.permutation
    if key is None:
        return None
    if order is None:
        return permutation(request.rows, *key)
    of_pieces = [values(index) for index in range(len(request.pieces))]
    match order:
        case Balance():
            assert request.shares is not None
            lengths = np.concatenate([_lengths(each) for each in of_pieces])
            return balanced_rows(lengths if order.cap is None else np.minimum(lengths, order.cap), request.shares, *key)
        case Buckets():
            assert request.buckets is not None
            return bucketed_rows([_lengths(each) for each in of_pieces], order.bounds, request.buckets, *key)
        case Draws():
            assert request.draws is not None
            drawn = drawn_rows(request, request.draws, of_pieces)
            return drawn[permutation(len(drawn), *key)]
        case Runs():  # a run ends with its piece
            rows = np.cumsum([0, *(piece.rows for piece in request.pieces)])
            starts = [run_starts(each) + first for each, first in zip(of_pieces, rows[:-1], strict=True)]
            return permuted_runs(int(rows[-1]), np.concatenate(starts), *key)


def drawn_rows(request: BlockRequest, draws: BlockDraws, weights: Sequence[pl.Series]) -> NDArray[np.int64]:
    """int64 [draws]: the rows that are drawn of those of the pieces, laid end to end, in their order. weights: of the
    rows of each piece."""
    drawn, first = list[NDArray[np.int64]](), 0
    for piece, of_piece, of_rows in zip(request.pieces, draws.pieces, weights, strict=True):
        stop, of_groups = 0, list[NDArray[np.int64]]()
        for position, count in enumerate(of_piece.groups):
            start, stop = stop, stop + piece.fragment.rows_of(position)
            of_group = group_draws(of_rows[start:stop], count, draws.key, piece.fragment, position)
            of_groups.append(first + start + of_group)
        drawn.append(np.concatenate(of_groups)[of_piece.skip : of_piece.skip + of_piece.rows])
        first += stop
    return np.concatenate(drawn)


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
    return column.list.len().fill_null(0) if isinstance(order, Balance | Buckets) else column


def chunk_order(order: RowOrder, chunk: Chunk) -> pl.Series:
    """`order_values` of a chunk's rows."""
    if isinstance(order, Balance | Buckets):
        return order_values(order, chunk.frame.get_column(order.column))  # lists of codes are as long
    return column_values(chunk, order.column)


def _lengths(values: pl.Series) -> NDArray[np.int64]:
    return values.to_numpy().astype(np.int64)
