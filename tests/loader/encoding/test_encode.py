"""The dense matrix has each feature's values in its columns, for any number of row blocks; `on_nonfinite` of floats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from feedline.blocks.jobs import batch_schema
from feedline.config.features import FeatureSpec
from feedline.errors import DataError
from feedline.loader.encoding import encode as encoding
from feedline.loader.encoding.encode import apply_on_nonfinite, encode
from feedline.loader.encoding.layout import SlotColumn
from feedline.transforms.compile.compiled import compile_features


@pytest.mark.parametrize("rows", [0, 1, 7, 100])
@pytest.mark.parametrize("block_bytes", [1, 40, 8 * 2**20])
def test_the_matrix_is_the_same_in_any_blocks(rows: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(rows)
    numbers, vectors = random.random((rows, 2), np.float32), random.random((rows, 3), np.float32)
    frame = pl.DataFrame(
        {
            "a": numbers[:, 0].copy(),
            "v": pl.Series(vectors, dtype=pl.Array(pl.Float32, 3)),
            "b": numbers[:, 1].copy(),
            "label": np.arange(rows, dtype=np.float32),
        }
    )
    groups = {"a": "dense", "v": "dense", "b": "dense", "label": "label"}
    features = [FeatureSpec(name=name, group=group, column=name) for name, group in groups.items()]  # type: ignore[arg-type]
    compiled = compile_features(features, frame.to_arrow().schema)
    monkeypatch.setattr(encoding, "_MATRIX_BYTES", block_bytes)
    encoded = encode(compiled.apply(frame), batch_schema(compiled))
    assert np.array_equal(encoded.dense, np.column_stack([numbers[:, 0], vectors, numbers[:, 1]]))
    assert encoded.labels.tolist() == [[row] for row in range(rows)]
    assert encoded.dense.flags.c_contiguous


NAN, INF = float("nan"), float("inf")
COLUMN = SlotColumn(name="price", group="dense", dtype="float32", arrow="float", offset=0)


def floats(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_values_that_are_not_finite_become_zero_without_a_change_of_the_input():
    values = floats(1, NAN, -INF, 4)
    column = replace(COLUMN, on_nonfinite="zero")
    assert apply_on_nonfinite(values, column, None).tolist() == [1, 0, 0, 4]
    assert np.isnan(values[1])
    finite = floats(1, 2)
    assert apply_on_nonfinite(finite, column, None) is finite


@pytest.mark.parametrize("extremes", [None, (1.0, INF)])
def test_an_error_names_the_feature_the_value_and_the_row(extremes: tuple[float, float] | None):
    column = replace(COLUMN, on_nonfinite="error")
    with pytest.raises(
        DataError, match=r"feature 'price' holds a value that is not finite .*got inf and 1 more in 4"
    ) as caught:
        apply_on_nonfinite(floats(1, 2, INF, NAN), column, None, extremes=extremes)
    assert caught.value.row == 2
