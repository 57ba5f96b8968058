"""Open a base file together with its column files, and decode their row groups as those of one file.

Runs in every process that reads, once per split, where a request needs a field of a column file. Each file is opened
and verified by itself (`open_file`). Their columns are decoded in one pass, by one decoder over the joined footer: the
kernel reads each column chunk from its own file, and what pyarrow decodes of several files keeps step by rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate
from typing import TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from feedline.dataclass import dataclass
from feedline.warehouse.cache.file_chunks import FileChunks
from feedline.warehouse.parquet.decode import DecodedRows, DecodeRequest, FileDecoder, FileVersion
from feedline.warehouse.parquet.footer import KEPT_FOOTERS, RecentValues
from feedline.warehouse.parquet.joined_footer import FooterPart, JoinedFooter
from feedline.warehouse.parquet.open_file import OpenFile, Restartable, open_unchanged, read_again
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.ranges import Range
from feedline.warehouse.storage.retry import is_local


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToJoin:
    """A file on the table's filesystem, as of the snapshot; the fields to read of a column file. chunks: as in
    `open_unchanged`."""

    path: str
    version: FileVersion
    fields: tuple[str, ...] = ()
    chunks: FileChunks | None = None


@contextmanager
def open_joined(filesystem: pafs.FileSystem, base: FileToJoin, columns: Sequence[FileToJoin]) -> Iterator[OpenFile]:
    """Open a file with its column files. Raises as `open_unchanged`."""
    with ExitStack() as stack:
        files = [
            stack.enter_context(open_unchanged(filesystem, file.path, file.version, file.chunks))
            for file in (base, *columns)
        ]
        yield JoinedFile(filesystem, files, base, columns)


_Layout: TypeAlias = tuple[JoinedFooter, pa.Schema, dict[str, range], FileDecoder]
_layouts: RecentValues[tuple[object, ...], _Layout] = RecentValues(KEPT_FOOTERS)


class JoinedFile(OpenFile):
    """A base file and its column files, open and verified. The base's Parquet columns come first."""

    def __init__(
        self, filesystem: pafs.FileSystem, files: Sequence[OpenFile], base: FileToJoin, columns: Sequence[FileToJoin]
    ) -> None:
        self.base, self.dedup = files[0], files[0].dedup
        self._filesystem, self._files, self._uri = filesystem, files, base.version.uri
        self._uris = [base.version.uri, *(file.version.uri for file in columns)]
        sizes = [base.version.size_bytes, *(file.version.size_bytes for file in columns)]
        self._starts = list(accumulate(sizes[:-1], initial=0))
        self._footer, self.schema, self.stored, self.decoder = self._layout(base.version, columns, sizes)
        self.metadata = self._footer  # as much of one as is asked for

    def close(self) -> None:
        """Those that opened the files close them."""

    def read_dictionaries(self, paths: Sequence[str]) -> None:
        """As `OpenFile.read_dictionaries`, of the base file: a column file holds no maps."""
        self.base.read_dictionaries(paths)

    def read_at(self, size: int, start: int) -> bytes:
        """As `OpenFile.read_at`, of the base file, which alone may have bloom filters."""
        return self.base.read_at(size, start)

    def read_spans(self, spans: Sequence[Range]) -> tuple[list[pa.Buffer], int]:
        """As `OpenFile.read_spans`, of the base file, of which alone pages are read."""
        return self.base.read_spans(spans)

    def drop_kept(self, row_group: int) -> bool:
        """As `OpenFile.drop_kept`, of all files."""
        dropped = [file.drop_kept(row_group) for file in self._files]
        return any(dropped)

    def reopen(self) -> None:
        """As `OpenFile.reopen`, of all files."""
        for file in self._files:
            file.reopen()

    def batches(self, request: DecodeRequest) -> Iterator[DecodedRows]:
        """As `OpenFile.batches`, after the bytes of all files have arrived."""
        if not is_local(self._filesystem):
            yield from self._decode(request)
            return
        decoded = Restartable(lambda: self._decode(request))
        read = partial(next, decoded, None)
        yield from iter(lambda: read_again(read, self.reopen, self._filesystem, self._uri), None)

    def _decode(self, request: DecodeRequest) -> Iterator[DecodedRows]:
        with ExitStack() as stack:
            leaves: dict[int, list[int]] = {part.start: [] for part in self._footer.parts}
            for part, leaf in map(self._footer.place, request.all_leaves):
                leaves[part.start].append(leaf)
            sources = [
                stack.enter_context(file.fetched(request.row_group, own))
                for file, own in zip(self._files, leaves.values(), strict=True)
            ]

            def read(start: int, stop: int) -> pa.Buffer:
                index = bisect_right(self._starts, start) - 1
                return sources[index].read(start - self._starts[index], stop - self._starts[index])

            readers = _Readers([source.parquet for source in sources], self._footer, self._uris)
            yield from self.decoder.batches(lambda: readers, request, read)

    def _layout(self, version: FileVersion, columns: Sequence[FileToJoin], sizes: Sequence[int]) -> _Layout:
        """The footer, schema, Parquet columns and decoder of all files, kept by their footers."""
        others = [(file.version.uri, file.version.footer_digest, file.fields) for file in columns]
        key = version.uri, version.footer_digest, version.decoder, *others
        known = _layouts.get(key)
        if known is not None:
            return known
        base = self.base
        leaves = [range(base.metadata.num_columns), *map(_leaves, self._files[1:], columns)]
        parts = zip(self._files, leaves, self._starts, sizes, strict=True)
        footer = JoinedFooter([FooterPart(file.metadata, own, start, size) for file, own, start, size in parts])
        pairs = list(zip(self._files[1:], columns, strict=True))
        added = [field for file, column in pairs for field in _fields(file, column)]
        names = {field.name for field in added}
        schema = pa.schema([*(field for field in base.schema if field.name not in names), *added])
        stored = {name: leaves for name, leaves in base.stored.items() if name not in names}
        uris, first = {}, base.metadata.num_columns
        for file, column in pairs:
            for field in _fields(file, column):
                stored[field.name] = range(first, first + len(file.stored[field.name]))
                uris[field.name], first = column.version.uri, first + len(file.stored[field.name])
        like = _layouts.find(lambda layout: layout[3].decodes(schema, footer))
        decoder = FileDecoder(
            schema,
            stored,
            footer,
            version,
            as_stored=all(file.decoder.as_stored for file in self._files),
            like=None if like is None else like[3],
            uris=uris,
        )
        return _layouts.put(key, (footer, schema, stored, decoder))


