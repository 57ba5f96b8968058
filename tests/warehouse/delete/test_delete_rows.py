"""`delete` leaves exactly the rows for which its condition is not true, by DuckDB, and copies what it may."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deleted_rows import delete_from, files_below, rows_left, rows_of, visits, visits_table
from hypothesis import given, settings
from hypothesis import strategies as st
from optimized import in_arrow, in_duckdb
from second_writer import write_meanwhile

from feedline import Table
from feedline.errors import TableArgumentError, TableChangedError, TableError, TableNotFoundError
from feedline.warehouse.delete import delete as deletion
from feedline.warehouse.delete import rewrite

USERS = pa.table({"user_id": [3, 4, 17, 39, 1_000]})

LEAVES = [
    ("user_id in file({ids!r})", "user_id in (select user_id from ids)"),
    ("user_id not in file({ids!r})", "user_id not in (select user_id from ids)"),
    ("user_id == 5", "user_id = 5"),
    ("user_id is None", "user_id is null"),
    ("price < 0.25", "price < 0.25::float"),
    ('word in ["word-1", "word-4"]', "word in ('word-1', 'word-4')"),
    ('ds == "2026-01-01"', "ds = date '2026-01-01'"),
    ("items.list.len() == 2", "len(items) = 2"),
    ('place["country"] == "c1"', "place.country = 'c1'"),
    ("visit % 7 == 0", "visit % 7 = 0"),
]


def conditions() -> st.SearchStrategy[tuple[str, str]]:
    """A condition in the language of expressions, and in SQL."""
    joined = st.recursive(
        st.sampled_from(LEAVES),
        lambda inner: st.one_of(
            st.tuples(inner, inner, st.sampled_from(["and", "or"])).map(
                lambda parts: tuple(f"({a}) {parts[2]} ({b})" for a, b in zip(parts[0], parts[1], strict=True))
            ),
            inner.map(lambda each: tuple(f"not ({side})" for side in each)),
        ),
        max_leaves=4,
    )
    return joined.map(lambda each: (each[0], each[1]))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visits")
    pq.write_table(USERS, folder / "ids.parquet")
    return visits_table(folder / "table", rows=200)


def copy_of(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def same(found: dict[str, pa.Table], expected: dict[str, pa.Table]) -> bool:
    return found.keys() == expected.keys() and all(found[path].equals(expected[path]) for path in found)


@settings(max_examples=7, deadline=None)
@given(condition=conditions())
def test_the_rows_that_stay_are_those_that_duckdb_leaves(
    source: Path, tmp_path_factory: pytest.TempPathFactory, condition: tuple[str, str]
) -> None:
    compare(source, tmp_path_factory.getbasetemp() / "copy", *condition)


@pytest.mark.nightly
@settings(max_examples=300, deadline=None)
@given(condition=conditions())
def test_the_rows_that_stay_are_those_of_many_conditions(
    source: Path, tmp_path_factory: pytest.TempPathFactory, condition: tuple[str, str]
) -> None:
    compare(source, tmp_path_factory.getbasetemp() / "copy", *condition)


def compare(source: Path, target: Path, where: str, sql: str) -> None:
    table = copy_of(source, target)
    expected = rows_left(source, sql, ids=USERS)
    report = delete_from(table, where.format(ids=str(source.parent / "ids.parquet")), verify=bool(expected))
    assert same(rows_of(table), expected)
    assert report.rows == 800 - sum(map(len, expected.values()))
    assert report.is_met


def test_row_groups_without_such_rows_are_copied_byte_for_byte(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table", days=1, files=1, rows=4_000, row_group_size=500, write_page_index=True)
    [path] = files_below(table)
    before, content = pq.read_metadata(path), path.read_bytes()
    report = delete_from(table, "user_id in [7, 8]")
    after, new = pq.read_metadata(path), path.read_bytes()
    held = [group for group in range(8) if before.row_group(group).num_rows != after.row_group(group).num_rows]
    assert len(held) == report.held_row_groups
    assert 0 < len(held) <= 3
    copied = 0
    for group in set(range(8)).difference(held):
        for leaf in range(before.num_columns):
            old, now = (side.row_group(group).column(leaf) for side in (before, after))
            pages = [
                raw[start : start + chunk.total_compressed_size]
                for raw, chunk in ((content, old), (new, now))
                for start in [chunk.dictionary_page_offset or chunk.data_page_offset]
            ]
            assert pages[0] == pages[1]
            assert old.statistics == now.statistics
            copied += len(pages[0])
    assert report.copied_bytes == copied
    assert report.encoded_bytes <= 1.05 * report.held_bytes
    with duckdb.connect() as connection:
        names = ["column_id", "encodings", "compression", "type", "path_in_schema"]
        query = f"select distinct {', '.join(names)} from parquet_metadata('{path}') order by column_id"
        assert len(connection.sql(query).fetchall()) == before.num_columns


def test_a_file_without_rows_left_is_removed_and_so_is_its_folder(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table")
    report = delete_from(table, 'ds == "2026-01-02"', verify=True)
    assert (report.files_removed, report.files_rewritten, report.whole) == (2, 0, report.held_row_groups)
    assert {path.name for path in table.iterdir()} == {"ds=2026-01-01", "_deletes"}
    assert len(Table(str(table)).read(["visit"])) == len(in_arrow(table)) == len(in_duckdb(table)) == 800


def test_all_rows_may_go(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table")
    report = delete_from(table, "visit >= 0", verify=True)
    assert (report.files_removed, report.left) == (4, {str(table): 0})
    with pytest.raises(TableNotFoundError):
        Table(str(table)).snapshot()


def stamps(table: Path) -> dict[Path, tuple[int, int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_size) for path in files_below(table)}


def test_nothing_is_written_where_nothing_is_found_but_the_log(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table")
    before = stamps(table)
    report = delete_from(table, "user_id == -1")
    assert (report.rows, report.read, report.by_statistics) == (0, 0, report.row_groups)
    assert stamps(table) == before
    assert json.loads(Path(report.log).read_text())["state"] == "done"


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table")
    dry = delete_from(table, "user_id == 5", dry_run=True)
    assert {path.name for path in table.iterdir()} == {"ds=2026-01-01", "ds=2026-01-02"}
    report = delete_from(table, "user_id == 5")
    assert (dry.rows, dry.held_bytes, dry.files_rewritten) == (report.rows, report.held_bytes, report.files_rewritten)


def test_bloom_filters_exclude_row_groups_and_are_made_of_the_rows_that_stay(tmp_path: Path) -> None:
    filters = {"visit": {"ndv": 500, "fpp": 0.01}}
    table = visits_table(tmp_path / "table", days=1, files=1, row_group_size=100, bloom_filter_options=filters)
    [path] = files_below(table)
    rows = rows_of(table)["ds=2026-01-01/0.parquet"]
    shuffled = rows.take(pa.array([(row * 137) % 400 for row in range(400)]))  # statistics exclude nothing
    pq.write_table(shuffled, path, row_group_size=100, bloom_filter_options=filters)
    sizes = [pq.read_metadata(path).row_group(group).column(1).bloom_filter_length for group in range(4)]
    report = delete_from(table, "visit == 7")
    assert (report.by_bloom, report.read, report.rows) == (3, 1, 1)
    after = pq.read_metadata(path)
    assert [after.row_group(group).column(1).bloom_filter_length for group in range(4)] == sizes
    again = delete_from(table, "visit == 7")
    assert (again.by_bloom, again.read) == (4, 0)
    kept = delete_from(table, "visit == 8", dry_run=True)
    assert kept.rows == 1


def test_dictionaries_take_no_deleted_value_along(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.mkdir()
    words = pa.array(["secret-value", "other", "other", "secret-value"]).dictionary_encode()
    pq.write_table(pa.table({"user": [1, 2, 2, 1], "word": words}), table / "0.parquet", compression="none")
    delete_from(table, "user == 1")
    assert b"secret-value" not in (table / "0.parquet").read_bytes()
    assert pq.read_table(table / "0.parquet")["word"].to_pylist() == ["other", "other"]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": {"user_id": "lz4", "visit": "gzip"}, "use_dictionary": False},
        {"use_dictionary": False, "column_encoding": {"visit": "DELTA_BINARY_PACKED", "word": "DELTA_BYTE_ARRAY"}},
        {"data_page_version": "2.0", "write_page_checksum": True},
        {"data_page_size": 64, "write_page_index": True},
        {"use_compliant_nested_type": False},
        {"write_statistics": False},
        {"store_schema": False},
    ],
)
def test_files_stay_as_they_were_written(tmp_path: Path, options: dict[str, object]) -> None:
    table = visits_table(tmp_path / "table", days=1, **options)
    before = pq.read_metadata(files_below(table)[0])
    expected = rows_left(table, "user_id in (3, 30)")
    report = delete_from(table, "user_id in [3, 30]")
    assert same(rows_of(table), expected)
    assert report.copied_bytes > report.encoded_bytes
    after = pq.read_metadata(files_below(table)[0])
    assert after.metadata == before.metadata
    assert after.schema.equals(before.schema)
    for leaf in range(before.num_columns):
        chunks = [
            [side.row_group(group).column(leaf) for group in range(side.num_row_groups)] for side in (before, after)
        ]
        old, new = (
            {(each.compression, each.path_in_schema, each.has_dictionary_page, each.encodings) for each in side}
            for side in chunks
        )
        assert new <= old


def test_old_times_keep_their_digits(tmp_path: Path) -> None:
    """INT96: Spark's of microseconds may lie outside of what nanoseconds reach, others have nanoseconds."""
    for name, kind, values in (
        ("spark", pa.timestamp("us"), [-60_000_000_000_000_000, 1, 2]),
        ("fine", pa.timestamp("ns"), [1, 2, 1_700_000_000_000_000_001]),
    ):
        table = tmp_path / name
        table.mkdir()
        rows = pa.table({"user": [1, 2, 3], "at": pa.array(values, pa.int64()).cast(kind)})
        pq.write_table(rows, table / "0.parquet", use_deprecated_int96_timestamps=True)
        unit = kind.unit
        expected = pq.read_table(table / "0.parquet", coerce_int96_timestamp_unit=unit).filter(
            pa.array([True, False, True])
        )
        delete_from(table, "user == 2")
        found = pq.read_table(table / "0.parquet", coerce_int96_timestamp_unit=unit)
        assert found.equals(expected)
        assert pq.read_metadata(table / "0.parquet").schema.column(1).physical_type == "INT96"


