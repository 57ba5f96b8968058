"""Read the footers of a large table in waves, and keep those of finished waves so that an interrupted snapshot resumes.

Runs where a snapshot is taken. A table of more than one wave keeps what each wave read in `work_dir/footers`, under a
name that covers the wave's files with their sizes, times and etags, until the snapshot is saved. A wave with a file
that may have been replaced while it was read (no time or etag, or younger than the clock's grain) is not kept.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.errors import TableError
from feedline.version import VERSION
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.assembly import CLOCK_GRAIN_NS
from feedline.warehouse.snapshot.footer_tasks import FooterResult, read_footers
from feedline.warehouse.snapshot.packed_facts import FactBlock
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.parallel import Map

logger = logging.getLogger(__name__)

_WAVE_FILES = 16_384  # 40 s of one core: an interruption loses little
_PARTS = 3  # tables of a block
_FOLDER = "footers"
_KEPT_S = (
    7 * 86_400.0
)  # waves of a snapshot that nobody has gone on with, such as one of a table that has changed since


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterProgress:
    """Progress of a snapshot: files whose footers were read, and all to read."""

    files: int
    all_files: int


SayFooters: TypeAlias = Callable[[FooterProgress], None]
_listener: ContextVar[SayFooters | None] = ContextVar("feedline_footer_listener", default=None)


@contextmanager
def on_footer_progress(say: SayFooters) -> Iterator[None]:
    """Call `say` after every wave of footers that are read from this thread inside the block."""
    before = _listener.set(say)
    try:
        yield
    finally:
        _listener.reset(before)


class FooterWaves:
    """The footers of some files of a listing. indices: of the files; now_ns: when the listing was made."""

    def __init__(
        self, listing: Listing, indices: npt.NDArray[np.int64], *, work_dir: str | None, now_ns: int, map: Map | None
    ) -> None:
        self._listing = listing
        self._indices = indices
        self._work_dir = work_dir
        self._now_ns = now_ns
        self._map = map
        self._kept: list[str] = []

    def read(self) -> Iterator[FooterResult]:
        """The footers, from kept waves where there are any. Raises as `read_footers`."""
        for start in range(0, len(self._indices), _WAVE_FILES):
            part = self._indices[start : start + _WAVE_FILES]
            yield from self._wave(part) if len(self._indices) > _WAVE_FILES else self._read(part)
            if len(self._indices) > _WAVE_FILES:
                _report(FooterProgress(files=start + len(part), all_files=len(self._indices)))

    def forget(self) -> None:
        """Remove the kept waves, as the snapshot is saved, and those of other snapshots that are a week old."""
        if self._work_dir is None or len(self._indices) <= _WAVE_FILES:
            return
        for name in [*self._kept, *content_store.older_than(self._work_dir, _FOLDER, _KEPT_S)]:
            content_store.remove(self._work_dir, name)

    def _wave(self, indices: npt.NDArray[np.int64]) -> list[FooterResult]:
        files = self._listing.files.take(pa.array(indices)).combine_chunks()
        if self._work_dir is None or not _is_settled(files, self._now_ns):
            return list(self._read(indices))
        name = _name(self._listing, indices, files)
        self._kept.append(name)
        result = _load(self._work_dir, name)
        if result is None:
            results = list(self._read(indices))
            result = FooterResult(
                blocks=tuple(block for each in results for block in each.blocks),
                corrupt=tuple(found for each in results for found in each.corrupt),
            )
            content_store.create(self._work_dir, name, _tables(result), compression=None)
        return [result]

    def _read(self, indices: npt.NDArray[np.int64]) -> Iterator[FooterResult]:
        files = self._listing.files.select(["path", "bytes"]).take(pa.array(indices))
        values = zip(indices.tolist(), files["path"].to_pylist(), files["bytes"].to_pylist(), strict=True)
        return read_footers(self._listing.uri, list(values), self._map, stored_names=self._listing.stored_names)


def _report(progress: FooterProgress) -> None:
    say = _listener.get()
    if say is not None:
        say(progress)
    else:
        logger.info("read the footers of %s of %s files", f"{progress.files:,}", f"{progress.all_files:,}")


def _is_settled(files: pa.Table, now_ns: int) -> bool:
    """Whether the listing identifies the content of each file: by its etag, or by a time that is old enough."""
    if "etag" in files.schema.names and files["etag"].null_count == 0:
        return True
    times = files["mtime_ns"]
    old = pc.less(times, now_ns - CLOCK_GRAIN_NS)
    return bool(pc.all(pc.and_(old, pc.greater_equal(times, 0)), min_count=0).as_py())


def _name(listing: Listing, indices: npt.NDArray[np.int64], files: pa.Table) -> str:
    """A name from all that the wave's facts depend on."""
    identity = files.select([name for name in ("path", "bytes", "mtime_ns", "etag") if name in files.schema.names])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, identity.schema) as writer:
        writer.write_table(identity)
    digest = hashlib.sha256(f"{VERSION} {pa.__version__} {listing.uri} ".encode())
    if listing.stored_names is not None:
        digest.update(listing.stored_names.text.encode())
    digest.update(indices.tobytes())
    digest.update(memoryview(sink.getvalue()))
    return f"{_FOLDER}/{digest.hexdigest()}.arrow"


def _tables(result: FooterResult) -> Iterator[pa.Table]:
    corrupt = {"file": [index for index, _ in result.corrupt], "message": [text for _, text in result.corrupt]}
    yield pa.table(corrupt, pa.schema({"file": pa.int64(), "message": pa.string()}))
    for block in result.blocks:
        yield block.files
        yield block.row_groups
        columns = pa.array([column.to_pybytes() for column in block.columns], pa.large_binary())
        yield pa.table({"column": columns}).replace_schema_metadata({"schema": block.schema.serialize().to_pybytes()})


def _load(work_dir: str, name: str) -> FooterResult | None:
    """The facts of a wave; None where none are kept, or they are damaged."""
    try:
        corrupt, *parts = content_store.find(work_dir, name).tables()
    except (FileNotFoundError, TableError):
        return None
    blocks = []
    for first in range(0, len(parts), _PARTS):
        files, row_groups, columns = parts[first : first + _PARTS]
        schema = pa.ipc.read_schema(pa.py_buffer(columns.schema.metadata[b"schema"]))
        packed = tuple(value.as_buffer() for value in columns["column"])
        blocks.append(FactBlock(schema=schema, files=files, row_groups=row_groups, columns=packed))
    found = zip(corrupt["file"].to_pylist(), corrupt["message"].to_pylist(), strict=True)
    return FooterResult(blocks=tuple(blocks), corrupt=tuple(found))
