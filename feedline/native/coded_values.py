"""A feature's values, once per distinct value: what transforming dictionaries gives, and encoding expands.

Pure; runs in every process that computes blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
