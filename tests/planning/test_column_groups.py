"""A column group has the rows and steps of the plan of all features, whatever it reads, and reads only its columns."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cached_blocks import assert_same, blocks_of, counts_of

from feedline import Pipeline
from feedline.errors import DataError, PlanError, SpecError, StateError
from feedline.loader.batch import Batch
from feedline.loader.state import state_of
from feedline.loader.wire.facts import Hello
from feedline.planning.mixing import MixingWindow
from feedline.planning.resolve import plan_column_group
from feedline.planning.source_plan import group_name

ROWS, SIZE = 2_000, 64
FEATURES: dict[str, Any] = {
    "dense": {
        "price": [{"fill_null": -1}, "standardize"],
        "double": {"expr": "price * 2", "ops": [{"fill_null": 0}]},
        "age": [{"fill_null": 0}],
    },
    "categorical": {"city": [{"fill_null": "none"}, {"hash_bucket": 50}], "item": [{"modulo": 7}]},
    "sparse": {"hist": [], "first": {"column": "hist", "ops": [{"first_x": 1}]}, "tags": []},
    "label": {"clicked": []},
    "extra": ["row"],
}
TOWER, SERVER = ["dense", "label", "row"], ["city", "item", "sparse", "extra"]
SHUFFLES: list[dict[str, Any]] = [
    {"shuffle": "off"},
    {"shuffle": {"seed": 3, "window_rows": 500}, "source": {"where": "item < 6 and row % 5 != 0"}},
    {"shuffle": {"by": "session", "seed": 1, "window_rows": 300}},
    {"shuffle": {"rows": False, "seed": 2}, "dedup": {"user": {"columns": ["age", "city", "hist"]}}},
    {"shuffle": {"seed": 1}, "source": {"sample": {"fraction": 0.5, "seed": 1}}, "lanes": 2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("groups"), np.random.default_rng(5)
    session = np.repeat(np.arange(ROWS), random.integers(1, 9, ROWS))[:ROWS]
    of_session = random.integers(0, 4, ROWS)[session]
    lists = [[], [1, 2], [1, 3], None]
    table = pa.table(
        {
            "row": np.arange(ROWS),
            "session": session,
            "price": pa.array(random.random(ROWS), mask=random.random(ROWS) < 0.1),
            "age": pa.array(of_session.astype(np.float32)),
            "city": pa.array([["a", "b", None, "c"][value] for value in of_session]),
            "hist": pa.array([lists[value] for value in of_session], pa.list_(pa.int64())),
            "tags": pa.array([list(range(value)) for value in random.integers(0, 4, ROWS)], pa.list_(pa.int64())),
            "item": random.integers(0, 9, ROWS),
            "clicked": random.integers(0, 2, ROWS),
        }
    )
    for part, start in enumerate(range(0, ROWS, 700)):
        path = folder / "table" / f"ds={part}" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table.slice(start, 700), path, row_group_size=150)
    return folder


def pipeline_of(folder: Path, **changes: Any) -> Pipeline:
    source = {"table": str(folder / "table"), **changes.pop("source", {})}
    document = {
        "version": 1,
        "name": "_".join(["groups", *source]),
        "work_dir": str(folder / "work"),
        "source": source,
        "features": FEATURES,
        "fit": "auto",
        "batch": {"size": SIZE, "tail": "pad"},
        **changes,
    }
    return Pipeline.from_dict(document)


def values(batch: Batch) -> dict[str, Any]:
    """The values of each feature, as lists of numbers per row."""
    batch, found = batch.expanded(), {}
    for column in batch._layout.schema:
        if column.group == "sparse":
            lists = batch.sparse[column.name]
            ends = lists.offsets.tolist()
            found[column.name] = [lists.values[a:b].tolist() for a, b in pairwise(ends)]
        else:
            found[column.name] = np.asarray(batch[column.name]).reshape(batch.rows, -1).tolist()
    return found


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, marks=pytest.mark.nightly if name in ("off", "by") else (), id=name)
        for name, changes in zip(("off", "filtered", "by", "dedup", "sample"), SHUFFLES, strict=True)
    ],
)
def test_groups_hold_together_what_one_reader_of_all_holds(folder: Path, changes: dict[str, Any]):
    """Row by row of every step and rank, in epochs after the first, from any step on; pyarrow knows the values."""
    pipeline, lanes = pipeline_of(folder, **changes), changes.get("lanes", 1)
    plan = pipeline.complete_plan(lanes)
    table = pq.read_table(folder / "table").sort_by("row")
    rows = 0
    for rank in range(lanes):
        place: Any = {"epoch": 1, "rank": rank, "world_size": lanes, "step": 2, "plan": plan}
        whole = pipeline.batches(**place)
        groups = [pipeline.batches(**place, features=names) for names in (TOWER, SERVER)]
        for batch, tower, server in zip(whole, *groups, strict=True):
            assert (batch.epoch, batch.step) == (tower.epoch, tower.step) == (server.epoch, server.step)
            assert batch.valid.tolist() == tower.valid.tolist() == server.valid.tolist()
            wanted, found = values(batch), values(tower) | values(server)
            assert found == wanted
            assert [column.name for column in tower._layout.schema] == ["price", "double", "age", "clicked", "row"]
            taken = table.take(batch.extra["row"].numpy())
            assert wanted["first"] == [(each or [])[:1] for each in taken["hist"].to_pylist()]
            assert wanted["age"] == taken["age"].to_numpy()[:, None].tolist()
            assert np.array(wanted["item"])[:, 0].tolist() == (taken["item"].to_numpy() % 7).tolist()
            doubled = pc.fill_null(pc.multiply(taken["price"], 2), 0).to_numpy()
            assert np.array(wanted["double"])[:, 0].tolist() == doubled.astype(np.float32).tolist()
            rows += int(batch.valid.sum())
    assert rows > ROWS / 3


@pytest.mark.parametrize("changes", SHUFFLES, ids=["off", "filtered", "by", "dedup", "sample"])
def test_the_plan_is_that_of_all_features_and_bytes_are_those_of_the_groups_columns(
    folder: Path, changes: dict[str, Any]
):
    whole = pipeline_of(folder, **changes).complete_plan(changes.get("lanes", 1))
    facts, schedule = whole.facts(), whole.source.schedule(0)
    lane = list(schedule.blocks(0))
    for names in (["age"], TOWER, SERVER, ["clicked"]):
        plan = plan_column_group(whole, names)
        group = plan.facts()
        assert replace(group, column_group=None, schema=facts.schema) == facts
        assert (plan.window, plan.source.sizes) == (whole.window, whole.source.sizes)
        assert list(plan.source.schedule(0).blocks(0)) == lane
        assert plan.features_fingerprint == whole.features_fingerprint
        assert plan.source.job.digest != whole.source.job.digest
        assert [feature.name for feature in plan.source.job.features] == [column.name for column in group.schema]
        assert set(plan.source.columns) < set(whole.source.columns)
        requested = sum(plan.request(block, 0).nbytes for block in lane)
        assert requested < sum(whole.request(block, 0).nbytes for block in lane)
    assert plan_column_group(plan, ()).source is whole.source
    assert plan_column_group(plan, TOWER).source.whole is whole.source, "a group of a group's plan is one of the whole"


@pytest.fixture(scope="module")
def wide_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    random, file = np.random.default_rng(0), tmp_path_factory.mktemp("wide") / "t.parquet"
    wide = pa.FixedSizeListArray.from_arrays(pa.array(random.random(3_000 * 2_500, np.float32)), 2_500)
    table = pa.table({"x": random.random(3_000), "wide": wide.cast(pa.list_(pa.float32()))})
    pq.write_table(table, file, row_group_size=100, use_dictionary=False, compression="none")
    return str(file)


@pytest.mark.parametrize("shuffle", ["off", {"rows": False}, {"seed": 1}])
def test_bytes_of_all_features_decide_window_and_blocks(wide_table: str, tmp_path: Path, shuffle: Any):
    """Of wide rows, whose bytes make blocks smaller: those of a narrow group alone would be others."""
    features = {"dense": {"x": []}, "sparse": {"wide": []}}
    document = {"version": 1, "name": "p", "work_dir": str(tmp_path / "w"), "batch": {"size": 10}, "shuffle": shuffle}
    source = {"table": wide_table}
    whole, alone = (
        Pipeline.from_dict({**document, "source": source, "features": each}).plan()
        for each in (features, {"dense": features["dense"]})
    )
    group = plan_column_group(whole, ["x"])
    assert (group.source.sizes, group.window, group.fingerprint) == (
        whole.source.sizes,
        whole.window,
        whole.fingerprint,
    )
    assert list(group.source.schedule(3).blocks(0)) == list(whole.source.schedule(3).blocks(0))
    assert (alone.source.sizes, alone.window) != (whole.source.sizes, whole.window), (
        "the table is wide enough for this test"
    )


def test_a_state_belongs_to_all_groups(folder: Path):
    """Saved by one, it finds the plan of any, in the version and window that the run has."""
    pipeline = pipeline_of(folder, **SHUFFLES[1])
    tower = plan_column_group(pipeline.complete_plan(), TOWER)
    state = state_of(tower.facts(), 1, 5)
    assert state == state_of(pipeline.complete_plan().facts(), 1, 5)
    wanted = [values(batch) for batch in pipeline.batches(1, step=5, features=SERVER)]
    resumed = pipeline.batches(1, step=5, plan=pipeline.plan_for(state), features=SERVER)
    assert [values(batch) for batch in resumed] == wanted
    names = {key: state[key] for key in ("snapshot", "lanes", "plan", "features", "seed", "batch_size")}
    hello = Hello(rank=0, world_size=1, column_group=("city", "hist"), **names)
    plan = pipeline.resolve(hello, job="j")
    assert (plan.fingerprint, group_name(plan.source)[:10]) == (tower.fingerprint, "city, hist")
    assert pipeline.resolve(hello, job="j", plans=[tower, plan]) is plan, "not the plan of another group"
    other = pipeline.resolve(replace(hello, column_group=("age",)), job="j", plans=[plan])
    assert other.source.selection is plan.source.selection, "rows are not counted again"
    with pytest.raises(StateError, match="belongs to another features"):
        pipeline.resolve(replace(hello, features="f" * 32), job="j")
    other = tower.with_window(MixingWindow(rows=500, blocks=32))
    assert plan_column_group(pipeline.plan_for(state_of(other.facts(), 0, 0)), TOWER).window == other.window


def test_groups_of_other_world_sizes_have_one_plan_if_the_lanes_allow_them(folder: Path):
    pipeline = pipeline_of(folder, lanes=4)
    worlds = [(0, 1, "age"), (1, 2, "item"), (3, 4, "clicked")]
    plans = [
        pipeline.resolve(Hello(rank=rank, world_size=size, column_group=(name,)), job="w")
        for rank, size, name in worlds
    ]
    assert len({(plan.fingerprint, plan.snapshot_name, plan.lanes) for plan in plans}) == 1
    with pytest.raises(PlanError, match="4 lanes"):
        pipeline.resolve(Hello(rank=0, world_size=3, column_group=("age",)), job="w")


def test_a_group_meets_only_the_errors_of_its_own_features(folder: Path):
    broken = {**FEATURES, "dense": {"price": []}}
    pipeline = pipeline_of(folder, features=broken, shuffle="off")
    with pytest.raises(DataError, match="price"):
        next(pipeline.batches())
    bounded = {"price": [{"fill_null": 0}], "age": {"column": "age", "expect": {"max": "<= 1"}}}
    pipeline = pipeline_of(folder, features={**FEATURES, "dense": bounded}, on_expect="error", shuffle="off")
    assert sum(batch.rows for batch in pipeline.batches(features=["price"])) >= ROWS
    assert list(pipeline.quality()) == ["price"]
    with pytest.raises(DataError, match="age"):
        list(pipeline.batches(features=["dense"]))


@pytest.mark.parametrize(
    ("shuffle", "dedup"),
    [
        pytest.param("off", None, id="off-plain"),
        pytest.param({"rows": False, "seed": 2}, {"user": {"columns": ["age", "city", "hist"]}}, id="blocks-dedup"),
    ],
)
def test_groups_and_readers_of_all_find_what_either_kept(folder: Path, tmp_path: Path, dedup: Any, shuffle: Any):
    """A feature's entry is named by the feature; one of a deduplicated group also by the columns that make its runs."""
    user, other = ["age", "city", "hist", "first"], ["price", "double", "item", "tags", "label", "row"]
    for number, order in enumerate([((), user, other), (user, other, ())]):
        cache = {"dir": str(tmp_path / str(number)), "mode": "features", "free": 1}
        whole, plain = (
            pipeline_of(folder, dedup=dedup or {}, shuffle=shuffle, cache=each).complete_plan()
            for each in (cache, "off")
        )
        results = [blocks_of(plan_column_group(whole, names)) for names in order]
        counts = [counts_of(each) for each in results]
        kept = sum(each.computed for each in counts[: 1 if number == 0 else 2])
        assert kept > 0
        assert [each.computed for each in counts[1 if number == 0 else 2 :]] == [0] * (2 if number == 0 else 1)
        for names, result in zip(order, results, strict=True):
            plan = plan_column_group(plain, names)
            assert_same(plan, result, blocks_of(plan))


