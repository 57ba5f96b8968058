"""A plan that needs more than half of a scheduler is told which setting helps, and with it needs at most half."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from minimal_pipeline import completed

from feedline.config import PipelineSpec, parse_spec
from feedline.planning.mixing import BlockSizes, RowBytes, block_sizes, choose_window
from feedline.service.scheduler_load import (
    MOST_SHARE,
    SCHEDULER_BLOCKS_PER_S,
    SchedulerLoad,
    describe_load,
    scheduler_load,
)


def spec_of(**keys: Any) -> PipelineSpec:
    lines = "".join(f"{key}: {value}\n" for key, value in keys.items())
    return parse_spec(completed(lines), base_dir="/")


def sizes(spec: PipelineSpec, lanes: int, row_bytes: RowBytes) -> BlockSizes:
    return block_sizes(spec.source, spec.shuffle, lanes, choose_window(spec.shuffle, row_bytes), row_bytes)


shuffles = st.sampled_from(['"off"', "{}", "{rows: false}", "{window_rows: 8192}", "{by: user}"])


@given(shuffles, st.sampled_from([1, 4, 8, 64, 256]), st.floats(1.0, 1e9), st.sampled_from([0.0, 100.0, 9_000.0]))
def test_the_named_setting_brings_a_plan_to_half_of_a_scheduler(
    shuffle: str, lanes: int, rows_per_s: float, nbytes: float
) -> None:
    spec, row_bytes = spec_of(shuffle=shuffle), RowBytes(selected=nbytes, stored=nbytes)

    def load_of(spec: PipelineSpec) -> SchedulerLoad:
        rows = sizes(spec, lanes, row_bytes).block_rows
        return scheduler_load(
            spec.source,
            spec.shuffle,
            lanes=lanes,
            row_bytes=row_bytes,
            block_rows=rows,
            rows_per_s=rows_per_s,
        )

    load = load_of(spec)
    assert load.blocks_per_s == pytest.approx(rows_per_s / sizes(spec, lanes, row_bytes).block_rows)
    assert load.share == pytest.approx(load.blocks_per_s / SCHEDULER_BLOCKS_PER_S)
    if load.share <= MOST_SHARE:
        assert load.setting is None
        return
    if load.setting is None:
        in_order = spec.shuffle is None or not spec.shuffle.rows
        assert (nbytes > 0, in_order) == (True, True), "only where bytes limit blocks, whatever the setting"
        return
    section, key = load.setting.split(".")

    def with_value(value: int) -> PipelineSpec:
        changed = getattr(spec, section).model_copy(update={key: value})
        return spec.model_copy(update={"only_source" if section == "source" else section: changed})

    assert load_of(with_value(load.value)).share <= MOST_SHARE
    assert load_of(with_value(load.value // 2)).share > MOST_SHARE, "no more than needed"


def test_the_line_says_what_to_set_only_above_half() -> None:
    spec = spec_of(lanes=256)
    rows = sizes(spec, 256, RowBytes()).block_rows
    assert rows == 8_192

    def line(per_rank: float) -> str:
        load = scheduler_load(
            spec.source,
            spec.shuffle,
            lanes=256,
            row_bytes=RowBytes(),
            block_rows=rows,
            rows_per_s=256 * per_rank,
        )
        return describe_load(load, ranks=256, window=524_288)

    assert line(0) == (
        "a block has 8,192 rows: half of what one scheduler handles (400 blocks/s) is 1,638,400 rows/s, 6,400 on each "
        "of 256 ranks"
    )
    assert line(6_400) == "1,638,400 rows/s are 200 blocks/s, 50% of what one scheduler handles (400)"
    assert line(50_000) == (
        "12,800,000 rows/s are 1,562 blocks/s, 391% of what one scheduler handles (400): set shuffle.window_rows to "
        "4,194,304 (now 524,288), for blocks of 65,536 rows, or give each job a scheduler of its own"
    )
