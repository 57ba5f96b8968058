"""`Table`: whole tables against pyarrow's dataset and DuckDB."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from warehouse_samples import sample, write

from feedline import Table
from feedline.errors import CorruptFileError, ExpressionError, TableChangedError, TableError, TableNotFoundError
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.selection.select import plan_fragments, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import Location


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("t")
    tables = {
        f"ds=2026-01-{day:02d}/c={c}/f{part}.parquet": sample(20, day * 10 + part).drop_columns(["word"])
        for day in (1, 2, 10)
        for c in ("x", "y%20z")
        for part in (0, 1)
    }
    return write(folder, tables, row_group_size=7)


def hive(root: str) -> ds.Dataset:
    keys = pa.schema({"ds": pa.date32(), "c": pa.string()})
    return ds.dataset(root, partitioning=ds.partitioning(keys, flavor="hive"))


def test_a_whole_table_is_read_as_by_pyarrow(root: str) -> None:
    assert Table(root).read().equals(hive(root).to_table())


def test_columns_are_in_the_requested_order(root: str) -> None:
    columns = ["c", "ids", "i64", "ds", "half"]
    assert Table(root).read(columns).equals(hive(root).to_table(columns=columns))


@pytest.mark.parametrize(
    ("where", "expression"),
    [
        ('ds >= "2026-01-02"', pc.field("ds") >= datetime.date(2026, 1, 2)),
        ('c == "y z" and i64 > 100', (pc.field("c") == "y z") & (pc.field("i64") > 100)),
        ("i64 is None or f64 < -20", pc.field("i64").is_null() | (pc.field("f64") < -20)),
        ('text in ["t1", "t-7"]', pc.field("text").isin(["t1", "t-7"])),
        ("not flag", ~pc.field("flag")),
        ("i64 > 5000", pc.field("i64") > 5000),
    ],
)
def test_filters_keep_pyarrows_rows(root: str, where: str, expression: pc.Expression) -> None:
    columns = ["i64", "user", "ds"]
    assert Table(root).read(columns, where).equals(hive(root).to_table(columns=columns, filter=expression))


def test_duckdb_sees_the_same_rows(root: str) -> None:
    ours = Table(root).read(["ds", "c", "i64", "text"], 'i64 > 0 and c == "x"')
    theirs = duckdb.sql(
        f"select ds, c, i64, text from read_parquet('{root}/*/*/*.parquet', hive_partitioning=true, filename=true) "
        "where i64 > 0 and c = 'x' order by filename, file_row_number"
    )
    assert [tuple(row.values()) for row in ours.to_pylist()] == theirs.fetchall()


def test_files_lists_globs_and_uris_serve_too(root: str) -> None:
    day = f"{root}/ds=2026-01-02"
    expected = hive(root).to_table(columns=["i64", "ds", "c"], filter=pc.field("ds") == datetime.date(2026, 1, 2))
    names = [f"{day}/c={c}/f{part}.parquet" for c in ("x", "y%20z") for part in (0, 1)]
    for table in (
        names,
        f"{day}/*/*.parquet",
        f"{root}/*-02",
        [Path(name) for name in names],
        [f"{day}/c=x", f"{day}/c=y*"],
    ):
        assert Table(table).read(["i64", "ds", "c"]).equals(expected)
    assert Table(Path(names[0])).read(["i64"]).equals(expected.select(["i64"]).slice(0, 20))
    assert Table(f"file://{root}").read(["i64", "ds", "c"], 'ds == "2026-01-02"').equals(expected)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Object-store paths (no leading slash, options in the URI) over a local folder."""
    filesystem = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())

    def locate(uri: str) -> Location:
        return Location(uri, filesystem, unquote(uri.partition("://")[2].partition("?")[0]))

    for module in ("discovery.hive", "snapshot.footer_tasks", "reading.fragment", "storage.content_store"):
        monkeypatch.setattr(f"feedline.warehouse.{module}.locate", locate)
    return tmp_path