def test_a_file_that_pyarrow_lays_out_otherwise_is_encoded_as_a_whole(tmp_path: Path) -> None:
    """DuckDB's decimals are integers; its lists and strings are as pyarrow's."""
    table = tmp_path / "table"
    table.mkdir()
    path = table / "0.parquet"
    with duckdb.connect() as connection:
        connection.sql(
            "select i as user_id, (i / 7)::decimal(9, 2) as price, [i, i + 1] as items, 'word' || i as word, "
            "timestamp '2026-01-01' + interval (i) minute as at, uuid() as id from range(5_000) t(i)"
        ).write_parquet(str(path), row_group_size=1_024)
        rows = connection.sql(f"select * from '{path}' where user_id <> 5 order by user_id").fetchall()
        report = delete_from(table, "user_id == 5")
        assert connection.sql(f"select * from '{path}' order by user_id").fetchall() == rows
    assert report.rows == 1
    assert report.copied_bytes > report.encoded_bytes


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_second_deletion_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = visits_table(tmp_path / "table")
    errors: list[BaseException] = []

    def second() -> None:
        try:
            delete_from(table, "user_id == 6")
        except TableError as error:
            errors.append(error)

    thread = write_meanwhile(monkeypatch, rewrite, "write_without", second)
    assert delete_from(table, "user_id == 5", verify=True).is_met
    thread.join()
    assert "has a deletion that runs" in str(errors[0])
    assert delete_from(table, "user_id == 6", verify=True).rows > 0


