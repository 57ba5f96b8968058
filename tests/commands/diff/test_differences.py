"""The numbers of a comparison, counted by DuckDB and by what Parquet files say of themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished
from processes import ended_here

from feedline import Pipeline
from feedline.commands.diff.differences import describe_differences
from feedline.planning.plan import Plan

FEATURES = {"dense": {"dense_0": [{"fill_null": 0}]}, "label": {"clicked": []}}


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, shutil.copytree(clicks, tmp_path / "table")) as place:
        yield place


def compared(*words: object) -> dict[str, Any]:
    ended = ended_here("diff", *map(str, words), "--json")
    assert ended.returncode == 0, ended.stderr
    facts: dict[str, Any] = json.loads(ended.stdout)
    return facts


def stored_bytes(table: Path, column: str) -> int:
    """Compressed, of all row groups."""
    total = 0
    for path in table.rglob("*.parquet"):
        file = pq.read_metadata(path)
        index = file.schema.to_arrow_schema().names.index(column)
        total += sum(file.row_group(group).column(index).total_compressed_size for group in range(file.num_row_groups))
    return total


def count(table: Path, clause: str = "") -> int:
    [(rows,)] = duckdb.sql(f"select count(*) from read_parquet('{table}/**/*.parquet') {clause}").fetchall()
    return int(rows)


def test_rows_and_what_is_read(place: Place):
    where = "dense_2 > 0.5"
    a = place.write("a.yaml", features=FEATURES)
    b = place.write("b.yaml", features=FEATURES, source={"where": where}, batch={"size": 128})
    facts = compared(a, b)
    rows, sizes = (count(place.table), count(place.table, f"where {where}")), (256, 128)
    assert facts["rows"]["selected"] == list(rows)
    assert facts["rows"]["steps"] == [rows[0] // 256, rows[1] // 128]
    assert facts["rows"]["per_epoch"] == [number // size * size for number, size in zip(rows, sizes, strict=True)]
    assert facts["rows"]["dropped"] == [number % size for number, size in zip(rows, sizes, strict=True)]
    files = len(list(place.table.rglob("*.parquet")))
    assert facts["read"]["files_of_the_table"] == [files, files]
    assert facts["read"]["columns"] == [2, 3]
    assert facts["read"]["bytes_per_epoch"][0] == sum(
        stored_bytes(place.table, each) for each in ("dense_0", "clicked")
    )
    assert facts["fingerprints"]["plan"]["by"] == ["source.where", "batch.size"]
    assert [facts["fingerprints"][name]["same"] for name in ("snapshot", "plan", "features")] == [True, False, True]
    assert facts["continue"]["resume"] == "refused"


def test_the_cost_of_features_that_differ(place: Place):
    """Bytes of their columns; CPU seconds where they are asked for."""
    a = place.write("a.yaml", features=FEATURES)
    more = {**FEATURES, "sparse": {"hist_0": [{"first_x": 3}]}, "dense": {"dense_0": ["log1p", {"fill_null": 0}]}}
    b = place.write("b.yaml", features=more)
    by_name = {each["name"]: each for each in compared(a, b)["cost"]["features"]}
    assert list(by_name) == ["dense_0", "hist_0"]
    for name, each in by_name.items():
        expected = pytest.approx(1e6 * stored_bytes(place.table, name) / 20_000)
        assert (each["b"]["bytes"], each["b"]["cpu_s"]) == (expected, None)
    assert by_name["hist_0"]["a"] is None
    assert by_name["dense_0"]["a"]["bytes"] == by_name["dense_0"]["b"]["bytes"]
    measured = compared(a, b, "--cost")["cost"]
    assert all(each["b"]["cpu_s"] > 0 for each in measured["features"])
    assert measured["total"][1]["cpu_s"] == pytest.approx(sum(each["b"]["cpu_s"] for each in measured["features"]))


def test_another_table_of_which_some_files_are_the_same(place: Place, tmp_path: Path):
    other = shutil.copytree(place.table, tmp_path / "other")
    first, second, *_ = sorted(other.rglob("*.parquet"))
    first.unlink()
    pq.write_table(pq.ParquetFile(second).read().slice(0, 100), second)
    facts = compared(place.write(features=FEATURES), "--set", f"source.table={other}")
    snapshot = facts["fingerprints"]["snapshot"]
    files = len(list(place.table.rglob("*.parquet")))
    assert (snapshot["same"], snapshot["by"]) == (False, ["source.table"])
    assert snapshot["files"] == {"same": files - 2, "only_a": 2, "only_b": 1}
    assert (facts["continue"]["resume"], facts["continue"]["rebase"]) == ("as it is", "possible")


def test_of_a_table_that_has_changed_no_key_decides(place: Place):
    pipeline = Pipeline.from_yaml(place.write(features=FEATURES))
    a = pipeline.plan()
    first = sorted(place.table.rglob("*.parquet"))[0]
    shutil.copy(first, first.with_name("another.parquet"))
    b = pipeline.plan()
    assert isinstance(a, Plan)
    assert isinstance(b, Plan)
    facts = describe_differences(a, b, world_size=1, with_cost=False)
    assert (facts["fingerprints"]["snapshot"]["by"], facts["keys"]) == ([], [])
    assert facts["fingerprints"]["plan"]["by"] == ["the snapshot"]
    assert facts["fingerprints"]["snapshot"]["files"]["only_b"] == 1
