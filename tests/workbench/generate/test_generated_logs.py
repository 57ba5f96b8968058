"""The generated logs, read back with DuckDB: layout, keys, laws of time, shares of faults, the same bytes by seed."""

from __future__ import annotations

import math
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
from generated_tables import files
from hypothesis import given
from hypothesis import strategies as st
from reference_hash import hash_of
from typer.testing import CliRunner

from feedline.cli import app
from feedline.errors import SpecError, TableError
from feedline.workbench.generate.generate import LogsReport, generate_logs
from feedline.workbench.generate.logs import LOG_TABLES, REQUEST_MAX, LogPart, LogRecipe

ROWS, DAYS, PART_ROWS = 60_000, 4, 8_000
SHARES = {"late": 0.04, "duplicates": 0.02, "orphans": 0.05}
SMALL = {"rows": 3_000, "days": 3, "part_rows": 500, "row_group_rows": 128}


def recipe(**options: Any) -> LogRecipe:
    small = {"rows": ROWS, "days": DAYS, "part_rows": PART_ROWS, "row_group_rows": 2_048, "seed": 5, **SHARES}
    return LogRecipe(**{**small, **options})


def opened(folder: Path) -> duckdb.DuckDBPyConnection:
    """The tables; `shown`: each impression once; `clicks_shown`: each click once, with its impression's time."""
    database = duckdb.connect(config={"threads": 1})
    for table in LOG_TABLES:
        if (folder / table).exists():
            path = f"{folder}/{table}/*/*.parquet"
            database.sql(f"create view {table} as from read_parquet('{path}', hive_partitioning = true)")
    database.sql("create view shown as select distinct on (request_id, item_id) * from impressions")
    if (folder / "clicks").exists():
        database.sql(
            "create view clicks_shown as select c.*, i.ts as shown_at, i.user_id, i.price"
            " from (select distinct * exclude ds from clicks) c join shown i using (request_id, item_id)"
        )
    return database


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, duckdb.DuckDBPyConnection, LogsReport]:
    folder = tmp_path_factory.mktemp("logs") / "tables"
    report = generate_logs(str(folder), recipe(), threads=2)
    return folder, opened(folder), report


def one(database: duckdb.DuckDBPyConnection, query: str) -> Any:
    [row] = database.sql(query).fetchall()
    return row[0] if len(row) == 1 else row


def test_the_report_counts_what_is_written(log: tuple[Path, duckdb.DuckDBPyConnection, LogsReport]) -> None:
    folder, database, report = log
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(LOG_TABLES)
    assert {table: one(database, f"select count(*) from {table}") for table in LOG_TABLES} == report.logged
    assert (report.rows, report.days, report.files) == (ROWS, DAYS, len(files(folder)))
    assert report.bytes == sum(file.stat().st_size for file in files(folder))
    assert report.row_groups == sum(pq.read_metadata(file).num_row_groups for file in files(folder))
    ids = "count(distinct session_id), count(distinct request_id)"
    assert one(database, f"select {ids} from impressions") == (report.sessions, report.requests)
    events = LOG_TABLES[:3]
    late = (one(database, f"select count(*) from {table} where ds > ts::date") for table in events)
    assert sum(late) == report.late
    double = (
        one(
            database,
            f"select count(*) - (select count(*) from (select distinct * exclude ds from {table})) from {table}",
        )
        for table in events
    )
    # two clicks of one impression may be equal by chance
    assert report.duplicates <= sum(double) <= report.duplicates + 3
    orphaned = "select (select count(*) from clicks where request_id < 0) + count(*) from orders where user_id < 0"
    assert one(database, orphaned) == report.orphans


def test_rows_lie_in_the_day_on_which_they_arrive(log: tuple[Path, duckdb.DuckDBPyConnection, LogsReport]) -> None:
    folder, database, _ = log
    for table in LOG_TABLES:
        days = sorted(entry.name for entry in (folder / table).iterdir())
        assert days == [f"ds=2026-01-0{day}" for day in (1, 2, 3, 4)], table
        early, latest = one(database, f"select min(ds - ts::date), max(ds - ts::date) from {table}")
        assert (early, latest) == (0, 0 if table == "users" else 2), table
        assert one(database, f"select count(*) from {table} where ts <> date_trunc('second', ts)") == 0
        for file in files(folder / table):
            part = pq.ParquetFile(file).read()
            assert 0 < part.num_rows <= PART_ROWS * 1.1
            assert "ds" not in part.column_names
            assert (np.diff(part.column("ts").cast("int64").to_numpy()) >= 0).all()
    shares = "select avg((ds > ts::date)::int) from {} where ts < '2026-01-03'"
    for table in ("impressions", "clicks"):  # of the days before the last two, all that is late is in the log
        assert one(database, shares.format(table)) == pytest.approx(SHARES["late"], rel=0.3)
    ties = one(database, "select avg((n > 1)::int) from (select count(*) n from shown group by request_id, ts)")
    assert ties > 0.3


