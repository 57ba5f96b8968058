"""Decide how large blocks are, and from how many a lane draws at once.

Pure. A function of `source` and `shuffle`, the lanes and the table; never of world size, memory or measurements, which
would move rows to other steps.

- Shuffled rows: a lane draws in turn from small blocks that hold about `shuffle.window_rows` rows (`strands`). Many
  lanes share a fixed number of windows: with more than `FULL_LANES`, each has a smaller one. Wide rows make the default
  window smaller, and a window of wide rows has more blocks (docs/decisions/0017). A state names its
  run's window.
- `shuffle.rows: false`: a block is as many splits as reach `shuffle.window_rows`, and a lane takes one block after
  another.
- `shuffle: off`: the same with `source.split_rows`. Both have blocks limited by bytes.

The sources of a mix share one window: each has the part of it that it has of a step.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from feedline.config.sections import ShuffleSpec
from feedline.config.source_section import SourceSpec
from feedline.dataclass import dataclass

DEFAULT_WINDOW_ROWS = 524_288
# The same with `shuffle.rows: false`.
_DEFAULT_BLOCK_ROWS = 131_072
# Blocks that share a window, where row groups are small enough: the fewest of which each reads `_BLOCK_BYTES` at most.
WINDOW_BLOCKS = (16, 32, 64)
FULL_LANES = 4
# Rows of a block below which its task costs more than a tenth of its work.
_SMALLEST_BLOCK_ROWS = 8_192
# Compressed bytes of a block: about a tenth of a second of work, before which there is no batch.
_BLOCK_BYTES = 32 * 2**20
# Compressed bytes of a block of the table's order, if `split_rows` is not stated and a lane has as many blocks of them:
# of few columns, 65,536 rows take 4 ms, and what a block costs beside its rows 2.
_NARROW_BYTES = 6 * 2**20
_NARROW_BLOCKS = 16
# Blocks that a source's part of a window is cut into, at least, where they are no smaller than `_SMALLEST_BLOCK_ROWS`.
_FEWEST_BLOCKS = 4
_WHOLE = Fraction(1)
# Of lists of events in a block that ends within a row group.
_LIST_BYTES = 64 * 2**20
# Compressed bytes of the default window: its blocks are held, decoded and encoded, all the time.
_WINDOW_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """Compressed bytes of the columns that blocks read, where row groups keep rows. selected: per selected row, what a
    block reads for it. stored: per stored row, which its own bytes follow. rows: the selected ones."""

    selected: float = 0
    stored: float = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingWindow:
    """The rows that a lane mixes, and how many blocks make them where row groups are small enough. Both 0 with
    `shuffle: off`."""

    rows: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """split_rows: of a split, unless one row group has more. kept_rows: the same for rows that the filter keeps (None:
    no limit). block_rows: those at which a block ends. window_rows: of the blocks that a lane draws from in turn (0:
    one block after another)."""

    split_rows: int
    kept_rows: int | None
    block_rows: int
    window_rows: int


def least_block_rows(list_bytes: int) -> int:
    """The fewest rows of a block that ends within a row group, which each of its blocks decodes anew. list_bytes: of
    the lists of events that a row gets."""
    return max(1, min(_SMALLEST_BLOCK_ROWS, _LIST_BYTES // max(list_bytes, 1)))


def choose_window(shuffle: ShuffleSpec | None, row_bytes: RowBytes, lanes: int = 1) -> MixingWindow:
    """The window of a new run: `shuffle.window_rows`, `window_share` of each lane's rows, or as many rows by default as
    are within `_WINDOW_BYTES`."""
    if shuffle is None:
        return MixingWindow(rows=0, blocks=0)
    if not shuffle.rows:
        return MixingWindow(rows=shuffle.window_rows or _DEFAULT_BLOCK_ROWS, blocks=1)
    rows = shuffle.window_rows
    if shuffle.window_share is not None:
        # of 1,000 rows in 10 lanes a tenth: 10 in each, which `block_sizes` makes of 25
        rows = max(1, int(shuffle.window_share * row_bytes.rows / min(lanes, FULL_LANES)))
    if rows is None:
        rows = DEFAULT_WINDOW_ROWS
        while rows > 1 and rows * row_bytes.stored > _WINDOW_BYTES:
            rows //= 2
    fitting = (blocks for blocks in WINDOW_BLOCKS if rows * row_bytes.selected <= blocks * _BLOCK_BYTES)
    return MixingWindow(rows=rows, blocks=next(fitting, WINDOW_BLOCKS[-1]))


def shuffle_facts(shuffle: ShuffleSpec | None, window: MixingWindow) -> dict[str, Any] | str:
    """What the fingerprint of a plan says of its shuffle."""
    if shuffle is None:
        return "off"
    own = {"window_rows": window.rows, "window_blocks": window.blocks}
    return {"seed": shuffle.seed, **own, "rows": shuffle.rows, "by": shuffle.by}


def block_sizes(
    source: SourceSpec,
    shuffle: ShuffleSpec | None,
    lanes: int,
    window: MixingWindow,
    row_bytes: RowBytes,
    share: Fraction = _WHOLE,
) -> BlockSizes:
    """The sizes of a plan's splits, blocks and windows. share: the part of a lane's rows of a step that the source has,
    and so of its window."""
    split_rows, most_rows = source.split_rows, max(1, int(_BLOCK_BYTES / max(row_bytes.selected, 1)))
    if shuffle is None:
        if "split_rows" not in source.model_fields_set:
            narrow = int(_NARROW_BYTES / max(row_bytes.selected, 1))
            split_rows = max(split_rows, min(narrow, row_bytes.rows // (lanes * _NARROW_BLOCKS)))
        split_rows = min(split_rows, most_rows)
        return BlockSizes(split_rows=split_rows, kept_rows=None, block_rows=split_rows, window_rows=0)
    if not shuffle.rows:
        block = max(1, int(min(window.rows, most_rows) * share))
        return BlockSizes(split_rows=split_rows, kept_rows=None, block_rows=block, window_rows=0)
    own = max(1, int(window.rows * share) * FULL_LANES // max(lanes, FULL_LANES))
    whole = max(1, window.rows // window.blocks)
    block = max(min(whole, own if share == 1 else own // _FEWEST_BLOCKS), min(whole, _SMALLEST_BLOCK_ROWS))
    return BlockSizes(split_rows=split_rows, kept_rows=block, block_rows=block, window_rows=own)
