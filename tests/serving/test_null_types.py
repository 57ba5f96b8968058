"""Columns of a request that hold no value get the types of training, or need one of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.errors import DataError
from feedline.loader.wire.facts import Hello

FEATURES: dict[str, Any] = {
    "dense": {
        "price": [{"fill_null": 0}, "log1p"],
        "ratio": {"expr": "price / count", "ops": [{"fill_null": 2.5}]},
    },
    "categorical": {"word": [{"fill_null": "none"}, {"hash_bucket": 50}]},
    "sparse": {"ids": [{"first_x": 3}, {"modulo": 10}]},
}
ROWS: dict[str, Any] = {"price": [None], "count": [None], "word": [None], "ids": [[]]}
SCHEMA = pa.schema({"price": pa.float32(), "count": pa.int32(), "word": pa.string(), "ids": pa.list_(pa.int64())})


def written(folder: Path, table: str = "nowhere", **features: Any) -> Path:
    path = folder / "p.yaml"
    document = {
        "version": 1,
        "name": "p",
        "work_dir": "work",
        "source": {"table": table},
        "features": features or FEATURES,
        "batch": {"size": 1},
    }
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("empty", [{"price": [None]}, {"count": [None]}, {"word": []}, {"ids": [[]]}, {"ids": [None]}])
def test_a_column_without_values_needs_a_type(tmp_path: Path, empty: dict[str, Any]):
    path = written(tmp_path)
    pipeline = Pipeline.from_yaml(path)
    typed = pa.table(ROWS, schema=SCHEMA)
    [name] = empty
    values = pa.array(empty[name], SCHEMA.field(name).type)
    expected = pipeline.transform({**{key: typed[key][: len(values)] for key in ROWS}, name: values})
    assert expected.dense.tolist() == [[0.0, 2.5]] * len(values)
    untyped = {**{key: typed[key][: len(values)] for key in ROWS}, **empty}
    for rows in (untyped, pa.table(untyped), pl.DataFrame(untyped)):
        with pytest.raises(
            DataError, match=rf"column '{name}' holds no value, and its type is not known: got"
        ) as caught:
            pipeline.transform(rows)
        assert "Pass an Arrow table or a typed array, or record the types of training" in str(caught.value)
        assert f"`feedline plan {path}` where the table is (run and fit record them, too)" in str(caught.value)
    pipeline.transform({**{key: typed[key] for key in ROWS}, "unused": [None]})


def test_a_column_without_values_has_the_type_of_training(tmp_path: Path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table(ROWS, schema=SCHEMA), tmp_path / "t" / "0.parquet")
    pipeline = Pipeline.from_yaml(written(tmp_path, "t"))
    pipeline.plan()
    expected = pipeline.transform(pa.table(ROWS, schema=SCHEMA))
    assert expected.dense.tolist() == [[0.0, 2.5]]
    for rows in (ROWS, pa.table(ROWS), pl.DataFrame(ROWS), {**ROWS, "ids": [None]}):
        features = pipeline.transform(rows)
        assert features.dense.tobytes() == expected.dense.tobytes()
        assert features.categorical.tolist() == expected.categorical.tolist()
        ids = features.sparse["ids"]
        assert (ids.values.tolist(), ids.offsets.tolist()) == ([], [0, 0])
    later = pipeline.transform({**ROWS, "price": [3.0], "count": [2]})  # other requests are not affected
    np.testing.assert_allclose(later.dense, [[np.log1p(3.0), 1.5]], rtol=1e-6)


def test_a_null_that_nothing_fills_is_named_by_feature_and_row(tmp_path: Path):
    price = {"price": pa.array([None, None], pa.float32())}
    with pytest.raises(DataError, match=r"'price'.*row 0"):
        Pipeline.from_yaml(written(tmp_path, dense={"price": []})).transform(price)


@pytest.mark.parametrize("by", ["plan", "batches", "resolve", "fit"])
def test_every_reader_of_the_table_records_types(tmp_path: Path, by: str):
    table = pa.table({"price": pa.array([1.5, 2.5], pa.float32())})
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "0.parquet")
    tenths = [value / 10 for value in range(1, 100)]  # of which, depends on the processor's log1p
    fill = next(value for value in tenths if np.log1p(np.float32(value)) != np.float32(np.log1p(value)))
    path = written(tmp_path, "t", dense={"price": [{"fill_null": fill}, "log1p"]})
    with pytest.raises(DataError, match="its type is not known"):
        Pipeline.from_yaml(path).transform({"price": [None]})
    pipeline = Pipeline.from_yaml(path)
    if by == "plan":
        pipeline.plan()
    elif by == "batches":
        next(pipeline.batches())
    elif by == "resolve":
        pipeline.resolve(Hello(rank=0, world_size=1), job="0" * 64)
    else:
        pipeline.fit()
    expected = np.log1p(np.float32(fill))
    assert Pipeline.from_yaml(path).transform({"price": [None]}).dense.tobytes() == expected.tobytes()


def test_a_plan_of_another_table_leaves_the_types_of_training(tmp_path: Path):
    for name, kind in (("t", pa.float32()), ("u", pa.float64())):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"price": pa.array([1.5], kind)}), tmp_path / name / "0.parquet")
    path = written(tmp_path, "t", dense={"price": ["log1p"]})
    next(Pipeline.from_yaml(path).batches())
    expected = np.log1p(np.float32(0.7))
    assert Pipeline.from_yaml(path).transform({"price": [0.7]}).dense.tobytes() == expected.tobytes()
    Pipeline.from_yaml(path, {"source.table": str(tmp_path / "u")}).plan()
    assert Pipeline.from_yaml(path).transform({"price": [0.7]}).dense.tobytes() == expected.tobytes()
    pq.write_table(pa.table({"price": [1.5], "more": [1]}), tmp_path / "t" / "0.parquet")
    Pipeline.from_yaml(path).plan()  # a dry run only adds new columns
    assert Pipeline.from_yaml(path).transform({"price": [0.7]}).dense.tobytes() == expected.tobytes()
    next(Pipeline.from_yaml(path).batches())  # a run records the types of training
    expected = np.float32(np.log1p(0.7))
    assert Pipeline.from_yaml(path).transform({"price": [0.7]}).dense.tobytes() == expected.tobytes()


def test_the_weight_of_a_sample_is_recorded_with_the_columns(tmp_path: Path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"price": pa.array([1.5] * 8, pa.float32())}), tmp_path / "t" / "0.parquet")
    path = written(tmp_path, "t", dense={"price": [], "weight": {"column": "sample_weight"}})
    sampled = {"source.sample": {"fraction": 0.5, "seed": 1}}
    next(Pipeline.from_yaml(path, sampled).batches())
    assert [column.name for column in Pipeline.from_yaml(path, sampled).schema.group("dense")] == ["price", "weight"]
