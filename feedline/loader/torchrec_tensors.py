"""KeyedJaggedTensors of torchrec over a batch's tensors, with inverse indices of deduplicated features.

Runs in: the trainer. torchrec (extra `torchrec`) is imported when the first one is asked for. Its
`EmbeddingBagCollection`, sharded or not, looks up and pools the U rows of each key, and then selects the B rows of the
batch by inverse indices: deduplication as RecD's IKJT has it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from feedline.loader.dedup_tensors import DedupGroup, InverseSparse
from feedline.loader.encoding.layout import SlotColumn
from feedline.loader.slot_tensors import Sparse


def keyed_jagged_tensor(
    keys: list[str],
    values: torch.Tensor,
    lengths: torch.Tensor,
    weights: torch.Tensor | None,
    unique_rows: Sequence[int] | None = None,
    inverse_indices: torch.Tensor | None = None,
) -> Any:
    """A KeyedJaggedTensor of F keys over these tensors, without a copy: values and weights [V], lengths [sum of rows].

    unique_rows: the rows of each key, where some are deduplicated; inverse_indices int64 [F, B] then says which of them
    each row of the batch has. ModuleNotFoundError: without torchrec.
    """
    try:
        from torchrec import KeyedJaggedTensor  # noqa: PLC0415 -- an extra, and seconds to import
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Batch.to_torchrec needs torchrec, and {error.name!r} is not installed. Install the extra "
            "(pip install 'feedline[torchrec]'; on a machine without a GPU as docs/dedup.md says), or take the parts "
            "from Batch.keyed_jagged().",
            name=error.name,
        ) from error
    if unique_rows is None:
        return KeyedJaggedTensor(keys=keys, values=values, weights=weights, lengths=lengths)
    return KeyedJaggedTensor(
        keys=keys,
        values=values,
        weights=weights,
        lengths=lengths,
        stride_per_key_per_rank=[[rows] for rows in unique_rows],
        inverse_indices=(keys, inverse_indices),
    )


def expand_lists(features: Sequence[Sparse]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(values, lengths, weights) of all rows of features, one after the other: a copy of the values."""
    plain = [feature.expand() if isinstance(feature, InverseSparse) else feature for feature in features]
    weights = [feature.weights for feature in plain if feature.weights is not None]
    return (
        torch.cat([feature.values for feature in plain]),
        torch.cat([feature.lengths for feature in plain]),
        torch.cat(weights) if len(weights) == len(plain) else None,
    )


def inverse_indices_of(
    parts: Sequence[int], groups: Mapping[str, DedupGroup], rows: int, device: torch.device
) -> torch.Tensor:
    """int64 [F, B]: the row of each feature that each row of the batch has.

    parts: of each feature, 0 for every row its own, else the number of its group from 1.
    """
    inverses = [torch.arange(rows, device=device), *(group.inverse for group in groups.values())]
    indices = torch.empty(len(parts), rows, dtype=torch.int64, device=device)
    for row, part in zip(indices, parts, strict=True):
        row.copy_(inverses[part])
    return indices


def missing_lists(columns: Sequence[SlotColumn], dtype: str, weighted: bool, group: str | None) -> ValueError:
    """The error for sparse features that a batch does not have."""
    wanted = "weighted features" if weighted else f"sparse features of {dtype}"
    of_group = "" if group is None else f" in a deduplicated group {group!r}"
    found = ", ".join(
        f"{column.name} ({column.dtype}{', weighted' * column.weighted}{f', {column.dedup}' if column.dedup else ''})"
        for column in columns
    )
    return ValueError(
        f"batches of this pipeline have no {wanted}{of_group}: their sparse features are {found or 'none'}."
    )


def register_pipelineable(batch: type) -> None:
    """Have torchrec's train pipelines accept batches, if it is imported: they ask for its `Pipelineable`."""
    streamable = sys.modules.get("torchrec.streamable")
    if streamable is not None:
        streamable.Pipelineable.register(batch)
