"""Rows with weighted lists, vectors, maps and nulls: a table that exercises every kind of feature."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

ROWS, WIDTH = 3000, 4


def rows_of(file: int) -> pa.Table:
    random = np.random.default_rng(file)
    lengths = random.integers(0, 5, ROWS)
    ids = [random.integers(0, 50, length).tolist() for length in lengths]
    scores = [random.random(length, dtype=np.float32).tolist() for length in lengths]
    null = random.random(ROWS) < 0.1
    pair = pa.list_(pa.struct([("id", pa.int64()), ("weight", pa.float32())]))
    triples = [[{"id": i, "weight": s} for i, s in zip(*row, strict=True)] for row in zip(ids, scores, strict=True)]
    columns = {
        "row": pa.array(np.arange(ROWS) + file * ROWS),
        "price": pa.array(random.random(ROWS, dtype=np.float32)),
        "embedding": pa.array(random.random((ROWS, WIDTH)).tolist(), pa.list_(pa.float32(), WIDTH)),
        "vector": pa.array(random.random((ROWS, WIDTH)).tolist(), pa.list_(pa.float64())),
        "ids": pa.array([None if gone else row for row, gone in zip(ids, null, strict=True)], pa.list_(pa.int32())),
        "scores": pa.array(
            [None if gone else row for row, gone in zip(scores, null, strict=True)], pa.list_(pa.float64())
        ),
        "others": pa.array([random.integers(0, 50, 4).tolist() for _ in range(ROWS)], pa.list_(pa.int64())),
        "pairs": pa.array([None if gone else row for row, gone in zip(triples, null, strict=True)], pair),
        "mapped": pa.array([[(1, None), (row, 0.5)] for row in range(ROWS)], pa.map_(pa.int64(), pa.float32())),
    }
    return pa.table(columns)
