"""A feature's values, once per distinct value: what transforming dictionaries gives, and encoding expands.

Pure; runs in every process that computes blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.native import rows as native


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedValues:
    """The finished values of a feature, once per distinct value, and where they belong.

    values: of all entries of the dictionary, used or not, or of those at `index`, int64, of `entries` there are. used:
    bool [entries], which ones rows use; where all have values, which are finite; None for integers, of which that does
    not matter. uses: int64, how often rows use each of those at `index`; None for integers that need no such count.
    codes: int32 or uint16, the entry of each row, or of each element of lists. offsets: int64 [rows + 1] of lists, None
    for scalars. slices: if these are slices of the lists of `codes`, where they begin, and the lists' offsets.
    """

    values: NDArray[Any]
    index: NDArray[np.int64] | None
    entries: int
    used: NDArray[np.bool_] | None
    uses: NDArray[np.int64] | None
    codes: NDArray[np.int32] | NDArray[np.uint16]
    offsets: NDArray[np.int64] | None
    slices: tuple[int, NDArray[np.int64]] | None = None

    @property
    def count(self) -> int:
        """How many values there are: one for each code, or for each element of the slices."""
        return len(self.codes) if self.slices is None or self.offsets is None else int(self.offsets[-1])


@dataclass(frozen=True, slots=True, eq=False)
class CodedArray:
    """The array `table[codes]`, which is gathered where it is written, or by `np.asarray`.

    codes: int32 or uint16 [N]. table: float32, int64, or int32 of int64.
    """

    codes: native.Codes
    table: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self.table.dtype == np.float32 else np.int64)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.table.nbytes

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, part: slice) -> CodedArray:
        return CodedArray(self.codes[part], self.table)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = np.empty(len(self), self.dtype)
        native.gather_codes([(values, 0, 1, self.table, self.codes, False)])
        return values if dtype is None else values.astype(dtype, copy=False)