def test_keys_are_unique_but_for_copies(log: tuple[Path, duckdb.DuckDBPyConnection, LogsReport]) -> None:
    _, database, report = log
    assert one(database, "select count(*) from shown") == ROWS
    assert one(database, "select count(*) from (select distinct * exclude ds from impressions)") == ROWS
    copied = one(
        database, "select count(*) from (select 1 from impressions group by request_id, item_id having count(*) > 1)"
    )
    assert copied / ROWS == pytest.approx(SHARES["duplicates"], rel=0.2)
    apart = (
        "select avg((n > 1)::int) from (select count(distinct ds) n, count(*) m from impressions group by request_id,"
    )
    assert 0 < one(database, f"{apart} item_id) where m > 1") < 0.5, "some copies come in another day's files"
    of_request = (
        "select max(n), max(p + 1 - n), max(s), max(u), max(d), max(r) from (select count(*) n, max(position) p,"
        " count(distinct session_id) s, count(distinct user_id) u, count(distinct device) d,"
        " count(distinct recent) r from shown group by request_id)"
    )
    longest, holes, *others = one(database, of_request)
    assert 5 < longest <= REQUEST_MAX
    assert (holes, others) == (0, [1, 1, 1, 1])
    assert one(database, "select max(n) from (select count(distinct user_id) n from shown group by session_id)") == 1
    assert ROWS / report.sessions == pytest.approx(16.5, rel=0.05)
    assert ROWS / report.requests == pytest.approx(5.5, rel=0.05)
    prices = "select max(n) from (select count(distinct price) n from shown group by item_id)"
    assert one(database, prices) == 1
    assert one(database, "select min(price) from shown") >= 1


def test_lists_slide_by_one(log: tuple[Path, duckdb.DuckDBPyConnection, LogsReport]) -> None:
    _, database, _ = log
    for table, lists, owner, order in (
        ("shown", "recent", "session_id", "request_id"),
        ("users", "hist", "user_id", "ds"),
    ):
        each = f"select any_value({lists}) l, {owner} o, {order} k from {table} group by {owner}, {order}"
        pairs = database.sql(
            f"select l, lag(l) over w before, k - lag(k) over w apart from ({each})"
            " window w as (partition by o order by k)"
        ).fetchall()
        neighbours = [(new, old) for new, old, apart in pairs if apart == 1]
        assert len(neighbours) > 200
        assert all(len(new) == len(old) and new[1:] == old[:-1] for new, old in neighbours), table
        sizes = np.array([len(new) for new, _, _ in pairs])
        assert sizes.max() <= 49
        assert sizes.min() == (5 if lists == "recent" else 0)
        assert sizes.mean() == pytest.approx(27 if lists == "recent" else 24.5, rel=0.1)
    known = "count(distinct user_id) filter (ds = '2026-01-01'), count(*) filter (ds = '2026-01-03')"
    first, later = one(database, f"select {known} from users")
    assert first / recipe().user_count == pytest.approx(0.95, abs=0.03)
    assert later / recipe().user_count == pytest.approx(0.3, abs=0.06)
    assert one(database, "select max(ts) from users where ds = '2026-01-01'").hour == 0
    assert one(database, "select max(n) from (select count(distinct country) n from users group by user_id)") == 1
    assert one(database, "select avg((age is null)::int) from users") == pytest.approx(0.05, abs=0.025)


def test_outcomes_follow_their_impressions_but_for_slow_clocks(
    log: tuple[Path, duckdb.DuckDBPyConnection, LogsReport],
) -> None:
    _, database, report = log
    delays = "epoch(ts) - epoch(shown_at)"
    early, tied, late, median, earliest, latest = one(
        database,
        f"select avg(({delays} < 0)::int), avg(({delays} = 0)::int), avg(({delays} > 1800)::int), median({delays}),"
        f" min({delays}), max({delays}) from clicks_shown",
    )
    assert early == pytest.approx(0.005, abs=0.003)
    assert tied == pytest.approx(0.01, abs=0.005)
    assert late == pytest.approx(0.01, abs=0.005)
    assert median in (7, 8)
    assert -60 <= earliest < 0
    assert 1_800 < latest < 7_200
    orphans = "select count(*) from clicks anti join shown using (request_id, item_id)"
    assert one(database, orphans) == one(database, "select count(*) from clicks where request_id < 0")
    assert report.orphans / (report.logged["clicks"] + report.logged["orders"]) == pytest.approx(0.05, abs=0.01)
    twice = "select avg((n > 1)::int) from (select count(*) n from clicks_shown group by request_id, item_id)"
    assert one(database, twice) == pytest.approx(0.05, abs=0.015)
    # an order is of a click, which may itself have lost its impression, and has the price that was shown
    orders = "(select distinct * exclude ds from orders where user_id >= 0)"
    assert one(database, f"select count(*) from {orders} anti join shown using (user_id, item_id, price)") == 0
    assert one(database, "select min(dwell_ms) from clicks") >= 200


