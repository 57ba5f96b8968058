"""Decide how large blocks are, and from how many a lane draws at once.

Pure. A function of the spec, the lanes, the plan's version and the table; never of world size, memory or measurements,
which would move rows to other steps.

Version 1: a block is as many splits as reach `shuffle.window_rows`, and a lane takes one block after another.
Version 2: splits and blocks are small, and a lane draws in turn from the blocks that hold about `shuffle.window_rows`
rows (`strands`). Many lanes share a fixed number of windows: with more than `FULL_LANES`, each has a smaller one.
`shuffle: off` and `shuffle.rows: false` are planned as in version 1: rows keep their order within splits. With
`shuffle: off` they keep the table's, however it is cut, so blocks are also limited by bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline.errors import PlanError
from feedline.spec import PipelineSpec

# Part of every plan's fingerprint: raised by any change that moves a row to another step or position. A state is
# continued by the version that made it.
PLAN_VERSION = 2
DEFAULT_WINDOW_ROWS = {1: 131_072, 2: 524_288}
# Blocks that share a window, where row groups are small enough. With 32 and the default window blocks would be smaller
# than the chunks in which rows are transformed, and each costs a task.
WINDOW_BLOCKS = 16
FULL_LANES = 4
# Rows of a block below which its task costs more than a tenth of its work.
_SMALLEST_BLOCK_ROWS = 8_192
# Compressed bytes of a block in the table's order: about a tenth of a second of work, before which there is no batch.
_BLOCK_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """split_rows: of a split, unless one row group has more. kept_rows: the same for rows that the filter keeps (None:
    no limit). block_rows: those at which a block ends. window_rows: of the blocks that a lane draws from in turn (0:
    one block after another)."""

    split_rows: int
    kept_rows: int | None
    block_rows: int
    window_rows: int


def newest_version(spec: PipelineSpec) -> int:
    """The version of the plan of a new run."""
    return PLAN_VERSION if spec.shuffle is not None and spec.shuffle.rows else 1


def window_rows(spec: PipelineSpec, version: int) -> int:
    """`shuffle.window_rows`, or the version's default."""
    assert spec.shuffle is not None
    return spec.shuffle.window_rows or DEFAULT_WINDOW_ROWS[version]


def shuffle_facts(spec: PipelineSpec, version: int) -> dict[str, Any] | str:
    """What the fingerprint of a plan says of its shuffle."""
    shuffle = spec.shuffle
    if shuffle is None:
        return "off"
    return {"seed": shuffle.seed, "window_rows": window_rows(spec, version), "rows": shuffle.rows, "by": shuffle.by}


def block_sizes(spec: PipelineSpec, lanes: int, version: int, *, row_bytes: float = 0) -> BlockSizes:
    """The sizes of a plan's splits, blocks and windows. row_bytes: compressed bytes that are read for a row.

    Raises PlanError for an unknown version.
    """
    split_rows = spec.source.split_rows
    if spec.shuffle is None:
        split_rows = max(1, min(split_rows, int(_BLOCK_BYTES / max(row_bytes, 1))))
        return BlockSizes(split_rows=split_rows, kept_rows=None, block_rows=split_rows, window_rows=0)
    if version not in DEFAULT_WINDOW_ROWS:
        raise PlanError(f"the plan's version is not supported: got {version}, expected 1 to {PLAN_VERSION}")
    window = window_rows(spec, version)
    if version == 1:
        return BlockSizes(split_rows=split_rows, kept_rows=None, block_rows=window, window_rows=0)
    own = max(1, window * FULL_LANES // max(lanes, FULL_LANES))
    whole = max(1, window // WINDOW_BLOCKS)
    block = max(min(whole, own), min(whole, _SMALLEST_BLOCK_ROWS))
    return BlockSizes(split_rows=split_rows, kept_rows=block, block_rows=block, window_rows=own)
