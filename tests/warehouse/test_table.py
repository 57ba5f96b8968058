"""`Table`: whole tables against pyarrow's dataset and DuckDB."""

from __future__ import annotations

import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from warehouse_samples import sample, write

from feedline import Table
from feedline.errors import ExpressionError, TableError


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
