"""Columns of a request that hold nulls only get the types of training, else those that the ops require."""

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
from feedline.errors import DataError, SpecError
from feedline.loader.wire.facts import Hello
from feedline.serving.encoder import AmbiguousType, ambiguous_type_error, resolve_types

FEATURES: dict[str, Any] = {
    "dense": {
        "price": [{"fill_null": 0}, "log1p"],
        "ratio": {"expr": "price / count", "ops": [{"fill_null": 2.5}]},
    },
    "categorical": {"word": [{"fill_null": "none"}, {"hash_bucket": 50}]},
    "sparse": {"ids": [{"first_x": 3}, {"modulo": 10}]},
}
ROWS = {"price": [None], "count": [None], "word": [None], "ids": [[]]}


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


def test_a_column_of_nulls_gets_the_type_that_ops_require(tmp_path: Path):
    pipeline = Pipeline.from_yaml(written(tmp_path))
    typed = pa.table(
        ROWS,
        schema=pa.schema({"price": pa.float32(), "count": pa.int32(), "word": pa.string()}).append(
            pa.field("ids", pa.list_(pa.int64()))
        ),
    )
    expected = pipeline.transform(typed)
    assert expected.dense.tolist() == [[0.0, 2.5]]
    for rows in (
        ROWS,
        pa.table(ROWS),
        pl.DataFrame(ROWS),
        {**ROWS, "ids": [None]},
    ):
        found = pipeline.transform(rows)
        assert found.dense.tobytes() == expected.dense.tobytes()
        assert found.categorical.tolist() == expected.categorical.tolist()
        ids = found.sparse["ids"]
        assert (ids.values.tolist(), ids.offsets.tolist()) == ([], [0, 0])
    later = pipeline.transform({**ROWS, "price": [3.0], "count": [2]})  # other requests are not affected
    np.testing.assert_allclose(later.dense, [[np.log1p(3.0), 1.5]], rtol=1e-6)


def test_a_null_that_nothing_fills_is_named_by_feature_and_row(tmp_path: Path):
    with pytest.raises(DataError, match=r"'price'.*row 0"):
        Pipeline.from_yaml(written(tmp_path, dense={"price": []})).transform({"price": [None, None]})


def test_a_type_that_ops_do_not_accept_has_to_be_given(tmp_path: Path):
    path = written(tmp_path, categorical={"x": {"expr": 'price["country"]'}})
    with pytest.raises(SpecError) as caught:
        Pipeline.from_yaml(path).transform({"price": [None]})
    message = str(caught.value)
    assert message.startswith(
        "column 'price' holds nulls only and its type is not known: feature 'x': its ops (no ops) accept no type"
    )
    assert f"`feedline plan {path}` where the table is (run and fit record them, too)" in message


def test_features_must_not_depend_on_the_chosen_type():
    schema = pa.schema({"a": pa.null(), "b": pa.list_(pa.null()), "c": pa.null(), "d": pa.int8(), "e": pa.null()})
    uses = [frozenset("ad"), frozenset("ab"), frozenset("c"), frozenset("ce"), frozenset("d")]
    taken = {0: ("int64", "string"), 1: ("int64", "list<item: string>"), 2: ("double",), 3: ("double", "date32[day]")}
    tried: list[int] = []

    def outcome(place: int, schema: pa.Schema, rows: pa.Table) -> object | None:
        tried.append(place)
        assert rows.schema == schema
        kinds = [str(schema.field(name).type) for name in sorted(uses[place]) if name != "d"]
        return "same" if all(kind in taken[place] for kind in kinds) else None

    found = resolve_types(schema, uses, outcome)
    assert isinstance(found, pa.Schema)
    kinds = [pa.int64(), pa.list_(pa.string()), pa.float64(), pa.int8(), pa.float64()]
    assert found == pa.schema(zip("abcde", kinds, strict=True))
    assert 4 not in tried  # it reads none of them

    def differing(place: int, schema: pa.Schema, rows: pa.Table) -> object | None:
        made = outcome(place, schema, rows)
        return None if made is None else str(schema.field("a").type)

    found = resolve_types(schema, uses, differing)
    assert found == AmbiguousType("a", 0, {"int64": "int64", "string": "string"})
    text = str(ambiguous_type_error(found, "x", "[modulo]", "Say it"))
    assert "feature 'x': its ops ([modulo]) make int64 of int64 and string of string. Say it" in text


@pytest.mark.parametrize("by", ["plan", "batches", "resolve", "fit"])
def test_every_reader_of_the_table_records_types(tmp_path: Path, by: str):
    table = pa.table({"price": pa.array([1.5, 2.5], pa.float32())})
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "0.parquet")
    tenths = [value / 10 for value in range(1, 100)]  # of which, depends on the processor's log1p
    fill = next(value for value in tenths if np.log1p(np.float32(value)) != np.float32(np.log1p(value)))
    path = written(tmp_path, "t", dense={"price": [{"fill_null": fill}, "log1p"]})
    unrecorded = np.float32(np.log1p(fill))
    assert Pipeline.from_yaml(path).transform({"price": [None]}).dense.tobytes() == unrecorded.tobytes()
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
