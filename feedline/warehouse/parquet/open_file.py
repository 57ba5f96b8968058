"""Open a file after checking that it is still the snapshot's, and decode its row groups.

Runs in every process that reads, once per split. Size, tag or time, and footer digest are compared with the snapshot's
before any row is read. A local file stays open. Of a remote one opening is a HEAD request, the footer one more (skipped
if this process has checked the footer of the same entity); a row group's column chunks are fetched in few requests
(`ranges`), repeated by `retry`, and decoded after another HEAD has proved that the object was not replaced. With a
cache (`file_chunks`), only the chunks that it lacks are fetched; if it has all, opening's HEAD is the only request.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate, islice
from typing import NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from feedline.errors import TableChangedError
from feedline.warehouse.cache.file_chunks import FileChunks
from feedline.warehouse.parquet.decode import DecodedRows, DecodeRequest, FileDecoder, FileVersion
from feedline.warehouse.parquet.dedup_columns import DedupMetadata, dedup_metadata
from feedline.warehouse.parquet.footer import (
    KEPT_FOOTERS,
    RecentValues,
    column_leaves,
    footer_digest,
    open_parquet,
    parsed_footer,
    parsed_footers,
)
from feedline.warehouse.parquet.schemas import storage_schema
from feedline.warehouse.parquet.stored_names import StoredNames, groups_under_other_names
from feedline.warehouse.storage.faults import Outlook, ShortBodyError, explain_errors, outlook
from feedline.warehouse.storage.fetch_clock import FETCH_CLOCK
from feedline.warehouse.storage.file_identity import Stamp, stamp_at, stamp_in, stamp_of
from feedline.warehouse.storage.ranges import Range, SparseFile, coalesce, merge, read_range
from feedline.warehouse.storage.retry import is_local, with_retries

T = TypeVar("T")

# The largest hole between two ranges of a local file that is read over: the system reads whole pages of memory anyway.
_HOLE_BYTES = 4096
_KEPT_TAGS = 4096  # files whose footer the process has checked: about 100 bytes each


class Restartable(Iterator[T]):
    """The items of an iteration that may fail: after an exception the next one begins again, behind those taken."""

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self._begin = begin
        self._items: Iterator[T] | None = None
        self._taken = 0

    def __next__(self) -> T:
        if self._items is None:
            self._items = islice(self._begin(), self._taken, None)
        try:
            item = next(self._items)
        except StopIteration:
            raise
        except Exception:
            self._items = None
            raise
        self._taken += 1
        return item


class ColumnSource(NamedTuple):
    """What the columns of a row group are decoded from: the file for pyarrow, as it is open by then; and its bytes."""

    parquet: Callable[[], pq.ParquetFile]
    read: Callable[[int, int], pa.Buffer]


def read_again(read: Callable[[], T], reopen: Callable[[], None], filesystem: pafs.FileSystem, uri: str) -> T:
    """Read; after a transient failure, open again and repeat it."""
    failed = False

    def attempt() -> T:
        nonlocal failed
        if failed:
            reopen()
        failed = True
        result = read()
        failed = False
        return result

    return with_retries(attempt, filesystem, uri)


class OpenFile:
    """An open Parquet file that was verified to be the snapshot's.

    `schema`, `stored` (each column's range of Parquet columns) and batches have the table's names.
    """

    def __init__(self, metadata: pq.FileMetaData, source: pa.NativeFile, version: FileVersion) -> None:
        self.metadata = metadata
        self.schema, self.stored, self.dedup, self.decoder = _layout(version, metadata)
        self._dictionaries: Sequence[str] = ()
        self._parquet: pq.ParquetFile | None = None
        self.base: OpenFile = self  # with column files, the file that they belong to
        self._source = source
        self._uri = version.uri

    def parquet(self) -> pq.ParquetFile:
        """The file for pyarrow, which takes a third of the time of opening a local file, and is seldom needed."""
        if self._parquet is None:
            self._parquet = open_parquet(self._source, self.metadata, pre_buffer=False, dictionaries=self._dictionaries)
        return self._parquet

    def close(self) -> None:
        if self._parquet is not None:
            self._parquet.close(force=True)
            self._parquet = None
        self._source.close()

    def reopen(self) -> None:
        """Open the file again, after a failure of the system that holds it."""

    def row_starts(self) -> list[int]:
        """Index in the file of every row group's first row; last, the file's rows."""
        rows = (self.metadata.row_group(index).num_rows for index in range(self.metadata.num_row_groups))
        return list(accumulate(rows, initial=0))

    def read_dictionaries(self, paths: Sequence[str]) -> None:
        """Decode these Parquet columns of strings as dictionaries from now on."""
        self._dictionaries, self._parquet = paths, None

    def read_at(self, size: int, start: int) -> bytes:
        """Read `size` bytes at an offset of the file."""
        raise NotImplementedError

    def read_spans(self, spans: Sequence[Range]) -> tuple[list[pa.Buffer], int]:
        """Read ranges of the file, each within it. Returns their bytes, and how many bytes were read for them: those
        between two ranges are read where that costs less."""
        raise NotImplementedError

    def drop_kept(self, row_group: int) -> bool:
        """Drop what a cache keeps of a row group, which does not decode. False: it came from the store."""
        return False

    def batches(self, request: DecodeRequest) -> Iterator[DecodedRows]:
        """Decode columns of one row group on the calling thread."""
        with self.fetched(request.row_group, request.all_leaves) as source:
            yield from self.decoder.batches(source.parquet, request, source.read)

    @contextmanager
    def fetched(self, row_group: int, leaves: Sequence[int]) -> Iterator[ColumnSource]:
        """Have the bytes of some Parquet columns of a row group ready to be decoded."""
        yield ColumnSource(self.parquet, self._read_range)

    def _read_range(self, start: int, stop: int) -> pa.Buffer:
        self._source.seek(start)
        return self._source.read_buffer(stop - start)


class _LocalFile(OpenFile):
    """A file at a local path. The kernel reads ahead, in place of `pre_buffer`, which copies out of the page cache.

    Measured with 40 of 400 columns, 65,536 rows: 29.1 ms to decode instead of 31.4. The path may lie on a mount: after
    a transient failure the file is opened again, since its handle may be stale, and read on.
    """

    def __init__(self, filesystem: pafs.FileSystem, path: str, version: FileVersion) -> None:
        self._filesystem, self._path, self._version = filesystem, path, version
        with explain_errors(version.uri, listed=True):
            source, metadata = with_retries(self._open, filesystem, version.uri)
        super().__init__(metadata, source, version)

    def read_at(self, size: int, start: int) -> bytes:
        """As `OpenFile.read_at`."""
        with explain_errors(self._uri, listed=True):
            content: bytes = self._read_again(lambda: self._source.read_at(size, start))
        return content

    def read_spans(self, spans: Sequence[Range]) -> tuple[list[pa.Buffer], int]:
        """As `OpenFile.read_spans`."""
        runs = merge(spans, _HOLE_BYTES)
        if len(runs) > 1:
            self._read_ahead(runs)
        with explain_errors(self._uri, listed=True):
            contents: list[bytes] = self._read_again(lambda: [_read_all(self._source, *run) for run in runs])
        starts, buffers = [start for start, _ in runs], [pa.py_buffer(content) for content in contents]
        found = []
        for start, stop in spans:
            index = bisect_right(starts, start) - 1
            found.append(buffers[index].slice(start - starts[index], stop - start))
        return found, sum(map(len, contents))

    def batches(self, request: DecodeRequest) -> Iterator[DecodedRows]:
        """As `OpenFile.batches`."""
        decoded = Restartable(lambda: OpenFile.batches(self, request))
        yield from iter(lambda: self._read_again(lambda: next(decoded, None)), None)

    @contextmanager
    def fetched(self, row_group: int, leaves: Sequence[int]) -> Iterator[ColumnSource]:
        """As `OpenFile.fetched`: the system is told what will be read, unless that is one column."""
        if len(leaves) > 1:
            self._read_ahead(coalesce([facts.place for facts in self.decoder.facts(row_group, leaves)]))
        yield ColumnSource(self.parquet, self._read_range)

    def reopen(self) -> None:
        """As `OpenFile.reopen`."""
        self.close()
        self._source, _ = self._open()

    def _read_ahead(self, ranges: Sequence[Range]) -> None:
        with suppress(OSError, AttributeError):  # only a hint to the kernel
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                for start, stop in ranges:
                    os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def _read_again(self, read: Callable[[], T]) -> T:
        return read_again(read, self.reopen, self._filesystem, self._uri)

    def _open(self) -> tuple[pa.NativeFile, pq.FileMetaData]:
        version = self._version
        info = self._filesystem.get_file_info(self._path)
        if info.type != pafs.FileType.NotFound:
            version.refuse_other(stamp_in(info))
        source = self._filesystem.open_input_file(self._path)
        try:
            tail = source.read_at(version.footer_bytes, version.size_bytes - version.footer_bytes)
            return source, _metadata(version, tail)
        except BaseException:
            source.close()
            raise


class _RemoteFile(OpenFile):
    """A remote file, whose row groups are fetched before they are decoded."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, version: FileVersion, chunks: FileChunks | None) -> None:
        self._filesystem, self._path, self._version, self._chunks = filesystem, path, version, chunks
        with FETCH_CLOCK.waiting():
            self._source, self._stamp, metadata = with_retries(self._open, filesystem, version.uri, listed=True)
        self._dropped: set[int] = set()  # row groups that are read from the store alone
        super().__init__(metadata, self._source, version)

    def read_at(self, size: int, start: int) -> bytes:
        return with_retries(
            lambda: read_range(self._source, start, size), self._filesystem, self._version.uri, listed=True
        )

    def read_spans(self, spans: Sequence[Range]) -> tuple[list[pa.Buffer], int]:
        """As `OpenFile.read_spans`, verified to be of this file. From the store: a cache keeps whole column chunks."""
        sparse = SparseFile(self._version.size_bytes)
        nbytes = self._fetch(sparse, None, spans)
        return [sparse.read_range(*span) for span in spans], nbytes

    @contextmanager
    def fetched(self, row_group: int, leaves: Sequence[int]) -> Iterator[ColumnSource]:
        """As `OpenFile.fetched`: all bytes have arrived, and are verified to be of this file."""
        if not leaves:
            yield ColumnSource(lambda: open_parquet(pa.BufferReader(b""), self.metadata), self._read_range)
            return
        size = self._version.size_bytes
        sparse = SparseFile(size)
        ranges = [facts.place for facts in self.decoder.facts(row_group, leaves)]
        identity = self._identity()
        if self._chunks is None or identity is None or row_group in self._dropped:
            self._fetch(sparse, row_group, ranges)
        else:
            fetch = partial(self._fetch, sparse, row_group)
            self._chunks.fill(sparse, identity, row_group, ranges, fetch)
        with open_parquet(sparse.reader(), self.metadata, pre_buffer=False, dictionaries=self._dictionaries) as parquet:
            yield ColumnSource(lambda: parquet, sparse.read_range)

    def drop_kept(self, row_group: int) -> bool:
        """As `OpenFile.drop_kept`."""
        identity = self._identity()
        if self._chunks is None or identity is None or row_group in self._dropped:
            return False
        self._dropped.add(row_group)
        self._chunks.drop(identity, row_group)
        return True

    def _fetch(self, sparse: SparseFile, row_group: int | None, ranges: Sequence[Range]) -> int:
        """Fetch ranges, of a row group, from the store, and verify that they are of this file. Returns the bytes."""
        spans = coalesce(ranges)
        sparse.set_ranges(spans)

        def fetch() -> None:
            try:
                sparse.fetch(self._source)  # requests only the missing ranges
            except Exception as error:
                if outlook(error) is not Outlook.THROTTLED:
                    self._blame_change()
                raise
            self._verify_unchanged()

        with FETCH_CLOCK.waiting():
            with_retries(fetch, self._filesystem, self._version.uri, row_group=row_group, listed=True)
        return sum(stop - start for start, stop in spans)

    def _identity(self) -> tuple[str, ...] | None:
        """What names the file's content for a cache; None where nobody can tell.

        The options of its URI are not in it: an object of the same tag (or time), size and footer is the same.
        """
        version = self._version
        content = (self._stamp if self._stamp.tag else version.stamp).content_name
        if content is None:
            return None
        return version.uri, str(version.size_bytes), content, version.footer_digest.hex()

    def _open(self) -> tuple[pa.NativeFile, Stamp, pq.FileMetaData]:
        version = self._version
        source = self._filesystem.open_input_file(self._path)
        try:
            stamp = stamp_of(self._filesystem, self._path, source)
            version.refuse_other(stamp)
            checked = _checked_footers.get((version.uri, stamp.tag)) == version.footer_digest
            metadata = parsed_footers.get(version.footer_digest) if checked else None
            if metadata is None:
                tail = read_range(source, version.size_bytes - version.footer_bytes, version.footer_bytes)
                metadata = _metadata(version, tail)
                if stamp.tag:
                    _checked_footers.put((version.uri, stamp.tag), version.footer_digest)
        except BaseException:
            source.close()
            raise
        return source, stamp, metadata

    def _blame_change(self) -> None:
        """Raise TableChangedError if the store failed because the file changed; ignore failures of the check."""
        try:
            self._verify_unchanged()
        except TableChangedError:
            raise
        except Exception:
            return

    def _verify_unchanged(self) -> None:
        stamp = stamp_at(self._filesystem, self._path)
        self._version.refuse_other(stamp)
        if stamp.tag != self._stamp.tag and self._filesystem.type_name != "gcs":  # which tags files that are opened
            raise TableChangedError(
                f"{self._version.uri} was replaced while it was read. Take a new snapshot, or go on with feedline "
                "rebase"
            )


@contextmanager
def open_unchanged(
    filesystem: pafs.FileSystem, path: str, version: FileVersion, chunks: FileChunks | None = None
) -> Iterator[OpenFile]:
    """Open a file and verify that it is the snapshot's. chunks: keeps what is fetched of a file in a store.

    Raises TableChangedError if it is not, StoreError if the store keeps failing.
    """
    local = is_local(filesystem)
    file = _LocalFile(filesystem, path, version) if local else _RemoteFile(filesystem, path, version, chunks)
    try:
        yield file
    finally:
        file.close()


def _read_all(source: pa.NativeFile, start: int, stop: int) -> bytes:
    """Bytes of a local file. Raises ShortBodyError where it has fewer: opened again, it is seen to have changed."""
    content: bytes = source.read_at(stop - start, start)
    if len(content) != stop - start:
        raise ShortBodyError(f"file is too short: got {len(content)} bytes at {start}, expected {stop - start}")
    return content


_Layout: TypeAlias = tuple[pa.Schema, dict[str, range], DedupMetadata | None, FileDecoder]


_layouts: RecentValues[tuple[str, bytes, StoredNames | None, str], _Layout] = RecentValues(KEPT_FOOTERS)
_checked_footers: RecentValues[tuple[str, str], bytes] = RecentValues(_KEPT_TAGS)  # digests by file and entity tag


def _layout(version: FileVersion, metadata: pq.FileMetaData) -> _Layout:
    """A file's schema, Parquet columns and groups stored once per run, kept by footer: it is opened once per split."""
    key = version.uri, version.footer_digest, version.stored_names, version.decoder
    known = _layouts.get(key)
    if known is not None:
        return known
    with open_parquet(pa.BufferReader(b""), metadata) as parquet:
        read = parquet.schema_arrow
    schema = storage_schema(read)
    as_stored = schema == read
    rows = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
    dedup = dedup_metadata(metadata.metadata, schema, rows, version.uri)
    if version.stored_names is not None:
        if dedup is not None:
            raise groups_under_other_names(version.uri)
        schema = version.stored_names.schema(schema, version.uri)
    # Of a file with the same columns: finding these takes longer than to compare them.
    like = _layouts.find(lambda layout: layout[3].decodes(schema, metadata))
    if like is None:
        stored = dict(zip(schema.names, column_leaves(schema, metadata.num_columns, version.uri), strict=True))
    else:
        stored = like[1]
    decoder = FileDecoder(
        schema, stored, metadata, version, as_stored=as_stored, like=None if like is None else like[3]
    )
    return _layouts.put(key, (schema, stored, dedup, decoder))


def _metadata(version: FileVersion, tail: bytes) -> pq.FileMetaData:
    if footer_digest(tail) != version.footer_digest:
        raise TableChangedError(
            f"{version.uri} was replaced after the snapshot was taken: got another footer in a file of the "
            "same size and time. Delete work_dir/tables, which caches footers, and take a new snapshot, or go on "
            "with feedline rebase"
        )
    return parsed_footer(version.footer_digest, tail)
