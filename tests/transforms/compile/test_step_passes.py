"""Passes up to each step compute what a shorter chain computes."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from feedline.config.features import FeatureSpec, OpCall
from feedline.errors import SpecError
from feedline.transforms.compile.step_passes import step_passes

SCHEMA = pa.schema([("price", pa.float32()), ("hist", pa.list_(pa.int64()))])
FRAME = pl.DataFrame(
    {"price": [1.0, None, 3.0], "hist": [[1, 2, 3], [], [4]]},
    schema={"price": pl.Float32, "hist": pl.List(pl.Int64)},
)


def feature(name: str, group: str, *ops: OpCall, column: str | None = None, expr: str | None = None) -> FeatureSpec:
    return FeatureSpec(name=name, group=group, column=column, expr=expr, ops=ops)  # type: ignore[arg-type]


FILL, LOG = OpCall(op="fill_null", arguments='{"":0}'), OpCall(op="log1p")
HASH = OpCall(op="hash_bucket", arguments='{"":10}')


def test_steps_run_from_the_source_to_the_last_op():
    features = [
        feature("price", "dense", FILL, LOG),
        feature("twice", "dense", FILL, column="price"),
        feature("sum", "dense", expr="price + 1"),
        feature("hist", "sparse", HASH),
    ]
    found = step_passes(features, SCHEMA)
    assert [[step.op for step in steps] for steps in found] == [
        [None, "fill_null", "log1p"],
        [None, "fill_null"],
        [None],
        [None, "hash_bucket"],
    ]
    assert [[step.sharers for step in steps] for steps in found] == [[2, 2, 1], [2, 2], [1], [1, 1]]
    assert [steps[0].is_plain for steps in found] == [True, True, False, True]
    for steps in found:
        for step in steps:
            step.run(FRAME)
    [only] = step_passes(features, SCHEMA, only=["twice"])
    assert [(step.feature, step.sharers) for step in only] == [("twice", 2), ("twice", 2)]


def test_wrong_chains_are_refused():
    with pytest.raises(SpecError):
        step_passes([feature("price", "dense", OpCall(op="modulo", arguments='{"":3}'))], SCHEMA)
