"""The rows of the floor benchmark between file and trainer: row groups, encoded pieces of them, and batches.

The result of every contender: batches of torch tensors, dense [B, D] float32, categorical [B, K] int64, labels [B, 1]
float32, and per list column values and lengths. `numpy_workload` and `polars_workload` encode row groups; here pieces
are divided into batches. Runs in the contenders' processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd  # noqa: F401  pyarrow imports it in its first conversion to numpy: an import, not part of the loop
import pyarrow.parquet as pq
import torch
from shapes import Shape

if TYPE_CHECKING:
    from contenders import Job


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of the table; `start`: its first row's index among all rows."""

    path: str
    index: int
    rows: int
    start: int
    footer: pq.FileMetaData


@dataclass(frozen=True, slots=True)
class Piece:
    """Encoded rows: dense [N, D] float32, ids [K, N] int64, labels [N, 1] float32; values and offsets of each list."""

    dense: np.ndarray
    ids: np.ndarray
    labels: np.ndarray
    values: Sequence[np.ndarray]
    offsets: Sequence[np.ndarray]

    def __len__(self) -> int:
        return len(self.dense)

    def __getitem__(self, rows: slice) -> Piece:
        """Return a run of rows without copying, except the offsets."""
        first, stop, _ = rows.indices(len(self))
        return Piece(
            self.dense[first:stop],
            self.ids[:, first:stop],
            self.labels[first:stop],
            [v[o[first] : o[stop]] for v, o in zip(self.values, self.offsets, strict=True)],
            [o[first : stop + 1] - o[first] for o in self.offsets],
        )


@dataclass(frozen=True, slots=True)
class Jagged:
    """values [sum of lengths] int64, lengths [B] int32."""

    values: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of a step, named as in Feedline's Batch."""

    dense: torch.Tensor
    categorical: torch.Tensor
    labels: torch.Tensor
    sparse: dict[str, Jagged] = field(default_factory=dict)


def row_groups(files: Sequence[str]) -> list[RowGroup]:
    """Return all row groups of the table, in its order."""
    found: list[RowGroup] = []
    start = 0
    for path in files:
        footer = pq.read_metadata(path)
        for index in range(footer.num_row_groups):
            rows = footer.row_group(index).num_rows
            found.append(RowGroup(path, index, rows, start, footer))
            start += rows
    return found


def groups_of(job: Job) -> list[RowGroup]:
    """Return the row groups of a rank in all epochs, each with its first row's index among the rank's own rows."""
    found, start = [], 0
    for group in row_groups(job.files)[job.rank :: job.ranks] * job.epochs:
        found.append(replace(group, start=start))
        start += group.rows
    return found


def open_file(group: RowGroup, *, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a row group's file without reading its footer again.

    Arrow decodes its pages where they are in the page cache. dictionaries: columns that become dictionary arrays.
    """
    return pq.ParquetFile(
        group.path, metadata=group.footer, memory_map=True, pre_buffer=False, read_dictionary=dictionaries or None
    )


def piece_arrays(group: RowGroup, encode: Callable[[RowGroup], Iterable[Piece]]) -> list[tuple[object, ...]]:
    """Return the pieces of a row group as tuples of arrays, which grain's workers put into shared memory."""
    return [(piece.dense, piece.ids, piece.labels, [*piece.values], [*piece.offsets]) for piece in encode(group)]


def batches(pieces: Iterable[Piece], size: int, shape: Shape) -> Iterator[Batch]:
    """Yield batches of exactly `size` rows, the last one shorter. What one piece has all rows of is not copied."""
    held: list[Piece] = []
    missing = size
    for piece in pieces:
        first = 0
        while len(piece) - first >= missing:
            yield _batch([*held, piece[first : first + missing]], shape)
            first, held, missing = first + missing, [], size
        if first < len(piece):
            held.append(piece[first:])
            missing -= len(piece) - first
    if held:
        yield _batch(held, shape)


def _batch(parts: Sequence[Piece], shape: Shape) -> Batch:
    def join(arrays: Iterable[np.ndarray], axis: int = 0) -> torch.Tensor:
        several = list(arrays)
        return torch.from_numpy(several[0] if len(several) == 1 else np.concatenate(several, axis))

    sparse = {
        name: Jagged(
            join(part.values[k] for part in parts),
            join(np.diff(part.offsets[k]).astype(np.int32) for part in parts),
        )
        for k, name in enumerate(shape.lists)
    }
    return Batch(
        join(part.dense for part in parts),
        join((part.ids for part in parts), 1).T,
        join(part.labels for part in parts),
        sparse,
    )
