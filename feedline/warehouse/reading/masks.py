"""Which of a row group's kept rows are left out? Bits that travel with a request.

Pure. One bit per row that `where` (and sample) keeps, lowest bit first: 8 KiB for 65,536 rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


def packed(mask: Bools) -> bytes:
    """bool [rows] as bits."""
    return np.packbits(mask, bitorder="little").tobytes()


def unpacked(bits: bytes | None, rows: int) -> Bools:
    """Bits as bool [rows]; None stands for a row group of which nothing is left out."""
    if bits is None:
        return np.zeros(rows, np.bool_)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows, bitorder="little").view(np.bool_)


def ones(bits: bytes | None) -> int:
    """How many rows the bits leave out."""
    return 0 if bits is None else int(np.bitwise_count(np.frombuffer(bits, np.uint8)).sum())
