"""`batches`, `transform` and `to_dask` deliver the table's own values, the same as training."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch
from pipelines import Place, furnished, oracle

from feedline import Pipeline
from feedline.errors import DataError, FeedlineError, PlanError, SpecError, TableNotFoundError

FEATURES = {
    "dense": {
        "price": {"column": "dense_0", "ops": [{"fill_null": 0.5}, {"clip": {"min": -1, "max": 1}}]},
        "hour": {"expr": "ts.dt.hour() / 23"},
    },
    "categorical": {"id_0": [{"modulo": 97}], "id_1": []},
    "sparse": {"hist_0": [], "short": {"column": "hist_1", "ops": [{"first_x": 2}]}},
    "label": {"clicked": []},
    "extra": {"request_id": [], "ts": [], "word": {"column": "str_0"}, "dwell": [], "ds": []},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


@pytest.fixture(scope="module")
def path(place: Place) -> Path:
    return place.write("f.yaml", features=FEATURES, batch={"size": 3000, "tail": "partial"}, lanes=2)


@pytest.fixture(scope="module")
def table(clicks: Path) -> pa.Table:
    """The whole table as pyarrow reads it, in the order of request_id."""
    return ds.dataset(clicks, partitioning="hive").to_table().sort_by("request_id")


def test_every_value_is_the_tables(path: Path, table: pa.Table):
    """Against pyarrow and numpy, row by row through request_id."""
    stored = table.to_pydict()
    price = np.clip(table["dense_0"].fill_null(0.5).to_numpy(), -1, 1).astype(np.float32)
    hours = np.array([ts.hour for ts in stored["ts"]]) / 23
    ids = table["request_id"].to_numpy()
    seen = 0
    for batch in Pipeline.from_yaml(path).batches(1):
        rows = np.searchsorted(ids, batch.extra["request_id"].numpy())
        seen += len(rows)
        assert batch["price"].numpy() == pytest.approx(price[rows], abs=0)
        assert batch["hour"].numpy() == pytest.approx(hours[rows].astype(np.float32), abs=1e-7)
        assert batch["id_0"].tolist() == (table["id_0"].to_numpy()[rows] % 97).tolist()
        assert batch.categorical[:, 1].tolist() == table["id_1"].to_numpy()[rows].tolist()
        assert batch.labels[:, 0].tolist() == [float(stored["clicked"][row]) for row in rows]
        assert _lists(batch.sparse["hist_0"]) == [stored["hist_0"][row] for row in rows]
        assert _lists(batch.sparse["short"]) == [stored["hist_1"][row][:2] for row in rows]
        assert batch.extra["word"].to_pylist() == [stored["str_0"][row] for row in rows]
        dwell = batch.extra["dwell"]
        assert (dwell.to_pylist() if isinstance(dwell, pa.Array) else dwell.tolist()) == [
            stored["dwell"][row] for row in rows
        ]
        assert batch.extra["ts"].tolist() == table["ts"].cast(pa.int64()).to_numpy()[rows].tolist()
        assert [str(np.datetime64(day, "D")) for day in batch.extra["ds"].tolist()] == [
            stored["ds"][row] for row in rows
        ]
        assert batch.dense.dtype == batch.labels.dtype == torch.float32
        assert batch.categorical.stride(0) == 1
    assert seen == len(table)
    assert (batch.schema["ts"].unit, batch.schema["ds"].unit) == ("us", "D")


def _lists(sparse) -> list[list]:
    values, offsets = sparse.values.tolist(), sparse.offsets.tolist()
    assert (sparse.offsets[1:] - sparse.offsets[:-1] == sparse.lengths).all()
    return [values[start:stop] for start, stop in pairwise(offsets)]


def test_transform_without_a_group(place: Place, table: pa.Table):
    served = Pipeline.from_yaml(place.write("d.yaml", features={"dense": {"dense_0": [{"fill_null": 0}]}})).transform(
        table
    )
    assert (served.categorical.shape, served.categorical.dtype, served.sparse) == ((len(table), 0), np.int64, {})
    served = Pipeline.from_yaml(place.write("c.yaml", features={"categorical": {"id_1": []}})).transform(table)
    assert (served.dense.shape, served.dense.dtype) == ((len(table), 0), np.float32)


def test_transform_gives_what_training_delivers(path: Path, table: pa.Table):
    """Rows without labels and extras, which serving does not have."""
    raw = table.drop_columns(["clicked", "dwell", "request_id", "session_id"])
    pipeline = Pipeline.from_yaml(path)
    ids = table["request_id"].to_numpy()
    for batch in pipeline.batches(0, 1, 2):
        served = pipeline.transform(raw.take(np.searchsorted(ids, batch.extra["request_id"].numpy())))
        assert served.rows == batch.rows
        assert np.array_equal(served.dense, batch.dense.numpy())
        assert np.array_equal(served.categorical, batch.categorical.numpy())
        assert list(served.sparse) == ["hist_0", "short"]
        for name, held in served.sparse.items():
            assert np.array_equal(held.values, batch.sparse[name].values.numpy())
            assert np.array_equal(held.offsets, batch.sparse[name].offsets.numpy())
        assert served.names == {
            "dense": ("price", "hour"),
            "categorical": ("id_0", "id_1"),
            "sparse": ("hist_0", "short"),
        }


def test_transform_of_few_rows_and_of_none(path: Path, table: pa.Table):
    pipeline = Pipeline.from_yaml(path)
    one = pipeline.transform(table.slice(7, 1))
    assert (one.rows, one.dense.shape, one.categorical.shape) == (1, (1, 2), (1, 2))
    none = pipeline.transform(table.slice(0, 0))
    assert (none.rows, none.dense.shape, none.categorical.shape) == (0, (0, 2), (0, 2))
    assert none.sparse["hist_0"].offsets.tolist() == [0]


def test_transform_refuses_what_does_not_fit(path: Path, table: pa.Table):
    pipeline = Pipeline.from_yaml(path)
    with pytest.raises(SpecError, match=r"features\.categorical\.id_1: .*id_1"):
        pipeline.transform(table.drop_columns(["id_1"]))
    with pytest.raises(SpecError, match=r"hist_0.*(of another type than in training|takes)"):
        pipeline.transform(table.set_column(table.schema.get_field_index("hist_0"), "hist_0", table["str_0"]))
    nulls = pa.array([None] * len(table), pa.int64())
    with pytest.raises(DataError, match="id_1"):
        pipeline.transform(table.set_column(table.schema.get_field_index("id_1"), "id_1", nulls))
    with pytest.raises(DataError, match="transform takes rows: got object"):
        pipeline.transform(object())


def test_transform_needs_neither_torch_nor_dask(path: Path, table: pa.Table, tmp_path: Path):
    pq.write_table(table.slice(0, 10), tmp_path / "rows.parquet")
    program = (
        "import sys, pyarrow.parquet as pq\nfrom feedline import Pipeline\n"
        "print(Pipeline.from_yaml(sys.argv[1]).transform(pq.read_table(sys.argv[2])).dense.sum() > 0)\n"
        "assert not {'torch', 'distributed', 'dask'} & set(sys.modules), sorted(sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "rows.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# -- batches ------------------------------------------------------------------------------------------------------


def test_batches_from_a_step_on(path: Path):
    whole = oracle(path, epoch=2)
    for step in (0, 1, len(whole) - 1, len(whole)):
        assert oracle(path, epoch=2, step=step) == whole[step:]
    assert oracle(path, epoch=2, rank=1, world_size=2, step=1) == oracle(path, epoch=2, rank=1, world_size=2)[1:]


def test_batches_are_the_same_on_every_day_and_machine(place: Place):
    """A digest of one epoch of a table that is repeatable from its seed: a change of order or layout must show."""
    path = place.write("g.yaml", features={"extra": ["request_id"]})
    first = next(iter(Pipeline.from_yaml(path).batches()))
    again = next(iter(Pipeline.from_yaml(path).batches()))
    digest = hashlib.sha256(first.extra["request_id"].numpy().tobytes()).hexdigest()
    assert digest == hashlib.sha256(again.extra["request_id"].numpy().tobytes()).hexdigest()
    other = next(iter(Pipeline.from_yaml(path, {"shuffle.seed": 4}).batches()))
    assert digest != hashlib.sha256(other.extra["request_id"].numpy().tobytes()).hexdigest()


def test_a_rank_that_does_not_exist(path: Path):
    with pytest.raises(PlanError, match="rank is out of range: got 2"):
        list(Pipeline.from_yaml(path).batches(0, 2, 2))


def test_a_table_that_is_not_there(place: Place):
    path = place.write("none.yaml", source={"table": str(place.folder / "nothing")})
    with pytest.raises(TableNotFoundError, match="nothing"):
        list(Pipeline.from_yaml(path).batches())


def test_tables_as_a_list_a_file_and_a_glob(place: Place, clicks: Path):
    files = sorted(str(file) for file in clicks.rglob("*.parquet"))
    ids = {}
    for name, table in (("list", files[:2]), ("file", files[0]), ("glob", f"{clicks}/*/part-00000.parquet")):
        path = place.write(
            f"{name}.yaml",
            source={"table": table},
            features={"extra": ["request_id"]},
            shuffle="off",
            batch={"tail": "partial"},
        )
        ids[name] = [
            each for batch in Pipeline.from_yaml(path).batches() for each in batch.extra["request_id"].tolist()
        ]
    expected = {
        name: [each for file in names for each in pq.ParquetFile(file).read(["request_id"])["request_id"].to_pylist()]
        for name, names in (("list", files[:2]), ("file", files[:1]), ("glob", files[::2]))
    }
    assert ids == expected


# -- to_dask ------------------------------------------------------------------------------------------------------


def test_partitions_are_blocks_with_the_rows_a_tail_drops(place: Place, table: pa.Table):
    path = place.write("dask.yaml", features=FEATURES, lanes=2)
    pipeline = Pipeline.from_yaml(path)
    frame = pipeline.to_dask(epoch=1)
    schedule = pipeline.plan().source.schedule(1)
    blocks = [block for lane in range(2) for block in schedule.blocks(lane, everything=True)]
    assert frame.npartitions == len(blocks)
    with dask.config.set(scheduler="synchronous"):
        parts = list(dask.compute(*frame.to_delayed()))
    assert [len(part) for part in parts] == [block.rows for block in blocks]
    assert sum(len(part) for part in parts) == len(table) > schedule.steps * 512
    for part in parts:
        assert list(part.columns) == list(frame.columns)
        assert part.dtypes.equals(frame.dtypes)
        assert all(isinstance(dtype, pd.ArrowDtype) for dtype in part.dtypes)
    whole = pd.concat(parts)
    assert sorted(whole["request_id"]) == table["request_id"].to_pylist()
    delivered = [batch.extra["request_id"] for batch in pipeline.batches(1)]
    lanes = [torch.cat([each[256 * lane : 256 * (lane + 1)] for each in delivered]).tolist() for lane in range(2)]
    partitions = {(block.lane, block.index): part["request_id"] for block, part in zip(blocks, parts, strict=True)}
    for lane in range(2):
        cuts = [cut for step in range(schedule.steps) for cut in schedule.cuts(lane, step)]
        drawn = pd.concat([partitions[lane, cut.block].iloc[cut.start : cut.stop] for cut in cuts])
        assert drawn.tolist() == lanes[lane], "steps draw from partitions as the schedule says"


@pytest.mark.nightly
def test_a_dask_frame_that_is_used(path: Path, table: pa.Table, tmp_path: Path):
    frame = Pipeline.from_yaml(path).to_dask()
    with dask.config.set({"scheduler": "threads", "num_workers": 2, "dataframe.shuffle.method": "tasks"}):  # no files
        assert len(frame) == len(table)
        counts = frame.groupby("id_0")["clicked"].sum().compute()
        frame.to_parquet(tmp_path / "out", write_index=False)
        price = frame["price"].mean().compute()
    clicked = pd.DataFrame({"id": table["id_0"].to_numpy() % 97, "clicked": table["clicked"].to_numpy()})
    assert counts.astype(float).to_dict() == clicked.groupby("id")["clicked"].sum().astype(float).to_dict()
    written = pq.read_table(tmp_path / "out")
    assert written.num_rows == len(table)
    assert sorted(written["request_id"].to_pylist()) == table["request_id"].to_pylist()
    by_id = dict(zip(written["request_id"].to_pylist(), written["hist_0"].to_pylist(), strict=True))
    assert [by_id[each] for each in table["request_id"].to_pylist()] == table["hist_0"].to_pylist()
    assert price == pytest.approx(np.clip(table["dense_0"].fill_null(0.5).to_numpy(), -1, 1).mean(), rel=1e-5)


def test_the_schema_of_the_file_is_told(path: Path):
    schema = Pipeline.json_schema()
    assert {"source", "features", "batch", "shuffle"} <= set(schema["properties"])
    assert "hash_bucket" in str(schema)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(FeedlineError, match=r"none\.yaml"):
        Pipeline.from_yaml(tmp_path / "none.yaml")
