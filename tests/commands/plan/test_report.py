"""Every number of `feedline plan` about what is read and why, recounted by DuckDB over random tables and filters.

The recount shares nothing with Feedline: DuckDB lists row groups, sizes, bounds and null counts (`parquet_metadata`),
probes bloom filters (`parquet_bloom_probe`) and counts rows by SQL; the verdict of a condition over bounds is a line of
Python; the sample's hash is the one that tests/test_hashing.py spells out.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sampling_definition import key_hash, place_hash, stays

from feedline import Pipeline
from feedline.cli import app
from feedline.commands.exit_status import status_of
from feedline.commands.plan.report import describe, plan_table
from feedline.errors import SpecError

SQL = {"==": "=", "!=": "<>"}
COLUMNS = ("x", "u", "v", "w", "pad")


@dataclass
class Condition:
    """One conjunct in both syntaxes, with the verdict of bounds, null count and bloom filter."""

    text: str
    sql: str
    column: str
    operator: str
    value: Any

    def verdict(self, low: Any, high: Any, nulls: int, rows: int) -> str:
        """none, some or all of a row group's rows, from its bounds (both None: no value)."""
        if nulls == rows or low is None:
            return "none"
        value = self.value
        possible, certain = {
            "<": (low < value, high < value),
            ">=": (high >= value, low >= value),
            "==": (low <= value <= high, low == high == value),
            "!=": (not low == high == value, value < low or value > high),
        }[self.operator]
        return "all" if certain and nulls == 0 else "some" if possible else "none"


def condition(column: str, operator: str, value: Any) -> Condition:
    shown = json.dumps(value)
    sql = f"{column} {SQL.get(operator, operator)} " + shown.replace('"', "'")
    return Condition(f"{column} {operator} {shown}", sql, column, operator, value)


@st.composite
def conditions(draw: st.DrawFn) -> list[Condition]:
    """Up to three conjuncts, each over another column."""
    forms = {
        "ds": st.builds(
            condition, st.just("ds"), st.sampled_from(["==", "!=", ">="]), st.sampled_from(["d0", "d1", "d2"])
        ),
        "x": st.builds(condition, st.just("x"), st.sampled_from(["<", ">=", "==", "!="]), st.integers(-10, 130)),
        "u": st.builds(condition, st.just("u"), st.just("=="), st.integers(0, 400).map(lambda n: n * 1000)),
        "v": st.builds(condition, st.just("v"), st.sampled_from(["<", ">="]), st.integers(-3, 12)),
    }
    names = draw(st.lists(st.sampled_from(list(forms)), unique=True, max_size=3))
    return [draw(forms[name]) for name in names]


def table(rng: np.random.Generator, rows: int) -> pa.Table:
    """x climbs; u is spread widely, with a bloom filter; v has nulls; w is read; pad is never read."""
    x = np.sort(rng.integers(0, 120, rows))
    u = rng.integers(0, 400, rows) * 1000
    v = pa.array(rng.integers(-2, 10, rows), mask=rng.random(rows) < rng.choice([0, 0.3, 1], p=[0.5, 0.4, 0.1]))
    return pa.table({"x": x, "u": u, "v": v, "w": rng.random(rows), "pad": [f"pad {value}" for value in u]})


