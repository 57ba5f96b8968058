"""The Dask DataFrame: types, a projection that reaches the files, and common operations."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warehouse_samples import sample, write

from feedline import Table
from feedline.errors import TableError
from feedline.expressions import bind_where
from feedline.warehouse.dask_frame import FrameReader, to_dask
from feedline.warehouse.parquet import open_file
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.selection.select import plan_fragments, screen_rows, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

pytestmark = pytest.mark.usefixtures("synchronous")


@pytest.fixture
def synchronous() -> object:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    root = tmp_path_factory.mktemp("shop")
    tables = {f"ds=2026-01-0{day}/f{part}.parquet": sample(50, day * 10 + part) for day in (1, 2) for part in (0, 1)}
    return take_snapshot(write(root, tables, row_group_size=20))


COLUMNS = ["i64", "f32", "flag", "day", "ns", "price", "text", "word", "ids", "user", "ds"]


def oracle(snapshot: Snapshot) -> pa.Table:
    parts = []
    for index, path in enumerate(snapshot.files["path"].to_pylist()):
        table = pq.read_table(f"{snapshot.uri}/{path}", partitioning=None)
        parts.append(
            table.append_column("ds", pa.array([dict(snapshot.partition_of(index))["ds"]] * len(table), pa.date32()))
        )
    table = pa.concat_tables(parts)
    return table.set_column(table.schema.names.index("word"), "word", table["word"].cast(pa.string()))


def test_columns_have_the_arrow_types_of_the_table(shop: Snapshot) -> None:
    frame = to_dask(shop, screen_rows(shop, None), None)
    expected = {name: pd.ArrowDtype(shop.schema.field(name).type) for name in shop.schema.names}
    assert dict(frame.dtypes) == expected
    assert dict(frame.compute().dtypes) == expected
    assert all(dict(part.compute().dtypes) == expected for part in frame.partitions)


def test_rows_are_those_of_pyarrow(shop: Snapshot) -> None:
    frame = to_dask(shop, screen_rows(shop, None), COLUMNS, split_rows=30)
    assert frame.npartitions == 8
    assert not frame.known_divisions
    assert list(frame.columns) == COLUMNS
    read = pa.Table.from_pandas(frame.compute(), preserve_index=False)
    assert read.cast(oracle(shop).select(COLUMNS).schema).equals(oracle(shop).select(COLUMNS))


def test_a_filter_keeps_the_rows_that_read_keeps(shop: Snapshot, tmp_path: Path) -> None:
    where = bind_where('i64 > 0 and ds == "2026-01-02"', shop.schema)
    expected = pl.from_arrow(oracle(shop)).filter((pl.col("i64") > 0) & (pl.col("ds") == pl.date(2026, 1, 2)))
    screened = to_dask(shop, screen_rows(shop, where), ["text", "ids"])
    counted = to_dask(shop, select_rows(shop, where, work_dir=str(tmp_path)), ["text", "ids"])
    for frame in (screened, counted):
        read = frame.compute()
        assert read["text"].isna().tolist() == expected["text"].is_null().to_list()
        assert read["text"].dropna().tolist() == expected["text"].drop_nulls().to_list()
        assert len(frame) == expected.height
        assert list(read.columns) == ["text", "ids"]


def test_groupby_equals_duckdb(shop: Snapshot) -> None:
    frame = to_dask(shop, screen_rows(shop, None), COLUMNS, split_rows=30)
    grouped = frame.groupby("word", dropna=False).agg({"i64": ["sum", "count", "max"], "f32": "mean"}).compute()
    with duckdb.connect() as connection:
        connection.register("t", oracle(shop).select(COLUMNS))
        expected = connection.sql(
            "SELECT word, sum(i64), count(i64), max(i64), avg(f32) FROM t GROUP BY word"
        ).fetchall()
    got = {
        None if pd.isna(word) else word: (int(row[0]), int(row[1]), None if pd.isna(row[2]) else int(row[2]), row[3])
        for word, row in zip(grouped.index.tolist(), grouped.to_numpy().tolist(), strict=True)
    }
    assert set(got) == {word for word, *_ in expected}
    for word, *values in expected:
        assert got[word][:3] == (values[0] or 0, values[1], values[2])
        assert (values[3] is None and pd.isna(got[word][3])) or got[word][3] == pytest.approx(values[3])


def test_a_table_without_rows_is_an_empty_frame(shop: Snapshot) -> None:
    where = bind_where('ds == "2030-01-01"', shop.schema)
    frame = to_dask(shop, screen_rows(shop, where), ["i64", "ids"])
    assert len(frame) == 0
    assert dict(frame.dtypes) == {name: pd.ArrowDtype(shop.schema.field(name).type) for name in ("i64", "ids")}


def test_an_unknown_column_is_an_error(shop: Snapshot) -> None:
    with pytest.raises(TableError, match=r"column 'txt' is not in the table. Did you mean 'text'"):
        to_dask(shop, screen_rows(shop, None), ["txt"])


def test_readers_are_small_and_equal_readers_have_equal_tokens(shop: Snapshot) -> None:
    schema = shop.schema
    one, other = (FrameReader(schema, ("i64",), "i64 > 3") for _ in range(2))
    assert dask.base.tokenize(one) == dask.base.tokenize(other)
    assert dask.base.tokenize(one) != dask.base.tokenize(FrameReader(schema, ("i64",), "i64 > 4"))
    assert len(pickle.dumps(one)) < 4_000
    fragment = plan_fragments(shop, screen_rows(shop, None), 30)[0]
    assert pickle.loads(pickle.dumps(one))(fragment).equals(one(fragment))
    assert list(one(fragment, columns=[]).columns) == []
    assert len(one(fragment, columns=[])) == len(one(fragment))


class Counted:
    """Every column chunk that is read of a file: (file size, row group, column) and compressed bytes."""

    def __init__(self) -> None:
        self.chunks: list[tuple[str, int]] = []

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.chunks)

    @property
    def columns(self) -> set[str]:
        return {name for name, _ in self.chunks}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")  # what pyarrow is asked for is what the kernel would be
    count = Counted()
    original = open_file.open_parquet

    class Reader:
        def __init__(self, parquet: pq.ParquetFile) -> None:
            self.parquet = parquet

        def iter_batches(self, rows: int, *, row_groups: list[int], column_indices: list[int], **more: Any) -> Any:
            for group in row_groups:
                for index in column_indices:
                    chunk = self.parquet.metadata.row_group(group).column(index)
                    count.chunks.append((chunk.path_in_schema.partition(".")[0], chunk.total_compressed_size))
            return self.parquet.reader.iter_batches(rows, row_groups=row_groups, column_indices=column_indices, **more)

    class File:
        def __init__(self, parquet: pq.ParquetFile) -> None:
            self._parquet = parquet
            self.reader = Reader(parquet)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._parquet, name)

    monkeypatch.setattr(open_file, "open_parquet", lambda *arguments, **options: File(original(*arguments, **options)))
    return count


def chunk_bytes(root: str, columns: set[str], row_groups: dict[str, set[int]] | None = None) -> int:
    total = 0
    for file in sorted(Path(root).rglob("*.parquet")):
        metadata = pq.read_metadata(file)
        for group in range(metadata.num_row_groups):
            if row_groups is not None and group not in row_groups.get(file.parent.name + "/" + file.name, set()):
                continue
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                if chunk.path_in_schema.partition(".")[0] in columns:
                    total += chunk.total_compressed_size
    return total


def test_a_projection_reads_its_columns_only(shop: Snapshot, counted: Counted):
    frame = Table(shop.uri).to_dask()
    frame[["i64", "ids"]].sum(numeric_only=True).compute()
    frame["i64"].max().compute()
    counted.chunks.clear()
    frame["ids"].map_partitions(len).compute()
    assert counted.columns == {"ids"}
    assert counted.bytes == chunk_bytes(shop.uri, {"ids"})
    counted.chunks.clear()
    frame.groupby("ds")["i64"].sum().compute()
    assert counted.columns == {"i64"}, "a partition key is in no file"
    assert counted.bytes == chunk_bytes(shop.uri, {"i64"})


def test_where_reads_only_row_groups_that_statistics_leave(shop: Snapshot, counted: Counted):
    """The requested columns and the filter's."""
    frame = Table(shop.uri).to_dask(["ids"], where='ds == "2026-01-02" and i64 > 600', split_rows=20)
    frame.compute()
    left: dict[str, set[int]] = {}
    for file in sorted(Path(shop.uri, "ds=2026-01-02").rglob("*.parquet")):
        for group in range(pq.read_metadata(file).num_row_groups):
            values = pq.ParquetFile(file).read_row_group(group, ["i64"])["i64"].drop_null().to_pylist()
            if values and max(values) > 600:
                left.setdefault(f"ds=2026-01-02/{file.name}", set()).add(group)
    assert 0 < sum(map(len, left.values())) < 20
    assert counted.columns == {"ids", "i64"}
    assert counted.bytes == chunk_bytes(shop.uri, {"ids", "i64"}, left)
