"""Parameters that do not fit an op or its column are errors that name them."""

from __future__ import annotations

import polars as pl
import pytest
from op_oracles import (
    INT_LISTS,
    PAIRS,
    combined,
)

from feedline.transforms.registry.op import OpError


def test_parameters_that_do_not_fit():
    for op, arguments, dtype, message in (
        ("logit", 1e-9, pl.Float32(), "eps must change 1 in the column's type"),
        ("logit", 0.5, pl.Float32(), "logit.eps must be less than 0.5"),
        ("box_cox", {"power": 1e300}, pl.Float32(), "power does not fit the column"),
        ("map_id", {"keys": [1], "values": []}, pl.Int64(), "there must be a value for each key: got 1 keys, 0 values"),
        ("map_id", {"keys": [1, 1], "values": [2, 3]}, pl.Int64(), "keys must differ: got 1 twice"),
        ("map_id", {"keys": ["a"], "values": [2]}, pl.Int64(), "keys must be of the column's type: got 'a'"),
        ("map_id", {"keys": [1], "values": [2**63]}, pl.Int64(), "values must fit int64"),
        ("pad", {"length": 2, "value": 0.5}, INT_LISTS, "the value does not fit the column: got 0.5"),
        ("pad", {"length": 2, "value": -1}, pl.List(pl.UInt64()), "the value does not fit the column: got -1"),
        ("pad", 0, INT_LISTS, "pad.length must be greater than or equal to 1"),
        ("onehot", 3, INT_LISTS, "onehot takes integers or booleans: got integer list"),
        ("vector", 3, pl.Float32(), "vector takes lists of numbers or booleans: got float"),
        ("get_local_hour", "Mars/Base", pl.Datetime("us"), "the tz database, such as Europe/Zurich: got 'Mars"),
        ("ids", None, INT_LISTS, "ids: the input must be a weighted list: got integer list"),
        ("ngram", {"n": 2, "buckets": 5}, PAIRS, "ngram takes no weights: got weighted integer list. Put `ids` before"),
        ("log", None, pl.List(pl.String()), "log takes numbers, or lists of them: got string list"),
    ):  # fmt: skip
        with pytest.raises(OpError, match=message):
            combined(op, arguments, pl.Series("a", [], dtype=dtype))
