"""Does a job with a cache deliver the bytes and counts that it delivers without one, whatever the cache holds?"""

from __future__ import annotations

import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cached_blocks import assert_same, blocks_of, counts_of
from tagged_store import write_plain

from feedline import Pipeline
from feedline.blocks.block_encoder import HandOver
from feedline.blocks.cache import auto_choice, cached_rows, entry_names
from feedline.blocks.cache.cache_costs import PolicyInputs
from feedline.blocks.cache.cache_policy import CacheDecision
from feedline.blocks.compute import run_block
from feedline.errors import CorruptFileError, DataError, TableChangedError
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.planning.plan import Plan
from feedline.warehouse.reading.fragment import pack_mask
from feedline.warehouse.selection.exclusion import Exclusion, ExclusionOrigin

ROWS, GROUP = 6_000, 1_700
FEATURES: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0.25}, "log1p"], "raw": [], "shown": {"column": "times", "ops": [{"pad": 3}]}},
    "categorical": {
        "item": [{"hash_bucket": 1000}],
        "code": [{"modulo": 7}],
        "known": {"column": "item", "ops": [{"vocabulary": {"min_count": 15}}]},
        "known_code": {"column": "code", "ops": [{"vocabulary": {"max_size": 999}}]},
    },
    "sparse": {
        "history": [{"first_x": 4}, {"fill_null": 3}, {"hash_bucket": 50}],
        "tags": [{"hash_bucket": 20}],
        "known_history": {"column": "history", "ops": [{"vocabulary": {"max_size": 5}}, {"first_x": 3}]},
        "known_tags": {"column": "tags", "ops": [{"vocabulary": {"max_size": 4, "oov_buckets": 0}}]},
        "clean_times": {"column": "wild", "on_nonfinite": "zero"},
        "times": [],
    },
    "label": {"clicked": []},
    "extra": ["user", "note"],
}


def write_table(folder: Path) -> Path:
    for part in range(2):
        rng = np.random.default_rng(part)
        users = np.sort(rng.integers(0, 900, ROWS))
        ids = [None if user % 11 == 0 else [None if i % 7 == 3 else i for i in range(user % 9)] for user in users]
        raw = rng.random(ROWS).astype(np.float32)
        raw[::977] = np.nan
        content = {
            "price": pa.array([None if row % 13 == 0 else float(row % 50) for row in range(ROWS)], pa.float32()),
            "raw": raw,
            "item": [f"item {value}" for value in rng.integers(0, 300, ROWS)],
            "code": rng.integers(0, 10**6, ROWS),
            "history": pa.array(ids, pa.list_(pa.int64())),
            "tags": [[f"tag {value}"] * (value % 3) for value in rng.integers(0, 9, ROWS)],
            "times": [[float(value)] * (value % 4) for value in rng.integers(0, 99, ROWS)],
            "wild": [[np.nan] * (row % 3) + [float(row)] for row in range(ROWS)],
            "user": users,
            "note": [f"row {row}" for row in range(ROWS)],
            "clicked": rng.integers(0, 2, ROWS).astype(np.float32),
        }
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table(content), folder / f"{part}.parquet", row_group_size=GROUP)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("cached") / "table")


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_names, "SEGMENT_ROWS", 600)


def plan_of(
    table: Path, folder: Path, changes: dict[str, Any], cache: Path | None = None, mode: str = "features", **keys: Any
) -> Plan:
    spec = {
        "version": 1,
        "name": "cached",
        "work_dir": str(folder / "work"),
        "source": {"table": str(table), **changes.get("source", {})},
        "features": FEATURES | changes.get("features", {}),
        "fit": {"golden": "none"},
        "batch": {"size": 500, "tail": "partial"},
        **{key: changes[key] for key in ("shuffle", "lanes", "dedup") if key in changes},
        **({} if cache is None else {"cache": {"dir": str(cache), "mode": mode, "free": 1, **keys}}),
    }
    pipeline = Pipeline.from_dict(spec)
    pipeline.fit()
    return pipeline.plan()


