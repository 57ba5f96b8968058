"""The Dask DataFrame: types, a projection that reaches the files, and common operations."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warehouse_samples import sample, write

from feedline.errors import CorruptFileError, TableError
from feedline.expressions import bind_where
from feedline.warehouse.dask_frame import FrameReader, to_dask
from feedline.warehouse.selection.select import plan_fragments, screen_rows, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.table import Table

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
    frame = to_dask(shop, screen_rows(shop, None), None, None)
    expected = {name: pd.ArrowDtype(shop.schema.field(name).type) for name in shop.schema.names}
    assert dict(frame.dtypes) == expected
    assert dict(frame.compute().dtypes) == expected
    assert all(dict(part.compute().dtypes) == expected for part in frame.partitions)


def test_rows_are_those_of_pyarrow(shop: Snapshot) -> None:
    frame = to_dask(shop, screen_rows(shop, None), COLUMNS, None, split_rows=30)
    assert frame.npartitions == 8
    assert not frame.known_divisions
    assert list(frame.columns) == COLUMNS
    read = pa.Table.from_pandas(frame.compute(), preserve_index=False)
    assert read.cast(oracle(shop).select(COLUMNS).schema).equals(oracle(shop).select(COLUMNS))


def test_a_filter_keeps_the_rows_that_read_keeps(shop: Snapshot, tmp_path: Path) -> None:
    where = bind_where('i64 > 0 and ds == "2026-01-02"', shop.schema)
    expected = pl.from_arrow(oracle(shop)).filter((pl.col("i64") > 0) & (pl.col("ds") == pl.date(2026, 1, 2)))
    screened = to_dask(shop, screen_rows(shop, where), ["text", "ids"], where)
    counted = to_dask(shop, select_rows(shop, where, work_dir=str(tmp_path)), ["text", "ids"], where)
    for frame in (screened, counted):
        read = frame.compute()
        assert read["text"].isna().tolist() == expected["text"].is_null().to_list()
        assert read["text"].dropna().tolist() == expected["text"].drop_nulls().to_list()
        assert len(frame) == expected.height
        assert list(read.columns) == ["text", "ids"]


def test_the_projection_reaches_the_files(tmp_path: Path) -> None:
    """The other column's pages are destroyed: only computations that need it fail."""
    table = pa.table({"good": range(100), "bad": range(100)})
    root = write(tmp_path, {"f.parquet": table}, compression="none", use_dictionary=False)
    chunk = pq.read_metadata(tmp_path / "f.parquet").row_group(0).column(1)
    file = tmp_path / "f.parquet"
    content = bytearray(file.read_bytes())
    content[chunk.data_page_offset : chunk.data_page_offset + 20] = b"\xff" * 20
    file.write_bytes(content)
    frame = Table(root).to_dask()
    assert frame["good"].sum().compute() == 4950
    assert frame[["good"]].map_partitions(len).compute().tolist() == [100]
    assert frame[frame["good"] > 49]["good"].count().compute() == 50
    with pytest.raises(CorruptFileError):
        frame["bad"].sum().compute()


def test_the_usual_operations_work(shop: Snapshot, tmp_path: Path) -> None:
    frame = to_dask(shop, screen_rows(shop, None), ["word", "i64", "ids", "ds"], None, split_rows=30)
    frame_pl = pl.from_arrow(oracle(shop))
    assert isinstance(frame_pl, pl.DataFrame)
    by_word = frame.groupby("word")["i64"].sum().compute()
    expected = frame_pl.drop_nulls("word").group_by("word").agg(pl.col("i64").sum())
    assert by_word.sort_index().tolist() == expected.sort("word")["i64"].to_list()
    names = dd.from_pandas(
        pd.DataFrame({"word": ["w1"], "name": ["one"]}).convert_dtypes(dtype_backend="pyarrow"), npartitions=1
    )
    merged = frame[["word", "i64"]].merge(names.astype({"word": frame.dtypes["word"]}), on="word")
    assert len(merged.compute()) == frame_pl.filter(pl.col("word") == "w1").height
    assert (
        frame["ids"].map_partitions(lambda part: part.list.len(), meta=("ids", "int32[pyarrow]")).sum().compute()
        == frame_pl["ids"].list.len().sum()
    )
    frame.shuffle("i64", npartitions=2).to_parquet(str(tmp_path / "out"), write_index=False)
    assert Table(tmp_path / "out").read(["i64"]).num_rows == shop.rows


def test_a_table_without_rows_is_an_empty_frame(shop: Snapshot) -> None:
    where = bind_where('ds == "2030-01-01"', shop.schema)
    frame = to_dask(shop, screen_rows(shop, where), ["i64", "ids"], where)
    assert len(frame) == 0
    assert dict(frame.dtypes) == {name: pd.ArrowDtype(shop.schema.field(name).type) for name in ("i64", "ids")}


def test_an_unknown_column_is_an_error(shop: Snapshot) -> None:
    with pytest.raises(TableError, match=r"column 'txt' is not in the table. Did you mean 'text'"):
        to_dask(shop, screen_rows(shop, None), ["txt"], None)


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


@pytest.mark.slow
def test_partitions_are_read_by_other_processes(shop: Snapshot) -> None:
    frame = to_dask(shop, screen_rows(shop, None), ["i64", "ids"], None, split_rows=30)
    with dask.config.set(scheduler="processes", num_workers=1):
        pids = frame.map_partitions(lambda part: pd.Series([os.getpid(), len(part)]), meta=(None, "int64")).compute()
    assert os.getpid() not in pids.tolist()[::2]
    assert int(np.sum(pids.tolist()[1::2])) == shop.rows
