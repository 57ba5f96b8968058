"""Find the group of a row by the values of its key columns.

Runs on the workers, where groups are learnt and, inside the pass over a chunk, looked up. Keys are integers, strings,
binary values and booleans, of one column or several; the elements of a list are separate keys. Null is a value like any
other: the groups (1, null) and (null, 1) differ. As states and artifacts hold no nulls, a null key is stored as 0 (or
empty), and its bit is set in the column `MISSING`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from feedline.errors import SpecError
from feedline.expressions.types import BINARY, BOOLEAN, INTEGER, STRING
from feedline.transforms.kernels.key_index import KeyIndex, key_index
from feedline.transforms.learning.group_sums import finite
from feedline.transforms.learning.learner import Artifact
from feedline.transforms.registry.op import Input
from feedline.transforms.values.kinds import Lookup, Value, element_type
from feedline.transforms.values.lookup_counts import hold_lookup
from feedline.transforms.values.ragged import Mask, Offsets, flatten_lists, lists_of, over_keys

N = TypeVar("N", bound=np.generic)

KEY = Input(name="key", takes=frozenset({INTEGER, STRING, BINARY, BOOLEAN}), lists="elements")
MISSING = "missing"
_UNKNOWN = range(1)
_MOST_KEYS = 31  # as many as MISSING has bits
_FILLS = {pl.Int64(): 0, pl.UInt64(): 0, pl.String(): "", pl.Binary(): b""}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """The keys of N rows, or of their lists' elements: columns [V] of `GroupKeys.types`. offsets, absent: of lists."""

    keys: tuple[pl.Series, ...]
    offsets: Offsets | None = None
    absent: Mask | None = None

    @classmethod
    def of(cls, columns: Sequence[pl.Series]) -> KeyedRows:
        """The rows of some columns, or of one column of lists."""
        if not isinstance(columns[0].dtype, pl.List):
            return cls(keys=tuple(columns))
        values, offsets, absent = flatten_lists(columns[0])
        return cls(keys=(pl.Series(values),), offsets=offsets, absent=absent)

    def frame(self, names: Sequence[str]) -> pl.DataFrame:
        """The columns that identify each key's group, named by `GroupKeys.names`."""
        missing = np.zeros(len(self.keys[0]), np.int32)
        for index, key in enumerate(self.keys):
            if key.null_count():
                missing |= key.is_null().to_numpy().astype(np.int32) << np.int32(index)
        columns = [pl.Series(missing), *(key.fill_null(_FILLS[key.dtype]) for key in self.keys)]
        return pl.DataFrame([column.alias(name) for name, column in zip(names, columns, strict=True)])

    def finite(self, frame: pl.DataFrame, column: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
        """Those of the keys' rows [V] whose number in a column of rows [N] is finite, and the numbers."""
        values, mask = finite(column)
        numbers = pl.Series(self.repeat(values))
        if mask is None:
            return frame, numbers
        keep = pl.Series(self.repeat(mask))
        return frame.filter(keep), numbers.filter(keep)

    def repeat(self, values: npt.NDArray[N]) -> npt.NDArray[N]:
        """Values of rows [N], repeated for each of the rows' keys [V]."""
        return values if self.offsets is None else np.repeat(values, np.diff(self.offsets))

    def series(self, values: npt.NDArray[np.float64], holes: Mask | None = None) -> pl.Series:
        """The results of each key [V] as a number or a list of numbers per row; null where `holes` is true."""
        if self.offsets is not None:
            return lists_of(values, self.offsets, holes=holes, absent=self.absent)
        return pl.Series(pa.array(values, mask=holes))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKeys:
    """The types of keys in states and artifacts, and whether they are elements of lists."""

    types: tuple[pl.DataType, ...]
    listed: bool

    @classmethod
    def of(cls, values: Sequence[Value]) -> GroupKeys:
        """Raises SpecError for values that cannot be keys."""
        for value in values:
            if value.kind.element not in KEY.takes:
                raise SpecError(
                    f"a key must be {KEY.accepts}: got {value.kind}. Put bucketize, or {{cast: int64}}, before it"
                )
        if len(values) > _MOST_KEYS:
            raise SpecError(f"at most {_MOST_KEYS} columns make a key: got {len(values)}")
        listed = any(value.kind.listed for value in values)
        if listed and len(values) > 1:
            raise SpecError(
                f"the elements of lists are keys by themselves: got {len(values)} columns with a list among them, "
                "expected that one alone, or columns of one value per row"
            )
        return cls(types=tuple(_key_type(element_type(value.plain().dtype)) for value in values), listed=listed)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that identify a group in states and artifacts."""
        return (MISSING, *(f"key {index}" for index in range(len(self.types))))

    def rows(self, columns: Sequence[pl.Series]) -> KeyedRows:
        """The keys of some rows, widened to `types`."""
        rows = KeyedRows.of(columns)
        return replace(rows, keys=self._convert_types(rows.keys))

    def positions(self, values: Sequence[Value], artifact: Artifact) -> tuple[pl.Expr, Lookup]:
        """The position of each row's group in `index`, from 1: int64 or lists of it. 0 stands for unknown groups,
        which the `Lookup` names.
        """

        def find(*columns: pl.Series) -> pl.Series:
            return pl.Series(self.index(artifact).find(self._convert_types(columns)))

        return hold_lookup(over_keys(values, find), _UNKNOWN)

    def _convert_types(self, columns: Sequence[pl.Series]) -> tuple[pl.Series, ...]:
        pairs = zip(columns, self.types, strict=True)
        return tuple(column if column.dtype == dtype else column.cast(dtype) for column, dtype in pairs)

    def schema(self) -> dict[str, pl.DataType]:
        """The columns that identify a group, with their types."""
        return dict(zip(self.names, (pl.Int32(), *self.types), strict=True))

    def index(self, artifact: Artifact) -> KeyIndex:
        """The groups of an artifact's table by their keys, null included; built once."""
        assert artifact.table is not None
        table = artifact.table
        return artifact.derive(f"groups by {self.types}", lambda: self._index(table))

    def check(self, artifact: Artifact) -> None:
        """Raise SpecError for an artifact whose keys are of another kind."""
        assert artifact.table is not None
        self._index(artifact.table.slice(0, 0))

    def _index(self, table: pa.Table) -> KeyIndex:
        keys = pl.DataFrame(table.select(self.names)).select(
            pl.when(pl.col(MISSING) & (1 << index) == 0).then(pl.col(name)).alias(name)
            for index, name in enumerate(self.names[1:])
        )
        return key_index(keys, self.types, "none", "what was fitted", nulls=True)


def _key_type(dtype: pl.DataType) -> pl.DataType:
    if dtype.is_integer() or dtype == pl.Boolean:
        return pl.UInt64() if dtype == pl.UInt64 else pl.Int64()
    return pl.Binary() if dtype == pl.Binary else pl.String()
