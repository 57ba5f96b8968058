"""Declarations of ops are complete, wrong calls are refused, and schema and documentation follow."""

from __future__ import annotations

import pickle
from functools import partial

import op_oracles
import polars as pl
import pytest
from op_oracles import INT_LISTS, PAIRS

from feedline.config.features import OpCall
from feedline.expressions.types import FLOAT
from feedline.transforms.ops import OPS, resolve
from feedline.transforms.registry.op import Op, OpError
from feedline.transforms.values.kinds import ANYTHING, Value

PLACE = ("features", "dense", "price", 1)
call = partial(op_oracles.call, path=PLACE)
CATALOGUE = {
    *("fill_null", "fill_nonfinite", "clip", "log", "log1p", "logit", "box_cox", "cast"),
    *("standardize", "min_max", "fill_median", "fill_mean", "quantile_bucketize"),
    *("onehot", "vector", "pad"),
    *("hash_bucket", "sigrid_hash", "modulo", "map_id", "first_x", "list_slice", "id_list_transform"),
    "vocabulary",
    *("weighted", "ids", "weights"),
    *("bucketize", "enumerate", "ngram", "get_local_hour", "expr"),
    *("hashed_cross", "cartesian", "positive_intersect"),
    *("target_encoding", "group_statistics"),
    *("id_overlap_count", "has_id_overlap", "get_max_count", "get_jaccard_similarity", "get_cosine_similarity"),
    *("join_external", "embedding"),
    *("get_score_sum", "get_score_min", "get_score_max", "column_similarity"),
}


def test_the_catalogue_is_complete():
    assert set(OPS) == CATALOGUE


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_declarations_are_complete(op: Op):
    assert op.text.partition("\n\n")[0].endswith((".", ":"))
    assert "ull" in op.text, "what becomes of nulls?"
    if FLOAT in op.takes | frozenset().union(*(given.takes for given in op.inputs)) and op.takes != ANYTHING:
        assert "NaN" in op.text or "not finite" in op.text, "what becomes of NaN?"
    assert op.examples
    assert op.takes <= ANYTHING
    assert op.version >= 1
    assert all(field.description for field in op.parameters.model_fields.values())


@pytest.mark.parametrize(
    ("right", "dtype", "message"),
    [
        (call("log1p"), pl.String(), "log1p takes numbers, or lists of them: got string. .*hash_bucket.*cast"),
        (call("log1p"), pl.Boolean(), "log1p takes numbers, or lists of them: got boolean. .*cast: int64"),
        (call("clip", 0), pl.Datetime("us"), "clip takes numbers, or lists of them: got timestamp. .*expr"),
        (call("modulo", 5), pl.Float32(), "modulo takes integers, or lists of them: got float. .*bucketize"),
        (call("hash_bucket", 5), pl.Float64(), "hash_bucket takes integers, strings or binary values.*: got float"),
        (call("first_x", 5), pl.Int64(), "first_x takes lists: got integer. It works on a whole list"),
        (call("log1p"), pl.Struct({"a": pl.Int64()}), 'got struct. .*NAME."field"'),
        (call("log1p"), pl.List(pl.List(pl.Int64())), "got list list"),
        (call("fill_null", "x"), pl.Int64(), "fill_null: .*: got 'x', expected type integer"),
        (call("fill_null", 0.5), pl.Int64(), "fill_null: .*: got 0.5, expected an integer"),
        (call("fill_null", 300), pl.Int8(), "the value does not fit the column: got 300, expected type int8"),
        (call("fill_null", -1), pl.List(pl.UInt64()), "does not fit the column: got -1, expected type uint64"),
        (call("fill_null", 1e39), pl.Float32(), "does not fit the column"),
        (call("fill_null", 10**400), pl.Float64(), "does not fit the column"),
        (call("fill_null", 1), pl.Boolean(), "got 1, expected type boolean"),
        (call("fill_null", True), pl.Int64(), "got True, expected type integer"),
        (call("clip", {"max": -1}), pl.UInt64(), "a bound does not fit the column"),
        (call("clip", {"min": 2**70}), pl.Int64(), "a bound does not fit the column"),
        (call("clip", {"max": 1e39}), pl.Float32(), "a bound does not fit the column"),
        (call("cast", "string"), pl.Float64(), "cast: a float cannot become string"),
        (call("cast", "bool"), pl.List(pl.String()), "cast: a string cannot become bool"),
        (call("bucketize", [0.1, 0.1 + 1e-12]), pl.Float32(), "borders must differ in the column's type"),
        (call("logit", 1e-9), pl.Float32(), "eps must change 1 in the column's type"),
        (call("box_cox", {"power": 1e300}), pl.Float32(), "power does not fit the column"),
        (call("map_id", {"keys": ["a"], "values": [2]}), pl.Int64(), "keys must be of the column's type: got 'a'"),
        (call("map_id", {"keys": [1], "values": [2**63]}), pl.Int64(), "values must fit int64"),
        (call("pad", {"length": 2, "value": 0.5}), INT_LISTS, "the value does not fit the column: got 0.5"),
        (call("pad", {"length": 2, "value": -1}), pl.List(pl.UInt64()), "the value does not fit the column: got -1"),
        (call("onehot", 3), INT_LISTS, "onehot takes integers or booleans: got integer list"),
        (call("vector", 3), pl.Float32(), "vector takes lists of numbers or booleans: got float"),
        (call("ids"), INT_LISTS, "ids: the input must be a weighted list: got integer list"),
        (call("ngram", {"n": 2, "buckets": 5}), PAIRS, "ngram takes no weights: got weighted integer list. Put `ids`"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_its_column(right: OpCall, dtype: pl.DataType, message: str):
    with pytest.raises(OpError, match=message) as caught:
        resolve(right).apply(Value(expr=pl.col("a"), dtype=dtype))
    assert caught.value.path == PLACE


def test_errors_survive_a_pickle():
    error = pickle.loads(pickle.dumps(OpError(PLACE, "wrong")))
    assert (error.path, str(error)) == (PLACE, "wrong")