@dataclass
class Warehouse:
    """A table in a folder, with DuckDB's facts of it."""

    root: Path
    files: list[str] = field(default_factory=list)

    def groups(self) -> list[dict[str, Any]]:
        """Row groups in the table's order: file, index, rows, first row, and per column bytes, bounds and nulls."""
        found = []
        for name in self.files:
            facts = duckdb.sql(
                "select row_group_id, path_in_schema, row_group_num_rows, total_compressed_size, stats_min_value, "
                "stats_max_value, stats_null_count, bloom_filter_length "
                f"from parquet_metadata('{self.root}/{name}') order by row_group_id, column_id"
            ).fetchall()
            first = 0
            for group in sorted({fact[0] for fact in facts}):
                mine = {fact[1]: fact for fact in facts if fact[0] == group}
                rows = mine["x"][2]
                found.append(
                    {
                        "file": name,
                        "group": group,
                        "rows": rows,
                        "first": first,
                        "ds": name[3:5],
                        "bytes": {column: mine[column][3] for column in COLUMNS},
                        "bounds": {
                            column: tuple(None if value is None else float(value) for value in mine[column][4:6])
                            for column in ("x", "u", "v")
                        },
                        "nulls": {column: mine[column][6] for column in COLUMNS},
                        "bloom": mine["u"][7] or 0,
                    }
                )
                first += rows
        return found

    def row_numbers(self, sql: str) -> set[tuple[str, int]]:
        """File and index of every row that a condition keeps."""
        rows = duckdb.sql(
            f"select filename, file_row_number from (select *, filename[{len(str(self.root)) + 5}:][:2] as ds from "
            f"read_parquet('{self.root}/*/*.parquet', filename=true, file_row_number=true, hive_partitioning=false)) "
            f"where {sql}"
        ).fetchall()
        return {(name[len(str(self.root)) + 1 :], number) for name, number in rows}

    def probed(self, value: int) -> set[tuple[str, int]]:
        """Row groups whose filter excludes a value of u."""
        rows = duckdb.sql(
            f"select file_name, row_group_id from parquet_bloom_probe('{self.root}/*/*.parquet', 'u', {value}) "
            "where bloom_filter_excludes"
        ).fetchall()
        return {(name[len(str(self.root)) + 1 :], group) for name, group in rows}


@pytest.fixture(scope="module")
def warehouses() -> Iterator[list[Warehouse]]:
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            warehouse = Warehouse(Path(folder) / f"t{seed}")
            for day in range(3):
                for part in range(int(rng.integers(1, 3))):
                    name = f"ds=d{day}/f{part}.parquet"
                    path = warehouse.root / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    bloom = {"u": {"ndv": 32, "fpp": 0.01}} if rng.random() < 0.8 else None
                    rows = int(rng.integers(20, 90))
                    pq.write_table(table(rng, rows), path, row_group_size=17, bloom_filter_options=bloom)
                    warehouse.files.append(name)
            found.append(warehouse)
        yield found


@dataclass
class Recount:
    """The expected report, from DuckDB's facts alone."""

    groups: list[dict[str, Any]]
    fates: list[str]
    matched: list[int]
    kept: list[int]
    counted_bytes: int
    bloom_bytes: int
    read_bytes: int

    def share(self, *fates: str) -> dict[str, int]:
        chosen = [group["rows"] for group, fate in zip(self.groups, self.fates, strict=True) if fate in fates]
        return {"row_groups": len(chosen), "rows": sum(chosen)}

    def stage(self, left: list[bool], rows: int, read: set[str]) -> dict[str, int]:
        groups = [group for group, stays in zip(self.groups, left, strict=True) if stays]
        return {
            "files": len({group["file"] for group in groups}),
            "row_groups": len(groups),
            "rows": rows,
            "bytes": sum(group["bytes"].get(column, 0) for group in groups for column in read),
        }