CASES: dict[str, dict[str, Any]] = {
    "in order": {"shuffle": "off"},
    "shuffled": {"shuffle": {"seed": 1, "window_rows": 2_500}},
    "runs": {"shuffle": {"seed": 1, "window_rows": 2_500, "by": "user"}},
    "splits": {"shuffle": {"seed": 1, "rows": False}},
    "lanes": {"shuffle": "off", "lanes": 3},  # blocks that begin within a row group
    "filter": {"source": {"where": "code % 3 != 1 and price is not None"}},
    "sample": {"source": {"sample": {"fraction": 0.5, "seed": 3}}},
    "recorded": {"source": {"row_key": ["user", "note"]}},
    "zero": {"features": {"dense": {"raw": {"column": "raw", "on_nonfinite": "zero"}}}, "lanes": 3},
}
NIGHTLY = {"in order", "shuffled", "splits"}  # lanes are in order, runs shuffled


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case in NIGHTLY else ()) for case in CASES]
)
def test_bytes_and_counts_are_those_without_a_cache(
    case: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plan_of(table, tmp_path / "plain", CASES[case])
    cached = plan_of(table, tmp_path / "cached", CASES[case], tmp_path / "cache")
    assert cached.fingerprint == plain.fingerprint
    expected = blocks_of(plain)
    cold = blocks_of(cached)
    assert_same(plain, cold, expected)
    with monkeypatch.context() as patch:
        patch.setattr(cached_rows, "_encode", None)  # nothing is computed
        warm = blocks_of(cached)
    assert_same(plain, warm, expected)
    assert counts_of(cold).computed > 0
    assert counts_of(warm).computed == 0
    assert counts_of(warm).found > 0
    assert_same(plain, blocks_of(cached, 1), blocks_of(plain, 1))
    rows_dir = tmp_path / "cached" / "work" / "rows"
    if case == "recorded":
        names = sorted(path.name for path in (tmp_path / "plain" / "work" / "rows").rglob("*.*"))
        assert names
        assert sorted(path.name for path in rows_dir.rglob("*.*")) == names


def _excluding(plan: Plan, seed: int, groups: int) -> Plan:
    """The plan without some rows of its first row groups."""
    rng, excluded = np.random.default_rng(seed), {}
    for group in range(groups):
        rows = int(plan.source.selection.rows[group])
        excluded[group] = rows, pack_mask(rng.random(rows) < 0.1)
    origin = ExclusionOrigin(
        snapshot=plan.source.snapshot.id,
        where=None,
        sample=None,
        features="",
        rules="",
        environment="",
        unfitted=(),
        types={},
        rows=0,
    )
    exclusion = Exclusion(origin=origin, excluded=excluded, faults=())
    source = replace(plan.source, selection=plan.source.selection.without(exclusion))
    return plan.with_sources([source])


@pytest.mark.parametrize("case", ["lanes", pytest.param("runs", marks=pytest.mark.nightly)])
def test_excluded_rows_are_named_with_the_entries(
    case: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups without excluded rows share the entries of a pipeline without an exclusion; others have their own."""
    plain = plan_of(table, tmp_path / "plain", CASES[case])
    cached = plan_of(table, tmp_path / "cached", CASES[case], tmp_path / "cache")
    blocks_of(cached)
    before = len(names_in(tmp_path / "cache"))
    for seed in range(2):
        expected = blocks_of(_excluding(plain, seed, 2))
        cold = blocks_of(_excluding(cached, seed, 2))
        assert_same(plain, cold, expected)
        assert counts_of(cold).found > 0
        with monkeypatch.context() as patch:
            patch.setattr(cached_rows, "_encode", None)  # nothing is computed
            assert_same(plain, blocks_of(_excluding(cached, seed, 2)), expected)
            assert_same(plain, blocks_of(cached), blocks_of(plain))
    assert before < len(names_in(tmp_path / "cache")) < 3 * before


def names_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_another_seed_world_and_batch_size_find_the_same_entries(table: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    blocks_of(plan_of(table, tmp_path, CASES["shuffled"], cache))
    for changes in ({"shuffle": {"seed": 9, "window_rows": 3_000}}, {"shuffle": "off", "lanes": 2}):
        plan = plan_of(table, tmp_path, changes, cache)
        results = blocks_of(plan)
        assert counts_of(results).computed == 0
        assert_same(plan, results, blocks_of(plan_of(table, tmp_path, changes)))


def test_changed_features_are_computed_alone(table: Path, tmp_path: Path) -> None:
    cache, features = (
        tmp_path / "cache",
        FEATURES | {"categorical": {**FEATURES["categorical"], "code": [{"modulo": 8}]}},
    )
    first = counts_of(blocks_of(plan_of(table, tmp_path, CASES["in order"], cache)))
    changes = CASES["in order"] | {"features": features}
    plan = plan_of(table, tmp_path, changes, cache)
    results = blocks_of(plan)
    assert counts_of(results).computed * 16 == first.computed
    assert_same(plan, results, blocks_of(plan_of(table, tmp_path, changes)))


@pytest.mark.parametrize(
    "damage", [*(pytest.param(how, marks=pytest.mark.nightly) for how in ("removed", "cut")), "flipped"]
)
def test_damaged_entries_are_computed_again(damage: str, table: Path, tmp_path: Path) -> None:
    plan = plan_of(table, tmp_path, CASES["shuffled"], tmp_path / "cache")
    expected = blocks_of(plan)
    files = sorted((tmp_path / "cache" / "v1").rglob("*.entry"))
    for path in files[::2]:
        content = bytearray(path.read_bytes())
        if damage == "removed":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(content[: len(content) // 2])
        else:
            content[len(content) // 3] ^= 4
            path.write_bytes(content)
    again = blocks_of(plan)
    assert_same(plan, again, expected)
    assert counts_of(again).computed > 0
    assert (counts_of(again).damaged > 0) is (damage != "removed")
    assert counts_of(blocks_of(plan)).computed == 0


def test_a_file_that_changed_is_refused_though_all_is_found(table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "table"
    shutil.copytree(table, copy)
    plan = plan_of(copy, tmp_path, CASES["in order"], tmp_path / "cache")
    blocks_of(plan)
    path = copy / "0.parquet"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    with pytest.raises(TableChangedError, match="changed after the snapshot"):
        blocks_of(plan)
    path.unlink()
    with pytest.raises((TableChangedError, CorruptFileError), match=r"0\.parquet"):
        blocks_of(plan)


def labels_plan(table: str, folder: Path) -> Plan:
    spec = {
        "version": 1,
        "name": "labels",
        "work_dir": str(folder / "work"),
        "source": {"table": table},
        "features": {"label": {"clicked": []}},
        "batch": {"size": 8, "tail": "partial"},
        "shuffle": "off",
        "cache": {"dir": str(folder / "cache"), "mode": "features", "free": 1},
    }
    return Pipeline.from_dict(spec).plan()


def labels(plan: Plan) -> list[float]:
    [batch] = Pipeline(plan.spec).batches(plan=plan)
    return batch.labels.flatten().tolist()


@pytest.mark.parametrize("store", ["tagged", "memory"])
def test_corrected_labels_are_found_in_stores_without_times(store: str, tmp_path: Path) -> None:
    """With equal sizes and footers. A store with tags says that a file was replaced, also while it is read; of one with
    neither, nothing is kept."""
    table = f"{store}://{tmp_path.name}"
    wrong, right = [0, 1, 1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 1, 1, 0]
    write_plain(pa.table({"clicked": pa.array(wrong, pa.int8())}), f"{table}/a.parquet")
    plan = labels_plan(table, tmp_path)
    assert labels(plan) == wrong
    is_tagged = store == "tagged"
    again = labels_plan(table, tmp_path)
    assert (again.source.snapshot.id == plan.source.snapshot.id) is is_tagged
    assert len(list((tmp_path / "cache").rglob("*.entry"))) == is_tagged
    write_plain(pa.table({"clicked": pa.array(right, pa.int8())}), f"{table}/a.parquet")
    if is_tagged:
        with pytest.raises(TableChangedError, match=r"a\.parquet changed after .*: got .*, tag .*, expected .*, tag "):
            labels(plan)
    assert labels(labels_plan(table, tmp_path)) == right


def test_an_error_of_rows_that_are_not_delivered_does_not_surface(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table")
    data = pq.read_table(table / "1.parquet")
    code = data["code"].to_pylist()
    code[-1] = None  # a feature cannot hold it
    field = pa.field("code", pa.int64())
    pq.write_table(data.set_column(3, field, pa.array(code, pa.int64())), table / "1.parquet", row_group_size=GROUP)
    plan = plan_of(table, tmp_path, CASES["in order"], tmp_path / "cache")
    plain = plan_of(table, tmp_path, CASES["in order"])
    with pytest.raises(DataError) as cached:
        blocks_of(plan)
    with pytest.raises(DataError) as expected:
        blocks_of(plain)
    texts = [re.sub(r"in [0-9,]+ rows", "in N rows", str(each.value)) for each in (cached, expected)]
    assert texts[0] == texts[1]
    schedule = plan.source.schedule(0)
    last = [*schedule.blocks(0, everything=True)][-1]
    request = plan.request(last, 0)
    piece = request.pieces[-1]
    cut = replace(request, pieces=(*request.pieces[:-1], replace(piece, rows=piece.rows - 1)), rows=request.rows - 1)
    one, other = (run_block(each.source.job, cut, "cut", False) for each in (plan, plain))
    assert_same(plan, [one], [other])


def test_parts_are_handed_over_in_order(table: Path, tmp_path: Path) -> None:
    plan = plan_of(table, tmp_path, CASES["in order"], tmp_path / "cache")
    handed: list[Rows] = []
    request = plan.request(next(iter(plan.source.schedule(0).blocks(0))), 0)
    result = run_block(plan.source.job, request, "key", False, HandOver(500, handed.append))
    assert result.parts is not None
    assert all(one is other for one, other in zip(handed, result.parts[:-1], strict=True))


def decides(monkeypatch: pytest.MonkeyPatch, kept: set[str] | None, mode: str = "features") -> None:
    """Let `auto` keep some features, or all, however long writing takes, as it does on a busy machine."""
    monkeypatch.setattr(auto_choice, "FREE_S", math.inf)

    def choose(inputs: PolicyInputs) -> CacheDecision:
        shares = {each.name: 1.0 for each in inputs.features if kept is None or each.name in kept}
        return CacheDecision(mode=mode, writes=mode != "off", kept=shares, predictions=(), reason=f"{mode}: test")

    monkeypatch.setattr(auto_choice, "choose_mode", choose)


SOME = {"price", "known", "history", "user"}
DECISIONS = {("all", "lanes"), ("some", "runs"), ("none", "groups")}


@pytest.mark.parametrize(
    ("kept", "case"),
    [
        pytest.param(kept, case, marks=() if (name, case) in DECISIONS else pytest.mark.nightly, id=f"{name}-{case}")
        for name, kept in {"all": None, "some": SOME, "none": set()}.items()
        for case in ("runs", "lanes", "groups")
    ],
)
def test_a_cache_that_decides_for_itself(
    kept: set[str] | None, case: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decides(monkeypatch, kept, "off" if kept == set() else "features")
    groups = CASES["runs"] | {"dedup": {"user": {"columns": ["history", "tags"]}}}
    changes = groups if case == "groups" else CASES[case]
    plan = plan_of(table, tmp_path, changes, tmp_path / "cache", mode="auto")
    plain = plan_of(table, tmp_path / "plain", changes)
    counts = []
    for epoch in range(3):  # measuring, then with what was kept before the decision, then after another decision
        results = blocks_of(plan, epoch)
        assert_same(plan, results, blocks_of(plain, epoch))
        counts.append(counts_of(results))
    assert not any(each.skipped for each in counts)
    assert counts[1].found > 0
    if kept is None:
        assert (counts[2].computed, counts[2].nbytes_written) == (0, 0)
    elif kept:  # the first segments have all of them
        assert counts[2].nbytes_written == 0
        assert counts[2].computed > counts[2].found
    else:  # and the last decision reads nothing
        assert (counts[1].nbytes_written, counts[2].found) == (0, 0)


def test_pieces_that_lack_ever_other_features_compile_few_sets(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_rows, "_MOST_SETS", 2)
    compiled: list[int] = []
    compile_like = cached_rows.compile_like
    monkeypatch.setattr(
        cached_rows,
        "compile_like",
        lambda job, whole: (compiled.append(len(job.features)), compile_like(job, whole))[1],
    )
    plan = plan_of(table, tmp_path, CASES["lanes"], tmp_path / "cache")
    assert_same(plan, blocks_of(plan), blocks_of(plan_of(table, tmp_path, CASES["lanes"])))
    assert len(compiled) > len(set(compiled))
    assert len(set(compiled)) <= 3  # two sets, and all features


@pytest.mark.parametrize("mode", [pytest.param("features", marks=pytest.mark.nightly), "auto"])
def test_a_spent_budget_skips_entries_which_later_epochs_write(mode: str, table: Path, tmp_path: Path) -> None:
    plain = plan_of(table, tmp_path / "plain", CASES["shuffled"])
    plan = plan_of(table, tmp_path, CASES["shuffled"], tmp_path / "cache", mode, write_budget=1e-9)
    cold = blocks_of(plan)
    assert_same(plain, cold, blocks_of(plain))
    counts = counts_of(cold)
    assert counts.nbytes_written > 0
    assert 0 < counts.skipped < counts.computed
    warm = blocks_of(plan, 1)
    assert_same(plain, warm, blocks_of(plain, 1))
    assert counts_of(warm).found > 0
    generous = plan_of(table, tmp_path, CASES["shuffled"], tmp_path / "cache", "features")
    assert counts_of(blocks_of(generous)).skipped == 0
    assert counts_of(blocks_of(generous)).computed == 0
