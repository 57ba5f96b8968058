"""Which columns of a schema `batch.sparse_features` holds, and which choices mean nothing or do not fit it."""

from __future__ import annotations

from typing import Any

import pytest

from feedline.errors import SpecError
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SparseFeatures
from feedline.loader.tensors.torchrec_tensors import check_chosen, chosen_ids, chosen_weighted


def column(name: str, group: str, dtype: str = "int64", **more: Any) -> SlotColumn:
    return SlotColumn(name=name, group=group, dtype=dtype, arrow=dtype, offset=0, **more)


SCHEMA = BatchSchema(
    (
        column("item", "categorical", num_embeddings=2**31),
        column("weighted", "sparse", weighted=True, num_embeddings=10),
        column("vector", "sparse", "float32"),
        column("history", "sparse", num_embeddings=2**31 + 1),
        column("raw", "sparse"),
        column("price", "dense", "float32"),
    )
)


def test_all_ids_are_chosen_lists_in_the_order_of_memory_first():
    choice = SparseFeatures()
    assert chosen_ids(choice, SCHEMA) == ("history", "raw", "weighted", "item")
    assert chosen_weighted(choice, SCHEMA) == ("weighted",)
    check_chosen(choice, SCHEMA)


def test_named_features_keep_their_order():
    choice = SparseFeatures(features=["item", "weighted"])
    assert chosen_ids(choice, SCHEMA) == ("item", "weighted")
    assert chosen_weighted(choice, SCHEMA) == ("weighted",)
    assert chosen_weighted(SparseFeatures(features=["item"]), SCHEMA) == ()
    check_chosen(SparseFeatures(features=["item", "weighted"], dtype="int32"), SCHEMA)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"features": ["price"]}, "must hold ids: got 'price', expected some of history, raw, weighted, item"),
        ({"features": ["item", "missing"]}, "must hold ids: got 'missing'"),
        ({"features": ["history"], "dtype": "int32"}, r"got 'history', whose ops give 2,147,483,649\. End its ops"),
        ({"features": ["raw"], "dtype": "int32"}, "got 'raw', whose ops do not bound them"),
    ],
)
def test_features_that_hold_no_ids_or_too_large_ones_are_refused(choice: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        check_chosen(SparseFeatures(**choice), SCHEMA)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dtype": "int8"}, 'dtype is unknown: got \'int8\', expected "int64" or "int32"'),
        ({"features": "item"}, "must be a sequence of names: got 'item'"),
        ({"features": []}, "must be different names: got none"),
        ({"features": ["a", "b", "a"]}, "must be different names: got a, b, a"),
    ],
)
def test_choices_that_mean_nothing_are_refused(choice: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        SparseFeatures(**choice)
