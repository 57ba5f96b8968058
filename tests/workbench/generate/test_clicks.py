"""Rows of a generated click table: layout, sessions, distributions and labels."""

from __future__ import annotations

import math
import tempfile
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from generated_tables import DAYS, GROUP_ROWS, ROWS, SMALL, files, generate, read, unchanged
from hypothesis import given
from hypothesis import strategies as st
from reference_hash import hash_of

from feedline.workbench.generate.clicks import ClickRecipe, click_logit
from feedline.workbench.generate.generate import generate_clicks


@pytest.fixture(scope="module", params=[True, False], ids=["clustered", "log"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, Path, pa.Table]:
    """(clustered, folder, the whole table in file order); the report agrees with it."""
    folder = tmp_path_factory.mktemp("clicks") / "table"
    report = generate(folder, clustered=request.param)
    rows = read(folder)
    assert (report.uri, report.rows, report.days, report.files) == (str(folder), ROWS, DAYS, 6)
    assert report.bytes == sum(file.stat().st_size for file in files(folder))
    assert report.row_groups == sum(pq.read_metadata(file).num_row_groups for file in files(folder))
    assert report.sessions == pc.count_distinct(rows.column("session_id")).as_py()
    assert report.clicks == pc.sum(rows.column("clicked")).as_py()
    return request.param, folder, rows


def auc(score: np.ndarray, label: np.ndarray) -> float:
    rank = np.empty(len(score))
    rank[np.argsort(score)] = np.arange(1, len(score) + 1)
    positive = int(label.sum())
    return float((rank[label == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(label) - positive)))


def test_layout_counts_and_types(table: tuple[bool, Path, pa.Table]) -> None:
    _, folder, rows = table
    assert sorted(entry.name for entry in folder.iterdir()) == ["ds=2026-01-01", "ds=2026-01-02", "ds=2026-01-03"]
    assert [file.name for file in files(folder)] == ["part-00000.parquet", "part-00001.parquet"] * DAYS
    counted = duckdb.sql(
        f"select count(*), count(distinct request_id), min(request_id), max(request_id), count(distinct ds) "
        f"from read_parquet('{folder}/*/*.parquet', hive_partitioning=true)"
    ).fetchall()
    assert counted == [(ROWS, ROWS, 0, ROWS - 1, DAYS)]
    assert rows.column("request_id").to_pylist() == list(range(ROWS))
    footers = [pq.read_metadata(file) for file in files(folder)]
    assert {footer.num_rows for footer in footers} == {ROWS // DAYS // 2}
    assert {footer.row_group(0).num_rows for footer in footers} == {GROUP_ROWS}
    schema = pq.read_schema(files(folder)[0])
    assert schema.field("dense_12").type == pa.float32()
    assert schema.field("id_25").type == pa.int64()
    assert schema.field("str_1").type == pa.string()
    assert schema.field("hist_5").type == pa.list_(pa.int64())
    assert schema.field("ts").type == pa.timestamp("us")
    assert "ds" not in schema.names
    assert len(schema.names) == 4 + 13 + 26 + 2 + 6 + 2


def test_time_lies_in_its_day_and_orders_the_rows(table: tuple[bool, Path, pa.Table]) -> None:
    clustered, folder, rows = table
    days = pc.strftime(rows.column("ts"), format="%Y-%m-%d")
    assert days.to_pylist() == [str(day) for day in rows.column("ds").to_pylist()]
    for file in files(folder):
        part = pq.read_table(file, columns=["ts", "session_id"])
        session, ts = part.column("session_id").to_numpy(), part.column("ts").cast(pa.int64()).to_numpy()
        assert np.all(np.diff(ts)[np.diff(session) == 0] >= 0)
        runs = 1 + np.count_nonzero(np.diff(session))
        if clustered:
            assert runs == len(np.unique(session))
        else:
            assert np.all(np.diff(ts) >= 0)
            assert runs > 0.9 * len(session)


def test_sessions_have_the_requested_mean(table: tuple[bool, Path, pa.Table]) -> None:
    _, _, rows = table
    sizes = np.unique(rows.column("session_id").to_numpy(), return_counts=True)[1]
    assert sizes.mean() == pytest.approx(8, rel=0.06)
    assert sizes.std() == pytest.approx(math.sqrt(8 * 7), rel=0.12)
    users = duckdb.sql("select max(n) from (select count(distinct user_id) n from rows group by session_id)").fetchall()
    assert users == [(1,)]


def test_user_side_columns_are_kept_within_a_session(table: tuple[bool, Path, pa.Table]) -> None:
    _, _, rows = table
    for name in ("dense_0", "dense_5", "id_0", "id_12", "str_0", "hist_0", "hist_5"):
        # a redrawn value may be the same id again, so a little above 0.95 for those of few ids
        assert 0.945 < unchanged(rows, name) < (0.975 if name.startswith(("id", "str")) else 0.957), name
    for name in ("dense_6", "dense_12", "id_13", "id_25", "str_1"):
        assert unchanged(rows, name) < 0.2, name


def test_a_changed_history_slides_by_one(table: tuple[bool, Path, pa.Table]) -> None:
    _, _, rows = table
    ordered = rows.sort_by([("session_id", "ascending"), ("ts", "ascending")])
    session, lists = ordered.column("session_id").to_pylist(), ordered.column("hist_2").to_pylist()
    pairs = [(a, b) for i, (a, b) in enumerate(pairwise(lists)) if session[i] == session[i + 1]]
    changed = [(a, b) for a, b in pairs if a != b]
    assert changed
    assert all(b[1:] == a[:-1] for a, b in changed)


def test_distributions(table: tuple[bool, Path, pa.Table]) -> None:
    _, _, rows = table
    for name in ("dense_0", "dense_12"):
        column = rows.column(name)
        assert column.null_count / ROWS == pytest.approx(0.05, abs=0.012)
        values = column.drop_null().to_numpy()
        assert np.isfinite(values).all()
        assert values.min() < 0 < np.median(values) < values.mean()
        assert np.median(values) == pytest.approx(0.9, rel=0.1)
    for name in ("id_0", "str_0", "hist_0", "clicked"):
        assert rows.column(name).null_count == 0
    lengths = pc.list_value_length(rows.column("hist_3")).to_numpy()
    assert (lengths.min(), lengths.max()) == (5, 49)
    assert lengths.mean() == pytest.approx(27, rel=0.05)
    sizes = duckdb.sql("select count(*) n from rows group by id_15 order by n desc").fetchnumpy()["n"]
    assert len(sizes) > 2_000
    assert 0.02 < sizes[0] / ROWS < 0.3
    assert sizes[:10].sum() > 10 * sizes[100:110].sum() / 2
    assert pc.min(rows.column("id_1")).as_py() >= 0
    assert pc.max(rows.column("id_1")).as_py() <= 99
    assert pc.max(rows.column("id_3")).as_py() < 10_000_000
    assert pc.max(rows.column("id_3")).as_py() > 1_000_000


def test_labels_follow_the_documented_logit(table: tuple[bool, Path, pa.Table]) -> None:
    _, _, rows = table
    logit, clicked = click_logit(rows), rows.column("clicked").to_numpy()
    assert set(np.unique(clicked)) == {0, 1}
    assert auc(logit, clicked) > 0.75
    chance = 1 / (1 + np.exp(-logit))
    assert clicked.mean() == pytest.approx(chance.mean(), abs=0.01)
    for low in np.arange(0, 1, 0.2):  # calibrated, not only ranked
        bucket = (chance >= low) & (chance < low + 0.2)
        assert clicked[bucket].mean() == pytest.approx(chance[bucket].mean(), abs=0.04)
    dwell = rows.column("dwell")
    assert np.array_equal(dwell.is_valid().to_numpy(), clicked == 1)
    assert pc.min(dwell).as_py() > 0


def test_logit_matches_a_row_by_row_evaluation(tmp_path: Path) -> None:
    generate(tmp_path / "t", rows=200, days=1, history_min=0, history_max=2)
    rows = read(tmp_path / "t")

    def effect(value: int) -> float:
        return (hash_of(value) >> 11) / 2**53 * 2 - 1

    expected = []
    for row in rows.to_pylist():
        terms = [-1.0]
        for weight, j, k in zip((1.0, -0.8, 0.8, -0.6), (0, 1, 11, 12), (0, 1, 24, 25), strict=True):
            dense = row[f"dense_{j}"]
            terms.append(0 if dense is None else weight * (math.log1p(max(dense, 0)) - 0.7))
            terms.append(weight * effect(row[f"id_{k}"]))
        terms.append(1.5 * effect(row["hist_0"][0]) if row["hist_0"] else 0)
        expected.append(sum(terms))
    assert any(not row for row in rows.column("hist_0").to_pylist())
    np.testing.assert_allclose(click_logit(rows), expected, rtol=1e-12, atol=1e-12)


def test_a_column_does_not_depend_on_the_others(tmp_path: Path) -> None:
    generate(tmp_path / "wide", **SMALL)
    generate(tmp_path / "narrow", dense=2, ids=2, histories=1, strings=0, user_share=0.0, **SMALL)
    wide, narrow = read(tmp_path / "wide"), read(tmp_path / "narrow")
    assert narrow.column_names[4:9] == ["dense_0", "dense_1", "id_0", "id_1", "hist_0"]
    for name in ("request_id", "ts", "session_id", "user_id", "hist_0"):
        assert wide.column(name).equals(narrow.column(name)), name
    assert unchanged(narrow, "dense_0") < 0.2  # user_share 0: only histories are the user's


def test_user_side_columns_change_together_where_they_shall(tmp_path: Path) -> None:
    """By DuckDB: in which rows of a session each column differs from the row before."""
    shape = {**SMALL, "sessions_mean": 16.5, "user_share": 0.5, "keep_probability": 0.8, "null_share": 0.0}
    columns = ["dense_0", "dense_5", "id_3", "id_0", "id_12", "str_0", *(f"hist_{k}" for k in range(6))]
    changed = ", ".join(f"{name} is distinct from lag({name}) over w as {name}" for name in columns)
    shares, anywhere = {}, {}
    for joint in (False, True):
        generate(tmp_path / str(joint), joint_changes=joint, **shape)
        rows = duckdb.sql(
            f"select session_id = lag(session_id) over w as inside, {changed}"
            f" from read_parquet('{tmp_path / str(joint)}/*/*.parquet') "
            "window w as (order by session_id, ts, request_id)"
        )
        flags = np.column_stack([rows.filter("inside").fetchnumpy()[name] for name in columns])
        shares[joint], anywhere[joint] = flags.mean(axis=0), flags.any(axis=1).mean()
    for joint in (False, True):  # by the definition: the histories' new id may repeat an old one, others are drawn anew
        np.testing.assert_allclose(shares[joint][[0, 1, 3]], 0.2, atol=0.02)
        assert (shares[joint] < 0.22).all()
    assert anywhere[True] == pytest.approx(0.2, abs=0.02)
    assert anywhere[False] > 1 - 0.8**9, "twelve columns, of which some are drawn equal"


@examples(15, by_day=5)
@given(
    recipe=st.builds(
        lambda days, lengths, rows, **others: ClickRecipe(
            rows=rows, days=min(rows, days), history_min=lengths[0], history_max=lengths[1], **others
        ),
        rows=st.integers(1, 250),
        days=st.integers(1, 5),
        part_rows=st.integers(1, 300),
        row_group_rows=st.integers(1, 300),
        sessions_mean=st.sampled_from([1, 1.5, 8, 900]),
        clustered=st.booleans(),
        dense=st.integers(0, 3),
        ids=st.integers(0, 3),
        strings=st.integers(0, 2),
        histories=st.integers(0, 2),
        lengths=st.sampled_from([(0, 0), (0, 3), (7, 7)]),
        user_share=st.sampled_from([0, 0.5, 1]),
        joint_changes=st.booleans(),
    )
)
def test_any_shape_is_exact(recipe: ClickRecipe) -> None:
    with tempfile.TemporaryDirectory() as name:
        report = generate_clicks(f"{name}/t", recipe, threads=1)
        table = read(Path(name) / "t")
        assert all(pq.read_metadata(file).num_rows <= recipe.part_rows for file in files(Path(name) / "t"))
    table.validate(full=True)
    assert table.column("request_id").to_pylist() == list(range(recipe.rows))
    assert report.rows == recipe.rows
    per_day = table.column("ds").value_counts().field("counts").to_pylist()
    assert len(per_day) == recipe.days
    assert max(per_day) - min(per_day) <= 1
    for index in range(recipe.histories):
        sizes = pc.list_value_length(table.column(f"hist_{index}"))
        assert recipe.history_min <= pc.min(sizes).as_py() <= pc.max(sizes).as_py() <= recipe.history_max