def test_orders_follow_within_days(tmp_path: Path) -> None:
    generate_logs(str(tmp_path / "t"), recipe(rows=40_000, days=24, orphans=0.0, late=0.0, users=40_000), threads=1)
    database = opened(tmp_path / "t")
    waits = (
        "select epoch(o.ts) - epoch(max(i.ts)) d from (select distinct * exclude ds from orders) o"
        " join shown i using (user_id, item_id) where i.ts <= o.ts"
        " group by user_id, item_id, o.ts having max(i.ts) < '2026-01-15'"
    )
    mean, longest = one(database, f"select avg(d) / 86400, max(d) / 86400 from ({waits})")
    assert mean == pytest.approx(1, rel=0.15)
    assert 4 < longest < 15


def test_clicks_follow_the_documented_logit(log: tuple[Path, duckdb.DuckDBPyConnection, LogsReport]) -> None:
    _, database, _ = log
    rows = database.sql(
        "select item_id, position, country, recent[1] newest, (c.request_id is not null)::int clicked from shown"
        " join (select distinct user_id, country from users) using (user_id)"
        " left join (select distinct request_id, item_id from clicks_shown) c using (request_id, item_id)"
    ).fetchnumpy()
    countries = {
        name: number for number, name in enumerate(("BR", "DE", "FR", "GB", "IN", "JP", "NG", "PL", "US", "VN"))
    }
    effects: dict[int, float] = {}

    def effect(value: int) -> float:
        return effects.setdefault(value, (hash_of(value) >> 11) / 2**53 * 2 - 1)

    logits = np.array(
        [
            -2.2 + 1.5 * effect(item) + effect(countries[country]) + 0.8 * effect(newest) - 0.15 * min(position, 10)
            for item, position, country, newest in zip(
                *(rows[name].tolist() for name in ("item_id", "position", "country", "newest")), strict=True
            )
        ]
    )
    chance, clicked = 1 / (1 + np.exp(-logits)), rows["clicked"]
    kept = 1 - SHARES["orphans"]  # of the clicks, those with an impression
    assert clicked.mean() == pytest.approx(kept * chance.mean(), abs=0.005)
    for low, high in ((0, 0.05), (0.05, 0.1), (0.1, 0.2), (0.2, 0.6)):
        bucket = (chance >= low) & (chance < high)
        assert clicked[bucket].mean() == pytest.approx(kept * chance[bucket].mean(), abs=0.02)


def test_the_same_logs_however_many_threads(tmp_path: Path) -> None:
    small = recipe(**SMALL)
    for name, threads in (("one", 1), ("two", 2)):
        generate_logs(str(tmp_path / name), small, threads=threads)
    with dask.config.set(scheduler="synchronous"):
        generate_logs(str(tmp_path / "sync"), small)
    contents = {file.relative_to(tmp_path / "one"): file.read_bytes() for file in files(tmp_path / "one")}
    for other in ("two", "sync"):
        assert {f.relative_to(tmp_path / other): f.read_bytes() for f in files(tmp_path / other)} == contents
    generate_logs(str(tmp_path / "seed"), recipe(**{**SMALL, "seed": 6}), threads=1)
    other = {f.relative_to(tmp_path / "seed"): f.read_bytes() for f in files(tmp_path / "seed")}
    assert not [name for name in contents.keys() & other.keys() if contents[name] == other[name]]


@examples(15, by_day=5)
@given(
    st.builds(
        lambda rows, days, sessions_mean, requests_mean, **others: LogRecipe(
            rows=rows, days=min(days, rows), sessions_mean=sessions_mean,
            requests_mean=min(requests_mean, sessions_mean), **others,
        ),
        rows=st.integers(1, 300),
        days=st.integers(1, 5),
        part_rows=st.integers(20, 300),
        row_group_rows=st.integers(1, 300),
        sessions_mean=st.sampled_from([1, 1.5, 16.5, 900]),
        requests_mean=st.sampled_from([1, 5.5, 64]),
        users=st.none() | st.integers(1, 300),
        items=st.none() | st.sampled_from([REQUEST_MAX, 1_000]),
        late=st.sampled_from([0, 0.5, 1]),
        duplicates=st.sampled_from([0, 0.5, 1]),
        orphans=st.sampled_from([0, 0.5, 1]),
        seed=st.integers(0, 2**64 - 1),
    )
)  # fmt: skip
def test_any_shape_is_exact(recipe: LogRecipe) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "t"
        report = generate_logs(str(folder), recipe, threads=1)
        database = opened(folder)
        assert one(database, "select count(*) from shown") == recipe.rows
        copies = one(database, "select count(*) from impressions") - recipe.rows
        assert copies == {0: 0, 1: recipe.rows}.get(recipe.duplicates, copies)
        per_day = database.sql("select count(*) from shown group by ts::date").fetchnumpy()["count_star()"]
        assert len(per_day) == recipe.days
        assert per_day.max() - per_day.min() <= 1
        on_time = "select count(*) filter (ds = ts::date) from impressions where ts::date < ?"
        last = recipe.midnight(recipe.days - 2).date()
        prompt = database.execute(on_time, [last]).fetchall()
        if recipe.late == 1:
            assert prompt == [(0,)]
        for table in (set(LOG_TABLES[:3]) if recipe.late == 0 else {"users"}) & {
            each.name for each in folder.iterdir()
        }:
            assert one(database, f"select count(*) from {table} where ds <> ts::date") == 0
        if recipe.orphans in (0, 1) and (folder / "clicks").exists():
            orphans = one(database, "select count(*) from clicks where request_id < 0")
            assert orphans == recipe.orphans * report.logged["clicks"]


