"""Sizes of blocks and windows follow from the spec and the lanes, and have golden values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from combinations import combinations
from drawn_examples import examples
from drawn_schedules import deliver
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import Place
from row_digests import digest_of

from feedline import Pipeline
from feedline.config import parse_spec
from feedline.errors import StateError
from feedline.loader.state import state_of
from feedline.planning import mixing
from feedline.planning.mixing import FULL_LANES, MixingWindow, RowBytes, block_sizes, choose_window
from feedline.planning.plan import Plan
from feedline.planning.schedule import Schedule
from feedline.warehouse.snapshot.splits import plan_splits

TEXT = """
version: 1
name: p
source: {{table: t}}
features: {{extra: {{id: []}}}}
batch: {{size: 8}}
shuffle: {shuffle}
"""
MIXED = {"window_rows": 40, "block_rows": 10}


def sizes(shuffle: str, lanes: int, nbytes: float = 0) -> Any:
    spec, row_bytes = parse_spec(TEXT.format(shuffle=shuffle), base_dir="/"), RowBytes(selected=nbytes, stored=nbytes)
    return block_sizes(spec.source, spec.shuffle, lanes, choose_window(spec.shuffle, row_bytes), row_bytes)


def schedule_of(split_rows: list[int], *, lanes: int = 1, batch_size: int = 8, **changes: Any) -> Schedule:
    values = {"lanes": lanes, "batch_size": batch_size, "tail": "partial", "seed": 3, "epoch": 0, **MIXED, **changes}
    return Schedule(split_rows=np.array(split_rows), shuffle=True, **values)


def test_lanes_share_a_fixed_number_of_windows():
    whole = sizes("{}", 1)
    assert (whole.window_rows, whole.block_rows, whole.kept_rows) == (524_288, 32_768, 32_768)
    assert sizes("{}", FULL_LANES) == whole
    for lanes in (8, 16, 64, 256):
        size = sizes("{}", lanes)
        assert size.window_rows * lanes == FULL_LANES * whole.window_rows
        assert 8_192 <= size.block_rows <= max(size.window_rows, 8_192)
    assert sizes("{window_rows: 1}", 1).block_rows == 1


def test_blocks_without_shuffled_rows():
    blocks = sizes("{rows: false}", 64)
    assert (blocks.split_rows, blocks.kept_rows, blocks.block_rows, blocks.window_rows) == (65_536, None, 131_072, 0)
    assert sizes('"off"', 64).block_rows == 65_536


def test_narrow_rows_make_larger_blocks_in_order():
    """Unless the size is stated, or a lane would have too few of them."""

    def rows(nbytes: float, rows: int, lanes: int = 1, **source: Any) -> int:
        spec = parse_spec(TEXT.format(shuffle='"off"'), base_dir="/")
        if source:
            spec = spec.model_copy(update={"only_source": spec.source.model_copy(update=source)})
        window, row_bytes = choose_window(spec.shuffle, RowBytes()), RowBytes(selected=nbytes, stored=nbytes, rows=rows)
        return block_sizes(spec.source, spec.shuffle, lanes, window, row_bytes).block_rows

    assert rows(20, 10**9) == 6 * 2**20 // 20
    assert rows(200, 10**9) == 65_536
    assert rows(20, 10**9, split_rows=65_536) == 65_536
    assert rows(20, 3_200_000) == 200_000
    assert rows(20, 3_200_000, lanes=2) == 100_000
    assert rows(20, 3_200_000, lanes=4) == 65_536


def test_narrow_rows_have_no_limit_of_bytes():
    for shuffle in ("{}", "{window_rows: 1}", "{window_rows: 2000000}"):
        for lanes in (1, 4, 8, 256):
            assert sizes(shuffle, lanes, nbytes=200) == sizes(shuffle, lanes)


def test_wide_rows_make_the_default_window_smaller_and_blocks_of_a_stated_one():
    assert (sizes("{}", 1, 1024).window_rows, sizes("{}", 1, 1025).window_rows) == (524_288, 262_144)
    wide = sizes("{}", 1, 5265.3)
    assert (wide.window_rows, wide.block_rows, wide.kept_rows) == (65_536, 4_096, 4_096)
    for nbytes, rows in ((1024, 32_768), (2048, 16_384), (4096, 8_192), (8192, 8_192)):
        stated = sizes("{window_rows: 524288}", 1, nbytes)
        assert (stated.window_rows, stated.block_rows) == (524_288, rows)
    assert sizes("{}", 1, 10**12).window_rows == 1


@settings(deadline=None)
@given(
    st.sampled_from(["{}", "{window_rows: 524288}", "{window_rows: 5000}"]),
    st.floats(0, 1e9),
    st.floats(1e-6, 1),
)
def test_the_window_is_the_largest_within_its_bytes(shuffle: str, stored: float, kept: float):
    """And has the fewest blocks within theirs; a filter makes reading a row dearer, not holding it."""
    spec = parse_spec(TEXT.format(shuffle=shuffle), base_dir="/")
    row_bytes = RowBytes(selected=stored / kept, stored=stored)
    window = choose_window(spec.shuffle, row_bytes)
    assert window.blocks in mixing.WINDOW_BLOCKS
    assert spec.shuffle is not None
    if spec.shuffle.window_rows is None:
        possible = [mixing.DEFAULT_WINDOW_ROWS >> halvings for halvings in range(20)]
        assert window.rows == max((rows for rows in possible if rows * stored <= mixing._WINDOW_BYTES), default=1)
    else:
        assert window.rows == spec.shuffle.window_rows
    fewer = [blocks for blocks in mixing.WINDOW_BLOCKS if blocks < window.blocks]
    assert all(window.rows / blocks * row_bytes.selected > mixing._BLOCK_BYTES for blocks in fewer)
    assert window.blocks == 64 or window.rows / window.blocks * row_bytes.selected <= mixing._BLOCK_BYTES


@examples(60)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=6), min_size=1, max_size=8),
    st.integers(1, 80),
    st.integers(1, 80),
    st.data(),
)
def test_splits_respect_both_limits(files: list[list[int]], split_rows: int, kept_rows: int, data: Any):
    rows = np.array([each for file in files for each in file])
    file = np.array([index for index, each in enumerate(files) for _ in each], np.int32)
    kept = np.array([data.draw(st.integers(0, int(each))) for each in rows])
    splits = plan_splits(rows, file, split_rows, kept=(kept, kept_rows))
    covered: list[int] = []
    for split in range(len(splits)):
        groups = np.arange(splits.first_row_group[split], splits.stop_row_group[split])
        covered += groups[rows[groups] > 0].tolist()
        if np.count_nonzero(rows[groups]) > 1:
            assert rows[groups].sum() <= split_rows
            assert kept[groups].sum() <= kept_rows
        following = int(splits.stop_row_group[split]) if split + 1 < len(splits) else -1
        if following >= 0 and splits.file[split + 1] == splits.file[split]:
            more = np.append(groups, np.arange(following, int(splits.first_row_group[split + 1]) + 1))
            assert rows[more].sum() > split_rows or kept[more].sum() > kept_rows, "a split takes as much as fits"
    assert covered == np.flatnonzero(rows).tolist()


@examples(60)
@given(st.lists(st.integers(1, 30), min_size=4, max_size=40), st.integers(1, 6), st.integers(0, 99))
def test_only_borders_of_lanes_cut_a_split(split_rows: list[int], lanes: int, seed: int):
    """So at most `lanes - 1` splits are decoded twice."""
    schedule = schedule_of(split_rows, lanes=lanes, batch_size=1, seed=seed)
    pieces = [
        piece.split
        for lane in range(lanes)
        for block in schedule.blocks(lane, everything=True)
        for piece in block.pieces
    ]
    assert len(pieces) <= len(split_rows) + lanes - 1
    assert set(pieces) == set(range(len(split_rows)))


def test_a_step_draws_evenly_from_the_open_blocks():
    schedule = schedule_of([10] * 200)
    assert schedule.open_blocks(range(1)) == 4
    for step in range(10, schedule.steps - 10):
        cuts = schedule.cuts(0, step)
        assert len({cut.block for cut in cuts}) >= 4
        assert sum(cut.rows for cut in cuts) == 8
        assert max(cut.block for cut in cuts) - min(cut.block for cut in cuts) <= 5


GOLDEN = {
    "equal splits": "cc5d3729aa33d5c1",
    "uneven splits": "49b65128c7080723",
    "a rest": "73c73859cd31044b",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_order_of_rows_is_frozen(name: str):
    """Golden values: another order would silently break every stored state."""
    schedule = {
        "equal splits": schedule_of([10] * 40, lanes=2),
        "uneven splits": schedule_of([1, 25, 3, 14, 60, 2, 2, 2, 9, 31, 7, 7, 18, 40, 5], lanes=3, epoch=2, tail="pad"),
        "a rest": schedule_of([12, 0, 30, 8, 9, 22, 17], lanes=2, salt=("r",), tail="drop"),
    }[name]
    rows = [[[int(value) for value in row] for row in step] for step in deliver(schedule, range(schedule.lanes))]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == GOLDEN[name]


def test_a_state_names_its_window(tmp_path: Any, clicks: Any):
    """Pipelines that state another one are refused, and states of other plans."""
    place = Place(tmp_path, clicks)
    pipeline = Pipeline.from_yaml(place.write(shuffle={"seed": 1, "window_rows": None}))
    state = state_of(pipeline.plan().facts(), 0, 3)
    assert (state["window_rows"], state["window_blocks"]) == (524_288, 16)
    with pytest.raises(StateError, match=r"the state belongs to another plan: got 0{32}, expected "):
        pipeline.plan_for({**state, "plan": "0" * 32})
    with pytest.raises(StateError, match="the state belongs to another plan: got "):
        pipeline.plan_for({**state, "window_rows": 77})
    stated = Pipeline.from_yaml(place.write(shuffle={"seed": 1, "window_rows": 4096}))
    with pytest.raises(StateError, match=r"another plan: its window_rows is 524288, pipeline\.yaml's is 4096"):
        stated.plan_for(state)
    in_order = Pipeline.from_yaml(place.write(shuffle="off"))
    own = state_of(in_order.plan().facts(), 0, 3)
    assert (own["window_rows"], own["window_blocks"]) == (0, 0)
    assert in_order.plan_for(own).fingerprint == own["plan"]


def test_without_shuffle_wide_rows_make_small_blocks():
    for nbytes, rows in ((0, 65_536), (512, 65_536), (2048, 16_384), (5265.7, 6_372), (10**9, 1)):
        found = sizes('"off"', 4, nbytes)
        assert (found.split_rows, found.block_rows) == (rows, rows)
    in_order = sizes("{rows: false}", 4, 5265.7)
    assert (in_order.split_rows, in_order.block_rows) == (65_536, 6_372), "splits are what is permuted"


@pytest.mark.parametrize(
    ("tail", "where", "shuffle"),
    combinations(["drop", "pad", "partial"], [None, "clicked == 1"], ["off", {"rows": False, "window_rows": 10**6}]),
)
def test_batches_in_order_do_not_depend_on_the_blocks(
    tmp_path: Any,
    clicks: Any,
    monkeypatch: pytest.MonkeyPatch,
    tail: str,
    where: str | None,
    shuffle: Any,
):
    """A state of blocks of many row groups continues with those of one."""
    place = Place(tmp_path, clicks)
    split_rows = 10**6 if shuffle == "off" else 1024
    text = place.write(
        features={"sparse": {"hist_0": []}, "extra": ["request_id"]},
        shuffle=shuffle,
        lanes=3,
        source={"where": where, "split_rows": split_rows},
        batch={"tail": tail},
    )
    pipeline = Pipeline.from_yaml(text)

    def delivered(block_bytes: int, step: int = 0) -> tuple[str, int, list[str]]:
        monkeypatch.setattr(mixing, "_BLOCK_BYTES", block_bytes)
        plan = pipeline.complete_plan(3)
        digests = [digest_of(batch) for batch in pipeline.batches(rank=1, world_size=3, step=step, plan=plan)]
        return plan.fingerprint, sum(1 for _ in plan.source.schedule(0).blocks(1)), digests

    large, small = delivered(2**30), delivered(1)
    assert (large[0], large[1]) == (small[0], 1)
    assert small[1] > 3
    assert small[2] == large[2]
    assert len(large[2]) > 2
    assert delivered(1, step=2)[2] == large[2][2:]


# --------------------------------------------------------------------------------------------------------------------
# Shuffled plans of wide rows: exact, elastic and resumable, whatever a release or a changed feature would choose.


GROUPS, GROUP_ROWS, COLUMNS = 40, 64, 12
ROWS = GROUPS * GROUP_ROWS
FEATURES = {
    "dense": {f"x_{{0..{COLUMNS - 2}}}": [{"fill_null": 0}]},
    "label": {"clicked": []},
    "extra": ["row"],
}
WIDER = {**FEATURES, "dense": {f"x_{{0..{COLUMNS - 1}}}": [{"fill_null": 0}]}}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of ten row groups of 64 rows, twelve random columns that compress little, nulls among them."""
    folder, source = tmp_path_factory.mktemp("wide"), np.random.default_rng(3)
    for file in range(4):
        rows = ROWS // 4
        columns = {
            f"x_{column}": pa.array(source.random(rows), mask=source.random(rows) < 0.1) for column in range(COLUMNS)
        }
        row = np.arange(file * rows, (file + 1) * rows)
        table = pa.table({**columns, "clicked": (row % 2).astype(np.int8), "row": row, "ds": np.full(rows, file)})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=GROUP_ROWS)
    return folder


