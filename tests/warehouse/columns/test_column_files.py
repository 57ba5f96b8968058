"""Tables with column files, against DuckDB's join of base and column files."""

from __future__ import annotations

import hashlib
import json
import signal
from dataclasses import replace
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from column_sources import DAYS, SeededValues, add_seeded, killed_add, write_days
from drawn_examples import examples
from forked import forked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tagged_store import TaggedStore

from feedline import Table
from feedline.blocks.request import pack_pieces, unpack_pieces
from feedline.errors import CorruptFileError, TableArgumentError, TableChangedError, TableError
from feedline.warehouse.columns.change import add_columns, drop_columns, table_now
from feedline.warehouse.columns.commit import HIDDEN
from feedline.warehouse.columns.values import ExpressionValues, joined_values
from feedline.warehouse.discovery.column_log import ColumnFile, commit_name, parse_commit
from feedline.warehouse.optimize.optimize import partitions_of
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.reading.row_ranges import read_ranges
from feedline.warehouse.rebase.file_changes import file_changes
from feedline.warehouse.rebase.recorded_rows import _digest
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage.claim import Claim

KINDS = {"x": "int", "y": "string", "z": "list", "f": "flag"}
ADD = st.tuples(
    st.just("add"),
    st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2, unique=True),
    st.sets(st.sampled_from(DAYS), min_size=1),
    st.integers(1, 5),
)
DROP = st.tuples(st.just("drop"), st.sampled_from(sorted(KINDS)))


