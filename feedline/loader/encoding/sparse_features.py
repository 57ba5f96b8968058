"""Choose what `batch.sparse_features` holds: which features, in which order, with values of which type.

Runs in: the trainer. Pure. torchrec's train pipelines read a batch's properties while they trace a model, and cannot
follow a call with arguments, so the choice is made once, for the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from feedline.errors import SpecError

if TYPE_CHECKING:
    from feedline.loader.encoding.layout import BatchSchema

_INT32_IDS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFeatures:
    """What `batch.sparse_features` and `batch.weighted_sparse_features` hold, for `FeedlineDataset(sparse_features=)`.

    features: the keys, in their order (default: all lists of ids, then all categorical features, as lists of one id).
    dtype: of the values. "int32" is a copy, and halves what an all-to-all of ids sends; every id must be below 2**31.
    expand: all rows of deduplicated features, a copy, instead of unique rows with inverse indices.
    """

    features: Sequence[str] | None = None
    dtype: Literal["int64", "int32"] = "int64"
    expand: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("int64", "int32"):
            raise SpecError(f'sparse_features.dtype is unknown: got {self.dtype!r}, expected "int64" or "int32"')
        if self.features is None:
            return
        if isinstance(self.features, str):
            raise SpecError(f"sparse_features.features must be a sequence of names: got {self.features!r}")
        names = tuple(self.features)
        if not names or len(set(names)) < len(names):
            raise SpecError(f"sparse_features.features must be different names: got {', '.join(names) or 'none'}")
        object.__setattr__(self, "features", names)

    def keys(self, schema: BatchSchema) -> tuple[str, ...]:
        """The features of `batch.sparse_features`, in their order."""
        return tuple(self.features) if self.features is not None else ids_of(schema)

    def weighted_keys(self, schema: BatchSchema) -> tuple[str, ...]:
        """The features of `batch.weighted_sparse_features`, in the order of memory if none is named."""
        if self.features is None:
            return tuple(column.name for column in schema.sparse if column.weighted)
        return tuple(name for name in self.features if schema[name].weighted)

    def check(self, schema: BatchSchema) -> None:
        """Raise SpecError if batches of this schema have no such features, or ids that are too large."""
        known = ids_of(schema)
        for name in self.keys(schema):
            if name not in known:
                names = ", ".join(known) or "(none)"
                raise SpecError(f"sparse_features.features must hold ids: got {name!r}, expected some of {names}")
            bound = schema[name].num_embeddings
            if self.dtype == "int32" and (bound is None or bound > _INT32_IDS):
                raise SpecError(
                    f'sparse_features.dtype "int32" needs ids below {_INT32_IDS:,}: got {name!r}, whose ops '
                    f"{'do not bound them' if bound is None else f'give {bound:,}'}. End its ops with hash_bucket or "
                    "vocabulary, or leave the dtype at int64"
                )


def ids_of(schema: BatchSchema) -> tuple[str, ...]:
    """The features that hold ids: lists in the order of memory, where they are neighbours, then categorical ones."""
    lists = tuple(column.name for column in schema.sparse if column.dtype == "int64")
    return lists + tuple(column.name for column in schema.group("categorical"))