def _fields(file: OpenFile, column: FileToJoin) -> list[pa.Field]:
    return [file.schema.field(name) for name in column.fields]


def _leaves(file: OpenFile, column: FileToJoin) -> list[int]:
    return [leaf for name in column.fields for leaf in file.stored[name]]


class _Readers:
    """As much of `pq.ParquetFile` as `FileDecoder` asks for, over several files."""

    def __init__(
        self, files: Sequence[Callable[[], pq.ParquetFile]], footer: JoinedFooter, uris: Sequence[str]
    ) -> None:
        self._files = files
        self._footer = footer
        self._uris = uris

    @property
    def reader(self) -> _Readers:
        return self

    def iter_batches(
        self, rows: int, *, row_groups: Sequence[int], column_indices: Sequence[int], use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        """The columns of a row group, of all files in step."""
        streams = [
            _explained(
                self._files[index]().reader.iter_batches(
                    rows, row_groups=row_groups, column_indices=own, use_threads=use_threads
                ),
                self._uris[index],
                row_groups[0],
            )
            for index, own in self._by_file(column_indices).items()
        ]
        return streams[0] if len(streams) == 1 else in_step(streams)

    def read_row_group(self, row_group: int, *, column_indices: Sequence[int], use_threads: bool) -> pa.Table:
        """Columns of a row group, which are those of the base file: flags of runs."""
        own = self._by_file(column_indices)
        assert list(own) == [0], "column files hold no flags"
        return self._files[0]().reader.read_row_group(row_group, column_indices=own[0], use_threads=use_threads)

    def _by_file(self, leaves: Sequence[int]) -> dict[int, list[int]]:
        """The Parquet columns of each file, by its index; without any, none of the base file's."""
        found: dict[int, list[int]] = {}
        for leaf in leaves:
            part, own = self._footer.place(leaf)
            found.setdefault(self._footer.parts.index(part), []).append(own)
        return found or {0: []}


def _explained(batches: Iterator[pa.RecordBatch], uri: str, row_group: int) -> Iterator[pa.RecordBatch]:
    """The batches, with errors that name the file."""

    def take() -> pa.RecordBatch | None:
        with explain_errors(uri, row_group=row_group, listed=True):
            return next(batches, None)

    yield from iter(take, None)


def in_step(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Batches of all columns of several streams, which have the same rows, cut differently; until one of them ends."""
    # rows [4, 2] and [3, 3] -> [3, 1, 2]
    held: list[pa.RecordBatch | None] = [None] * len(streams)
    while True:
        for index, stream in enumerate(streams):
            batch = held[index]
            while batch is None or not batch.num_rows:
                batch = next(stream, None)
                if batch is None:
                    return
            held[index] = batch
        batches = [batch for batch in held if batch is not None]
        rows = min(batch.num_rows for batch in batches)
        arrays = {
            name: column.slice(0, rows)
            for batch in batches
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        yield pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        held = [batch.slice(rows) for batch in batches]
