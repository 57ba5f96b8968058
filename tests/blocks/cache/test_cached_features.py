"""Are deduplicated groups the same from a cache: unique rows, inverse and counts, whatever it holds?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cached_blocks import assert_same, blocks_of, counts_of
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from own_modules import own_modules
from stored_runs import write_in_place

from feedline import Pipeline
from feedline.blocks import block_encoder
from feedline.blocks.cache import auto_choice, cached_rows, entry_names
from feedline.blocks.cache.cache_costs import CacheRates
from feedline.blocks.cache.cached_features import CachedFeatures, part_of_features, runs_column, runs_of_column
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.planning.plan import Plan

ROWS, GROUP, STRETCH, SEGMENT = 5_000, 1_300, 250, 500
OWN = """
from feedline import user_op

@user_op(gives="float32", form="numpy")
def halved(x):
    return (x / 2).astype("float32")
"""
HISTORY = {"hist": [{"fill_null": 9}]}
FEATURES: dict[str, Any] = {
    "dense": {
        "age": [{"fill_null": -1}],
        "clean": {"column": "score", "on_nonfinite": "zero"},
        "price": [{"fill_null": 0.5}],
        "mixed": {"expr": "coalesce(age, 0) + item"},
    },
    "categorical": {
        "city": [{"fill_null": "none"}, {"hash_bucket": 50}],
        "known": {"column": "city", "ops": [{"vocabulary": {"min_count": 900}}]},
        "item": [{"modulo": 7}],
        "known_item": {"column": "item", "ops": [{"vocabulary": {"max_size": 5}}]},
    },
    "sparse": {
        **HISTORY,
        "first": {"column": "hist", "ops": [{"vocabulary": {"max_size": 6}}, {"first_x": 2}]},
        "tags": [{"hash_bucket": 20}],
        "scores": {"column": "scores", "on_nonfinite": "zero"},
    },
    "label": {"clicked": []},
    "extra": ["row"],
}
GROUPS = {"user": {"columns": ["age", "city", "score"]}, "lists": {"columns": ["hist", "scores"]}}
BY_SESSION = {"seed": 1, "window_rows": 1_900, "by": "session"}
CASES: dict[str, dict[str, Any]] = {
    "by session": {"shuffle": BY_SESSION},
    "in order": {"shuffle": "off"},
    "splits": {"shuffle": {"seed": 1, "rows": False}},
    "lanes": {"shuffle": "off", "lanes": 3},
    "filter": {"shuffle": BY_SESSION, "source": {"where": "item % 3 != 1 and price is not None"}, "lanes": 2},
    "sample": {"shuffle": "off", "source": {"sample": {"fraction": 0.5, "seed": 3}}, "lanes": 2},
    "recorded": {"shuffle": BY_SESSION, "source": {"row_key": ["row"]}},
    "groups alone": {
        "shuffle": "off",
        "lanes": 2,
        "features": {
            "dense": {"age": [{"fill_null": 0}]},
            "categorical": {},
            "sparse": {"hist": [{"fill_null": 9}]},
            "extra": [],
        },
    },
}


def table_of() -> tuple[pa.Table, list[bool]]:
    """Sessions in which a user's columns change now and then, some of which hardly repeat; and where runs begin."""
    rng = np.random.default_rng(5)
    lengths = np.where(rng.random(ROWS) < 0.1, 200, rng.integers(1, 13, ROWS))
    session = np.repeat(np.arange(ROWS), lengths)[:ROWS]
    change = (rng.random(ROWS) < 0.1) | ((np.arange(ROWS) > 2_600) & (np.arange(ROWS) < 3_400))
    version = session * 10_000 + change.cumsum()  # of a user's values
    starts = np.diff(version, prepend=-1) != 0
    many = rng.integers(0, 60, ROWS * 2)[np.cumsum(starts)]
    of_version = many % 4
    lists = [[], [1, 2, 2], [None, 3], None]
    table = pa.table(
        {
            "row": np.arange(ROWS),
            "session": session,
            "age": pa.array([None if v % 7 == 0 else v / 2 for v in many.tolist()], pa.float64()),
            "city": pa.array([["a", "b", None, "c"][v] for v in of_version]),
            "score": pa.array([[0.5, -0.0, np.nan, np.inf][v] for v in of_version], pa.float32()),
            "hist": pa.array([lists[v] for v in of_version], pa.list_(pa.int64())),
            "scores": pa.array([[[1.0], [np.nan, -0.0], [], [2.0]][v] for v in of_version], pa.list_(pa.float32())),
            "item": rng.integers(0, 9, ROWS),
            "price": pa.array([None if row % 13 == 0 else row / 4 for row in range(ROWS)], pa.float32()),
            "tags": pa.array([[f"t{each}" for each in range(v % 3)] for v in rng.integers(0, 9, ROWS)]),
            "clicked": rng.integers(0, 2, ROWS),
        }
    )
    return table, starts.tolist()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two files, the second of which stores the groups' columns once per run."""
    folder = tmp_path_factory.mktemp("groups") / "table"
    folder.mkdir()
    rows, starts = table_of()
    half = ROWS // 2
    pq.write_table(rows.slice(0, half), folder / "0.parquet", row_group_size=GROUP)
    columns = {"user": ["age", "city", "score", "hist", "scores"]}
    write_in_place(folder / "1.parquet", rows.slice(half), columns, {"user": starts[half:]}, GROUP)
    return folder


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(entry_names, "SEGMENT_ROWS", SEGMENT)
    monkeypatch.setattr(block_encoder, "RUN_ROWS", STRETCH)
    for module in ("piece_chunks", "block_encoder"):
        monkeypatch.setattr(f"feedline.blocks.{module}.CHUNK_ROWS", 300)
    return


