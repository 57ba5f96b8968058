"""KeyedJaggedTensors of torchrec over a batch's tensors, with inverse indices of deduplicated features.

Runs in: the trainer; torchrec is imported at first use. Its `EmbeddingBagCollection` pools the U rows of each key, and
then selects the B rows of the batch by inverse indices, as RecD's IKJT. Its train pipelines trace what a model reads of
a batch, which must be properties; they read one twice, ahead of the step and in it, so its value is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from feedline.errors import FeedlineError, SpecError
from feedline.loader.encoding.layout import BatchSchema, SlotColumn, SparseFeatures
from feedline.loader.tensors.slot_tensors import FLOAT32, INT32, DedupGroup, SlotTensors

_INT32_IDS = 2**31


def ids_of(schema: BatchSchema) -> tuple[str, ...]:
    """The features that hold ids: lists in the order of memory, where they are neighbours, then categorical ones."""
    lists = tuple(column.name for column in schema.sparse if column.dtype == "int64")
    return lists + tuple(column.name for column in schema.group("categorical"))


def chosen_ids(choice: SparseFeatures, schema: BatchSchema) -> tuple[str, ...]:
    """The features of `batch.sparse_features`, in their order."""
    return ids_of(schema) if choice.features is None else tuple(choice.features)


def chosen_weighted(choice: SparseFeatures, schema: BatchSchema) -> tuple[str, ...]:
    """The features of `batch.weighted_sparse_features`, in the order of memory if none is named."""
    if choice.features is None:
        return tuple(column.name for column in schema.sparse if column.weighted)
    return tuple(name for name in choice.features if schema[name].weighted)


def check_chosen(choice: SparseFeatures, schema: BatchSchema) -> None:
    """Raise SpecError if batches of this schema have no such features, or ids that are too large."""
    ids = ids_of(schema)
    for name in chosen_ids(choice, schema):
        if name not in ids:
            names = ", ".join(ids) or "(none)"
            raise SpecError(f"sparse_features.features must hold ids: got {name!r}, expected some of {names}")
        bound = schema[name].num_embeddings
        if choice.dtype == "int32" and (bound is None or bound > _INT32_IDS):
            raise SpecError(
                f'sparse_features.dtype "int32" needs ids below {_INT32_IDS:,}: got {name!r}, whose ops '
                f"{'do not bound them' if bound is None else f'give {bound:,}'}. End its ops with hash_bucket or "
                "vocabulary, or leave the dtype at int64"
            )


class Jagged(NamedTuple):
    """The tensors of several features, one after the other: values [V], lengths int32 [sum of rows], weights [V]."""

    values: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor | None


class KeyedTensors(SlotTensors):
    """The tensors of a batch, and keyed jagged ones over them."""

    @cached_property
    def sparse_features(self) -> Any:
        """A `torchrec.KeyedJaggedTensor` of all ids: sparse features of int64, then categorical ones as lists of one.

        Views of the slot where all keys are of one of the two kinds, else a copy. Of deduplicated features it holds all
        rows in host memory, and on a GPU the unique rows with inverse indices. `SparseFeatures`, the dataset's argument
        `sparse_features`, chooses features, their order, the type of values, and which rows.

        ValueError: there are no such features. ModuleNotFoundError: without the extra `torchrec`.
        """
        return self._chosen(chosen_ids(self._layout.sparse_features, self.schema), weighted=False)

    @cached_property
    def weighted_sparse_features(self) -> Any:
        """A `torchrec.KeyedJaggedTensor` of the weighted features with their weights; else as `sparse_features`."""
        return self._chosen(chosen_weighted(self._layout.sparse_features, self.schema), weighted=True)

    def _chosen(self, names: Sequence[str], *, weighted: bool) -> Any:
        if not names:
            raise missing_lists(self._layout.sparse, "int64", weighted, None)
        choice = self._layout.sparse_features
        expand = self.device.type == "cpu" if choice.expand is None else choice.expand
        return self._keyed(names, choice.dtype, weighted=weighted, expand=expand)

    @cached_property
    def dense_features(self) -> torch.Tensor:
        """float32 [B, D]: `all_dense`, made once."""
        return self.all_dense

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
        categorical ones after them, as lists of one id. Of deduplicated features it holds the unique rows,
        with `stride_per_key_per_rank` and `inverse_indices`, by which `EmbeddingBagCollection` gives the result of all
        rows. An unsharded `EmbeddingCollection` ignores inverse indices: for it, `expand` copies all rows.
        group: the features of one deduplicated group only, those with weights or those without, as a plain one of U
        rows for any module; `batch.groups[group].expand` gives the result of all rows.

        ValueError: there are no such features. ModuleNotFoundError: without the extra `torchrec`.
        """
        if categorical:
            names, dtype, weighted = list(ids_of(self.schema)), "int64", False
        else:
            columns = self._layout.sparse
            names = [column.name for column in columns if (column.weighted if weighted else column.dtype == dtype)]
        if group is not None:
            names = [name for name in names if self.schema[name].dedup == group]
            if not categorical:
                names = [name for name in names if self.schema[name].weighted == weighted]
        if not names:
            raise missing_lists(self._layout.sparse, dtype, weighted, group)
        return self._keyed(names, "int64" if weighted else dtype, weighted=weighted, expand=expand, group=group)

    def _keyed(
        self,
        names: Sequence[str],
        dtype: str,
        *,
        weighted: bool = False,
        expand: bool = False,
        group: str | None = None,
    ) -> Any:
        """A KeyedJaggedTensor of these features. group: all are of this one, and inverse indices are left out."""
        columns = [self.schema[name] for name in names]
        grouped = any(column.dedup for column in columns)
        expand = expand and grouped
        runs = [self._run(run, weighted, expand) for run in _neighbours(columns, self._layout.sparse_index, expand)]
        jagged = joined([run for run, _ in runs], dtype, copy=self._shares_memory(columns))
        rows_of = dict(zip((None, *self.schema.dedup), (self.rows, *self._header.unique), strict=True))
        rows = [self.rows if expand else rows_of[column.dedup] for column in columns]
        inverse = self._inverse_of(columns) if grouped and not expand and group is None else None
        counts = [count for _, counts in runs for count in counts]
        return keyed_jagged_tensor(list(names), jagged, rows=rows, counts=counts, inverse_indices=inverse)

    def _shares_memory(self, columns: Sequence[SlotColumn]) -> bool:
        """Whether these features are on a device in one piece of memory with others than lists."""
        if self._device_bytes is None:
            return False
        return not self._device_bytes.lists_apart or any(column.group != "sparse" for column in columns)

    def _run(self, columns: Sequence[SlotColumn], weighted: bool, expand: bool) -> tuple[Jagged, list[int]]:
        """Neighbours in memory, as views of the slot, and the values of each; expand: copies of all rows."""
        first, count = columns[0], len(columns)
        group = None if first.dedup is None else self.groups[first.dedup]
        if first.group == "categorical":
            matrix = (self if group is None else group).categorical[:, first.offset : first.offset + count]
            if group is not None and expand:
                matrix = group.expand(matrix)
            ones = torch.ones(count * len(matrix), dtype=torch.int32, device=self.device)
            return Jagged(matrix.t().reshape(-1), ones, None), [len(matrix)] * count
        if group is not None and expand:
            lists = [group.sparse[column.name].expand() for column in columns]
            runs = [Jagged(each.values, each.lengths, each.weights if weighted else None) for each in lists]
            return joined(runs, first.dtype, copy=False), [len(each.values) for each in lists]
        start = self._layout.sparse_index[first.name]
        indices = list(range(start, start + count))
        _, values, lengths = self._key_by(indices, first.dtype)
        sizes = self._header.values
        weights = self._weights(indices, len(values)) if weighted else None
        return Jagged(values, lengths, weights), list(sizes[start : start + count])

    def _inverse_of(self, columns: Sequence[SlotColumn]) -> torch.Tensor:
        """int64 [F, B]: for each feature, the unique row of each row of the batch."""
        if any(column.group != "sparse" for column in columns):
            return inverse_indices_of([column.dedup for column in columns], self.groups, self.rows, self.device)
        places = [self._layout.sparse_index[column.name] for column in columns]
        if places == list(range(places[0], places[0] + len(places))):
            return self._inverse_indices[places[0] : places[-1] + 1]
        return self._inverse_indices[places]

    @cached_property
    def _inverse_indices(self) -> torch.Tensor:
        """int64 [F, B], of all ragged features in memory order."""
        of_lists = [column.dedup for column in self._layout.sparse]
        return inverse_indices_of(of_lists, self.groups, self.rows, self.device)

    def _made_for_torchrec(self) -> Iterator[torch.Tensor]:
        """The tensors that were made for torchrec and are kept: copies, and views of the batch's own."""
        cached = vars(self)
        tensors = [cached.get("_inverse_indices"), cached.get("dense_features")]
        for features in (cached.get("sparse_features"), cached.get("weighted_sparse_features")):
            if features is not None:
                inverse = features.inverse_indices_or_none()
                tensors += [features.values(), features.lengths_or_none(), features.offsets_or_none()]
                tensors += [features.weights_or_none(), None if inverse is None else inverse[1]]
        return (tensor for tensor in tensors if tensor is not None)

    def _weights(self, indices: Sequence[int], count: int) -> torch.Tensor:
        """The weights of weighted features that are neighbours in memory, `count` of them."""
        start = self._placement.weights[indices[0]] if indices else 0
        return self._tensor(FLOAT32, start or 0, (count,))

    def _key_by(self, indices: list[int], dtype: str) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """(keys, values, lengths) of sparse features that are neighbours in memory."""
        first = indices[0] if indices else 0
        placement = self._placement
        counts = self._header.values
        count = sum(counts[index] for index in indices)
        values = self._tensor(np.dtype(dtype), placement.values[first] if indices else 0, (count,))
        rows = self._layout.list_rows(self.rows, self._header.unique)
        start = placement.matrices.lengths + 4 * sum(rows[:first])
        lengths = self._tensor(INT32, start, (sum(rows[index] for index in indices),))
        return [self._layout.sparse[index].name for index in indices], values, lengths


