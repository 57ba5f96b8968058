"""Order a block's rows so that its part of every step has nearly the same share of all their elements.

Runs in: the processes that compute blocks, and where plans and rebases find the rows of a step. Pure.

A block hands out a part of its rows to each of many steps. Rows are dealt to these parts in rounds, the longest first,
one row to each part in a round: the longest of the round to the part that is furthest below its share. What cannot be
levelled so is who gets the longest rows. They are dealt in the order of a Weyl sequence, in which neighbouring steps,
and the blocks from which a step draws at once, are far apart: each step has long and short ones. All lanes use the same
sequence, so their steps are alike in what is left. docs/decisions/0073-lanes-of-equal-length.md has measurements.

Rows of equal length, and the rows within a part, are in random order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.permutation import permutation
from feedline.blocks.request import StepShares

Int64s = NDArray[np.int64]

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
