"""A pipeline gives the same bytes in threads, worker processes, on a separate scheduler, and in serving.

The pipeline has a feature of each kind: normalised numbers, hashed and learnt ids, id lists, weighted lists, vectors,
features made of several columns, learnt statistics, joins with a table and an array.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import zarr
from pipelines import Place, furnished, image, oracle
from processes import DaskCluster
from weighted_rows import ROWS, WIDTH, rows_of

from feedline import FeedlineDataset, Pipeline
from feedline.config import load_spec
from feedline.loader.batch import Batch
from feedline.loader.row_arrays import Encoded
from feedline.serving.golden_check import check

WORDS = ["Zürich", "a", "", "exactly8", "a text of more than twelve bytes"]
COST = {"table": "items.parquet", "on": "item", "take": "cost"}
FILL = [{"fill_null": "none"}]
SIGRID = {"salt": 1, "max_value": 50}
FEATURES: dict[str, Any] = {
    "dense": {
        "price": [{"fill_null": 0}, {"clip": {"max": 0.9}}, "log1p"],
        "scaled": {"column": "price", "ops": ["fill_median", "standardize"]},
        "odds": {"column": "price", "ops": [{"fill_null": 0.5}, "logit", "min_max"]},
        "embedding": [],
        "vector": [{"vector": WIDTH}],
        "day": {"column": "row", "ops": [{"modulo": 3}, {"onehot": 3}]},
        "overlap": {"op": "id_overlap_count", "inputs": ["ids", "others"], "ops": [{"fill_null": 0}]},
        "alike": {"op": "column_similarity", "inputs": ["embedding", {"column": "vector", "ops": [{"vector": WIDTH}]}]},
        "cosine": {"op": "get_cosine_similarity", "inputs": ["pairs", "pairs"], "ops": [{"fill_null": 0}]},
        "rate": {"column": "word", "ops": [{"target_encoding": {"target": "clicked", "fold_by": "row"}}]},
        "cost": {"column": "item", "ops": [{"join_external": COST}, {"fill_null": 0}]},
        "place": {"column": "item", "ops": [{"embedding": "items.zarr"}]},
        "count": {"column": "word", "ops": [{"group_statistics": "count"}]},
        "hour": {"expr": "ts.dt.hour() / 23"},
    },
    "categorical": {
        "item": [{"vocabulary": {"min_count": 3, "oov_buckets": 2}}],
        "word": [{"hash_bucket": 100}, {"fill_null": 100}],
        "decile": {"column": "price", "ops": [{"fill_null": 0}, {"quantile_bucketize": 10}]},
        "crossed": {"op": {"hashed_cross": 1000}, "inputs": ["row", {"column": "word", "ops": FILL}]},
    },
    "sparse": {
        "ids": [{"vocabulary": {"name": "ids"}}],
        "others": [{"vocabulary": {"name": "ids"}}],
        "beside": {"op": "weighted", "inputs": ["ids", "scores"], "ops": [{"first_x": 2}, {"sigrid_hash": SIGRID}]},
        "pairs": [],
        "mapped": [{"weighted": {"fill": 1.0}}],
        "alone": {"column": "pairs", "ops": ["ids"]},
        "grams": {"column": "others", "ops": [{"ngram": {"n": 2, "buckets": 99}}]},
        "product": {"op": {"cartesian": 1000}, "inputs": ["ids", {"column": "others", "ops": [{"first_x": 2}]}]},
        "scores": [],
    },
    "label": {"clicked": []},
    "extra": {"row": []},
}  # fmt: skip


def table_of(file: int) -> pa.Table:
    random = np.random.default_rng(100 + file)
    table = rows_of(file)
    numbers = table["row"].to_numpy()
    more = {
        "item": pa.array(random.integers(0, 60, ROWS) ** 2 // 50, pa.int32(), mask=random.random(ROWS) < 0.05),
        "word": pa.array([None if row % 17 == 3 else WORDS[row % 5] for row in numbers]),
        "ts": pa.array(numbers * 1_234_567_891, pa.timestamp("us")),
        "clicked": pa.array(random.random(ROWS) < 0.3),
    }
    price = pa.array(table["price"].to_numpy(), mask=random.random(ROWS) < 0.1)
    table = table.set_column(table.schema.get_field_index("price"), "price", price)
    return pa.table({**{name: table[name] for name in table.column_names}, **more})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    table = tmp_path_factory.mktemp("t")
    for file in range(3):
        (table / f"ds=2026-01-0{file + 1}").mkdir()
        pq.write_table(table_of(file), table / f"ds=2026-01-0{file + 1}" / "part.parquet", row_group_size=512)
    with furnished(tmp_path_factory.mktemp("p"), table) as place:
        items = pa.table({"item": range(0, 70, 2), "cost": np.arange(35) / 7})
        pq.write_table(items, place.folder / "items.parquet")
        rows = np.random.default_rng(0).random((70, 3), np.float32)
        zarr.create_array(store=str(place.folder / "items.zarr"), shape=rows.shape, chunks=(16, 3), dtype="f4")[:] = (
            rows
        )
        yield place


def written(place: Place, name: str, **changes: Any) -> Path:
    source = {"where": "row % 10 != 4", "split_rows": 1024}
    batch = {"size": 300, "tail": "pad"}
    return place.write(f"{name}.yaml", features=FEATURES, source=source, batch=batch, lanes=2, **changes)


@pytest.fixture(scope="module")
def expected(place: Place) -> list[bytes]:
    """Batches made in this process, with fits made in its threads."""
    path = written(place, "fitted")
    Pipeline.from_yaml(path).fit()
    return oracle(path)


def delivered(place: Place, name: str, cluster: dict[str, Any]) -> list[bytes]:
    with FeedlineDataset(written(place, name, cluster=cluster)) as dataset:
        return [image(batch) for batch in dataset]


@pytest.mark.nightly
def test_one_thread(place: Place, expected: list[bytes]):
    assert delivered(place, "one", {"threads": 1}) == expected


def test_two_processes_of_the_feeder(place: Place, expected: list[bytes]):
    assert delivered(place, "processes", {"processes": 2}) == expected


@pytest.mark.nightly
def test_two_workers_of_a_local_cluster(place: Place, expected: list[bytes]):
    assert delivered(place, "two", {"workers": 2, "threads": 1}) == expected


@pytest.mark.nightly
def test_a_separate_scheduler(place: Place, expected: list[bytes], tmp_path: Path):
    with DaskCluster(tmp_path / "dask", workers=2) as dask:
        assert delivered(place, "scheduler", {"scheduler": dask.address}) == expected


def test_batches_are_the_same_from_one_lane_of_rows_or_in_small_blocks(place: Place, expected: list[bytes]):
    """Other splits and windows change the chunks; without a shuffle the order stays the same."""
    path = written(place, "small")
    off = {"shuffle": "off"}
    whole = oracle(path, set=off)
    assert whole != expected
    for split_rows in (512, 3000):
        assert oracle(path, set={**off, "source.split_rows": split_rows}) == whole


def lists(values: Any, offsets: Any) -> list[bytes]:
    return [np.ascontiguousarray(values[start:stop]).tobytes() for start, stop in pairwise(offsets.tolist())]


def assert_equals_training(batch: Batch, served: Encoded, leaving_out: tuple[str, ...] = ()) -> None:
    """Compare bit by bit with the rows of a batch."""
    schema = batch.schema
    for name in served.names["dense"]:
        if name in leaving_out:
            continue
        column = schema[name]
        places = slice(column.offset, column.offset + column.width)
        assert np.array_equal(
            served.dense[:, places].view(np.uint32), batch.dense.numpy()[:, places].view(np.uint32)
        ), name
    assert np.array_equal(served.categorical, batch.categorical.numpy())
    assert served.names["sparse"] == tuple(FEATURES["sparse"])
    for name, held in served.sparse.items():
        trained = batch.sparse[name]
        assert held.values.dtype == trained.values.numpy().dtype
        assert lists(held.values, held.offsets) == lists(trained.values.numpy(), trained.offsets.numpy()), name
        assert (trained.weights is None) == (held.weights is None)
        if trained.weights is not None and held.weights is not None:
            assert lists(held.weights, held.offsets) == lists(trained.weights.numpy(), trained.offsets.numpy())


def test_the_schema_needs_no_table(place: Place, expected: list[bytes]):
    """`Pipeline.schema` equals that of batches, with labels and extras, by the types that the fit recorded."""
    path = written(place, "served")
    batch = next(iter(Pipeline.from_yaml(path).batches()))
    elsewhere = Pipeline.from_yaml(path, {"source.table": str(place.folder / "nowhere")})
    assert elsewhere.schema == batch.schema
    assert elsewhere.schema is elsewhere.schema


@pytest.mark.parametrize("out_of_fold", [True, False])
def test_serving_gives_the_bytes_of_training(place: Place, expected: list[bytes], out_of_fold: bool):
    """Rows read by pyarrow, in the order of each batch; only out-of-fold values differ."""
    pipeline = Pipeline.from_yaml(written(place, "served"), {"fit.out_of_fold": out_of_fold})
    table = ds.dataset(place.table, partitioning="hive").to_table()
    assert table["row"].to_pylist() == list(range(3 * ROWS))
    table = table.drop_columns(["clicked"])
    for batch in list(pipeline.batches())[:6]:
        rows = table.take(pa.array(batch.extra["row"].numpy()))
        served = pipeline.transform(rows)
        assert_equals_training(batch, served, leaving_out=("rate",) if out_of_fold else ())
        rate = served.dense[:, batch.schema["rate"].offset], batch["rate"].numpy()
        assert np.array_equal(*rate) is not out_of_fold
        assert len(np.unique(rate[0])) == len(WORDS) + 1


def test_a_subset_of_features_uses_the_fits_of_all(place: Place, expected: list[bytes]):
    """One of two features that share a vocabulary, with golden vectors of all."""
    path = written(place, "some")
    [batch, *_] = Pipeline.from_yaml(path).batches()
    rows = ds.dataset(place.table, partitioning="hive").to_table().take(pa.array(batch.extra["row"].numpy()))
    document = json.loads(path.read_text())
    document["features"] = {
        "sparse": {"others": FEATURES["sparse"]["others"]},
        "dense": {"scaled": FEATURES["dense"]["scaled"]},
    }
    path.write_text(json.dumps(document))
    served = Pipeline.from_yaml(path).transform(rows)
    assert np.array_equal(served.sparse["others"].values, batch.sparse["others"].values.numpy())
    assert np.array_equal(served.dense[:, 0], batch["scaled"].numpy())
    assert check(load_spec(path, {})).passed