def test_a_file_that_changes_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = visits_table(tmp_path / "table", days=1)
    first = files_below(table)[0]
    others = visits(400, seed=9)
    thread = write_meanwhile(monkeypatch, rewrite, "write_without", lambda: pq.write_table(others, first))
    with pytest.raises(TableChangedError, match="while rows were deleted"):
        delete_from(table, "user_id in [5, 6]")
    thread.join()
    assert pq.read_table(first, partitioning=None).equals(others)
    assert {json.loads(log.read_text())["state"] for log in (table / "_deletes").glob("*.json")} == {"failed"}
    assert not (table / "_feedline").exists()
    assert delete_from(table, "user_id in [5, 6]", verify=True).is_met


def test_a_refused_move_names_the_file_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = visits_table(tmp_path / "table")
    expected = rows_left(table, "user_id in (5, 6)")
    move = deletion.Target.stage

    def refused(self: object, slug: str) -> str:
        if len(list((table / "ds=2026-01-01").iterdir())) and _changed(table) == 2:
            raise PermissionError(13, "Permission denied", str(table / "ds=2026-01-02"))
        return str(move(self, slug))

    before = {path: path.stat().st_ino for path in files_below(table)}

    def _changed(table: Path) -> int:
        return sum(path.stat().st_ino != before[path] for path in files_below(table))

    with monkeypatch.context() as patch:
        patch.setattr(deletion.Target, "stage", refused)
        with pytest.raises(TableError, match=r"could not be written.*Run the same command again"):
            delete_from(table, "user_id in [5, 6]")
    assert _changed(table) == 2
    assert delete_from(table, "user_id in [5, 6]", verify=True).files_rewritten == 2
    assert same(rows_of(table), expected)


