"""Read the footers of a large table in waves, and keep those of finished waves so that an interrupted snapshot resumes.

Runs where a snapshot is taken. A table of more than one wave keeps what each wave read in `work_dir/footers`, under a
name that covers the wave's files with their sizes, times and etags, until the snapshot is saved. A wave with a file
that may have been replaced while it was read (no time or etag, or younger than the clock's grain) is not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.progress import report_progress
from feedline.version import VERSION
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.footer_tasks import FOOTERS, FooterResult, read_footers
from feedline.warehouse.snapshot.packed_facts import FactBlock
from feedline.warehouse.storage.file_identity import is_settled, tags_of
from feedline.warehouse.storage.kept_waves import KeptWaves
from feedline.warehouse.storage.parallel import Map

_VERSION = 2  # of what a wave keeps
_WAVE_FILES = 16_384  # 40 s of one core: an interruption loses little
_PARTS = 3  # tables of a block
_FOLDER = "footers"


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
        self._kept = KeptWaves(work_dir)
        self._done = 0  # files

    def read(self) -> Iterator[FooterResult]:
        """The footers, from kept waves where there are any. Raises as `read_footers`."""
        for start in range(0, len(self._indices), _WAVE_FILES):
            part = self._indices[start : start + _WAVE_FILES]
            yield from self._wave(part) if len(self._indices) > _WAVE_FILES else self._read(part)

    def forget(self) -> None:
        """Remove the kept waves, as the snapshot is saved, and those of other snapshots that are a week old."""
        if len(self._indices) > _WAVE_FILES:
            self._kept.forget(_FOLDER)

    def _wave(self, indices: npt.NDArray[np.int64]) -> list[FooterResult]:
        files = self._listing.files.take(pa.array(indices)).combine_chunks()
        if self._work_dir is None or not _is_settled(files, self._now_ns):
            return list(self._read(indices))
        name = _name(self._listing, indices, files)
        tables = self._kept.load(name)
        if tables is not None:
            result = _result(tables)
            self._report(result.files)
        else:
            results = list(self._read(indices))
            result = FooterResult(
                blocks=tuple(block for each in results for block in each.blocks),
                corrupt=tuple(found for each in results for found in each.corrupt),
            )
            self._kept.save(name, _tables(result), compression=None)
        return [result]

    def _read(self, indices: npt.NDArray[np.int64]) -> Iterator[FooterResult]:
        files = self._listing.files.select(["path", "bytes"]).take(pa.array(indices))
        values = zip(indices.tolist(), files["path"].to_pylist(), files["bytes"].to_pylist(), strict=True)
        self._report(0)
        for result in read_footers(self._listing.uri, list(values), self._map, stored_names=self._listing.stored_names):
            self._report(result.files)
            yield result

    def _report(self, files: int) -> None:
        self._done += files
        report_progress(FOOTERS, self._done, len(self._indices), "files")


def _is_settled(files: pa.Table, now_ns: int) -> bool:
    """Whether the listing identifies the content of each file: by its etag, or by a time that is old enough."""
    return bool(((tags_of(files) != "") | is_settled(files["mtime_ns"].to_numpy(), now_ns)).all())


def _name(listing: Listing, indices: npt.NDArray[np.int64], files: pa.Table) -> str:
    identity = files.select([name for name in ("path", "bytes", "mtime_ns", "etag") if name in files.schema.names])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, identity.schema) as writer:
        writer.write_table(identity)
    digest = hashlib.sha256(f"{_VERSION} {VERSION} {pa.__version__} {listing.uri} ".encode())
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


def _result(tables: Sequence[pa.Table]) -> FooterResult:
    """The facts of a wave, as `_tables` keeps them."""
    corrupt, *parts = tables
    blocks = []
    for first in range(0, len(parts), _PARTS):
        files, row_groups, columns = parts[first : first + _PARTS]
        schema = pa.ipc.read_schema(pa.py_buffer(columns.schema.metadata[b"schema"]))
        packed = tuple(value.as_buffer() for value in columns["column"])
        blocks.append(FactBlock(schema=schema, files=files, row_groups=row_groups, columns=packed))
    found = zip(corrupt["file"].to_pylist(), corrupt["message"].to_pylist(), strict=True)
    return FooterResult(blocks=tuple(blocks), corrupt=tuple(found))