def recount(warehouse: Warehouse, where: list[Condition], sample: dict[str, Any] | None, read: set[str]) -> Recount:
    """`read`: the columns that features need."""
    groups = warehouse.groups()
    sql = " and ".join(part.sql for part in where) or "true"
    rows = warehouse.row_numbers(sql)
    users = {}
    if sample is not None and sample.get("key"):
        for name in warehouse.files:
            for index, user in enumerate(pq.read_table(warehouse.root / name, columns=["u"])["u"].to_pylist()):
                users[name, index] = user
    excluded = {part.value: warehouse.probed(part.value) for part in where if part.column == "u"}
    found = Recount(groups, [], [], [], 0, 0, 0)
    for group in groups:
        place = group["file"], group["group"]
        verdicts = {
            part.column: part.verdict(group["ds"], group["ds"], 0, 1)
            if part.column == "ds"
            else part.verdict(*group["bounds"][part.column], group["nulls"][part.column], group["rows"])
            for part in where
        }
        whole = all(verdict == "all" for verdict in verdicts.values())
        numbers = range(group["first"], group["first"] + group["rows"])
        matched = [number for number in numbers if (group["file"], number) in rows]
        kept = [number for number in matched if in_sample(sample, group["file"], number, users)]
        asked = not whole and "none" not in verdicts.values() and "u" in verdicts
        by_bloom = asked and any(place in groups for groups in excluded.values())
        if verdicts.get("ds") == "none":
            fate = "partition"
        elif "none" in verdicts.values():
            fate = "statistics"
        elif by_bloom:
            fate = "bloom"
        elif not whole or (sample is not None and sample.get("key")):
            fate = "counted"
        else:
            fate = "whole" if sample is None else "place"
        deciding = set() if whole else {part.column for part in where}
        deciding |= {"u"} if sample is not None and sample.get("key") else set()
        found.fates.append(fate)
        found.matched.append(len(matched))
        found.kept.append(len(kept))
        found.bloom_bytes += group["bloom"] if asked else 0
        found.counted_bytes += sum(group["bytes"].get(name, 0) for name in deciding) if fate == "counted" else 0
        if kept:
            needed = read | (deciding if len(kept) < group["rows"] else set())
            found.read_bytes += sum(group["bytes"].get(name, 0) for name in needed)
    return found


def in_sample(sample: dict[str, Any] | None, file: str, number: int, users: dict[tuple[str, int], int]) -> bool:
    if sample is None:
        return True
    by_key = sample.get("key")
    hashed = key_hash((users[file, number],), sample["seed"]) if by_key else place_hash(file, number, sample["seed"])
    return stays(hashed, sample["fraction"])


samples = st.one_of(
    st.none(),
    st.fixed_dictionaries({"fraction": st.sampled_from([0.2, 0.7]), "seed": st.integers(0, 9)}),
    st.fixed_dictionaries({"fraction": st.sampled_from([0.2, 0.7]), "seed": st.integers(0, 9), "key": st.just(["u"])}),
)


def pipeline(warehouse: Warehouse, folder: str, where: list[Condition], sample: dict[str, Any] | None) -> Path:
    path = Path(folder) / "p.yaml"
    source = {
        "table": str(warehouse.root),
        "where": " and ".join(part.text for part in where) or None,
        "sample": sample,
    }
    document = {
        "version": 1,
        "name": "recount",
        "source": {key: value for key, value in source.items() if value is not None},
        "features": {"dense": {"w": [], "x": []}},
        "batch": {"size": 1, "tail": "partial"},
    }
    path.write_text(json.dumps(document))
    return path