def test_other_names_are_refused_before_anything_is_read(folder: Path, tmp_path: Path):
    pipeline = pipeline_of(folder, source={"table": str(tmp_path / "none")})
    with pytest.raises(SpecError, match="unknown feature or group: got 'prize', expected one of 'price'"):
        pipeline.batches(features=["prize"])
    with pytest.raises(SpecError, match=r"features must not be empty"):
        pipeline.batches(features=[])
    with pytest.raises(SpecError, match="unknown feature or group: got 'prize'"):
        plan_column_group(pipeline_of(folder).plan(), ["prize"])


def test_a_rebase_is_one_of_all_groups(folder: Path, tmp_path: Path):
    """Rows of a file that was rewritten while two groups read it: each group continues with the same ones."""
    shutil.copytree(folder / "table", tmp_path / "table")
    rows = {"shuffle": {"seed": 1}, "source": {"row_key": ["row"]}}
    pipeline = pipeline_of(tmp_path, **rows)
    before = pipeline.complete_plan()
    seen = list(islice(pipeline.batches(plan=before, features=TOWER), 8))
    state = state_of(before.facts(), 0, 8)
    path = tmp_path / "table" / "ds=1" / "part.parquet"
    pq.write_table(pq.read_table(path, partitioning=None).slice(0, 600), path, row_group_size=100)
    plan = pipeline.rebase(state)
    assert plan.source.rest(0) is not None
    tower, server = (pipeline.batches(0, step=8, plan=plan, features=names) for names in (TOWER, SERVER))
    rest = [(values(left)["row"], values(right)["row"]) for left, right in zip(tower, server, strict=True)]
    assert all(left == right for left, right in rest)
    ids = {row for batch in seen for [row] in values(batch)["row"]} | {row for left, _ in rest for [row] in left}
    assert ids >= set(range(700)) | set(range(1_400, ROWS)) | set(range(700, 1_300))
