"""Chains of ops: the columns that they read, the beginnings that they share, and the place of an error."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest
from columns_of_kinds import SCHEMA, feature

from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.registry.op import OpError


def test_columns_that_cannot_be_read_by_name():
    odd = pa.schema([("twice", pa.int64()), ("twice", pa.int64()), ("^a.*$", pa.int64()), ("*", pa.int64())])
    odd = odd.append(pa.field("span", pa.month_day_nano_interval()))
    for name, message in (
        ("twice", "the table has 2 columns 'twice'"),
        ("^a.*$", "is named like a pattern"),
        ("*", "is named like a pattern"),
        ("span", "has a type that Polars lacks: month_day_nano_interval"),
    ):
        with pytest.raises(OpError, match=message):
            compile_features([feature("extra", "f", column=name)], odd)
    spaced = pa.schema([('a column, "quoted"', pa.int64())])
    compiled = compile_features([feature("categorical", "f", {"modulo": 3}, column=spaced.names[0])], spaced)
    assert compiled.apply(pl.DataFrame({spaced.names[0]: [4, 5]}))["f"].to_list() == [1, 2]


def test_places_of_errors():
    for wrong, place in (
        (feature("dense", "price", "log1p", {"clip": {"mim": 1}}), ("features", "dense", "price", 1, "clip", "mim")),
        (feature("dense", "country", {"fill_null": ""}, "log1p"), ("features", "dense", "country", 1)),
        (feature("dense", "country"), ("features", "dense", "country")),
        (feature("dense", "p", expr="prize"), ("features", "dense", "p", "expr")),
    ):
        with pytest.raises(OpError) as caught:
            compile_features([wrong], SCHEMA)
        assert caught.value.path == place


def test_an_op_of_one_column_refuses_several():
    call = OpCall(op="clip", arguments='{"": 1}', path=("features", "dense", "p", "op"))
    inputs = tuple(FeatureInput(column=name) for name in ("price", "count"))
    wrong = FeatureSpec(name="p", group="dense", op=call, inputs=inputs, path=("features", "dense", "p"))
    message = r"p: \[clip\]\(price, count\): clip takes one column: got `inputs` of 2 columns. Put it under `ops`"
    with pytest.raises(OpError, match=message) as caught:
        compile_features([wrong], SCHEMA)
    assert caught.value.path == ("features", "dense", "p", "op")
