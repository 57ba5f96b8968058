"""What the modules ask of a feature: lists of plain rows, or of unique rows with an inverse.

Runs in: the trainer. Features are recognised by their attributes: those of `Sparse`, `InverseSparse` and
`InverseColumn` of `feedline.loader.tensors`, or of any class that has them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class RaggedFeature(Protocol):
    """Lists: row i holds `values[offsets[i]:offsets[i + 1]]`, for i < R = len(lengths).

    values: [V] ids, or [V, D] embeddings. lengths: integers [R]. offsets: integers [R + 1], from 0 to V. weights: [V],
    or None. With an attribute `inverse`, integers [B] below R, row i of the batch is list `inverse[i]`, and R is the
    number of unique rows; without one R is B.
    """

    values: torch.Tensor
    lengths: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None


def inverse_of(feature: Any) -> torch.Tensor | None:
    """The unique row of each row of the batch, integers [B]; None for a feature of plain rows."""
    return getattr(feature, "inverse", None)


def expand_rows(unique: torch.Tensor, feature: Any) -> torch.Tensor:
    """What was computed for the rows of a feature, [R, ...], for the rows of the batch, [B, ...].

    feature: a feature or a group of a batch. `unique` itself if its rows are not deduplicated, so that a model which
    calls this runs on both kinds of batch. The gradient of a unique row is the sum over the rows that repeat it.

    Examples:
        >>> lists = InverseSparse(
        ...     torch.tensor([7, 8, 9]), torch.tensor([2, 1]), torch.tensor([0, 2, 3]), None, torch.tensor([0, 0, 1])
        ... )
        >>> expand_rows(torch.tensor([[1.0], [2.0]]), lists)
        tensor([[1.],
                [1.],
                [2.]])
    """
    inverse = inverse_of(feature)
    if inverse is None:
        return unique
    if unique.dim() == 2:  # on a CPU the gradient takes a third of the time of index_select's
        return torch.nn.functional.embedding(inverse, unique)
    return unique.index_select(0, inverse)


def check_ragged(feature: Any, module: str) -> RaggedFeature:
    """The feature, if it has the attributes of one: else a TypeError."""
    missing = [name for name in ("values", "lengths", "offsets", "weights") if not hasattr(feature, name)]
    if missing:
        raise TypeError(
            f"{module} takes a feature of lists: got {type(feature).__name__}, which has no "
            f"{', '.join(missing)}. Pass batch.sparse[name]."
        )
    ragged: RaggedFeature = feature
    if len(ragged.offsets) != len(ragged.lengths) + 1:
        raise ValueError(
            f"{module}: offsets of a feature are one more than its lists: got {len(ragged.offsets)} offsets and "
            f"{len(ragged.lengths)} lengths. Pass batch.sparse[name] as it is."
        )
    return ragged


def check_ids(ids: torch.Tensor, module: str) -> None:
    """Refuse values that are no ids with a TypeError."""
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"{module} takes ids of int32 or int64: got {ids.dtype}. Features of real numbers need no embedding; make "
            "ids of them with an op as bucketize or hash_bucket in pipeline.yaml."
        )


def refuse_outside(ids: torch.Tensor, num_embeddings: int, module: str) -> None:
    """Raise an IndexError if the table has no row for an id. Ids on a GPU cannot be read once a lookup has failed."""
    outside = ids[(ids < 0) | (ids >= num_embeddings)] if ids.device.type == "cpu" else ids[:0]
    if len(outside):
        raise IndexError(
            f"{module} has {num_embeddings} embeddings: got id {int(outside[0])}, expected 0 to {num_embeddings - 1}. "
            "Make the table as large as batch.schema[name].num_embeddings says, or bound the ids with hash_bucket or "
            "vocabulary."
        )