def keyed_jagged_tensor(
    keys: list[str],
    jagged: Jagged,
    *,
    rows: Sequence[int],
    counts: Sequence[int] | None = None,
    inverse_indices: torch.Tensor | None = None,
) -> Any:
    """A KeyedJaggedTensor of F keys over these tensors, without a copy.

    rows: of each key, all the same without inverse indices. counts: the values of each key: with them, torchrec need
    not add up lengths, for which it would wait for a GPU. inverse_indices: int64 [F, B], which row of a key each row of
    the batch has. ModuleNotFoundError: without torchrec.
    """
    try:
        from torchrec import KeyedJaggedTensor  # noqa: PLC0415 -- an extra, and seconds to import
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"a KeyedJaggedTensor needs torchrec, and {error.name!r} is not installed. Install the extra "
            "(pip install 'feedline[torchrec]'; on a machine without a GPU as docs/dedup.md says), or take the parts "
            "from Batch.keyed_jagged().",
            name=error.name,
        ) from error
    options: dict[str, Any] = {} if counts is None else {"length_per_key": list(counts)}
    if inverse_indices is None:
        options["stride"] = rows[0]
    else:
        options |= {"stride_per_key_per_rank": [[each] for each in rows], "inverse_indices": (keys, inverse_indices)}
    features = KeyedJaggedTensor(
        keys=keys, values=jagged.values, weights=jagged.weights, lengths=jagged.lengths, **options
    )
    if jagged.values.device.type == "cpu":
        features.clear_storage = _refuse_to_free  # the ring's memory; on a device, the lists' storage is their own
    return features


