"""Are nulls and lookups kept of each row, of whichever chunk it is?"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from feedline.blocks.block_encoder import RowCounts
from feedline.transforms.compile.compiled import Output


def output(name: str, *reads: str) -> Output:
    return Output(
        name=name,
        group="dense",
        dtype=pl.Float32(),
        kind="float",
        reads=reads,
        row_columns=(),
        lookups=(),
        num_embeddings=None,
    )


def test_a_row_is_null_if_one_of_its_columns_is() -> None:
    counts = RowCounts()
    outputs = [output("a", "x"), output("both", "x", "y"), output("never", "z"), output("constant")]
    counts.add_nulls(outputs, pl.DataFrame({"x": [1, 2], "y": [1, 2], "z": [1, 2]}))
    counts.add_nulls(outputs, pl.DataFrame({"x": [None, 2, 3], "y": [1, None, 3], "z": [1, 2, 3]}))
    expected = {"a": [0, 0, 1, 0, 0], "both": [0, 0, 1, 1, 0]}
    for name, nulls in expected.items():
        found = counts.nulls(name)
        assert found is not None
        assert found.astype(int).tolist() == nulls
    assert counts.nulls("never") is None
    assert counts.nulls("constant") is None


def test_lookups_are_those_of_all_chunks() -> None:
    counts = RowCounts()
    for rows in (2, 3):
        each = np.arange(rows)
        counts.add_lookups({"one": [(each, 2 * each), (3 * each, 4 * each)]})
    [(asked, missed), (again, _)] = counts.lookups("one")
    assert asked.tolist() == [0, 1, 0, 1, 2]
    assert missed.tolist() == [0, 2, 0, 2, 4]
    assert again.tolist() == [0, 3, 0, 3, 6]
    assert counts.lookups("other") == []


@pytest.mark.parametrize("dtype", [pl.Int32, pl.List(pl.Int64)])
def test_codes_and_lists_may_be_null(dtype: pl.DataType) -> None:
    counts = RowCounts()
    counts.add_nulls([output("a", "x")], pl.DataFrame({"x": pl.Series([None, None], dtype=dtype)}))
    found = counts.nulls("a")
    assert found is not None
    assert found.all()