class Oracle:
    """DuckDB's join of base files and column files, by the position of rows; and which of these count."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live: dict[str, dict[str, str]] = {ds: {} for ds in DAYS}  # field -> column file, per day

    def add(self, names: list[str], days: set[str]) -> None:
        newest = max((self.root / "_columns/log").glob("*.json"))
        for file in json.loads(newest.read_bytes())["files"]:
            ds = file["base"].split("/")[0].removeprefix("ds=")
            assert ds in days
            self.live[ds] |= dict.fromkeys(names, file["path"])

    def drop(self, name: str) -> None:
        for live in self.live.values():
            live.pop(name, None)

    @property
    def fields(self) -> set[str]:
        return {name for live in self.live.values() for name in live}

    def rows(self, where: str = "true") -> pa.Table:
        days = []
        for ds, live in self.live.items():
            sql = f"select b.*, '{ds}'::date as ds"
            joins = ""
            for place, (name, path) in enumerate(sorted(live.items())):
                sql += f", c{place}.{name} as {name}"
                joins += (
                    f" join read_parquet('{self.root / path}', file_row_number=true) c{place} using (file_row_number)"
                )
            base = self.root / f"ds={ds}/part-0.parquet"
            days.append(f"{sql} from read_parquet('{base}', file_row_number=true, hive_partitioning=false) b{joins}")
        whole = " union all by name ".join(days)
        return duckdb.sql(
            f"select * exclude (file_row_number) from ({whole}) where {where} order by id"
        ).to_arrow_table()


def assert_equal(got: pa.Table, oracle: pa.Table) -> None:
    assert sorted(got.column_names) == sorted(oracle.column_names)
    got = got.sort_by("id")
    for name in oracle.column_names:
        assert got[name].to_pylist() == oracle[name].to_pylist(), name


def read_with(snapshot: Snapshot, names: list[str]) -> pa.Table:
    files = range(len(snapshot.files))
    groups = [snapshot.row_groups_of(file) for file in files]
    fragments = [
        fragment_at(snapshot, file, own, np.full(len(own), UNCOUNTED)) for file, own in zip(files, groups, strict=True)
    ]
    return pa.concat_tables([read_arrow(each, ReadRequest(names, snapshot.schema)) for each in fragments])


@settings(examples(12, by_day=5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(ADD | DROP, min_size=1, max_size=5), rows=st.sampled_from([1, 64, 200]))
def test_a_table_is_duckdbs_join_of_base_and_column_files(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple], rows: int
):
    root = write_days(tmp_path_factory.mktemp("table"), rows=rows)
    oracle, work_dir = Oracle(root), str(tmp_path_factory.mktemp("work"))
    for change in changes:
        if change[0] == "add":
            _, names, days, seed = change
            source = SeededValues(tuple((name, KINDS[name]) for name in names), seed)
            chosen = ", ".join(f"'{ds}'" for ds in sorted(days))
            add_columns(str(root), source, where=f"ds in [{chosen}]", replaced=True)
            oracle.add(names, days)
        elif change[1] in oracle.fields:
            drop_columns(str(root), [change[1]])
            oracle.drop(change[1])
        else:
            with pytest.raises(TableArgumentError, match="is not in the table"):
                drop_columns(str(root), [change[1]])
        kept = take_snapshot(str(root), work_dir=work_dir)
        fresh = take_snapshot(str(root))
        assert kept.id == fresh.id
        for name in fresh.file_columns:
            assert kept.column_facts(name).equals(fresh.column_facts(name)), name
        assert kept.row_groups.equals(fresh.row_groups)
    assert_equal(Table(root).read(), oracle.rows())
    assert_equal(read_with(replace(kept, decoder="arrow"), kept.schema.names), oracle.rows())
    if "x" in oracle.fields:
        assert_equal(Table(root).read(where="x > 60 and id != 66"), oracle.rows("x > 60 and id != 66"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_days(tmp_path / "t")


def fragment_of(snapshot: Snapshot, file: int = 0) -> Fragment:
    groups = snapshot.row_groups_of(file)
    return fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED))


def test_statistics_of_column_files_prune_row_groups(table: Path):
    add_seeded(table, "x", seed=10)
    facts = Table(table).snapshot().column_facts("x")
    low, high = facts.field("min").to_pylist(), facts.field("max").to_pylist()
    assert (low[0], high[0], high[-1]) == (0, 690, 5990)
    assert Table(table).read(where="x > 5980")["id"].to_pylist() == [599]


def test_other_engines_do_not_see_column_files(table: Path):
    add_seeded(table, "x")
    assert duckdb.sql(f"select count(*) from read_parquet('{table}/**/*.parquet')").fetchall() == [(600,)]
    assert pads.dataset(table, partitioning="hive").count_rows() == 600
    assert pq.read_table(table).column_names == ["id", "name", "price", "ds"]


def test_only_the_column_files_that_are_read_are_opened(table: Path):
    add_seeded(table, "x")
    add_seeded(table, "y", "string")
    snapshot = Table(table).snapshot()
    fragment = fragment_of(snapshot)
    (y,) = fragment.columns_for(["y", "id"])
    assert y.fields == ("y",)
    (table / y.path).unlink()
    assert read_arrow(fragment, ReadRequest(["id", "x"], snapshot.schema)).num_rows == 200
    with pytest.raises(TableChangedError, match=r"part-0.parquet.columns"):
        read_arrow(fragment, ReadRequest(["y"], snapshot.schema))


def test_row_ranges_of_both_kinds_of_files(table: Path):
    add_seeded(table, "x", seed=3)
    snapshot = Table(table).snapshot()
    ranges = np.array([[2, 5], [69, 72], [199, 200]])
    got = read_ranges(fragment_of(snapshot), ["x", "id", "ds"], snapshot.schema, ranges).table
    assert got["id"].to_pylist() == [2, 3, 4, 69, 70, 71, 199]
    assert got["x"].to_pylist() == [6, 9, 12, 207, 210, None, 597]


def test_columns_of_groups_that_are_stored_once(table: Path, tmp_path: Path):
    target = str(tmp_path / "once")
    Table(table).optimize(target, cluster_by="name", dedup={"user": ["name"]}, row_group_rows=64)
    add_seeded(target, "x", seed=2)
    got = Table(target).read(["id", "name", "x"]).sort_by("id")
    assert got["x"].to_pylist() == SeededValues((("x", "int"),), 2).compute(got)["x"].to_pylist()
    assert got["name"].to_pylist() == [f"n{each % 5}" for each in got["id"].to_pylist()]


def test_optimize_folds_column_files_in(table: Path, tmp_path: Path):
    add_seeded(table, "x", seed=2, where='ds > "2026-01-01"')
    add_seeded(table, "z", "list")
    drop_columns(str(table), ["name"])
    before = Table(table).read().sort_by("id")
    target = str(tmp_path / "folded")
    Table(table).optimize(target, row_group_rows=100)
    after = Table(target).read().sort_by("id")
    assert not (Path(target) / "_columns").exists()
    assert sorted(after.column_names) == ["ds", "id", "price", "x", "z"]
    for name in after.column_names:
        assert after[name].to_pylist() == before[name].to_pylist()
    add_seeded(table, "y", where='ds == "2026-01-02"')
    changed = [part.sources for part in partitions_of(Table(table).snapshot())]
    add_seeded(table, "y", seed=3, where='ds == "2026-01-02"', replaced=True)
    again = [part.sources for part in partitions_of(Table(table).snapshot())]
    assert [one == other for one, other in zip(changed, again, strict=True)] == [True, False, True]


# -- keys -------------------------------------------------------------------------------------------------------------


def test_every_key_names_the_column_files(table: Path):
    add_seeded(table, "x")
    add_seeded(table, "y", "string")
    one = Table(table).snapshot()
    add_seeded(table, "x", replaced=True)  # the same values, of a later commit
    other = Table(table).snapshot()
    was, now = fragment_of(one), fragment_of(other)
    assert one.id != other.id
    assert was != now
    assert _digest(was) != _digest(now)
    assert [file.content_name for file in was.columns_for(["x"])] != [
        file.content_name for file in now.columns_for(["x"])
    ]
    assert [file.content_name for file in was.columns_for(["y"])] == [
        file.content_name for file in now.columns_for(["y"])
    ]
    plain = replace(was, columns=())
    packed = unpack_pieces(pack_pieces([(was, 0, 1), (plain, 1, 2), (now, 0, 3)]))
    assert packed == [(was, 0, 1), (plain, 1, 2), (now, 0, 3)]


def test_a_changed_column_rewrites_a_file_only_if_it_decides_rows(table: Path):
    add_seeded(table, "x")
    old = Table(table).snapshot()
    add_seeded(table, "x", seed=2, where='ds == "2026-01-02"', replaced=True)
    new = Table(table).snapshot()
    assert file_changes(old, new).unchanged == {0: 0, 2: 2}
    assert file_changes(old, new, ["x", "id"]).unchanged == {0: 0, 2: 2}
    assert file_changes(old, new, ["id"]).unchanged == {0: 0, 1: 1, 2: 2}


def test_a_snapshot_travels(table: Path, tmp_path: Path):
    add_seeded(table, "x", where='ds == "2026-01-02"')
    snapshot = Table(table).snapshot()
    loaded = Snapshot.load(str(tmp_path / "w"), snapshot.save(str(tmp_path / "w")))
    assert fragment_of(loaded, 1) == fragment_of(snapshot, 1)
    assert [len(fragment_of(loaded, file).columns) for file in range(3)] == [0, 1, 0]


# -- sources ----------------------------------------------------------------------------------------------------------


def test_values_of_an_expression(table: Path):
    report = add_columns(str(table), ExpressionValues(expression="price * 4 + id", name="twice"))
    assert (report.columns, report.files, report.rows) == ({"twice": "double"}, 3, 600)
    got = Table(table).read(["id", "twice"])
    assert got["twice"].to_pylist() == [2.0 * each for each in got["id"].to_pylist()]
    add_columns(str(table), ExpressionValues(expression="twice > 100", name="large"))  # of an added column
    assert sum(Table(table).read(["large"])["large"].to_pylist()) == 549
    with pytest.raises(ValueError, match="unknown column `prise`"):
        add_columns(str(table), ExpressionValues(expression="prise * 2", name="p"))


def test_values_of_another_table_by_key(table: Path, tmp_path: Path):
    other = tmp_path / "other.parquet"
    pq.write_table(
        pa.table({"id": pa.array([599, 0, 7, None], pa.int32()), "tags": [["a", "b"], [], None, ["n"]]}), other
    )
    add_columns(str(table), joined_values(str(other), ["id"], ["tags"]))
    want = duckdb.sql(
        f"select b.id, o.tags from read_parquet('{table}/*/*.parquet') b left join '{other}' o using (id) order by id"
    ).to_arrow_table()
    assert Table(table).read(["id", "tags"]).sort_by("id")["tags"].to_pylist() == want["tags"].to_pylist()
    pq.write_table(pa.table({"id": [1, 2, 2], "v": [1, 2, 3]}), other)
    with pytest.raises(ValueError, match=r"key id is not unique in .*: got 1 rows"):
        add_columns(str(table), joined_values(str(other), ["id"], ["v"]))
    pq.write_table(pa.table({"id": ["1", "2"], "v": [1, 2]}), other)
    with pytest.raises(TableArgumentError, match="key 'id' has other types"):
        add_columns(str(table), joined_values(str(other), ["id"], ["v"]))


def test_a_table_in_a_store():
    TaggedStore().store.clear()
    for day in ("2026-01-01", "2026-01-02"):
        with fsspec.open(f"tagged://column_files/ds={day}/a.parquet", "wb") as file:
            pq.write_table(pa.table({"id": np.arange(100)}), file, row_group_size=40)
    add_seeded("tagged://column_files", "x", seed=2)
    add_seeded("tagged://column_files", "z", "list", where='ds == "2026-01-02"')
    got = Table("tagged://column_files").read()
    assert got["x"].to_pylist() == SeededValues((("x", "int"),), 2).compute(got)["x"].to_pylist()
    assert got["z"].slice(100).to_pylist() == SeededValues((("z", "list"),)).compute(got.slice(100))["z"].to_pylist()
    assert got["z"].slice(0, 100).null_count == 100


# -- bad input --------------------------------------------------------------------------------------------------------


def newest_column_file(root: Path) -> Path:
    return max(root.rglob("*.columns"), key=lambda path: path.stat().st_mtime_ns)


def test_a_base_file_that_was_rewritten_is_an_error_until_its_columns_are_added_again(table: Path):
    add_seeded(table, "x")
    base = table / "ds=2026-01-02/part-0.parquet"
    pq.write_table(pq.read_table(base, partitioning=None).slice(1), base, row_group_size=70)
    with pytest.raises(TableChangedError, match=r"is of another base file than .*ds=2026-01-02.* --replace"):
        Table(table).snapshot()
    add_seeded(table, "x", where='ds == "2026-01-02"')
    got = Table(table).read(["id", "x"])
    assert got.num_rows == 599
    assert got["x"].to_pylist() == SeededValues((("x", "int"),)).compute(got)["x"].to_pylist()


def test_a_dropped_column_frees_a_rewritten_base_file(table: Path):
    add_seeded(table, "x")
    base = table / "ds=2026-01-02/part-0.parquet"
    pq.write_table(pq.read_table(base, partitioning=None).slice(1), base)
    drop_columns(str(table), ["x"])
    assert Table(table).read().column_names == ["id", "name", "price", "ds"]


def test_damaged_and_foreign_column_files_are_named(table: Path):
    add_seeded(table, "x", where='ds == "2026-01-01"')
    path = newest_column_file(table)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(TableChangedError, match=r"is not the one that was added: got \d+ bytes"):
        Table(table).snapshot()
    path.unlink()
    with pytest.raises(TableChangedError, match="got none"):
        Table(table).snapshot()
    path.write_bytes(content[:-1] + b"X")
    with pytest.raises(CorruptFileError, match=r"part-0.parquet.columns is not Parquet"):
        Table(table).snapshot()
    chunk = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(0)
    damaged = bytearray(content)
    damaged[(chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size - 2] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(CorruptFileError, match=r"part-0.parquet.columns, row group 0"):
        Table(table).read(["x"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.slice(1), "has other row groups"),
        (lambda values: pa.table({"x": values["x"].cast(pa.int32())}), "is not what its commit says: got int32"),
    ],
)
def test_a_column_file_that_does_not_fit_is_refused(table: Path, change, message: str):
    add_seeded(table, "x", where='ds == "2026-01-01"')
    path, log = newest_column_file(table), table / commit_name(1)
    pq.write_table(change(pq.read_table(path, partitioning=None)), path, row_group_size=70)
    facts = json.loads(log.read_bytes())
    tail = path.read_bytes()
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    facts["files"][0] |= {
        "bytes": len(tail),
        "footer_bytes": footer_bytes,
        "footer_digest": hashlib.sha256(tail[-footer_bytes:]).hexdigest(),
    }
    log.write_text(json.dumps(facts))
    with pytest.raises(TableError, match=message):
        Table(table).snapshot()


def test_a_log_that_does_not_hold_together_is_refused(table: Path):
    add_seeded(table, "x", where='ds == "2026-01-01"')
    add_seeded(table, "x", where='ds == "2026-01-02"')
    second = table / commit_name(2)
    content = second.read_text()
    facts = json.loads(content)
    other = parse_commit((table / commit_name(1)).read_bytes(), "first")
    facts["schema"] = json.loads(replace(other, schema=pa.schema([("x", pa.string())])).to_json())["schema"]
    second.write_text(json.dumps(facts))
    with pytest.raises(TableError, match=r"'x' has two types .*: got string in commit 2, expected int64"):
        Table(table).snapshot()
    second.write_text(content[:100])
    with pytest.raises(CorruptFileError, match=r"00000002.json is not a commit"):
        Table(table).snapshot()
    second.write_text(json.dumps(json.loads(content) | {"version": 9}))
    with pytest.raises(TableError, match="is of another version: got 9"):
        Table(table).snapshot()
    second.rename(table / commit_name(3))
    with pytest.raises(TableError, match=r"commit 2 .* is missing: got 00000003.json"):
        Table(table).snapshot()


def test_names_and_types_that_do_not_fit_are_refused(table: Path):
    add_seeded(table, "x", where='ds == "2026-01-01"')
    with pytest.raises(TableArgumentError, match=r"'x' exists in .*ds=2026-01-01.*: got 1 of 3 .* --replace"):
        add_seeded(table, "x")
    with pytest.raises(TableArgumentError, match=r"'x' of .* has another type: got string, expected int64"):
        add_seeded(table, "x", "string", where='ds == "2026-01-02"')
    with pytest.raises(TableArgumentError, match=r"'name' exists in .* Choose another name"):
        add_seeded(table, "name", "string", replaced=True)
    with pytest.raises(TableArgumentError, match="its name is taken"):
        add_seeded(table, "ds")
    drop_columns(str(table), ["name"])
    with pytest.raises(TableArgumentError, match="'name' was dropped from"):
        add_seeded(table, "name", "string")
    with pytest.raises(TableArgumentError, match="Did you mean 'price'"):
        drop_columns(str(table), ["prices"])
    with pytest.raises(TableArgumentError, match="is a partition key"):
        drop_columns(str(table), ["ds"])
    with pytest.raises(TableArgumentError, match="would have no column left: got all 3"):
        drop_columns(str(table), ["id", "price", "x"])


def test_a_condition_selects_whole_files(table: Path):
    with pytest.raises(TableArgumentError, match=r"--where reads column 'id', .* partition keys alone \(ds\)"):
        add_seeded(table, "x", where='id > 3 and ds == "2026-01-01"')
    with pytest.raises(TableArgumentError, match="--where selects no file"):
        add_seeded(table, "x", where='ds == "2027-01-01"')
    assert not (table / "_columns").exists()


def test_other_tables_and_kinds_are_refused(table: Path):
    class Nested(SeededValues):
        def compute(self, rows: pa.Table) -> pa.Table:
            return pa.table({"x": pa.array([{"a": 1}] * rows.num_rows, pa.struct([("a", pa.int64())]))})

    with pytest.raises(TableArgumentError, match="has a type that column files do not hold: got struct"):
        add_columns(str(table), Nested(()))
    with pytest.raises(TableArgumentError, match="is not a folder"):
        add_seeded(table / "ds=2026-01-01/part-0.parquet", "x")
    (table / "_delta_log").mkdir()
    with pytest.raises(TableArgumentError, match="is a table of Delta Lake"):
        add_seeded(table, "x")


def test_of_two_writers_one_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch):
    def beside(function, tasks):
        done = [function(task) for task in tasks]
        Claim(uri=str(table), hidden=HIDDEN, file="columns", name="t").take()  # another run begins
        return done

    source = SeededValues((("x", "int"),))
    with pytest.raises(TableError, match="is no longer this run's"):
        add_columns(str(table), source, map=beside)
    assert "x" not in Table(table).snapshot().schema.names

    def ahead(function, tasks):
        done = [function(task) for task in tasks]
        (table / "_columns/log").mkdir(parents=True)
        (table / commit_name(1)).write_bytes(b"of another run")
        return done

    with pytest.raises(TableError, match=r"00000001.json was created by another run"):
        add_columns(str(table), source, map=ahead)
    assert (table / commit_name(1)).read_bytes() == b"of another run"


@pytest.mark.parametrize("moment", ["writing", "moving", "commit"])
def test_a_killed_run_leaves_the_table_as_it_was(table: Path, moment: str):
    add_seeded(table, "y", "string")
    before = Table(table).read()
    process = forked(killed_add, str(table), moment)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert list((table / "_columns/log").glob("*.json")) == [table / commit_name(1)]
    assert Table(table).read().equals(before)
    add_seeded(table, "x", seed=3)
    listing, _ = table_now(str(table))
    assert set(listing.column_bytes) == listing.columns.paths
    assert not (table / HIDDEN).exists()
    got = Table(table).read(["id", "x"])
    assert got["x"].to_pylist() == SeededValues((("x", "int"),), 3).compute(got)["x"].to_pylist()


def test_a_named_file_is_read_alone(table: Path):
    add_seeded(table, "x")
    assert "x" in Table(f"{table}/ds=2026-01-0*").read().column_names
    assert "x" not in Table(table / "ds=2026-01-01/part-0.parquet").read().column_names


def test_column_files_of_one_fragment_share_fields(table: Path):
    add_columns(str(table), SeededValues((("x", "int"), ("y", "string"))))
    add_seeded(table, "y", "string", seed=2, replaced=True)
    columns = fragment_of(Table(table).snapshot()).columns
    assert [file.fields for file in columns] == [("x",), ("y",)]
    assert all(isinstance(file, ColumnFile) for file in columns)
