"""Encoded rows under the names of a batch, as numpy arrays, for serving a model with or without torch.

Runs in: any process that transforms rows. `Encoded` has the attributes, shapes and names of `Batch`, so that the same
code reads both; `to_batch` creates tensors, and loads torch.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotLayout
from feedline.loader.encoding.slot import write_rows

if TYPE_CHECKING:
    from feedline.loader.batch import Batch

_MODEL_GROUPS = ("dense", "categorical", "sparse")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseArrays:
    """One ragged feature: `values` [V], `lengths` int32 [N], `offsets` int64 [N + 1] from 0; `weights` float32 [V].

    Row i holds `values[offsets[i]:offsets[i + 1]]`. weights: None for a feature that has none.
    """

    values: NDArray[Any]
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]
    weights: NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Encoded:
    """The result of `Pipeline.transform` for N rows: arrays under the names of a batch.

    `encoded["price"]` is any feature by name, as in a batch; `schema` lists them.

    Examples:
        >>> noon = datetime(2026, 1, 1, 12)
        >>> rows = {"dense_0": [1.5, 2.5], "ts": [noon, noon], "id_0": [17, 4], "hist_0": [[5, 6], []]}
        >>> served = Pipeline.from_yaml("pipeline.yaml").transform(rows)
        >>> served.dense.shape, served["history"].offsets
        ((2, 2), array([0, 2, 2]))
    """

    schema: BatchSchema
    encoded: EncodedRows

    @property
    def rows(self) -> int:
        """N."""
        return self.encoded.rows

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"Encoded(rows={self.rows}, features={', '.join(column.name for column in self.schema)})"

    @property
    def dense(self) -> NDArray[np.float32]:
        """float32 [N, D]."""
        return self.encoded.dense

    @property
    def labels(self) -> NDArray[np.float32]:
        """float32 [N, L]; L is 0 when serving."""
        return self.encoded.labels

    @cached_property
    def categorical(self) -> NDArray[np.int64]:
        """int64 [N, K]; each column is contiguous."""
        columns = self.encoded.categorical
        return np.array(columns, np.int64).reshape(len(columns), self.rows).T

    @cached_property
    def valid(self) -> NDArray[np.bool_]:
        """bool [N]: True, as no row is padding."""
        return np.ones(self.rows, np.bool_)

    @cached_property
    def sparse(self) -> dict[str, SparseArrays]:
        """The ragged features by name, in the order of pipeline.yaml."""
        features = {}
        for index, column in enumerate(self.schema.sparse):
            offsets = self.encoded.offsets[index]
            features[column.name] = SparseArrays(
                values=np.asarray(self.encoded.values[index]),
                lengths=np.diff(offsets).astype(np.int32),
                offsets=offsets,
                weights=self.encoded.weights[index],
            )
        return {column.name: features[column.name] for column in self.schema.group("sparse")}

    @cached_property
    def extra(self) -> dict[str, pa.Array]:
        """Columns passed through, as Arrow arrays; none when serving."""
        names = [column.name for column in self.schema.group("extra")]
        return dict(zip(names, self.encoded.extra, strict=True))

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The features of each group that a model takes, in order."""
        return {group: tuple(column.name for column in self.schema.group(group)) for group in _MODEL_GROUPS}

    def __getitem__(self, name: str) -> Any:
        if name not in self.schema:
            names = ", ".join(column.name for column in self.schema)
            raise KeyError(f"there is no feature {name!r} here: expected one of {names}")
        column = self.schema[name]
        if column.group in ("dense", "categorical", "label"):
            return column.of(self.labels if column.group == "label" else getattr(self, column.group))
        return self.sparse[name] if column.group == "sparse" else self.extra[name]

    def to_dict(self) -> dict[str, Any]:
        """Every feature by name."""
        return {column.name: self[column.name] for column in self.schema}

    def to_batch(self) -> Batch:
        """A copy of the rows as a `Batch` of tensors, for a model's `forward`."""
        from feedline.loader.batch import Batch  # noqa: PLC0415 -- loads torch, which serving may lack

        layout = SlotLayout(self.schema)
        return Batch.over(layout, write_rows(layout, [self.encoded]))