def test_links_are_refused_and_hard_links_are_counted(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table", days=1)
    first, second = files_below(table)
    os.link(first, tmp_path / "other.parquet")
    assert delete_from(table, "user_id == 5").linked == 1
    shutil.move(second, tmp_path / "elsewhere.parquet")
    second.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(TableError, match="is reached by a link"):
        delete_from(table, "user_id == 6")


def test_only_folders_of_plain_files_are_changed(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table")
    with pytest.raises(TableArgumentError, match="is a file"):
        delete_from(files_below(table)[0], "user_id == 5")
    with pytest.raises(TableNotFoundError, match="does not exist"):
        delete_from(tmp_path / "none", "user_id == 5")
    with pytest.raises(TableError, match="expected Table"):
        Table([str(path) for path in files_below(table)]).delete("user_id == 5")
    (table / "_delta_log").mkdir()
    with pytest.raises(TableArgumentError, match=r"has a log, _delta_log.*Delete the rows with the engine"):
        delete_from(table, "user_id == 5")
    (table / "_delta_log").rename(table / "metadata")
    (table / "metadata" / "v1.metadata.json").write_text("{}")
    with pytest.raises(TableArgumentError, match=r"has a log, metadata/\*\.metadata\.json"):
        delete_from(table, "user_id == 5")


def test_a_missing_column_gets_a_hint(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table")
    (tmp_path / "ids.txt").write_text("5\n")
    with pytest.raises(TableArgumentError, match="Did you mean 'user_id'"):
        delete_from(table, f'usr_id in file("{tmp_path}/ids.txt")')
    assert not list((table / "_deletes").glob("*.json"))
    assert not (table / "_feedline").exists()


def test_the_log_has_no_value_in_clear(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table")
    (tmp_path / "ids.csv").write_text("user_id\n5\n6\n5\n")
    where = f"""user_id in file("{tmp_path}/ids.csv") and word != "word-77" and ds >= "2026-01-02" """
    report = delete_from(table, where)
    log = json.loads(Path(report.log).read_text())
    assert log["asked"]["where"].strip() == ("`user_id` in file('ids.csv') and word != … and ds >= \"2026-01-02\"")
    [ids] = log["asked"]["lists"]
    assert (ids["column"], ids["values"]) == ("user_id", 3)
    assert log["found"]["rows"] == log["removed"]["rows"] == report.rows > 0
    assert {file["path"].split("/")[0] for file in log["found"]["files"]} == {"ds=2026-01-02"}
