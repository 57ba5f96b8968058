"""The generated log of listens, read back with DuckDB: layout, laws, ties, late events, and the same rows by seed."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import dask
import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from generated_tables import files, read
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from feedline.cli import app
from feedline.errors import SpecError, TableError
from feedline.workbench.generate.generate import generate_listens
from feedline.workbench.generate.listens import ListenFile, ListenRecipe, events_before

ROWS, DAYS, USERS, PART_ROWS = 120_000, 4, 60, 16_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, duckdb.DuckDBPyConnection]:
    """(Folder, its rows as the view `log`); the report agrees with them."""
    folder = tmp_path_factory.mktemp("listens") / "table"
    report = generate_listens(str(folder), recipe(), threads=2)
    database = duckdb.connect(config={"threads": 1})
    database.sql(f"create view log as from read_parquet('{folder}/*/*.parquet', hive_partitioning = true)")
    counted = database.sql(
        "select count(*), count(distinct uid), count(*) filter (event_type = 'listen'),"
        " count(*) filter (event_type = 'like') from log"
    ).fetchall()
    assert counted == [(report.rows, report.users, report.listens, report.likes)]
    assert (report.rows, report.days, report.files, report.users) == (ROWS, DAYS, 2 * DAYS, USERS)
    assert report.bytes == sum(file.stat().st_size for file in files(folder))
    assert report.row_groups == sum(pq.read_metadata(file).num_row_groups for file in files(folder))
    return folder, database


def recipe(**options: Any) -> ListenRecipe:
    small = {"rows": ROWS, "days": DAYS, "users": USERS, "part_rows": PART_ROWS, "row_group_rows": 4_096}
    return ListenRecipe(**{**small, **options})


def one(database: duckdb.DuckDBPyConnection, query: str) -> Any:
    [row] = database.sql(query).fetchall()
    return row[0] if len(row) == 1 else row


def test_days_are_partitions_in_the_order_of_the_log(log: tuple[Path, duckdb.DuckDBPyConnection]) -> None:
    folder, database = log
    assert sorted(entry.name for entry in folder.iterdir()) == [f"ds=2026-01-0{day}" for day in (1, 2, 3, 4)]
    per_day = database.sql("select count(*) from log group by ds").fetchall()
    assert per_day == [(ROWS // DAYS,)] * DAYS
    assert one(database, "select count(*) from log where ds <> make_timestamp(timestamp * 1000000)::date") == 0
    assert one(database, "select count(*) from log where timestamp % 5 <> 0") == 0
    rows = read(folder)
    assert rows.column("event_no").to_pylist() == list(range(ROWS))
    assert (np.diff(rows.column("timestamp").to_numpy()) >= 0).all()
    footers = [pq.read_metadata(file) for file in files(folder)]
    assert {footer.num_rows for footer in footers} == {ROWS // DAYS // 2}
    assert {footer.row_group(0).num_rows for footer in footers} == {4_096}
    neighbours = np.diff(rows.column("uid").to_numpy()) != 0
    assert neighbours.mean() > 0.3, "users are mixed, but for the reports of one"
    assert pq.read_schema(files(folder)[0]).equals(recipe().schema())


def test_kinds_of_events_have_their_shares(log: tuple[Path, duckdb.DuckDBPyConnection]) -> None:
    _, database = log
    shares = one(
        database,
        "select avg((played_ratio_pct >= 50 is true)::int), avg((played_ratio_pct < 50 is true)::int),"
        " avg((event_type = 'like')::int) from log",
    )
    assert shares == pytest.approx((0.613, 0.359, 0.019), abs=0.005)
    kinds = {kind for (kind,) in database.sql("select distinct event_type from log").fetchall()}
    assert kinds == {"listen", "like", "dislike", "unlike", "undislike"}
    nulls = "select count(*) from log where (event_type = 'listen') <> ({} is not null)"
    assert one(database, nulls.format("played_ratio_pct")) == one(database, nulls.format("track_length_seconds")) == 0
    assert one(database, "select min(played_ratio_pct), max(played_ratio_pct) from log") == (0, 160)
    assert one(database, "select median(track_length_seconds) from log") == pytest.approx(180, abs=25)
    assert one(database, "select avg(is_organic) from log") == pytest.approx(0.5, abs=0.03)
    assert one(database, "select count(*) from log where columns(* exclude (played_ratio_pct, track_length_seconds))"
               " is null") == 0  # fmt: skip


def test_ties_are_many_and_few_events_are_late(log: tuple[Path, duckdb.DuckDBPyConnection]) -> None:
    _, database = log
    gaps = "select timestamp - lag(timestamp) over (partition by uid order by event_no) as gap from log"
    assert one(database, f"select avg((gap = 0)::int) from ({gaps})") == pytest.approx(0.6, abs=0.03)
    lowest, prompt, late, latest = one(
        database,
        "select min(d), avg((d <= 60)::int), avg((d >= 3600)::int), max(d)"
        " from (select ingested_at - timestamp d from log)",
    )
    assert lowest == 0
    assert prompt > 0.98
    assert 0.001 < late < 0.006
    assert latest < 12 * 3_600
    reports = "select count(distinct ingested_at) n from log group by uid, timestamp"
    assert one(database, f"select avg((n = 1)::int) from ({reports})") > 0.95


def test_users_have_the_events_of_the_law(log: tuple[Path, duckdb.DuckDBPyConnection]) -> None:
    _, database = log
    sizes = [size for (size,) in database.sql("select count(*) n from log group by uid order by n").fetchall()]
    assert sizes == sorted(np.diff(events_before(ROWS, USERS)).tolist())
    assert one(database, "select min(uid), max(uid) from log") == (0, USERS - 1)
    ranks = database.sql("select uid from log group by uid order by count(*)").fetchnumpy()["uid"]
    assert abs(np.corrcoef(ranks, np.arange(USERS))[0, 1]) < 0.5, "the number of a user says nothing"


def test_the_law_at_full_size_is_that_of_the_log_it_follows() -> None:
    full = ListenRecipe(rows=4_763_000_000, days=300)
    assert (full.user_count, full.item_count) == (1_000_000, 9_390_000)
    sizes = np.diff(events_before(full.rows, full.user_count))
    assert sizes.sum() == full.rows
    assert (np.diff(sizes) >= -1).all()
    assert sizes.max() == pytest.approx(27_738, rel=0.001)
    assert sizes.max() <= 27_738
    assert np.median(sizes) == pytest.approx(2_695, rel=0.002)


def test_items_are_popular_repeated_and_of_one_artist(log: tuple[Path, duckdb.DuckDBPyConnection]) -> None:
    _, database = log
    facts = "select count(distinct (album_id, artist_id, track_length_seconds)) n from log where event_type = 'listen'"
    assert one(database, f"select max(n) from ({facts} group by item_id)") == 1
    assert one(database, "select max(n) from (select count(distinct artist_id) n from log group by album_id)") == 1
    ids = "count(distinct item_id), count(distinct album_id), count(distinct artist_id)"
    items, albums, artists = one(database, f"select {ids} from log")
    assert items > albums > artists > 100
    top = database.sql("select count(*) n from log group by item_id order by n desc limit 100").fetchnumpy()["n"]
    assert 0.005 < top[0] / ROWS < 0.05
    assert top[0] > 5 * top[99]
    rank = "row_number() over (partition by uid order by count(*) desc)"
    own = f"select count(*) n, {rank} r from log group by uid, item_id"
    assert one(database, f"select sum(n) / {ROWS} from ({own}) where r <= 20") > 0.2
    before = "select *, lag(item_id) over (partition by uid order by event_no) as earlier from log"
    same = f"select avg((item_id = earlier)::int) from ({before}) where event_type = 'like'"
    assert one(database, same) > 0.75, "a like is of the item that was heard, but where two sessions overlap"


def test_the_same_rows_however_many_threads(tmp_path: Path) -> None:
    small = recipe(rows=6_000, part_rows=1_000)
    for name, threads in (("one", 1), ("two", 2)):
        generate_listens(str(tmp_path / name), small, threads=threads)
    with dask.config.set(scheduler="synchronous"):
        generate_listens(str(tmp_path / "sync"), small)
    contents = {file.relative_to(tmp_path / "one"): file.read_bytes() for file in files(tmp_path / "one")}
    for other in ("two", "sync"):
        assert {f.relative_to(tmp_path / other): f.read_bytes() for f in files(tmp_path / other)} == contents
    generate_listens(str(tmp_path / "seed"), recipe(rows=6_000, part_rows=1_000, seed=1), threads=1)
    assert not any((tmp_path / "seed" / name).read_bytes() == content for name, content in contents.items())


@examples(15, by_day=5)
@given(
    st.builds(
        lambda days, users, rows, **others: ListenRecipe(
            rows=rows, days=min(days, rows), users=users and min(users, rows), **others
        ),
        rows=st.integers(1, 300),
        days=st.integers(1, 5),
        users=st.none() | st.integers(1, 300),
        items=st.none() | st.integers(1, 9),
        part_rows=st.integers(1, 300),
        row_group_rows=st.integers(1, 300),
        seed=st.integers(0, 2**64 - 1),
    )
)
def test_any_shape_is_exact(recipe: ListenRecipe) -> None:
    with tempfile.TemporaryDirectory() as name:
        report = generate_listens(f"{name}/t", recipe, threads=1)
        rows = read(Path(name) / "t")
        assert all(pq.read_metadata(file).num_rows <= recipe.part_rows for file in files(Path(name) / "t"))
    rows.validate(full=True)
    assert rows.column("event_no").to_pylist() == list(range(recipe.rows))
    assert (np.diff(rows.column("timestamp").to_numpy()) >= 0).all()
    sizes = np.sort(np.unique(rows.column("uid").to_numpy(), return_counts=True)[1])
    law = np.diff(events_before(recipe.rows, recipe.user_count))
    assert sizes.tolist() == np.sort(law[law > 0]).tolist()
    assert report.users == len(sizes)
    assert max(rows.column("item_id").to_pylist()) < recipe.item_count


def test_memory_is_that_of_a_file(tmp_path: Path) -> None:
    peaks = []
    for rows in (1 << 20, 1 << 24):
        big = ListenRecipe(rows=rows, days=1, users=5_000, part_rows=1 << 15)
        list(ListenFile(big, 0, 1).row_groups())  # once before, to fill the caches
        tracemalloc.start()
        assert sum(table.num_rows for table in ListenFile(big, 0, 1).row_groups()) == 1 << 15
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < 1.1 * 400 * (1 << 15)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 0}, "rows is out of range: got 0"),
        ({"rows": 2, "days": 3, "users": 1}, "days exceed rows"),
        ({"users": 0}, "users is out of range: got 0"),
        ({"users": 2.5}, "users is out of range: got 2.5, expected an integer"),
        ({"users": ROWS + 1}, "users exceed rows: got 120001 users and 120000 rows"),
        ({"items": 1 << 25}, "items is out of range"),
        ({"seed": -1}, "seed is out of range"),
        ({"compression": "zip"}, "compression is unknown: got 'zip'"),
    ],
)
def test_invalid_values_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        recipe(**options)


def test_the_command_writes_what_its_options_say(tmp_path: Path) -> None:
    options = {"rows": 900, "users": 7, "items": 50, "days": 2, "row_group_rows": 128, "seed": 3}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = ["generate", "listens", str(tmp_path / "t"), *arguments]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "900 rows in 2 files" in done.output
    assert "7 users" in done.output
    generate_listens(str(tmp_path / "same"), ListenRecipe(**options), threads=1)
    assert [file.read_bytes() for file in files(tmp_path / "same")] == [f.read_bytes() for f in files(tmp_path / "t")]
    for wrong, error, message in (
        (command, TableError, "is not empty"),
        ([*command, "--overwrite", "--users", "901"], SpecError, "users exceed rows"),
        ([*command, "--overwrite", "--rows", "0"], SpecError, "rows is out of range"),
    ):
        refused = CliRunner().invoke(app, wrong)
        assert isinstance(refused.exception, error)
        assert message in str(refused.exception)
    assert read(tmp_path / "t").num_rows == 900
