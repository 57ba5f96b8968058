"""Gather rows of a large array by index, with bounded memory.

Runs in: the threads of a process that transforms; they share one `ArrayRows` per array. Rows are loaded in blocks, the
pieces in which the array is stored. An array that fits into `max_bytes` is filled block by block, on demand, and rows
are gathered from the whole; of a larger one the blocks used last are kept. Each block is loaded by one thread, and the
others wait for it. Blocks mapped from a file take no memory of their own.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Block = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

# Blocks that are mapped at a time: each holds a descriptor, and the rest of the process needs some.
MOST_MAPS = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """An array [rows, width] of numbers in blocks of `block_rows` rows, the last one with the rest.

    load: a block by its number, of `dtype`. mapped: blocks are views of files that take no memory.
    """

    rows: int
    width: int
    block_rows: int
    dtype: np.dtype[Any]
    load: Callable[[int], Block]
    mapped: bool = False

    @property
    def nbytes(self) -> int:
        """The whole array's, decoded."""
        return self.rows * self.width * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Those of a full block."""
        return min(self.block_rows, self.rows) * self.width * self.dtype.itemsize


class ArrayRows:
    """Rows of a stored array as float32, in at most `max_bytes` besides the blocks that threads work with."""

    def __init__(self, stored: StoredArray, max_bytes: int) -> None:
        self.rows, self.width = stored.rows, stored.width
        self.loads = 0  # blocks that were loaded so far
        self._stored = stored
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Block] = OrderedDict()
        self._held_bytes = 0
        self._loading: dict[int, Future[Block]] = {}
        blocks = -(-stored.rows // stored.block_rows)
        self._whole = None
        if not stored.mapped and blocks > 1 and stored.nbytes <= max_bytes:
            self._whole = np.empty((stored.rows, stored.width), dtype=stored.dtype)
            self._filled = np.zeros(blocks, dtype=np.bool_)

    @property
    def nbytes(self) -> int:
        """The memory that is in use."""
        if self._whole is not None:
            return min(int(self._filled.sum()) * self._stored.block_bytes, self._stored.nbytes)
        return self._held_bytes

    def take(self, indices: Indices) -> npt.NDArray[np.float32]:
        """Rows [n, width] at `indices` [n], each of which must be a row of the array."""
        out = _empty(len(indices), self.width)
        if not len(indices):
            return out
        if self._whole is not None:
            if not self._filled.all():
                self._fill(indices // self._stored.block_rows)
            _gather(self._whole, indices, out)
        elif self.rows <= self._stored.block_rows:
            _gather(self._block(0), indices, out)
        else:
            self._take_by_block(indices, indices // self._stored.block_rows, out)
        return out

    def _take_by_block(self, indices: Indices, numbers: Indices, out: npt.NDArray[np.float32]) -> None:
        """All rows of one block at a time, so that each is loaded once; then all into their order."""
        small = self.rows <= self._stored.block_rows * 2**16  # numpy sorts 16 bits by radix, six times faster
        order = np.argsort(numbers.astype(np.uint16) if small else numbers, kind="stable")
        ordered, inside = numbers[order], indices[order] % self._stored.block_rows
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        stops = np.append(starts[1:], len(order))
        gathered = _empty(len(order), self.width)
        for number, start, stop in zip(ordered[starts].tolist(), starts.tolist(), stops.tolist(), strict=True):
            _gather(self._block(number), inside[start:stop], gathered[start:stop])
        out[order] = gathered

    def _fill(self, numbers: Indices) -> None:
        wanted = np.zeros_like(self._filled)
        wanted[numbers] = True
        for number in np.flatnonzero(wanted & ~self._filled).tolist():
            self._block(number)

    def _block(self, number: int) -> Block:
        with self._lock:
            held = self._held.get(number)
            if held is not None:
                self._held.move_to_end(number)
                return held
            loading = self._loading.get(number)
            if loading is None:
                mine = self._loading[number] = Future()
        if loading is not None:
            return loading.result()
        try:
            block = self._load(number)
        except BaseException as error:
            with self._lock:
                del self._loading[number]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._loading[number]
            self._keep(number, block)
        mine.set_result(block)
        return block

    def _load(self, number: int) -> Block:
        block = self._stored.load(number)
        self.loads += 1
        if self._whole is None:
            return block
        start = number * self._stored.block_rows
        place = self._whole[start : start + len(block)]
        place[:] = block
        return place

    def _keep(self, number: int, block: Block) -> None:
        """Under the lock."""
        self._held[number] = block
        if self._whole is not None:
            self._filled[number] = True
            return
        size = 0 if self._stored.mapped else block.nbytes
        self._held_bytes += size
        while len(self._held) > 1 and (self._held_bytes > self._max_bytes or len(self._held) > MOST_MAPS):
            _, oldest = self._held.popitem(last=False)
            self._held_bytes -= 0 if self._stored.mapped else oldest.nbytes


def _empty(rows: int, width: int) -> npt.NDArray[np.float32]:
    """Room for results in Arrow's pool: a fresh numpy array of megabytes is mapped and unmapped at every call."""
    return np.frombuffer(pa.allocate_buffer(rows * width * 4), np.float32).reshape(rows, width)


def _gather(block: Block, indices: Indices, out: npt.NDArray[np.float32]) -> None:
    if block.dtype == out.dtype:
        np.take(block, indices, axis=0, out=out, mode="clip")  # "raise" would gather into a buffer first
    else:
        out[:] = block.take(indices, axis=0, mode="clip")
