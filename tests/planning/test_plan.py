"""Plans are exact before anything is read: rows, steps, tails, lanes, fingerprints, bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from combinations import combinations
from pipelines import Place, furnished, oracle
from processes import ended_here

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.commands.plan.report import describe
from feedline.errors import PlanError, SpecError
from feedline.planning.plan import Plan

ROWS = 20_000
IDS = {"extra": ["request_id"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


@pytest.fixture(scope="module")
def ids(clicks: Path) -> np.ndarray:
    """Every row's request_id, in the table's own order."""
    return ds.dataset(clicks, partitioning="hive").to_table(columns=["request_id"])["request_id"].to_numpy()


def plan_of(path: Path, world_size: int = 1, **overrides: Any) -> Plan:
    return Pipeline.from_yaml(path, overrides).plan(world_size=world_size)


def step_ids(path: Path, *, world_size: int, epoch: int = 0, **overrides: Any) -> list[list[tuple[int, bool]]]:
    """Per global step: (request_id, valid) of all ranks, rank after rank."""
    pipeline = Pipeline.from_yaml(path, overrides)
    plan = pipeline.complete_plan(world_size)
    ranks = [list(pipeline.batches(epoch, rank, world_size, plan=plan)) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1, "every rank has the same number of steps"
    return [
        [
            pair
            for batch in batches
            for pair in zip(batch.extra["request_id"].tolist(), batch.valid.tolist(), strict=True)
        ]
        for batches in zip(*ranks, strict=True)
    ]


@pytest.mark.parametrize(
    ("tail", "world_size", "shuffle"),
    combinations(["drop", "pad", "partial"], [1, 3], [{"window_rows": 1000}, {"window_rows": 1, "rows": False}, "off"]),
)
def test_each_row_once_and_equal_steps(place: Place, ids: np.ndarray, tail: str, world_size: int, shuffle: Any):
    path = place.write(batch={"size": 700, "tail": tail}, shuffle=shuffle, features=IDS)
    plan = plan_of(path, world_size)
    steps = step_ids(path, world_size=world_size)
    delivered = [each for step in steps for each, valid in step if valid]
    padding = sum(not valid for step in steps for _, valid in step)
    facts = plan.facts()
    assert facts.steps == len(steps)
    assert facts.rows == ROWS
    assert len(delivered) == ROWS - facts.rows_dropped
    assert len(set(delivered)) == len(delivered)
    assert set(delivered) <= set(ids.tolist())
    if tail == "drop":
        assert {len(step) for step in steps} == {700 * world_size}
        assert 0 < facts.rows_dropped < 700 * world_size
        assert padding == 0
    elif tail == "pad":
        assert {len(step) for step in steps} == {700 * world_size}
        assert padding == len(steps) * 700 * world_size - ROWS
    else:
        assert {len(step) for step in steps[:-1]} == {700 * world_size}
        assert padding == 0
    if shuffle == "off" and world_size == 1:
        assert delivered == ids[: len(delivered)].tolist()


def test_padding_repeats_the_lanes_last_row(place: Place):
    path = place.write(batch={"size": 700, "tail": "pad"})
    for rank in range(2):
        last = list(Pipeline.from_yaml(path).batches(0, rank, 2))[-1]
        valid = last.valid.tolist()
        rows = valid.count(True)
        assert valid == [True] * rows + [False] * (700 - rows)
        for values in (
            last.extra["request_id"],
            last.dense,
            last.labels,
            last.categorical,
            last.sparse["hist_0"].lengths,
        ):
            assert (values[rows:] == values[rows - 1]).all()


@pytest.mark.parametrize(("rows", "lanes"), [(1, 4), (3, 4), (5, 4), (9, 4), (8, 4)])
@pytest.mark.parametrize("tail", ["pad", "partial"])
def test_tables_of_a_few_rows(place: Place, tmp_path: Path, rows: int, lanes: int, tail: str):
    """Lanes without a row of their own get one that only fills up."""
    pq.write_table(pa.table({"request_id": np.arange(rows)}), tmp_path / "t.parquet", row_group_size=2)
    path = place.write(
        source={"table": str(tmp_path / "t.parquet")},
        features={"extra": ["request_id"]},
        batch={"size": 2, "tail": tail},
        lanes=lanes,
    )
    steps = step_ids(path, world_size=1)
    assert sorted(each for step in steps for each, valid in step if valid) == list(range(rows))
    assert all(len(step) >= lanes for step in steps), "each lane gives at least one row to each step"
    for world_size in (2, 4):
        assert step_ids(path, world_size=world_size) == steps


def test_any_world_size_that_divides_the_lanes_sees_the_same_global_steps(place: Place):
    path = place.write(lanes=6, batch={"size": 100, "tail": "partial"}, features=IDS)
    whole = step_ids(path, world_size=1)
    for world_size in (2, 3, 6):
        assert step_ids(path, world_size=world_size) == whole


@pytest.mark.parametrize(("lanes", "world_size"), [(4, 3), (4, 8), (1, 2)])
def test_other_world_sizes_are_refused(place: Place, lanes: int, world_size: int):
    path = place.write(lanes=lanes)
    with pytest.raises(PlanError, match=f"got {world_size} ranks for {lanes} lanes, expected one of 1"):
        plan_of(path, world_size)
    done = ended_here("plan", path, "--world-size", world_size)
    assert done.returncode == 2
    assert "world size does not divide the lanes" in done.stderr


def test_fewer_rows_than_a_step(place: Place):
    path = place.write(batch={"size": 30_000})
    with pytest.raises(PlanError, match=r"fewer rows than one global step: got 20,000 rows, expected at least 30,000"):
        plan_of(path).facts()
    done = ended_here("plan", path)
    assert (done.returncode, "fewer rows than one global step" in done.stderr) == (2, True), done.stderr
    assert plan_of(path, **{"batch.tail": "pad"}).facts().steps == 1
    assert plan_of(path, **{"batch.tail": "partial"}).facts().steps == 1


def test_the_fingerprints(place: Place):
    """`plan` changes with which rows come when, `features` with what a row becomes, neither with how a job is run."""
    path = place.write(lanes=2)
    base = plan_of(path).facts()
    for key, value in (
        ("source.where", "dwell > 1"),
        ("source.split_rows", 2048),
        ("shuffle.seed", 4),
        ("shuffle.window_rows", 4096),
        ("shuffle.rows", False),
        ("shuffle.by", "session_id"),
        ("shuffle", "off"),
        ("batch.size", 128),
        ("batch.tail", "pad"),
        ("lanes", 4),
    ):
        other = plan_of(path, **{key: value}).facts()
        assert (other.plan != base.plan, other.features) == (True, base.features), key
    for key, value in (
        ("features.dense.dense_0", []),
        ("features.categorical.id_0", [{"modulo": 999}]),
        ("features.extra.ts", {"column": "ds"}),
    ):
        other = plan_of(path, **{key: value}).facts()
        assert (other.plan, other.features != base.features) == (base.plan, True), key
    for key, value in (("name", "x"), ("epochs", 3), ("memory", "1GiB"), ("cache", "x"), ("cluster", {"workers": 3})):
        other = plan_of(path, **{key: value}).facts()
        assert (other.plan, other.features) == (base.plan, base.features), key
    assert plan_of(path, world_size=2).facts() == base


def test_runs_of_a_column_stay_together(place: Place, clicks: Path):
    path = place.write(shuffle={"by": "session_id", "window_rows": 2000}, batch={"tail": "partial"}, features=IDS)
    table = ds.dataset(clicks, partitioning="hive").to_table(columns=["request_id", "session_id"])
    session = dict(zip(table["request_id"].to_pylist(), table["session_id"].to_pylist(), strict=True))
    order = [each for step in step_ids(path, world_size=1) for each, _ in step]
    assert sorted(order) == sorted(session)
    runs = 1 + int(np.count_nonzero(np.diff([session[each] for each in order])))
    stored = 1 + int(np.count_nonzero(np.diff(table["session_id"].to_numpy())))
    schedule = plan_of(path).source.schedule(0)
    cuts = sum(len(schedule.cuts(0, step)) for step in range(schedule.steps))
    pieces = sum(len(block.pieces) for block in schedule.blocks(0))
    assert runs <= stored + pieces + cuts, "only borders of splits, blocks and batches cut a run"
    assert order != table["request_id"].to_pylist()


def test_every_block_holds_what_its_request_says(place: Place, ids: np.ndarray):
    """Splits larger than blocks, lanes that cut row groups, a filter: each block against the rows it shall hold."""
    where = "dwell > 2 and id_0 > 3"
    path = place.write(source={"where": where, "split_rows": 3000}, lanes=3, shuffle={"rows": False, "window_rows": 10})
    plan = plan_of(path)
    seen: list[int] = []
    nbytes = 0
    for lane in range(3):
        start, stop = plan.source.schedule(1).lane_bounds(lane)
        for block in plan.source.schedule(1).blocks(lane, everything=True):
            result = run_block(plan.source.job, plan.request(block, 1), "k", False)
            assert result.rows == block.rows
            nbytes += result.nbytes_read
            seen += [each for part in result.parts for each in part.extra[0].to_pylist()]
        assert len(seen) == stop
        assert start <= stop
    expected = ds.dataset(Path(plan.spec.source.table), partitioning="hive").to_table(
        columns=["request_id"], filter=(ds.field("dwell") > 2) & (ds.field("id_0") > 3)
    )
    assert sorted(seen) == sorted(expected["request_id"].to_pylist())
    assert describe(plan.source, world_size=1)["rows"] == len(seen)
    assert nbytes >= int(plan.source.row_group_bytes.sum())


def test_row_identities_are_recorded_only_with_a_row_key(place: Place):
    path = place.write(shuffle={"by": "session_id"})
    folder = str(place.work / "rows")
    none = {"recorded": False, "folder": folder, "columns": [], "bytes": 0, "why_not": "no source.row_key"}
    assert describe(plan_of(path).source, world_size=1)["identities"] == none
    facts = describe(plan_of(path, **{"source.row_key": "request_id"}).source, world_size=1)["identities"]
    recorded = {"recorded": True, "columns": ["request_id"], "bytes": 16 * ROWS}  # with a hash of the session
    assert facts == {**none, **recorded, "why_not": None}


def test_the_report_of_the_dry_run(place: Place, clicks: Path):
    where = 'ds == "2026-01-01" and dwell > 1 and request_id >= 0'
    path = place.write(source={"where": where, "row_key": "request_id"})
    done = ended_here("plan", path, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    files = [pq.ParquetFile(file) for file in sorted(clicks.rglob("*.parquet"))]
    groups = sum(file.metadata.num_row_groups for file in files)
    first = [pq.ParquetFile(file) for file in sorted((clicks / "ds=2026-01-01").iterdir())]
    kept = sum(file.metadata.num_row_groups for file in first)
    assert facts["row_groups"] == {"row_groups": groups, "rows": ROWS}
    assert facts["pruned_by_partition"]["row_groups"] == groups - kept
    assert facts["counted"]["row_groups"] == kept
    table = pa.concat_tables([file.read(["dwell"]) for file in first])
    assert facts["rows"] == sum(value is not None and value > 1 for value in table["dwell"].to_pylist())
    assert facts["identities"]["recorded"]
    assert facts["identities"]["bytes"] == 8 * facts["rows"]
    read = set(facts["columns"]["names"])
    assert read == {
        "dense_0", "dense_1", "id_0", "str_0", "hist_0", "hist_1", "clicked", "request_id", "ts", "ds", "dwell",
    }  # fmt: skip
    nbytes = 0
    for file in first:
        for group in range(file.metadata.num_row_groups):
            row_group = file.metadata.row_group(group)
            for column in range(row_group.num_columns):
                chunk = row_group.column(column)
                if chunk.path_in_schema.split(".")[0] in read:
                    nbytes += chunk.total_compressed_size
    assert facts["bytes"]["read_per_epoch"] == nbytes
    assert facts["steps"] == len(oracle(path))


def test_a_missing_column_is_an_error(place: Place):
    for change, text in (
        ({"shuffle": {"by": "sesion_id"}}, r"shuffle\.by: column 'sesion_id' is not in the table.*'session_id'"),
        ({"source": {"where": "dwel > 1"}}, r"source\.where:(?s:.*)dwell"),
        ({"features": {"dense": {"dense_9": []}}}, r"features\.dense\.dense_9:.*dense_"),
    ):
        with pytest.raises(SpecError, match=text) as caught:
            plan_of(place.write(**change))
        assert f"{place.folder}/p.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ('ds == "2030-01-01"', 'ds is "2026-01-01" … "2026-01-03"'),
        ("request_id < 0", "request_id is 0 … 19999"),
        ("request_id < 0 and dense_0 > 3", "request_id is 0 … 19999"),
        ('str_0 == "no such word"', "str_0 is "),
        ("hist_0.list.len() > 1_000_000", None),  # what lists hold no footer says
    ],
)
def test_an_empty_filter_shows_the_columns_ranges(place: Place, where: str, words: str | None):
    with pytest.raises(SpecError, match="the filter keeps no row: got 0 of 20,000 rows") as caught:
        plan_of(place.write(source={"where": where}))
    assert ("In the table" in str(caught.value)) is (words is not None)
    assert (words or "") in str(caught.value)


def test_more_bytes_than_the_table_holds_are_explained(place: Place):
    """Borders between lanes cut row groups, which both neighbours decode."""
    features = {"dense": {"dense_0": [{"fill_null": 0}]}, "label": {"clicked": []}}
    one, many = (
        describe(plan_of(place.write(lanes=lanes, features=features)).source, world_size=1) for lanes in (1, 7)
    )
    twice = many["bytes"]["read_per_epoch"] - one["bytes"]["read_per_epoch"]
    assert (one["bytes"]["read_twice"], many["bytes"]["read_twice"]) == (0, twice)
    assert twice > 0


def test_one_lane_keeps_the_tables_order(place: Place, ids: np.ndarray):
    """Predictions joined by position need `lanes: 1`, whatever pipeline.yaml says; a key joins them always."""
    path = place.write(lanes=4, batch={"size": 100, "tail": "pad"}, shuffle="off")

    def delivered(**overrides: Any) -> np.ndarray:
        batches = Pipeline.from_yaml(path, overrides).batches()
        return np.concatenate([batch["request_id"][batch.valid].numpy() for batch in batches])

    assert np.array_equal(delivered(lanes=1), ids)
    assert not np.array_equal(delivered(), ids)
    assert np.array_equal(np.sort(delivered()), np.sort(ids))
