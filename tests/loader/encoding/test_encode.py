"""The dense matrix has each feature's values in its columns, for any number of row blocks."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from feedline.blocks.batch_schema import batch_schema
from feedline.config.features import FeatureSpec
from feedline.loader.encoding import encode as encoding
from feedline.loader.encoding.encode import encode
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
