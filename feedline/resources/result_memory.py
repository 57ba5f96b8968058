"""Memory for the arrays of a block's result.

Runs in: processes that compute blocks. A worker that hands results over in shared memory makes their arrays there from
the outset (`lay_results`); elsewhere, and where there is no room, they are numpy's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

# Bytes for an array of the result that this thread computes; None: there is no room.
Memory: TypeAlias = Callable[[int], NDArray[np.uint8] | None]

LEAST_BYTES = 64 * 1024  # smaller arrays are not worth a place of their own: they travel in the pickle


class _Thread(threading.local):
    memory: Memory | None = None


_thread = _Thread()


def lay_results(memory: Memory) -> None:
    """Have this thread make the arrays of results in some memory."""
    _thread.memory = memory


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """As `numpy.empty`, for an array that belongs to a result."""
    if (memory := _thread.memory) is not None:
        kind = np.dtype(dtype)
        count = shape if isinstance(shape, int) else int(np.prod(shape))
        if (nbytes := count * kind.itemsize) >= LEAST_BYTES and (place := memory(nbytes)) is not None:
            return place.view(kind).reshape(shape)
    return np.empty(shape, dtype)
