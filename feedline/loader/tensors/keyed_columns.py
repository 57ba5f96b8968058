"""The columns that a KeyedJaggedTensor of a batch holds: those that a `SparseFeatures` chooses from its schema.

Runs in: the trainer. Pure.
"""

from __future__ import annotations

from feedline.errors import SpecError
from feedline.loader.encoding.layout import BatchSchema, SparseFeatures

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
    known = ids_of(schema)
    for name in chosen_ids(choice, schema):
        if name not in known:
            names = ", ".join(known) or "(none)"
            raise SpecError(f"sparse_features.features must hold ids: got {name!r}, expected some of {names}")
        bound = schema[name].num_embeddings
        if choice.dtype == "int32" and (bound is None or bound > _INT32_IDS):
            raise SpecError(
                f'sparse_features.dtype "int32" needs ids below {_INT32_IDS:,}: got {name!r}, whose ops '
                f"{'do not bound them' if bound is None else f'give {bound:,}'}. End its ops with hash_bucket or "
                "vocabulary, or leave the dtype at int64"
            )
