"""Find the two borders around each number, in a few steps for any number of borders.

Runs on the workers. Pure. A float's leading bits grow with it, so they name a cell of the number line: a table says how
many borders lie below each cell, and the borders inside the cell are searched by halving (235 million values per second
with 1024 borders; numpy's search 17). Numbers of other types choose their cell as float32, whose rounding keeps their
order; within the cell they are compared in their own type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.dataclass import dataclass

Numbers = npt.NDArray[Any]

_BITS = (18, 16, 14, 12)  # numbers of leading bits that may name a cell, largest first
_CELLS = 32768  # a table of so many entries stays in a core's cache
_DEEPEST = 7  # with more steps numpy's search is as fast
_MAGNITUDE = np.int32(0x7FFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Borders:
    """Ascending borders, prepared. below: how many lie below each cell from `first` on; steps: those of the halving."""

    borders: Numbers
    shift: np.int32
    first: int
    below: npt.NDArray[np.int64]
    padded: Numbers
    steps: tuple[int, ...] | None

    @classmethod
    def of(cls, borders: Numbers) -> Borders:
        """Borders of type int64, uint64, float32 or float64, without NaN; at least one."""
        borders = borders + borders.dtype.type(0)  # makes -0.0 what it equals, 0.0
        kind = borders.dtype.type
        last = np.inf if borders.dtype.kind == "f" else np.iinfo(borders.dtype).max
        for bits in _BITS:
            shift = np.int32(32 - bits)
            cells = _cells(borders, shift)
            count = int(cells[-1] - cells[0]) + 1
            if count < _CELLS:
                break
        inside = np.bincount(cells - cells[0], minlength=count)
        deep = int(inside.max()).bit_length()
        return cls(
            borders=borders,
            shift=shift,
            first=int(cells[0]),
            below=np.concatenate(([0], np.cumsum(inside))),
            padded=np.concatenate((borders, np.full(2**deep, last, kind))),
            steps=tuple(2**step for step in range(deep - 1, -1, -1)) if deep <= _DEEPEST else None,
        )

    def count_below(self, values: Numbers, out: npt.NDArray[np.int64]) -> None:
        """Write how many borders are smaller than each value, of the borders' type; arbitrary for NaN."""
        if self.steps is None:
            out[:] = np.searchsorted(self.borders, values, side="left")
            return
        index = _cells(values, self.shift)
        index -= self.first
        self.below.take(index, out=out, mode="clip")
        for step in self.steps:
            np.add(out, step - 1, out=index)
            smaller = np.less(self.padded.take(index, mode="clip"), values)
            np.add(out, smaller if step == 1 else np.multiply(smaller, step, dtype=np.int64), out=out)


def _cells(values: Numbers, shift: np.int32) -> npt.NDArray[np.int64]:
    """The leading bits of each value as float32, as integers that grow with it."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32, copy=False).view(np.int32)
    cells = np.right_shift(bits, np.int32(31))
    np.bitwise_and(cells, _MAGNITUDE, out=cells)  # a negative number's bits grow as it falls
    np.bitwise_xor(cells, bits, out=cells)
    np.right_shift(cells, shift, out=cells)
    return cells.astype(np.int64)
