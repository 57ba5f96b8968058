"""Keys of one column, of several, and of the elements of lists: null is a key like any other."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from feedline.errors import SpecError
from feedline.transforms.learning.learner import Artifact
from feedline.transforms.ops.group_table import MISSING, GroupKeys, KeyedRows
from feedline.transforms.values.kinds import Value


def value(name: str, dtype: pl.DataType) -> Value:
    return Value(expr=pl.col(name), dtype=dtype)


def positions(keys: GroupKeys, frame: pl.DataFrame, groups: pl.DataFrame) -> list[object]:
    values = [value(name, dtype) for name, dtype in frame.schema.items()]
    expr, lookup = keys.positions(values, Artifact(facts={}, table=groups.to_arrow()))
    return frame.lazy().with_columns(lookup.ids).select(expr).collect(engine="in-memory").to_series().to_list()


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (pl.Int8(), pl.Int64()),
        (pl.Boolean(), pl.Int64()),
        (pl.UInt64(), pl.UInt64()),
        (pl.String(), pl.String()),
        (pl.Categorical(), pl.String()),
        (pl.Binary(), pl.Binary()),
    ],
)
def test_keys_are_stored_in_wide_types(dtype: pl.DataType, stored: pl.DataType):
    keys = GroupKeys.of([value("a", dtype)])
    assert keys.schema() == {MISSING: pl.Int32(), "key 0": stored}
    assert not keys.listed
    assert GroupKeys.of([value("a", pl.List(dtype))]) == GroupKeys(types=(stored,), listed=True)


def test_null_keys_are_bits_beside_a_filled_column():
    keys = GroupKeys.of([value("a", pl.Int32()), value("b", pl.String())])
    rows = keys.rows([pl.Series([1, None, None, 2], dtype=pl.Int32), pl.Series(["x", "y", None, None])])
    assert rows.frame(keys.names).to_dict(as_series=False) == {
        MISSING: [0, 1, 3, 2],
        "key 0": [1, 0, 0, 2],
        "key 1": ["x", "y", "", ""],
    }


def test_groups_are_found_by_all_key_columns_nulls_included():
    keys = GroupKeys.of([value("a", pl.Int64()), value("b", pl.String())])
    groups = pl.DataFrame(
        {MISSING: [0, 1, 2], "key 0": [1, 0, 1], "key 1": ["x", "x", ""]},
        schema=keys.schema(),
    )
    frame = pl.DataFrame({"a": [1, None, 1, None, 2], "b": ["x", "x", None, None, "x"]})
    assert positions(keys, frame, groups) == [1, 2, 3, 0, 0]


def test_elements_of_lists_are_found_one_by_one():
    keys = GroupKeys.of([value("a", pl.List(pl.Int64()))])
    groups = pl.DataFrame({MISSING: [0, 0, 1], "key 0": [7, 8, 0]}, schema=keys.schema())
    frame = pl.DataFrame({"a": [[8, 7, 9], None, [], [None]]})
    assert positions(keys, frame, groups) == [[2, 1, 0], None, [], [3]]


def test_numbers_of_rows_are_repeated_for_the_elements_of_their_lists():
    rows = KeyedRows.of([pl.Series([[1, 2], None, [3]])])
    assert rows.keys[0].to_list() == [1, 2, 3]
    assert rows.repeat(np.array([10, 20, 30])).tolist() == [10, 10, 30]
    found = rows.series(np.array([0.5, 1.5, 2.5]), np.array([False, True, False]))
    assert found.to_list() == [[0.5, None], None, [2.5]]
    plain = KeyedRows.of([pl.Series([1, 2])])
    assert plain.repeat(np.array([10, 20])).tolist() == [10, 20]
    assert plain.series(np.array([0.5, 1.5]), np.array([True, False])).to_list() == [None, 1.5]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([value("a", pl.Float32())], "a key must be .*: got float. Put bucketize, or {cast: int64}, before it"),
        ([value(f"c{n}", pl.Int8()) for n in range(32)], "at most 31 columns make a key: got 32"),
        (
            [value("a", pl.List(pl.Int8())), value("b", pl.Int8())],
            "the elements of lists are keys by themselves: got 2 columns with a list among them",
        ),
    ],
)
def test_columns_that_cannot_be_keys_are_errors(values: list[Value], message: str):
    with pytest.raises(SpecError, match=message):
        GroupKeys.of(values)


def test_an_artifact_of_other_types_is_refused():
    keys = GroupKeys.of([value("a", pl.Int64())])
    words = pa.table({MISSING: pa.array([0], pa.int32()), "key 0": ["x"]})
    keys.check(Artifact(facts={}, table=pa.table({MISSING: pa.array([0], pa.int32()), "key 0": [1]})))
    with pytest.raises(SpecError):
        keys.check(Artifact(facts={}, table=words))
