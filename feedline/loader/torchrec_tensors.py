"""KeyedJaggedTensors of torchrec over a batch's tensors, with inverse indices of deduplicated features.

Runs in: the trainer; torchrec is imported at first use. Its `EmbeddingBagCollection` pools the U rows of each key, and
then selects the B rows of the batch by inverse indices, as RecD's IKJT.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from feedline.loader.dedup_tensors import DedupGroup, InverseColumn, InverseSparse
from feedline.loader.encoding.layout import SlotColumn
from feedline.loader.slot_tensors import FLOAT32, INT32, SlotTensors, Sparse


class KeyedTensors(SlotTensors):
    """The tensors of a batch, and keyed jagged ones over them."""

    _inverse_indices: torch.Tensor | None = None  # created on first use

    @property
    @abstractmethod
    def groups(self) -> Mapping[str, DedupGroup]:
        """The deduplicated groups by name."""

    @abstractmethod
    def __getitem__(self, name: str) -> Any:
        """Any feature by name."""

    def keyed_jagged(self, dtype: str = "int64") -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """(keys, values, lengths) of the sparse features of one dtype, without a copy and without weights.

        The arguments of `torchrec.KeyedJaggedTensor(keys=, values=, lengths=)`: values by feature, lengths [F * B].
        """
        return self._key_by([index for index, column in enumerate(self._layout.sparse) if column.dtype == dtype], dtype)

    def weighted_keyed_jagged(self) -> tuple[list[str], torch.Tensor, torch.Tensor, torch.Tensor]:
        """(keys, values, weights, lengths) of the weighted sparse features, without a copy, for torchrec."""
        keys, values, lengths = self._key_by(list(self._layout.weighted), "int64")
        return keys, values, self._weights(self._layout.weighted, len(values)), lengths

    def to_torchrec(
        self,
        dtype: str = "int64",
        *,
        weighted: bool = False,
        categorical: bool = False,
        expand: bool = False,
        group: str | None = None,
    ) -> Any:
        """A `torchrec.KeyedJaggedTensor` of the sparse features of one dtype, without a copy and without weights.

        weighted: the weighted features only, with their weights. categorical: int64 sparse features, and the
        categorical ones after them, as lists of one id: a copy. Of deduplicated features it holds the unique rows,
        with `stride_per_key_per_rank` and `inverse_indices`, by which `EmbeddingBagCollection` gives the result of all
        rows. An unsharded `EmbeddingCollection` ignores inverse indices: for it, `expand` copies all rows.
        group: the features of one deduplicated group only, those with weights or those without, as a plain one of U
        rows for any module; `batch.groups[group].expand` gives the result of all rows.

        ValueError: there are no such features. ModuleNotFoundError: without the extra `torchrec`.
        """
        if categorical:
            return self._with_categorical(expand=expand, group=group)
        columns = list(enumerate(self._layout.sparse))
        indices = [index for index, column in columns if (column.weighted if weighted else column.dtype == dtype)]
        if group is not None:
            chosen = [index for index in indices if self._layout.sparse[index].dedup == group]
            indices = [index for index in chosen if self._layout.sparse[index].weighted == weighted]
        if not indices:
            raise missing_lists(self._layout.sparse, dtype, weighted, group)
        keys, values, lengths = self._key_by(indices, self._layout.sparse[indices[0]].dtype)
        weights = self._weights(indices, len(values)) if weighted else None
        parts = [self._layout.part_of[index] for index in indices]
        if expand and any(parts):
            values, lengths, expanded = expand_lists([self.sparse[name] for name in keys])
            return keyed_jagged_tensor(keys, values, lengths, expanded if weighted else None)
        if group is not None or not any(parts):
            return keyed_jagged_tensor(keys, values, lengths, weights)
        if self._inverse_indices is None:
            self._inverse_indices = inverse_indices_of(self._layout.part_of, self.groups, self.rows, self.device)
        rows = self._layout.list_rows(self.rows, self._read_header().unique)
        first, stop = indices[0], indices[-1] + 1  # neighbours in memory
        inverse_indices = self._inverse_indices[first:stop]
        return keyed_jagged_tensor(keys, values, lengths, weights, rows[first:stop], inverse_indices)

    def _with_categorical(self, *, expand: bool, group: str | None) -> Any:
        lists = {column.name: self.sparse[column.name] for column in self._layout.sparse if column.dtype == "int64"}
        columns = {column.name: self[column.name] for column in self.schema.group("categorical")}
        group_of = {name: self.schema[name].dedup for name in (*lists, *columns)}
        if group not in (None, *group_of.values()) or not group_of:
            raise missing_lists(self._layout.sparse, "int64", False, group)
        return with_categorical(lists, columns, self.groups, group_of, expand=expand, group=group)

    def _weights(self, indices: Sequence[int], count: int) -> torch.Tensor:
        """The weights of weighted features that are neighbours in memory, `count` of them."""
        start = self._place().weights[indices[0]] if indices else 0
        return self._tensor(FLOAT32, start or 0, (count,))

    def _key_by(self, indices: list[int], dtype: str) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """(keys, values, lengths) of sparse features that are neighbours in memory."""
        first = indices[0] if indices else 0
        placement = self._place()
        counts = self._read_header().values
        count = sum(counts[index] for index in indices)
        values = self._tensor(np.dtype(dtype), placement.values[first] if indices else 0, (count,))
        rows = self._layout.list_rows(self.rows, self._read_header().unique)
        start = placement.matrices.lengths + 4 * sum(rows[:first])
        lengths = self._tensor(INT32, start, (sum(rows[index] for index in indices),))
        return [self._layout.sparse[index].name for index in indices], values, lengths


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
    dedup: dict[str, Any] = {}
    if unique_rows is not None:
        strides = [[rows] for rows in unique_rows]
        dedup = {"stride_per_key_per_rank": strides, "inverse_indices": (keys, inverse_indices)}
    return KeyedJaggedTensor(keys=keys, values=values, weights=weights, lengths=lengths, **dedup)


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


def with_categorical(
    lists: Mapping[str, Sparse],
    columns: Mapping[str, torch.Tensor | InverseColumn],
    groups: Mapping[str, DedupGroup],
    group_of: Mapping[str, str | None],
    *,
    expand: bool,
    group: str | None,
) -> Any:
    """A KeyedJaggedTensor of ragged features and then of categorical ones, as lists of one id: a copy.

    group_of: the deduplicated group of each feature. expand, group: as of `Batch.to_torchrec`.
    """
    features = dict(lists) | {name: _lists_of_one(column) for name, column in columns.items()}
    if group is not None:
        features = {name: feature for name, feature in features.items() if group_of[name] == group}
    names = list(features)
    if expand or (group is None and not any(group_of[name] for name in names)):
        values, lengths, _ = expand_lists(list(features.values()))
        return keyed_jagged_tensor(names, values, lengths, None)
    values = torch.cat([feature.values for feature in features.values()])
    lengths = torch.cat([feature.lengths for feature in features.values()])
    if group is not None:
        return keyed_jagged_tensor(names, values, lengths, None)
    parts = [1 + list(groups).index(str(group_of[name])) if group_of[name] else 0 for name in names]
    rows = next(len(each.inverse) for each in groups.values())
    inverse = inverse_indices_of(parts, groups, rows, values.device)
    unique_rows = [len(feature.lengths) for feature in features.values()]
    return keyed_jagged_tensor(names, values, lengths, None, unique_rows, inverse)


def _lists_of_one(column: torch.Tensor | InverseColumn) -> Sparse:
    values = column.values if isinstance(column, InverseColumn) else column
    lengths = torch.ones(len(values), dtype=torch.int32, device=values.device)
    offsets = torch.arange(len(values) + 1, device=values.device)
    if isinstance(column, InverseColumn):
        return InverseSparse(values, lengths, offsets, None, column.inverse)
    return Sparse(values, lengths, offsets)


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
