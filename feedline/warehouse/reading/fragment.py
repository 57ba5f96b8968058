"""Fragments, the row groups of one file that a task reads, and the chunks of rows read from them.

Pure values: a `Fragment` lists the row groups of a file, how many rows of each the filter must keep, and which of the
kept rows to omit (`excluded`, one bit per kept row, lowest bit first: 8 KiB for 65,536 rows). It is derived from a
snapshot and a selection where work is planned, and travels with the request.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError
from feedline.expressions.column_parts import PartError, part_field, part_of
from feedline.native.unique_rows import UniqueRows
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.cache.file_chunks import FileChunks
from feedline.warehouse.discovery.column_log import ColumnFile, column_files_of
from feedline.warehouse.parquet.decode import DecodedRows, FileVersion
from feedline.warehouse.parquet.joined_file import FileToJoin, open_joined
from feedline.warehouse.parquet.open_file import OpenFile, open_unchanged
from feedline.warehouse.parquet.stored_names import StoredNames
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.reading.stored_groups import group_part
from feedline.warehouse.snapshot.history_ref import HistoryRef
from feedline.warehouse.snapshot.snapshot import ExplodedLists, Snapshot
from feedline.warehouse.snapshot.splits import Splits
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.file_identity import Stamp, stamp_at, stamp_at_index
from feedline.warehouse.storage.locations import join, locate, redact
from feedline.warehouse.storage.retry import with_retries

UNCOUNTED = -1  # in `expected`: the kept rows have not been counted, so they are not checked

# Files whose fields are kept: more than a window of a shuffle has pieces.
_RECENT_FILES = 4096
_Digest = bytes  # within `Fragment` the field `bytes` hides the type


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The row groups of one file that one task reads.

    `table`: the root's URI; `path`: the file below it; `bytes`, `mtime_ns`, `tag` (empty without one), `footer_digest`,
    `footer_bytes`: the file as of the snapshot. `row_groups`: indices in the file; `expected`: kept rows of each, or
    UNCOUNTED; `proofs`: what statistics prove about each (bits of `row_filter`), empty if nothing. `partition`: the
    file's keys and typed values. `excluded`: per row group, the kept rows that `read_fragment` omits (bits, see
    `pack_mask`) or None; empty if no row group has any. `stored_names`: of the table's columns in the file, if they are
    not the table's. `columns`: the file's column files. `exploded`, `decoder`, `source_cache`, `histories`: see
    `Snapshot`. `spans`: of exploded rows, the first and the end of each row group's, in those of the file; empty for
    rows as they are stored, or not yet counted.
    """

    table: str
    path: str
    bytes: int
    mtime_ns: int
    footer_digest: _Digest
    footer_bytes: int
    row_groups: tuple[int, ...]
    expected: tuple[int, ...]
    tag: str = ""
    partition: tuple[tuple[str, object], ...] = ()
    proofs: tuple[int, ...] = ()
    excluded: tuple[_Digest | None, ...] = ()
    stored_names: StoredNames | None = None
    columns: tuple[ColumnFile, ...] = ()
    decoder: str = "auto"
    source_cache: CacheRef | None = field(default=None, repr=False)  # no key names it: bytes do not depend on it
    histories: tuple[HistoryRef, ...] = ()
    exploded: ExplodedLists | None = None
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def uri(self) -> str:
        """The file's URI for messages."""
        return join(redact(self.table), self.path)

    def open(self, names: Collection[str] | None = None) -> AbstractContextManager[OpenFile]:
        """Open the file, if it is the snapshot's (see `open_unchanged`), with its column files: with those alone that
        these columns and parts are read from, if names are given."""
        filesystem, base = locate(self.table).filesystem, self._to_join(self.path, self.file_version)
        columns = self.columns if names is None else self.columns_for(names)
        if not columns:
            return open_unchanged(filesystem, base.path, base.version, base.chunks)
        others = [self._to_join(file.path, self._version_of(file), file) for file in columns]
        return open_joined(filesystem, base, others)

    def columns_for(self, names: Iterable[str]) -> tuple[ColumnFile, ...]:
        """The column files that these columns and parts may be read from."""
        if not self.columns:
            return ()
        parts = {name: part_of(name) for name in names}
        columns = {name if part is None else part.column for name, part in parts.items()}.union(parts)
        # a map's key may have a column of its own, `map.key`
        maps = tuple(f"{part.column}." for part in parts.values() if part is not None)
        return tuple(
            file
            for file in self.columns
            if any(field in columns or (maps and field.startswith(maps)) for field in file.fields)
        )

    def _to_join(self, path: str, version: FileVersion, file: ColumnFile | None = None) -> FileToJoin:
        cache = None
        if self.source_cache is not None:
            cache = FileChunks(
                cache=self.source_cache, table=redact(self.table), path=path, partition=dict(self.partition)
            )
        full = join(locate(self.table).path, path)
        return FileToJoin(path=full, version=version, fields=() if file is None else file.fields, chunks=cache)

    def _version_of(self, file: ColumnFile) -> FileVersion:
        return FileVersion(
            uri=join(redact(self.table), file.path),
            stamp=file.stamp,
            footer_digest=file.footer_digest,
            footer_bytes=file.footer_bytes,
            decoder=self.decoder,
        )

    def check(self) -> None:
        """Check that the file and its column files are the snapshot's, by a request each and without opening them.
        Raises TableChangedError."""
        filesystem = locate(self.table).filesystem
        files = [(self.path, self.file_version), *((file.path, self._version_of(file)) for file in self.columns)]
        for each, version in files:
            path = join(locate(self.table).path, each)
            with explain_errors(version.uri, listed=True):
                stamp = with_retries(partial(stamp_at, filesystem, path), filesystem, version.uri, listed=True)
            version.refuse_other(stamp)

    def alone(self, position: int) -> Fragment:
        """One of its row groups."""
        excluded = self.excluded[position] if self.excluded else None
        return replace(
            self,
            row_groups=(self.row_groups[position],),
            expected=(self.expected[position],),
            proofs=(self.proofs[position],) if self.proofs else (),
            excluded=() if excluded is None else (excluded,),
            spans=self.spans[position : position + 1],
        )

    def rows_of(self, position: int) -> int:
        """The kept rows of a row group, without those that are excluded."""
        return self.expected[position] - (count_excluded(self.excluded[position]) if self.excluded else 0)

    def span_of(self, position: int, file: OpenFile) -> tuple[int, int]:
        """The rows of a row group in those of the file: the first, and the end."""
        if self.spans:
            return self.spans[position]
        first, stop = file.row_starts()[self.row_groups[position] : self.row_groups[position] + 2]
        return first, stop

    def first_rows(self, file: OpenFile) -> list[int]:
        """The first row of each row group, in those of the file."""
        if self.spans:
            return [first for first, _ in self.spans]
        starts = file.row_starts()
        return [starts[row_group] for row_group in self.row_groups]

    def proofs_of(self, position: int) -> int:
        return self.proofs[position] if self.proofs else 0

    @property
    def stamp(self) -> Stamp:
        """The file as its store described it for the snapshot."""
        return Stamp(self.bytes, self.mtime_ns, self.tag)

    @property
    def file_version(self) -> FileVersion:
        return FileVersion(
            uri=self.uri,
            stamp=self.stamp,
            footer_digest=self.footer_digest,
            footer_bytes=self.footer_bytes,
            stored_names=self.stored_names,
            decoder=self.decoder,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Kept rows of one row group, in file order.

    `position`: the row group's index in the fragment. `start`: rows that the row group delivered before these.
    `groups`: the columns that are delivered as unique rows; `frame` has the others, at least one. `dictionaries`: of
    the columns, of `frame` and of `groups`, that are codes (Int32, UInt16 or lists of these), the values.
    """

    frame: pl.DataFrame
    fragment: Fragment
    position: int
    start: int
    groups: tuple[UniqueRows[pl.DataFrame], ...] = ()
    dictionaries: Mapping[str, pa.Array] = field(default_factory=dict)

    @property
    def row_group(self) -> int:
        """The row group's index in the file."""
        return self.fragment.row_groups[self.position]

    @property
    def uri(self) -> str:
        return self.fragment.uri

    def part(self, start: int, stop: int) -> Chunk:
        """Return the rows [start, stop)."""
        groups = tuple(group_part(group, start, stop) for group in self.groups)
        return replace(self, frame=self.frame.slice(start, stop - start), start=self.start + start, groups=groups)


@dataclass(frozen=True)
class FrameBatch:
    """Decoded rows in the table's types, before filtering; `position`: their row group's index in the fragment.

    `first_row`: the first row's index in the file if row numbers were requested, else 0. `row_filter`: the conditions
    still to be evaluated. `groups`: the columns that are delivered as unique rows, which `data` lacks. `decoded`: the
    columns of `data` as they were decoded, where those are all that it has; `data` is made of them when it is needed.
    """

    position: int
    make_data: Callable[[], pa.RecordBatch]
    first_row: int
    row_filter: RowFilter
    groups: tuple[UniqueRows[pa.RecordBatch], ...] = ()
    decoded: DecodedRows | None = None

    @cached_property
    def data(self) -> pa.RecordBatch:
        return self.make_data()


def gather(fragments: Iterable[tuple[Fragment, int]], most: int, most_fragments: int) -> Iterator[tuple[Fragment, ...]]:
    """Group fragments in order. A group ends where the numbers given with its fragments, of rows or bytes, reach `most`
    together, or with `most_fragments`.
    """
    group: list[Fragment] = []
    total = 0
    for fragment, size in fragments:
        group.append(fragment)
        total += size
        if total >= most or len(group) >= most_fragments:
            yield tuple(group)
            group, total = [], 0
    if group:
        yield tuple(group)


def fragment_of(
    snapshot: Snapshot,
    splits: Splits,
    selection_rows: npt.NDArray[np.int64],
    split_index: int,
    proofs: npt.NDArray[np.uint8] | None = None,
) -> Fragment:
    """Return the fragment of one split: its row groups that keep rows (`selection_rows`: kept rows per row group)."""
    first, stop = int(splits.first_row_group[split_index]), int(splits.stop_row_group[split_index])
    file, row_groups = int(splits.file[split_index]), np.arange(first, stop)
    return fragment_at(snapshot, file, row_groups, selection_rows[first:stop], proofs)


def fragment_at(
    snapshot: Snapshot,
    file: int,
    row_groups: npt.NDArray[np.int64],
    expected: npt.NDArray[np.int64],
    proofs: npt.NDArray[np.uint8] | None = None,
) -> Fragment:
    """Return the fragment of some row groups (indices in the table) of one file, without those that keep no row.

    `proofs`: per row group of the table, see `Fragment`.
    """
    present = np.flatnonzero(expected)
    places = snapshot.row_group_in_file[row_groups[present]]
    spans: tuple[tuple[int, int], ...] = ()
    if snapshot.exploded is not None:
        own = snapshot.rows_per_row_group[snapshot.row_groups_of(file)]
        ends = np.cumsum(own)[places]
        spans = tuple(zip((ends - own[places]).tolist(), ends.tolist(), strict=True))
    return Fragment(
        **_file_facts(snapshot, file),
        row_groups=tuple(places.tolist()),
        expected=tuple(expected[present].tolist()),
        proofs=() if proofs is None else tuple(proofs[row_groups[present]].tolist()),
        spans=spans,
    )


def _file_facts(snapshot: Snapshot, file: int) -> dict[str, Any]:
    """The fields of a file's fragments that are the same in all of them."""
    known = snapshot.recent_files.get(file)
    if known is None:
        facts, stamp = snapshot.files, stamp_at_index(snapshot.files, file)
        known = {
            "table": snapshot.uri,
            "path": facts["path"][file].as_py(),
            "bytes": stamp.size_bytes,
            "mtime_ns": stamp.mtime_ns,
            "tag": stamp.tag,
            "footer_digest": facts["footer_digest"][file].as_py(),
            "footer_bytes": facts["footer_bytes"][file].as_py(),
            "partition": snapshot.partition_of(file),
            "stored_names": snapshot.stored_names,
            "columns": column_files_of(facts, file),
            "decoder": snapshot.decoder,
            "source_cache": snapshot.source_cache,
            "histories": snapshot.histories,
            "exploded": snapshot.exploded,
        }
        if len(snapshot.recent_files) >= _RECENT_FILES:
            snapshot.recent_files.clear()
        snapshot.recent_files[file] = known
    return known


def field_of(schema: pa.Schema, name: str) -> pa.Field:
    """Return the field of a column or column part. Raises TableArgumentError, naming the nearest, if there is none."""
    index = schema.get_field_index(name)
    if index >= 0:
        return schema.field(index)
    part = part_of(name)
    if part is not None:
        try:
            return part_field(schema, part).with_name(name)
        except PartError as error:
            raise TableArgumentError(f"{error}. Name a column, or one of its keys") from None
    raise TableArgumentError(f"column {name!r} is not in the table. {nearest_hint(name, schema.names)}")


def nearest_hint(name: str, names: Sequence[str]) -> str:
    """The remedy for an unknown name: the nearest one, or the first ones."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(names[:20])}"


def pack_mask(mask: Bools) -> bytes:
    """Pack bool [rows] into bits."""
    # [True, False, False, True] -> 0b1001
    return np.packbits(mask, bitorder="little").tobytes()


def unpack_mask(bits: bytes | None, rows: int) -> Bools:
    """Unpack bits into bool [rows]; None stands for all false."""
    if bits is None:
        return np.zeros(rows, np.bool_)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows, bitorder="little").view(np.bool_)


def count_excluded(bits: bytes | None) -> int:
    """Count the rows that the bits exclude."""
    return 0 if bits is None else int(np.bitwise_count(np.frombuffer(bits, np.uint8)).sum())