def _refuse_to_free() -> NoReturn:
    raise FeedlineError(
        "free_features_storage_early needs batches on a GPU: got one in host memory, which may be the ring's. Leave "
        "this option of torchrec's train pipeline off"
    )


def joined(runs: Sequence[Jagged], dtype: str, *, copy: bool) -> Jagged:
    """One after the other, with values of a dtype: a copy of several, else if it must be one."""
    values, lengths = [run.values for run in runs], [run.lengths for run in runs]
    weights = [run.weights for run in runs if run.weights is not None]
    if len(runs) > 1 or copy:
        values, lengths = [torch.cat(values)], [torch.cat(lengths)]
        weights = [torch.cat(weights)] if weights else []
    return Jagged(values[0].to(getattr(torch, dtype)), lengths[0], weights[0] if weights else None)


def _neighbours(columns: Sequence[SlotColumn], sparse_index: Mapping[str, int], expand: bool) -> list[list[SlotColumn]]:
    """The features in runs that lie side by side in a slot. expand: none is of several deduplicated groups."""
    runs: list[list[SlotColumn]] = []
    last: tuple[object, ...] = ()
    for column in columns:
        if column.group == "categorical":
            kind, place = ("categorical", column.dedup), column.offset
        else:
            kind, place = (column.dtype, column.dedup if expand else None), sparse_index[column.name]
        if last == (*kind, place - 1):
            runs[-1].append(column)
        else:
            runs.append([column])
        last = (*kind, place)
    return runs


def inverse_indices_of(
    of_columns: Sequence[str | None], groups: Mapping[str, DedupGroup], rows: int, device: torch.device
) -> torch.Tensor:
    """int64 [F, B]: the row of each feature that each row of the batch has.

    of_columns: the deduplicated group of each feature, None for features whose every row is their own.
    """
    inverses: dict[str | None, torch.Tensor] = {name: group.inverse for name, group in groups.items()}
    inverses[None] = torch.arange(rows, device=device)
    indices = torch.empty(len(of_columns), rows, dtype=torch.int64, device=device)
    for row, name in zip(indices, of_columns, strict=True):
        row.copy_(inverses[name])
    return indices


def missing_lists(columns: Sequence[SlotColumn], dtype: str, weighted: bool, group: str | None) -> ValueError:
    """The error for sparse features that a batch does not have."""
    kind = "weighted features" if weighted else f"sparse features of {dtype}"
    of_group = "" if group is None else f" in a deduplicated group {group!r}"
    features = ", ".join(
        f"{column.name} ({column.dtype}{', weighted' * column.weighted}{f', {column.dedup}' if column.dedup else ''})"
        for column in columns
    )
    return ValueError(
        f"batches of this pipeline have no {kind}{of_group}: their sparse features are {features or 'none'}."
    )


def needs_lists_apart() -> bool:
    """Whether torchrec is there, whose train pipelines may free the memory of lists."""
    return "torchrec" in sys.modules


def register_pipelineable(batch: type) -> None:
    """Have torchrec's train pipelines accept batches, if it is imported: they ask for its `Pipelineable`."""
    streamable = sys.modules.get("torchrec.streamable")
    if streamable is not None:
        streamable.Pipelineable.register(batch)