@examples(60)
@given(st.integers(0, 3), conditions(), samples)
def test_every_number_equals_duckdbs(
    warehouses: list[Warehouse], number: int, where: list[Condition], sample: dict[str, Any] | None
) -> None:
    warehouse = warehouses[number]
    expected = recount(warehouse, where, sample, {"w", "x"})
    with tempfile.TemporaryDirectory() as folder:
        path = pipeline(warehouse, folder, where, sample)
        if not sum(expected.kept):
            with pytest.raises(SpecError, match="keeps no row"):
                Pipeline.from_yaml(path).plan()
            return
        plan = Pipeline.from_yaml(path).plan()
        facts = describe(plan.source, world_size=1)
        again = describe(Pipeline.from_yaml(path).plan().source, world_size=1)
        assert plan_table(facts).renderables
    filtering = {part.column for part in where} | ({"u"} if sample is not None and sample.get("key") else set())
    columns = {"w", "x"} | filtering
    assert plan.source.selection.rows.tolist() == expected.kept
    assert (set(facts["columns"]["names"]), facts["columns"]["read"]) == (columns, len(columns))
    assert (facts["columns"]["table"], facts["columns"]["share"]) == (6, len(columns) / 6)
    everything = sum(sum(group["bytes"].values()) for group in expected.groups)
    assert facts["bytes"] == {
        "read_per_epoch": expected.read_bytes,
        "table": everything,
        "share": expected.read_bytes / everything,
        "read_twice": 0,  # of one lane
    }
    assert facts["row_groups"] == expected.share("partition", "statistics", "bloom", "whole", "place", "counted")
    assert facts["pruned_by_partition"] == expected.share("partition")
    assert facts["pruned_by_statistics"] == expected.share("statistics")
    assert facts["pruned_by_bloom_filters"] == {**expected.share("bloom"), "bytes": expected.bloom_bytes}
    assert facts["taken_whole"] == expected.share("whole")
    assert facts["sampled_by_place"] == expected.share("place")
    counted = {**expected.share("counted"), "bytes": expected.counted_bytes}
    assert facts["counted"] == {**counted, "cached": False}
    settled = not {"bloom", "counted", "place"} & set(expected.fates)
    assert again == {**facts, "counted": {**counted, "cached": not settled}}
    for key, rows in (("matched", expected.matched), ("kept", expected.kept)):
        assert facts[key] == {"row_groups": sum(count > 0 for count in rows), "rows": sum(rows)}

    def left(*pruned: str) -> dict[str, int]:
        stays = [fate not in pruned for fate in expected.fates]
        stored = sum(group["rows"] for group, here in zip(expected.groups, stays, strict=True) if here)
        return expected.stage(stays, stored, columns)

    stages = {stage["stage"]: {key: stage[key] for key in stage if key != "stage"} for stage in facts["stages"]}
    assert stages == {
        "table": {**left(), "bytes": everything},
        "columns": left(),
        "partitions": left("partition"),
        "statistics": left("partition", "statistics"),
        "bloom filters": left("partition", "statistics", "bloom"),
        "where": expected.stage([count > 0 for count in expected.matched], sum(expected.matched), columns),
        "sample": expected.stage([count > 0 for count in expected.kept], sum(expected.kept), columns),
    }
    assert list(stages) == ["table", "columns", "partitions", "statistics", "bloom filters", "where", "sample"]


def test_the_filters_of_these_tests_reach_every_outcome(warehouses: list[Warehouse]) -> None:
    """Guards the test above against filters that never reach some outcome."""
    seen = set()
    for where, sample in (
        ([condition("ds", "==", "d1"), condition("x", ">=", 60)], None),
        ([condition("u", "==", 7000)], None),
        ([condition("x", "<", 60)], {"fraction": 0.5, "seed": 1}),
    ):
        for warehouse in warehouses:
            seen |= set(recount(warehouse, where, sample, {"w", "x"}).fates)
    assert seen == {"partition", "statistics", "bloom", "whole", "place", "counted"}


def test_people_read_the_same_numbers(warehouses: list[Warehouse], tmp_path: Path, monkeypatch: Any) -> None:
    where, sample = [condition("ds", "!=", "d0"), condition("x", "<", 100)], {"fraction": 0.7, "seed": 2, "key": ["u"]}
    path = pipeline(warehouses[0], str(tmp_path), where, sample)
    expected = recount(warehouses[0], where, sample, {"w", "x"})
    printed = {}
    for option in ("", "--json"):
        monkeypatch.setattr(sys, "argv", ["feedline", "plan", str(path), *([option] if option else [])])
        monkeypatch.setenv("COLUMNS", "200")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert status_of(app) == 0
        printed[option] = out.getvalue()
    facts = json.loads(printed["--json"])
    lines = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in printed[""].splitlines()
        if "│" in line
    }
    for stage in facts["stages"]:
        name = "the whole table" if stage["stage"] == "table" else stage["stage"]
        share = stage["bytes"] / facts["stages"][0]["bytes"]
        numbers = [f"{stage[key]:,}" for key in ("files", "row_groups", "rows", "bytes")]
        assert lines[name] == [*numbers, f"{share:.1%}"]
    assert lines["columns read"] == ["4 of 6 (66.7%)"]
    assert lines["counted"][0].startswith(f"{facts['counted']['row_groups']:,} row groups")
    assert f"{expected.counted_bytes:,} bytes read" in lines["counted"][0]
    assert lines["sampled"] == [f"{sum(expected.kept):,} of {sum(expected.matched):,} rows: 0.7, by u, seed 2"]
    assert "sampled by place" not in lines
