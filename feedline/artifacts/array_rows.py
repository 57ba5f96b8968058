"""Gather rows of a large array by index, with bounded memory.

Runs in: the threads of a process that transforms, which share one `ArrayRows` per array. Rows are loaded in blocks, the
units in which the array is stored. An array that fits into `max_bytes` is filled block by block, on demand; a larger
one has an LRU cache of blocks. Blocks mapped from a file take no memory of their own.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.dataclass import dataclass

Block = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

# Each mapped block holds a file descriptor: leave most of them to the rest of the process.
MAX_MAPPED_BLOCKS = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """A numeric array [rows, width] in blocks of `block_rows` rows; the last one may have fewer.

    load: returns the block of an index, of `dtype`. mapped: blocks are views of files that take no memory.
    """

    rows: int
    width: int
    block_rows: int
    dtype: np.dtype[Any]
    load: Callable[[int], Block]
    mapped: bool = False

    @property
    def nbytes(self) -> int:
        """Decoded size of the whole array."""
        return self.rows * self.width * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Decoded size of a full block."""
        return min(self.block_rows, self.rows) * self.width * self.dtype.itemsize


class ArrayRows:
    """Rows of a stored array as float32, in at most `max_bytes` besides the blocks in use by threads."""

    def __init__(self, array: StoredArray, max_bytes: int) -> None:
        self.rows, self.width = array.rows, array.width
        self.loads = 0  # blocks loaded so far
        self._array = array
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._blocks_bytes = 0
        self._loading: dict[int, Future[Block]] = {}
        blocks = -(-array.rows // array.block_rows)
        self._whole = None
        if not array.mapped and blocks > 1 and array.nbytes <= max_bytes:
            self._whole = np.empty((array.rows, array.width), dtype=array.dtype)
            self._filled = np.zeros(blocks, dtype=np.bool_)

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        if self._whole is not None:
            return min(int(self._filled.sum()) * self._array.block_bytes, self._array.nbytes)
        return self._blocks_bytes

    def take(self, indices: Indices) -> npt.NDArray[np.float32]:
        """Rows [n, width] at `indices` [n], each of which must be a row of the array."""
        out = _empty(len(indices), self.width)
        if not len(indices):
            return out
        if self._whole is not None:
            if not self._filled.all():
                self._fill(indices // self._array.block_rows)
            _gather(self._whole, indices, out)
        elif self.rows <= self._array.block_rows:
            _gather(self._block(0), indices, out)
        else:
            self._take_by_block(indices, indices // self._array.block_rows, out)
        return out

    def _take_by_block(self, indices: Indices, block_indices: Indices, out: npt.NDArray[np.float32]) -> None:
        """Gather block by block, so that each is loaded once, then restore the order of `indices`."""
        small = self.rows <= self._array.block_rows * 2**16  # numpy sorts 16 bits by radix, six times faster
        order = np.argsort(block_indices.astype(np.uint16) if small else block_indices, kind="stable")
        ordered, inside = block_indices[order], indices[order] % self._array.block_rows
        # blocks [2, 0, 2] -> order [1, 0, 2], starts [0, 1], stops [1, 3]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        stops = np.append(starts[1:], len(order))
        gathered = _empty(len(order), self.width)
        for index, start, stop in zip(ordered[starts].tolist(), starts.tolist(), stops.tolist(), strict=True):
            _gather(self._block(index), inside[start:stop], gathered[start:stop])
        out[order] = gathered

    def _fill(self, block_indices: Indices) -> None:
        needed = np.zeros_like(self._filled)
        needed[block_indices] = True
        for index in np.flatnonzero(needed & ~self._filled).tolist():
            self._block(index)

    def _block(self, index: int) -> Block:
        with self._lock:
            cached = self._blocks.get(index)
            if cached is not None:
                self._blocks.move_to_end(index)
                return cached
            loading = self._loading.get(index)
            if loading is None:
                mine = self._loading[index] = Future()
        if loading is not None:
            return loading.result()
        try:
            block = self._load_block(index)
        except BaseException as error:
            with self._lock:
                del self._loading[index]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._loading[index]
            self._keep(index, block)
        mine.set_result(block)
        return block

    def _load_block(self, index: int) -> Block:
        block = self._array.load(index)
        self.loads += 1
        if self._whole is None:
            return block
        start = index * self._array.block_rows
        rows = self._whole[start : start + len(block)]
        rows[:] = block
        return rows

    def _keep(self, index: int, block: Block) -> None:
        """Cache a block; the caller holds the lock."""
        self._blocks[index] = block
        if self._whole is not None:
            self._filled[index] = True
            return
        size = 0 if self._array.mapped else block.nbytes
        self._blocks_bytes += size
        while len(self._blocks) > 1 and (self._blocks_bytes > self._max_bytes or len(self._blocks) > MAX_MAPPED_BLOCKS):
            _, oldest = self._blocks.popitem(last=False)
            self._blocks_bytes -= 0 if self._array.mapped else oldest.nbytes


def _empty(rows: int, width: int) -> npt.NDArray[np.float32]:
    """Allocate results in Arrow's pool: a new numpy array of megabytes would be mapped and unmapped at every call."""
    return np.frombuffer(pa.allocate_buffer(rows * width * 4), np.float32).reshape(rows, width)


def _gather(block: Block, indices: Indices, out: npt.NDArray[np.float32]) -> None:
    if block.dtype == out.dtype:
        np.take(block, indices, axis=0, out=out, mode="clip")  # "raise" would gather into a buffer first
    else:
        out[:] = block.take(indices, axis=0, mode="clip")