def test_memory_is_that_of_a_part() -> None:
    peaks = []
    for rows in (1 << 18, 1 << 22):
        big = LogRecipe(rows=rows, days=1, users=5_000, items=4_096, part_rows=1 << 14)
        for traced in (False, True):  # once before, to fill the caches
            if traced:
                tracemalloc.start()
            for file in LogPart(big, 0, 1).files():
                assert sum(table.num_rows for table in file.row_groups)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 1.2 * 1_000 * (1 << 14)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 0}, "rows is out of range: got 0"),
        ({"rows": 2, "days": 3}, "days exceed rows"),
        ({"users": 0}, "users is out of range: got 0"),
        ({"items": 63}, "items is out of range: got 63, expected an integer from 64"),
        ({"sessions_mean": math.nan}, "sessions_mean is out of range"),
        ({"requests_mean": 65}, "requests_mean is out of range"),
        ({"sessions_mean": 3, "requests_mean": 4}, "requests_mean exceeds sessions_mean: got 4 and 3"),
        ({"late": -0.1}, "late is out of range"),
        ({"duplicates": 1.5}, "duplicates is out of range: got 1.5, expected a number from 0 to 1"),
        ({"orphans": "few"}, "orphans is out of range"),
        ({"compression": "zip"}, "compression is unknown: got 'zip'"),
    ],
)
def test_impossible_logs_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        recipe(**options)


def test_the_command_writes_the_logs_of_its_options(tmp_path: Path) -> None:
    options = {
        "rows": 900, "days": 2, "sessions_mean": 9.0, "requests_mean": 3.0, "users": 40, "items": 200, "late": 0.1,
        "duplicates": 0.2, "orphans": 0.3, "row_group_rows": 128, "seed": 3,
    }  # fmt: skip
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = ["generate", "logs", str(tmp_path / "t"), *arguments]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    report = generate_logs(str(tmp_path / "same"), LogRecipe(**options), threads=1)
    assert f"{report.logged['impressions']:,} impressions, {report.logged['clicks']} clicks" in done.output
    assert f"{report.late} rows late, {report.duplicates} double, {report.orphans} orphaned" in done.output
    written = [file.read_bytes() for file in files(tmp_path / "t")]
    assert [file.read_bytes() for file in files(tmp_path / "same")] == written
    for wrong, error, message in (
        (command, TableError, "is not empty"),
        ([*command, "--overwrite", "--items", "1"], SpecError, "items is out of range"),
    ):
        refused = CliRunner().invoke(app, wrong)
        assert isinstance(refused.exception, error)
        assert message in str(refused.exception)
    assert [file.read_bytes() for file in files(tmp_path / "t")] == written


def test_only_logs_are_overwritten(tmp_path: Path) -> None:
    small = recipe(**SMALL)
    generate_logs(str(tmp_path / "t"), small, threads=1)
    generate_logs(str(tmp_path / "t"), recipe(**{**SMALL, "days": 1}), overwrite=True, threads=1)
    assert {file.parent.name for file in files(tmp_path / "t")} == {"ds=2026-01-01"}
    (tmp_path / "t" / "clicks" / "notes").mkdir()
    with pytest.raises(TableError, match="it holds 'notes', which is no ds= partition"):
        generate_logs(str(tmp_path / "t"), small, overwrite=True)
    (tmp_path / "t" / "clicks" / "notes").rmdir()
    (tmp_path / "t" / "samples").mkdir()
    with pytest.raises(TableError, match="it holds 'samples', which is none of impressions, clicks, orders, users"):
        generate_logs(str(tmp_path / "t"), small, overwrite=True)
    assert {file.parent.name for file in files(tmp_path / "t")} == {"ds=2026-01-01"}