@pytest.fixture
def place(tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Where a default window of this table is 512 rows, and 16 blocks of one stated as 1,024 would be too large."""
    monkeypatch.setattr(mixing, "_WINDOW_BYTES", 80_000)
    monkeypatch.setattr(mixing, "_BLOCK_BYTES", 4_000)
    return Place(tmp_path, wide)


def pipeline_of(place: Place, **changes: Any) -> Pipeline:
    settings = {"features": FEATURES, "lanes": 4, "batch": {"size": 50, "tail": "partial"}, "shuffle": {"seed": 3}}
    return Pipeline.from_yaml(place.write(**{**settings, **changes}))


STATED = {"seed": 3, "window_rows": 1024}
DEFAULT = {"seed": 3, "window_rows": None}


def rows_of(pipeline: Pipeline, plan: Plan, world_size: int, step: int = 0) -> list[list[int]]:
    """The valid rows of each global step, rank after rank."""
    ranks = [pipeline.batches(rank=rank, world_size=world_size, step=step, plan=plan) for rank in range(world_size)]
    return [
        [row for batch in batches for row in batch.extra["row"][batch.valid].tolist()]
        for batches in zip(*ranks, strict=True)
    ]


def test_bytes_choose_the_window(place: Place):
    plan = pipeline_of(place, shuffle=DEFAULT).plan()
    assert plan.window == MixingWindow(rows=512, blocks=16)
    assert pipeline_of(place, shuffle=STATED).plan().window == MixingWindow(rows=1024, blocks=32)
    rows = np.diff(plan.source.schedule(0).lane(0).borders)
    assert rows.max() == GROUP_ROWS, "a block is one row group, or what the lane's border leaves of it"


def test_bytes_of_row_groups_that_keep_no_rows_do_not_count(place: Place):
    whole, one_file = (pipeline_of(place, source={"where": where}).plan() for where in (None, "ds == 2"))
    assert int(one_file.source.selection.rows.sum()) == ROWS // 4
    assert one_file.source.row_bytes.selected == pytest.approx(whole.source.row_bytes.selected, rel=0.05)
    half = pipeline_of(place, source={"where": "clicked == 1"}).plan().source.row_bytes
    assert half.selected == pytest.approx(2 * half.stored)
    assert half.stored == pytest.approx(whole.source.row_bytes.stored, rel=0.05)


@pytest.mark.parametrize("shuffle", [DEFAULT, pytest.param(STATED, marks=pytest.mark.nightly)])
def test_a_state_keeps_its_window(place: Place, monkeypatch: pytest.MonkeyPatch, shuffle: Any):
    """Also with another feature, and in a release with other limits, where a new run has another window."""
    pipeline = pipeline_of(place, shuffle=shuffle)
    plan = pipeline.plan()
    state = state_of(plan.facts(), 0, 4)
    expected = [digest_of(batch) for batch in pipeline.batches(plan=plan, step=4)]
    steps = rows_of(pipeline, plan, 1, step=4)

    monkeypatch.setattr(mixing, "_WINDOW_BYTES", 39_000)
    monkeypatch.setattr(mixing, "_BLOCK_BYTES", 1_000)
    assert pipeline.plan().fingerprint != plan.fingerprint
    found = pipeline.plan_for(state)
    assert (found.window, found.fingerprint) == (plan.window, plan.fingerprint)
    assert [digest_of(batch) for batch in pipeline.batches(plan=found, step=4)] == expected
    assert found.with_window(plan.window) is found

    wider = pipeline_of(place, shuffle=shuffle, features=WIDER)
    with pytest.raises(StateError, match="the state belongs to another features"):
        wider.plan_for(state)
    found = wider.plan_for({**state, "features": wider.plan().features_fingerprint})
    assert found.fingerprint == plan.fingerprint
    assert rows_of(wider, found, 1, step=4) == steps


def test_a_rebase_keeps_the_window(place: Place, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = tmp_path / "table"
    table.mkdir()
    for file in wide.iterdir():
        (table / file.name).write_bytes(file.read_bytes())
    pipeline = pipeline_of(place, source={"table": str(table), "row_key": "row"}, shuffle=DEFAULT)
    plan = pipeline.plan()
    steps = rows_of(pipeline, plan, 1)
    state = state_of(plan.facts(), 0, 4)
    merged = pa.concat_tables([pq.read_table(table / f"{file}.parquet") for file in (1, 2)])
    pq.write_table(merged, table / "1.parquet", row_group_size=GROUP_ROWS)
    (table / "2.parquet").unlink()
    monkeypatch.setattr(mixing, "_WINDOW_BYTES", 39_000)
    rebased = pipeline.rebase(state)
    assert rebased.window == plan.window != pipeline.plan().window
    later = rebased.state_after(state)
    found = pipeline.plan_for(later)
    assert (found.fingerprint, found.window) == (rebased.fingerprint, plan.window)
    remaining = [row for step in rows_of(pipeline, found, 2, step=4) for row in step]
    assert sorted(remaining) == sorted(row for step in steps[4:] for row in step)
