"""Keep the facts of a large table within a memory budget while its snapshot is taken.

Runs where a snapshot is taken. Facts of one column chunk take about 14 bytes, packed, and a table of 2,000 columns and
a million row groups has two billion chunks. So blocks are held up to a budget; what goes beyond is merged, column by
column, and written to a file without a name, from which a column is read on demand. The file ends with
the last snapshot that reads it, and with the process, however that dies.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from feedline.errors import StoreError
from feedline.warehouse.snapshot.assembly import SnapshotPart
from feedline.warehouse.snapshot.packed_facts import FactBlock, join_columns, of_one_schema, part_of_schema
from feedline.warehouse.storage.locations import absolute, locate
from feedline.warehouse.storage.retry import is_local

HELD_BYTES = 128 << 20  # nine million chunks: few tables have more. Written at once, so that reads are long


class Overflow:
    """Blocks of a table, in memory as far as they fit `held_bytes`; the rest in a file below `folder`."""

    def __init__(self, folder: str, *, held_bytes: int | None = None) -> None:
        self._folder = folder
        self._limit = HELD_BYTES if held_bytes is None else held_bytes
        self._blocks: list[FactBlock] = []
        self._held = 0
        self._written: list[SnapshotPart] = []
        self._file: _Unnamed | None = None

    def add(self, blocks: Iterable[FactBlock]) -> None:
        """Take some blocks. Raises StoreError where there is no room for what does not fit memory."""
        for block in blocks:
            self._blocks.append(block)
            self._held += block.nbytes
            if self._held > self._limit:
                self._write()

    def parts(self) -> list[SnapshotPart]:
        """All blocks taken so far."""
        return [*self._written, *(block.part() for block in self._blocks)]

    def _write(self) -> None:
        self._file = self._file or _Unnamed(self._folder)
        self._written += [_move(blocks, self._file) for blocks in of_one_schema(self._blocks)]
        self._blocks, self._held = [], 0


def overflow_folder(work_dir: str | None) -> str:
    """Where a snapshot's overflow goes: `work_dir`, where that is a local folder, else the one for temporary files."""
    location = None if work_dir is None else locate(absolute(work_dir))
    return tempfile.gettempdir() if location is None or not is_local(location.filesystem) else location.path


def _move(blocks: Sequence[FactBlock], file: _Unnamed) -> SnapshotPart:
    """Blocks of one schema as one part, whose columns lie in the file."""
    ends = np.array([file.size, *(file.append(column) for column in join_columns(blocks))])
    return part_of_schema(
        blocks[0].schema,
        pa.concat_tables([block.files for block in blocks]).combine_chunks(),
        pa.concat_tables([block.row_groups for block in blocks]).combine_chunks(),
        lambda column: file.read(int(ends[column]), int(ends[column + 1])),
    )


class _Unnamed:
    """A file that no folder lists, closed when nothing refers to it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.size = 0
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._number, name = tempfile.mkstemp(prefix="feedline-", suffix=".tmp", dir=folder)
        except OSError as error:
            raise self._full(error) from error
        weakref.finalize(self, partial(os.close, self._number))
        Path(name).unlink()

    def append(self, content: pa.Buffer) -> int:
        """Write at the end; the size that the file has then."""
        left = memoryview(content)
        try:
            while left:
                written = os.pwrite(self._number, left, self.size)
                self.size, left = self.size + written, left[written:]
        except OSError as error:
            raise self._full(error) from error
        return self.size

    def read(self, start: int, stop: int) -> pa.Buffer:
        return pa.py_buffer(os.pread(self._number, stop - start, start))

    def _full(self, error: OSError) -> StoreError:
        return StoreError(
            f"the statistics of the table's footers do not fit memory and cannot be written to {self._folder}: "
            f"got {error}, expected room for more than {self.size:,} bytes. Make room, or name another folder for "
            "work_dir (TMPDIR where that is no local folder)"
        )
