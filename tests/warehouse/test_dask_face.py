"""Common operations on a Dask DataFrame against pandas and DuckDB; which of them reach the files; and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warehouse_samples import sample, write

from feedline import Table
from feedline.warehouse.parquet import open_file
from feedline.warehouse.parquet.decode import DECODER_VARIABLE

COLUMNS = ["word", "i64", "f64", "day", "ids", "user", "ds"]


@pytest.fixture(autouse=True)
def synchronous() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shop")
    tables = {f"ds=2026-01-0{day}/f{part}.parquet": sample(50, day * 10 + part) for day in (1, 2) for part in (0, 1)}
    return write(folder, tables, row_group_size=10)


@pytest.fixture(scope="module")
def arrow(root: str) -> pa.Table:
    return Table(root).read(COLUMNS)


@pytest.fixture
def frame(root: str) -> Any:
    return Table(root).to_dask(COLUMNS, split_rows=20)


def ask(arrow: pa.Table, query: str) -> list[tuple]:
    """DuckDB's answer to a query of the table `t`."""
    with duckdb.connect() as connection:
        connection.register("t", arrow)
        return connection.sql(query).fetchall()


def rows(frame: pd.DataFrame) -> list[tuple]:
    """Rows as plain values, None for null."""
    return [tuple(row.values()) for row in pa.Table.from_pandas(frame, preserve_index=False).to_pylist()]


def by_repr(values: list[tuple]) -> list[tuple]:
    return sorted(values, key=repr)


def test_one_partition_per_split_and_divisions_unknown(frame: Any, arrow: pa.Table):
    assert frame.npartitions == 12, "two and a half splits of 20 rows in each of 4 files of 50"
    assert frame.divisions == (None,) * 13
    assert frame.map_partitions(len).compute().sum() == len(arrow)
    assert dict(frame.dtypes) == {name: pd.ArrowDtype(arrow.schema.field(name).type) for name in COLUMNS}


def test_groupby_equals_duckdb(frame: Any, arrow: pa.Table):
    grouped = frame.groupby("word", dropna=False).agg({"i64": ["sum", "count", "max"], "f64": "mean"}).compute()
    expected = ask(arrow, "SELECT word, sum(i64), count(i64), max(i64), avg(f64) FROM t GROUP BY word")
    got = {
        None if pd.isna(word) else word: (int(row[0]), int(row[1]), None if pd.isna(row[2]) else int(row[2]), row[3])
        for word, row in zip(grouped.index.tolist(), grouped.to_numpy().tolist(), strict=True)
    }
    assert set(got) == {word for word, *_ in expected}
    for word, *values in expected:
        assert got[word][:3] == (values[0] or 0, values[1], values[2])
        assert (values[3] is None and pd.isna(got[word][3])) or got[word][3] == pytest.approx(values[3])


def test_groupby_of_a_partition_key(frame: Any, arrow: pa.Table):
    got = frame.groupby("ds")["i64"].sum().compute()
    assert [(day, int(total)) for day, total in sorted(got.items())] == ask(
        arrow, "SELECT ds, sum(i64) FROM t GROUP BY ds ORDER BY ds"
    )


@pytest.mark.parametrize("how", ["inner", "left"])
def test_merge_equals_pandas_and_duckdb(frame: Any, arrow: pa.Table, how: str):
    """With list and struct columns carried along."""
    names = pd.DataFrame({"word": ["w1", "w2", "w9"], "name": ["one", "two", "nine"]})
    names = names.astype({"word": frame.dtypes["word"], "name": pd.ArrowDtype(pa.string())})
    merged = frame.merge(dd.from_pandas(names, npartitions=2), on="word", how=how).compute()
    kept = frame.compute()
    expected = kept[kept["word"].notna()].merge(names, on="word", how=how)
    assert by_repr(rows(merged[merged["word"].notna()])) == by_repr(rows(expected))
    with duckdb.connect() as connection:
        connection.register("t", arrow)
        connection.register("n", pa.Table.from_pandas(names, preserve_index=False))
        asked = connection.sql(f"SELECT t.i64, n.name, t.ids FROM t {how} JOIN n USING (word)").fetchall()
    assert by_repr(rows(merged[["i64", "name", "ids"]])) == by_repr(asked)


@pytest.mark.parametrize("method", ["tasks", "disk"])
def test_shuffle_keeps_every_row_and_brings_equal_keys_together(frame: Any, arrow: pa.Table, method: str):
    if method == "disk":
        pytest.importorskip("partd")
    shuffled = frame.shuffle("i64", npartitions=5, shuffle_method=method)
    parts = list(dask.compute(*shuffled.to_delayed()))
    assert by_repr([row for part in parts for row in rows(part)]) == by_repr(
        [tuple(row.values()) for row in arrow.to_pylist()]
    )
    seen: dict[Any, int] = {}
    for number, part in enumerate(parts):
        for value in part["i64"].dropna().unique():
            assert seen.setdefault(value, number) == number


def test_to_parquet_and_back(frame: Any, arrow: pa.Table, tmp_path: Path):
    frame.to_parquet(str(tmp_path / "out"), write_index=False, partition_on=["ds"])
    back = Table(tmp_path / "out").read(COLUMNS)
    assert by_repr([tuple(row.values()) for row in back.to_pylist()]) == by_repr(
        [tuple(row.values()) for row in arrow.to_pylist()]
    )


def test_list_columns_explode_and_measure(frame: Any, arrow: pa.Table):
    exploded = frame[["i64", "ids"]].explode("ids").compute()
    expected = arrow.select(["i64", "ids"]).to_pandas(types_mapper=pd.ArrowDtype).explode("ids")
    assert by_repr([(a, b) for a, b in exploded.astype(object).to_numpy().tolist()]) == by_repr(
        [(a, b) for a, b in expected.astype(object).to_numpy().tolist()]
    )
    lengths = frame["ids"].map_partitions(lambda part: part.list.len(), meta=("ids", "int32[pyarrow]"))
    assert int(lengths.sum().compute()) == ask(arrow, "SELECT sum(len(ids)) FROM t")[0][0]


# -- what reaches the files ---------------------------------------------------------------------------------------


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


def test_a_projection_reads_its_columns_only(root: str, counted: Counted):
    frame = Table(root).to_dask()
    frame[["i64", "ids"]].sum(numeric_only=True).compute()
    frame["i64"].max().compute()
    counted.chunks.clear()
    frame["ids"].map_partitions(len).compute()
    assert counted.columns == {"ids"}
    assert counted.bytes == chunk_bytes(root, {"ids"})
    counted.chunks.clear()
    frame.groupby("ds")["i64"].sum().compute()
    assert counted.columns == {"i64"}, "a partition key is in no file"
    assert counted.bytes == chunk_bytes(root, {"i64"})


def test_where_reads_only_row_groups_that_statistics_leave(root: str, counted: Counted):
    """The requested columns and the filter's."""
    frame = Table(root).to_dask(["ids"], where='ds == "2026-01-02" and i64 > 600', split_rows=20)
    frame.compute()
    left: dict[str, set[int]] = {}
    for file in sorted(Path(root, "ds=2026-01-02").rglob("*.parquet")):
        for group in range(pq.read_metadata(file).num_row_groups):
            values = pq.ParquetFile(file).read_row_group(group, ["i64"])["i64"].drop_null().to_pylist()
            if values and max(values) > 600:
                left.setdefault(f"ds=2026-01-02/{file.name}", set()).add(group)
    assert 0 < sum(map(len, left.values())) < 20
    assert counted.columns == {"ids", "i64"}
    assert counted.bytes == chunk_bytes(root, {"ids", "i64"}, left)
