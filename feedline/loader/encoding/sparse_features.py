"""Choose what `batch.sparse_features` holds: which features, in which order, with values of which type.

Runs in: the trainer. Pure. torchrec's train pipelines read a batch's properties while they trace a model, and cannot
follow a call with arguments, so the choice is made once, for the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from feedline.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFeatures:
    """What `batch.sparse_features` and `batch.weighted_sparse_features` hold, for `FeedlineDataset(sparse_features=)`.

    features: the keys, in their order (default: all lists of ids, then all categorical features, as lists of one id).
    dtype: of the values. "int32" is a copy, and halves what an all-to-all of ids sends; every id must be below 2**31.
    expand: all rows of deduplicated features, a copy, instead of unique rows with inverse indices (default: in host
    memory; there unique rows save no time, and torchrec 1.8 misreads them in tables that are not sharded table-wise).
    """

    features: Sequence[str] | None = None
    dtype: Literal["int64", "int32"] = "int64"
    expand: bool | None = None

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