def test_tables_and_snapshots_on_an_object_store(bucket: Path) -> None:
    table = pa.table({"x": range(10)})
    write(bucket / "b" / "t", {f"k={k}/f.parquet": table for k in ("a%20b", "c")})
    expected = [{"x": x, "k": k} for k in ("a b", "c") for x in range(10)]
    options = "?region=eu&endpoint_override=localhost:9"
    for names, uri in (
        (f"s3://b/t{options}", f"s3://b/t{options}"),
        (f"s3://b/t/{options}", f"s3://b/t{options}"),
        (f"s3://b/t/k=*/f.parquet{options}", f"s3://b/t{options}"),
        ([f"s3://b/t/k=c/f.parquet{options}", f"s3://b/t/k=a%2520b{options}"], f"s3://b/t{options}"),
    ):
        snapshot = Table(names).snapshot()
        assert snapshot.uri == uri
        assert Table(names).read().to_pylist() == expected
        assert Table(names).to_dask().compute(scheduler="synchronous")["x"].tolist() == [*range(10), *range(10)]
    assert snapshot.save(f"s3://b/work{options}") == snapshot.id
    assert Snapshot.load(f"s3://b/work{options}", snapshot.id).files.equals(snapshot.files)
    (bucket / "b" / "t" / "k=c" / "f.parquet").unlink()
    fragment = plan_fragments(snapshot, screen_rows(snapshot, None), 100)[1]
    with pytest.raises(TableChangedError, match=r"^s3://b/t/k=c/f.parquet is gone"):
        list(read_fragment(fragment, ReadRequest(["x"], snapshot.schema)))


def test_dask_and_read_agree(root: str) -> None:
    where = "i64 > 0"
    frame = Table(root).to_dask(["ids", "ds"], where, split_rows=10).compute(scheduler="synchronous")
    expected = Table(root).read(["ids", "ds"], where)
    assert pa.Table.from_pandas(frame, preserve_index=False).cast(expected.schema).equals(expected)


def test_written_by_others(tmp_path: Path) -> None:
    table = pa.table({"k": [1, 1, 2, None], "x": ["a", None, "c", "d"], "l": [[1], [], None, [2, 3]]})
    pq.write_to_dataset(table, tmp_path / "pyarrow", partition_cols=["k"])
    table.to_pandas().to_parquet(tmp_path / "pandas", partition_cols=["k"])
    connection = duckdb.connect()
    connection.register("rows", table)
    connection.sql(f"copy (select * from rows) to '{tmp_path}/duckdb' (format parquet, partition_by (k))")
    for writer in ("pyarrow", "duckdb"):
        read = Table(tmp_path / writer).read(["k", "x", "l"])
        assert sorted(map(repr, read.to_pylist())) == sorted(map(repr, table.to_pylist()))
    assert Table(tmp_path / "pandas").read(["x"]).num_rows == 4


@pytest.mark.parametrize(
    ("columns", "where", "error", "message"),
    [
        (["i65"], None, TableError, r"column 'i65' is not in the table"),
        (None, "i65 > 3", ExpressionError, r"i65"),
        (None, "i64 + 3", ExpressionError, r"boolean"),
    ],
)
def test_unknown_columns_are_refused_before_reading(
    root: str, columns: list[str] | None, where: str | None, error: type[Exception], message: str
) -> None:
    for read in (Table(root).read, Table(root).to_dask):
        with pytest.raises(error, match=message):
            read(columns, where)


def test_paths_without_a_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="does not exist"):
        Table(tmp_path / "gone").read()
    (tmp_path / "t").mkdir()
    with pytest.raises(TableNotFoundError, match="is empty"):
        Table(tmp_path / "t").snapshot()
    (tmp_path / "t" / "f.txt").write_text("x")
    with pytest.raises(TableNotFoundError, match="no Parquet file"):
        Table(tmp_path / "t").snapshot()
    with pytest.raises(CorruptFileError, match=r"f.txt is not Parquet: got 1 bytes"):
        Table(tmp_path / "t" / "f.txt").read()


def test_a_page_that_is_corrupt_names_file_and_row_group(tmp_path: Path) -> None:
    file = tmp_path / "f.parquet"
    pq.write_table(pa.table({"x": range(300)}), file, row_group_size=100, compression="none", use_dictionary=False)
    place = pq.read_metadata(file).row_group(1).column(0).data_page_offset
    content = bytearray(file.read_bytes())
    content[place : place + 16] = b"\xff" * 16
    file.write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"f.parquet, row group 1 is not valid Parquet"):
        Table(tmp_path).read()
    assert Table(tmp_path).read(where="x < 100").num_rows == 100


def test_importing_the_warehouse_starts_no_cluster_library() -> None:
    code = "import sys, feedline.warehouse.table; print(sorted({'torch', 'distributed'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert out.stdout.strip() == "[]"


def test_repr_has_the_path_and_the_state() -> None:
    assert repr(Table("s3://bucket/t")) == "Table('s3://bucket/t')"
