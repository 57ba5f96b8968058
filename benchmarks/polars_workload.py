"""The work of `workload` as Polars expressions, for the two floors; runs in their processes."""

from __future__ import annotations

import numpy as np
import polars as pl
from workload import CLIP, DENSE, FIRST, HISTORIES, IDS, LABEL, MODULUS, Piece, RowGroup, read


def polars_piece(group: RowGroup) -> Piece:
    """Read a row group on this thread, apply the Polars expressions, and encode it in numpy."""
    frame = pl.DataFrame(pl.from_arrow(read(group)))
    return encode_frame(frame.lazy().select(polars_expressions()).collect(engine="in-memory"))


def polars_expressions() -> list[pl.Expr]:
    """Return the work as expressions over the raw columns."""
    return [
        *(pl.col(name).fill_null(0.0).clip(0.0, CLIP).log1p() for name in DENSE),
        *(pl.col(name) % MODULUS for name in IDS),
        *(pl.col(name).list.head(FIRST) for name in HISTORIES),
        pl.col(LABEL).cast(pl.Float32),
    ]


def encode_frame(frame: pl.DataFrame) -> Piece:
    """Encode a frame with the columns of `polars_expressions` into arrays."""
    frame = frame.rechunk()
    ids = np.empty((len(IDS), frame.height), np.int64)
    for row, name in zip(ids, IDS, strict=True):
        row[:] = frame[name].to_numpy()
    dense = np.empty((len(DENSE), frame.height), np.float32)
    for row, name in zip(dense, DENSE, strict=True):
        row[:] = frame[name].to_numpy()
    lists = [frame[name].to_arrow() for name in HISTORIES]
    return Piece(
        np.ascontiguousarray(dense.T),  # 0.03 us per row less than to_numpy(order="c")
        ids,
        frame[LABEL].to_numpy()[:, None],
        [column.values.to_numpy() for column in lists],
        [column.offsets.to_numpy() for column in lists],
    )