def pipeline_of(table: Path, folder: Path, changes: dict[str, Any], cache: Path | None = None) -> Pipeline:
    spec = {
        "version": 1,
        "name": "groups",
        "work_dir": str(folder / "work"),
        "source": {"table": str(table), **changes.get("source", {})},
        "features": FEATURES | changes.get("features", {}),
        "dedup": changes.get("dedup", GROUPS),
        "batch": {"size": 120, "tail": "partial"},
        "fit": {"golden": "none", **changes.get("fit", {})},
        **{key: changes[key] for key in ("shuffle", "lanes", "allow_code") if key in changes},
        **({} if cache is None else {"cache": {"dir": str(cache), "mode": changes.get("mode", "features"), "free": 1}}),
    }
    if not spec["dedup"]:
        del spec["dedup"]
    elif "features" in changes and "scores" not in spec["features"]["sparse"]:
        spec["dedup"] = {"user": {"columns": ["age"]}, "lists": {"columns": ["hist"]}}
    pipeline = Pipeline.from_dict(spec)
    pipeline.fit()
    return pipeline


def plan_of(table: Path, folder: Path, changes: dict[str, Any], cache: Path | None = None) -> Plan:
    return pipeline_of(table, folder, changes, cache).plan()


NIGHTLY = {"in order", "splits", "sample", "recorded"}  # lanes are in order; test_cached_rows has the others


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case in NIGHTLY else ()) for case in CASES]
)
def test_groups_are_those_without_a_cache(
    case: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plan_of(table, tmp_path / "plain", CASES[case])
    cached = plan_of(table, tmp_path / "cached", CASES[case], tmp_path / "cache")
    expected = blocks_of(plain)
    cold = blocks_of(cached)
    assert_same(plain, cold, expected)
    assert counts_of(cold).computed > 0
    with monkeypatch.context() as patch:
        patch.setattr(cached_rows, "_encode", None)  # nothing is computed
        assert_same(plain, blocks_of(cached), expected)
        assert_same(plain, blocks_of(cached, 1), blocks_of(plain, 1))
    for path in sorted((tmp_path / "cache" / "v1").rglob("*.entry"))[::2]:
        path.unlink()
    assert_same(plain, blocks_of(cached), expected)
    assert counts_of(blocks_of(cached)).computed == 0


def test_other_orders_lanes_and_blocks_find_the_same_runs(table: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    blocks_of(plan_of(table, tmp_path, CASES["by session"], cache))
    for changes in ({"seed": 9, "window_rows": 700}, {"seed": 2, "window_rows": 1_100}):
        case = {"shuffle": BY_SESSION | changes, "lanes": 2}
        plan = plan_of(table, tmp_path, case, cache)
        found = blocks_of(plan)
        assert counts_of(found).computed == 0
        assert_same(plan, found, blocks_of(plan_of(table, tmp_path, case)))


def test_a_changed_feature_of_a_group_is_computed_alone(table: Path, tmp_path: Path) -> None:
    """By the runs of all of its columns; another column of the group changes the runs, and so the group's features."""
    cache, features = tmp_path / "cache", FEATURES["categorical"]
    first = counts_of(blocks_of(plan_of(table, tmp_path, CASES["in order"], cache)))
    segments = first.computed // (len(FEATURES["dense"] | features | FEATURES["sparse"]) + 4)
    changed = {"categorical": {**features, "city": [{"fill_null": "none"}, {"hash_bucket": 51}]}}
    plan = plan_of(table, tmp_path, CASES["in order"] | {"features": changed}, cache)
    found = blocks_of(plan)
    assert counts_of(found).computed == segments
    expected = blocks_of(plan_of(table, tmp_path, CASES["in order"] | {"features": changed}))
    assert_same(plan, found, expected)
    fewer = {"dense": {name: FEATURES["dense"][name] for name in ("clean", "price")}}  # age is not read
    plan = plan_of(table, tmp_path, CASES["in order"] | {"features": fewer}, cache)
    found = blocks_of(plan)
    assert counts_of(found).computed == segments * 4  # runs, and clean, city and known by them
    assert_same(plan, found, blocks_of(plan_of(table, tmp_path, CASES["in order"] | {"features": fewer})))


def test_plain_features_are_shared_with_jobs_without_groups(table: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    blocks_of(plan_of(table, tmp_path, CASES["in order"] | {"dedup": {}}, cache))
    plan = plan_of(table, tmp_path, CASES["in order"], cache)
    found = blocks_of(plan)
    assert counts_of(found).found > 0
    assert counts_of(found).computed > 0
    assert_same(plan, found, blocks_of(plan_of(table, tmp_path, CASES["in order"])))


@pytest.mark.parametrize(
    "case", [*(pytest.param(case, marks=pytest.mark.nightly) for case in ("in order", "lanes")), "by session"]
)
def test_features_that_call_users_functions_have_the_runs_of_their_group(
    case: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_halves.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    half = {"column": "age", "ops": [{"fill_null": 1}, {"python": "own_halves:halved"}]}
    features = {"dense": {**FEATURES["dense"], "half": half}}
    changes = CASES[case] | {"features": features, "allow_code": True}
    with own_modules(tmp_path):
        plan = plan_of(table, tmp_path, changes, tmp_path / "cache")
        expected = blocks_of(plan_of(table, tmp_path, changes))
        for _ in range(2):
            assert_same(plan, blocks_of(plan), expected)


@pytest.mark.parametrize("fold_by", ["row", pytest.param("session", marks=pytest.mark.nightly)])
def test_rows_that_a_fit_has_seen_end_runs(fold_by: str, table: Path, tmp_path: Path) -> None:
    encoding = {"target_encoding": {"target": "clicked", "fold_by": fold_by, "smoothing": 1}}
    rate = {"column": "item", "ops": [encoding]}
    changes = {
        "shuffle": "off",
        "lanes": 2,
        "fit": {"auto": True, "where": "row % 10 < 8"},
        "features": {"dense": {**FEATURES["dense"], "rate": rate}},
        "dedup": {
            "user": {"columns": ["age", "city", "score", "item", "session", "row"]},
            "lists": GROUPS["lists"],
        },
    }
    plan = plan_of(table, tmp_path, changes, tmp_path / "cache")
    expected = blocks_of(plan_of(table, tmp_path, changes))
    assert_same(plan, blocks_of(plan), expected)
    assert_same(plan, blocks_of(plan), expected)
    other = {**changes, "features": {"dense": {**changes["features"]["dense"], "age": [{"fill_null": -2}]}}}
    plan = plan_of(table, tmp_path, other, tmp_path / "cache")
    assert_same(plan, blocks_of(plan), blocks_of(plan_of(table, tmp_path, other)))


@pytest.mark.parametrize("case", [pytest.param("lanes", marks=pytest.mark.nightly), "by session"])
def test_groups_that_are_not_worth_keeping_are_computed(
    case: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = CacheRates(read_bytes_per_s=1e3, write_bytes_per_s=1e3, memory_bytes_per_s=1e10)
    monkeypatch.setattr(auto_choice, "cache_rates", lambda folder: rates)
    plan = plan_of(table, tmp_path, CASES[case] | {"mode": "auto"}, tmp_path / "cache")
    expected = blocks_of(plan_of(table, tmp_path, CASES[case]))
    assert_same(plan, blocks_of(plan), expected)
    again = blocks_of(plan)
    assert_same(plan, again, expected)
    assert counts_of(again).computed > counts_of(again).found > 0


@given(st.data())
@examples(60)
def test_a_part_has_the_runs_of_its_rows(data: st.DataObject) -> None:
    starts = np.array([True, *data.draw(st.lists(st.booleans(), max_size=30))])
    start = data.draw(st.integers(0, len(starts) - 1))
    stop = data.draw(st.integers(start + 1, len(starts)))
    column = SlotColumn(name="a", group="dense", dtype="float32", arrow="float", offset=0, dedup="g")
    assert np.array_equal(runs_of_column(runs_column(starts)), starts)
    part = part_of_features(CachedFeatures({}, {"g": starts}), BatchSchema((column,)), start, stop)
    assert part.runs["g"].tolist() == [True, *starts[start + 1 : stop]]
