"""Keep the facts of a large table within a memory budget while its snapshot is taken.

Runs where a snapshot is taken. Blocks are held in memory up to a budget; beyond it they are merged column by column and
written to an unlinked file, from which columns are read on demand, and which disappears with the last snapshot that
reads it.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from feedline.errors import StoreError
from feedline.warehouse.snapshot.assembly import SnapshotPart
from feedline.warehouse.snapshot.packed_facts import FactBlock, group_by_schema, join_fact_columns, part_of_schema
from feedline.warehouse.storage.locations import absolute, locate
from feedline.warehouse.storage.retry import is_local

HELD_BYTES = 128 << 20  # nine million chunks: few tables have more. Written together, so that reads are long


class Overflow:
    """Blocks of a table: up to `held_bytes` in memory, the rest in a file below `folder`."""

    def __init__(self, folder: str, *, held_bytes: int | None = None) -> None:
        self._folder = folder
        self._limit = HELD_BYTES if held_bytes is None else held_bytes
        self._blocks: list[FactBlock] = []
        self._held_bytes = 0
        self._moved_parts: list[SnapshotPart] = []
        self._file: _UnlinkedFile | None = None

    def add(self, blocks: Iterable[FactBlock]) -> None:
        """Add blocks. Raises StoreError if the disk has no room for those that do not fit in memory."""
        for block in blocks:
            self._blocks.append(block)
            self._held_bytes += block.nbytes
            if self._held_bytes > self._limit:
                self._write()

    def parts(self) -> list[SnapshotPart]:
        return [*self._moved_parts, *(block.part() for block in self._blocks)]

    def _write(self) -> None:
        self._file = self._file or _UnlinkedFile(self._folder)
        self._moved_parts += [_move(blocks, self._file) for blocks in group_by_schema(self._blocks)]
        self._blocks, self._held_bytes = [], 0


def overflow_folder(work_dir: str | None) -> str:
    """The folder for a snapshot's overflow: `work_dir` if it is a local folder, else that for temporary files."""
    location = None if work_dir is None else locate(absolute(work_dir))
    return tempfile.gettempdir() if location is None or not is_local(location.filesystem) else location.path


def _move(blocks: Sequence[FactBlock], file: _UnlinkedFile) -> SnapshotPart:
    """Append the columns of blocks of one schema to the file; returns them as one part."""
    ends = np.array([file.size, *(file.append(column) for column in join_fact_columns(blocks))])
    return part_of_schema(
        blocks[0].schema,
        pa.concat_tables([block.files for block in blocks]).combine_chunks(),
        pa.concat_tables([block.row_groups for block in blocks]).combine_chunks(),
        lambda column: file.read(int(ends[column]), int(ends[column + 1])),
    )


class _UnlinkedFile:
    """A file without a name, closed when nothing refers to it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.size = 0
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 -- open for as long as this object
        except OSError as error:
            raise self._full(error) from error
        self._descriptor = file.fileno()
        weakref.finalize(self, file.close)

    def append(self, content: pa.Buffer) -> int:
        """Write at the end; returns the file's new size."""
        rest = memoryview(content)
        try:
            while rest:
                count = os.pwrite(self._descriptor, rest, self.size)
                self.size, rest = self.size + count, rest[count:]
        except OSError as error:
            raise self._full(error) from error
        return self.size

    def read(self, start: int, stop: int) -> pa.Buffer:
        return pa.py_buffer(os.pread(self._descriptor, stop - start, start))

    def _full(self, error: OSError) -> StoreError:
        return StoreError(
            f"the statistics of the table's footers do not fit in memory and cannot be written to {self._folder}: "
            f"got {error}, expected room for more than {self.size:,} bytes. Make room, or name another folder for "
            "work_dir (TMPDIR where that is no local folder)"
        )
