"""Tensors of deduplicated groups: the values of unique rows, and the unique row of each row of the batch.

Runs in: the trainer, and wherever `Pipeline.batches` is iterated. The rows of a batch that repeat the row above them in
all features of a group share one unique row. A model computes what depends on the group alone for the U unique rows,
and expands the result: `result.index_select(0, group.inverse)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.tensors.slot_tensors import Sparse


class InverseSparse(Sparse):
    """One ragged feature of a deduplicated group: `values`, `lengths` int32 [U], `offsets` int64 [U + 1] and `weights`
    as of `Sparse`, of unique rows; `inverse` int32 [B]: row i of the batch holds the list of unique row `inverse[i]`.
    """

    __slots__ = ("inverse",)

    def __init__(
        self,
        values: torch.Tensor,
        lengths: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None,
        inverse: torch.Tensor,
    ) -> None:
        super().__init__(values, lengths, offsets, weights)
        self.inverse = inverse

    @property
    def unique_rows(self) -> int:
        """U."""
        return len(self.lengths)

    def expand(self) -> Sparse:
        """The feature of all B rows: a jagged index select, without padding."""
        inverse = self.inverse.long()
        lengths = self.lengths.index_select(0, inverse)
        offsets = torch.zeros(len(inverse) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        shifts = self.offsets.index_select(0, inverse) - offsets[:-1]
        index = torch.repeat_interleave(shifts, lengths.long(), output_size=int(offsets[-1]))
        index += torch.arange(len(index), device=index.device)
        weights = None if self.weights is None else self.weights.index_select(0, index)
        return Sparse(self.values.index_select(0, index), lengths, offsets, weights)

    def __len__(self) -> int:
        return len(self.inverse)

    def __repr__(self) -> str:
        weighted = ", weighted" if self.weights is not None else ""
        return (
            f"InverseSparse(rows={len(self.inverse)}, unique_rows={self.unique_rows}, "
            f"values={tuple(self.values.shape)} {self.values.dtype}{weighted})"
        )


@dataclass(frozen=True, slots=True)
class InverseColumn:
    """One scalar or vector feature of a deduplicated group: `values` [U] or [U, width], `inverse` int32 [B]."""

    values: torch.Tensor
    inverse: torch.Tensor

    @property
    def unique_rows(self) -> int:
        """U."""
        return len(self.values)

    def expand(self) -> torch.Tensor:
        """The feature of all B rows."""
        return self.values.index_select(0, self.inverse.long())

    def __len__(self) -> int:
        return len(self.inverse)


@dataclass(frozen=True, slots=True, eq=False)
class DedupGroup:
    """A deduplicated group of a batch: the features that repeat together.

    inverse: int32 [B], which never falls: row i of the batch holds unique row `inverse[i]`. dense: float32 [U, D] and
    categorical: int64 [U, K], of the group's own columns in the order of pipeline.yaml. sparse[name]: `InverseSparse`.
    """

    name: str
    inverse: torch.Tensor
    dense: torch.Tensor
    categorical: torch.Tensor
    sparse: Mapping[str, InverseSparse]

    @property
    def unique_rows(self) -> int:
        """U."""
        return len(self.dense)

    def expand(self, unique: torch.Tensor) -> torch.Tensor:
        """What was computed for the unique rows, [U, ...], for all rows, [B, ...]."""
        return unique.index_select(0, self.inverse.long())

    def __repr__(self) -> str:
        return f"DedupGroup({self.name!r}, rows={len(self.inverse)}, unique_rows={self.unique_rows})"


def whole_matrix(
    own: torch.Tensor, groups: Mapping[str, DedupGroup], schema: BatchSchema, kind: Literal["dense", "categorical"]
) -> torch.Tensor:
    """The matrix [B, columns] of all features of a kind in the order of pipeline.yaml, in memory as it is without
    groups. own: that of the features in no group, returned where there is no other."""
    if not groups:
        return own
    matrices = {None: own} | {name: group.expand(getattr(group, kind)) for name, group in groups.items()}
    columns = [matrices[column.dedup][:, column.offset : column.offset + column.width] for column in schema.group(kind)]
    if not columns:
        return own
    return torch.cat(columns, 1) if kind == "dense" else torch.cat([column.t() for column in columns]).t()
