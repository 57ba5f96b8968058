"""num_embeddings is known for every op that bounds its ids, and bounds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fit_in_memory import fit_frames

from feedline import Pipeline
from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.loader.encoding.layout import BatchSchema
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features

FRAME = pl.DataFrame(
    {
        "id": [5, 7, 7, 123_456_789, 0],
        "list": [[1, 2, 3], [], [9, 9], [4], [1]],
        "other": [[3], [1], [9], [], [2]],
        "text": ["a", "b", "b", "c", "d"],
        "x": [0.5, 1.5, 2.5, 3.5, 4.5],
    }
)
SCHEMA = FRAME.to_arrow().schema


def call(op: Any) -> OpCall:
    if isinstance(op, str):
        return OpCall(op=op)
    [(name, arguments)] = op.items()
    return OpCall(op=name, arguments=json.dumps(arguments if isinstance(arguments, dict) else {"": arguments}))


def compiled(column: str, *ops: Any, fitted: bool = True) -> CompiledFeatures:
    features = [FeatureSpec(name="f", group="extra", column=column, ops=tuple(call(op) for op in ops))]
    if not fitted:
        return compile_features(features, SCHEMA)
    return compile_features(features, SCHEMA, fit_frames(features, SCHEMA, [FRAME]))


@pytest.mark.parametrize(
    ("column", "ops", "rows"),
    [
        ("id", [{"hash_bucket": 100}], 100),
        ("id", [{"hash_bucket": {"buckets": 100, "null_bucket": True}}], 101),
        ("text", [{"hash_bucket": {"buckets": 100, "null_bucket": True}}], 101),
        ("id", [{"modulo": 10}], 10),
        ("id", [{"sigrid_hash": {"salt": 1, "max_value": 50}}], 50),
        ("text", [{"hash_bucket": 100}, {"fill_null": 3}], 100),
        ("id", [{"modulo": 10}, {"fill_null": 10}], 11),
        ("id", [{"modulo": 10}, {"fill_null": -1}], None),
        ("x", [{"bucketize": [1, 2, 3]}], 4),
        ("x", [{"quantile_bucketize": 4}], 4),
        ("text", ["vocabulary"], 7),
        ("text", [{"vocabulary": {"min_count": 2, "oov_buckets": 5}}], 8),
        ("list", [{"first_x": 2}, {"vocabulary": {"oov_buckets": 0}}, {"list_slice": -1}], 6),
        ("list", [{"ngram": {"n": 2, "buckets": 30}}, {"id_list_transform": {"unique": True}}], 30),
        ("text", [{"map_id": {"keys": ["a", "b"], "values": [4, 2], "default": 0}}], 5),
        ("text", [{"map_id": {"keys": ["a", "b"], "values": [4, -2]}}], None),
        ("id", [], None),
        ("list", [{"first_x": 2}], None),
        ("id", [{"modulo": 10}, {"clip": {"max": 3}}], None),
    ],
)
def test_ids_stay_below_num_embeddings(column: str, ops: list[Any], rows: int | None):
    features = compiled(column, *ops)
    assert features.outputs[0].num_embeddings == rows
    found = features.apply(FRAME).to_series()
    ids = (found.explode() if isinstance(found.dtype, pl.List) else found).drop_nulls()
    assert rows is None or 0 <= int(ids.min()) <= int(ids.max()) < rows


def test_a_vocabulary_that_is_not_learnt_yet_has_no_size():
    assert compiled("text", "vocabulary", fitted=False).outputs[0].num_embeddings is None


def test_of_several_columns():
    inputs = (FeatureInput(column="list"), FeatureInput(column="other"))
    bounded = (FeatureInput(column="list", ops=(call({"modulo": 8}),)), FeatureInput(column="other"))
    features = [
        FeatureSpec(name="crossed", group="sparse", op=call({"cartesian": 40}), inputs=inputs),
        FeatureSpec(name="common", group="sparse", op=call("positive_intersect"), inputs=inputs),
        FeatureSpec(name="bounded", group="sparse", op=call("positive_intersect"), inputs=bounded),
    ]
    assert [output.num_embeddings for output in compile_features(features, SCHEMA).outputs] == [40, None, 8]


def test_a_plan_holds_it_and_hands_it_on_as_json(tmp_path: Path):
    (tmp_path / "table").mkdir()
    FRAME.write_parquet(tmp_path / "table" / "a.parquet")
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "version: 1\nname: sizes\nsource: {table: table}\nbatch: {size: 5}\nfeatures:\n"
        "  dense: {x: [], bucket: {column: x, ops: [{bucketize: [1, 2]}]}}\n"
        "  categorical: {text: [vocabulary]}\n  sparse: {list: [{hash_bucket: 50}]}\n"
    )
    pipeline = Pipeline.from_yaml(path)
    pipeline.fit()
    schema = BatchSchema.from_json(pipeline.plan().layout.schema.to_json())
    assert {column.name: column.num_embeddings for column in schema} == {
        "x": None,
        "bucket": None,
        "text": 7,
        "list": 50,
    }
