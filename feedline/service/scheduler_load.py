"""Compare the blocks per second that a plan needs with those that one Dask scheduler handles, and say what helps.

Pure; runs where a plan is shown. Every block is a task, and a scheduler has one thread: beyond half of what it can do,
blocks wait for it, and beyond all of it workers idle. Larger blocks are fewer tasks for the same rows.
"""

from __future__ import annotations

from dataclasses import replace

from feedline.config.sections import ShuffleSpec
from feedline.config.source_section import SourceSpec
from feedline.dataclass import dataclass
from feedline.planning.mixing import RowBytes, block_sizes, choose_window

# Blocks that a scheduler handles per second, measured with `benchmarks/scale.py --real`: 2.5 ms of CPU time each.
SCHEDULER_BLOCKS_PER_S = 400.0
MOST_SHARE = 0.5
_LARGEST_ROWS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLoad:
    """What a plan asks of a scheduler.

    block_rows: of a block, on average. rows_per_s: of all ranks together; 0: not given. blocks_per_s, share: at this
    rate, and of what a scheduler handles. rows_per_s_at_half: the rate that takes half of it. setting, value: what to
    set to come to half of it, by name; None where nothing is needed, or helps. new_block_rows: with that setting.
    """

    block_rows: float
    rows_per_s: float
    blocks_per_s: float
    share: float
    rows_per_s_at_half: float
    setting: str | None = None
    value: int = 0
    new_block_rows: int = 0


def scheduler_load(
    source: SourceSpec,
    shuffle: ShuffleSpec | None,
    *,
    lanes: int,
    row_bytes: RowBytes,
    block_rows: float,
    rows_per_s: float,
) -> SchedulerLoad:
    """The load of a plan whose blocks have `block_rows` rows on average, and the setting that brings it to half."""
    blocks_per_s = rows_per_s / block_rows
    load = SchedulerLoad(
        block_rows=block_rows,
        rows_per_s=rows_per_s,
        blocks_per_s=blocks_per_s,
        share=blocks_per_s / SCHEDULER_BLOCKS_PER_S,
        rows_per_s_at_half=MOST_SHARE * SCHEDULER_BLOCKS_PER_S * block_rows,
    )
    if load.share <= MOST_SHARE:
        return load
    least_rows = rows_per_s / (MOST_SHARE * SCHEDULER_BLOCKS_PER_S)
    value = 2
    while value < _LARGEST_ROWS:  # a power of two is easier to remember than the exact number
        if shuffle is None:
            source = source.model_copy(update={"split_rows": value})
        else:
            shuffle = shuffle.model_copy(update={"window_rows": value})
        window = choose_window(shuffle, row_bytes)
        planned = block_sizes(source, shuffle, lanes, window, row_bytes).block_rows
        if planned >= least_rows:
            setting = "source.split_rows" if shuffle is None else "shuffle.window_rows"
            return replace(load, setting=setting, value=value, new_block_rows=planned)
        value *= 2
    return load


def describe_load(load: SchedulerLoad, *, ranks: int, window: int | None) -> str:
    """A line about the load. window: rows of the present setting, if there is one."""
    if not load.rows_per_s:
        return (
            f"a block has {load.block_rows:,.0f} rows: half of what one scheduler handles "
            f"({SCHEDULER_BLOCKS_PER_S:,.0f} blocks/s) is {load.rows_per_s_at_half:,.0f} rows/s, "
            f"{load.rows_per_s_at_half / ranks:,.0f} on each of {ranks} ranks"
        )
    text = (
        f"{load.rows_per_s:,.0f} rows/s are {load.blocks_per_s:,.0f} blocks/s, {load.share:.0%} of what one scheduler "
        f"handles ({SCHEDULER_BLOCKS_PER_S:,.0f})"
    )
    if load.share <= MOST_SHARE:
        return text
    if load.setting is None:
        return f"{text}: give each job a scheduler of its own"
    before = "" if window is None else f" (now {window:,})"
    return (
        f"{text}: set {load.setting} to {load.value:,}{before}, for blocks of {load.new_block_rows:,} rows, or give "
        "each job a scheduler of its own"
    )
