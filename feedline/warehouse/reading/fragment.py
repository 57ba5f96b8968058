"""The order to read some row groups of one file, and the rows that come of it.

Pure values: a `Fragment` says which row groups of a file a task reads, how many rows of each the filter must keep, and
which of the kept rows are left out (`excluded`, one bit per kept row, lowest bit first: 8 KiB for 65,536 rows). It is
made from a snapshot and a selection where work is planned, and travels with the request.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from feedline.errors import TableArgumentError
from feedline.expressions.column_parts import PartError, part_field, part_of
from feedline.warehouse.parquet.open_file import FileVersion
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import Splits
from feedline.warehouse.storage.locations import join, redact

UNCOUNTED = -1  # in `expected`: the rows a filter keeps are not known beforehand, and not checked

_Digest = bytes  # `Fragment.bytes` hides the type of that name


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The row groups of one file that one task reads.

    `table`: the root's URI; `path`: the file below it; `bytes`, `mtime_ns`, `footer_digest`, `footer_bytes`: the file
    as the snapshot saw it. `row_groups`: indices in the file; `expected`: rows kept of each, or UNCOUNTED;
    `proven`: what statistics prove of each (bits of `row_filter`), empty where nothing is known. `partition`: the
    file's keys and typed values. `excluded`: per row group, which of the kept rows `read_fragment` leaves out (bits,
    see `pack_mask`), or None for none of them; empty where none of any.
    """

    table: str
    path: str
    bytes: int
    mtime_ns: int
    footer_digest: _Digest
    footer_bytes: int
    row_groups: tuple[int, ...]
    expected: tuple[int, ...]
    partition: tuple[tuple[str, object], ...] = ()
    proven: tuple[int, ...] = ()
    excluded: tuple[_Digest | None, ...] = ()

    @property
    def uri(self) -> str:
        """The file, as messages name it."""
        return join(redact(self.table), self.path)

    def proven_of(self, position: int) -> int:
        """What statistics say of one of its row groups."""
        return self.proven[position] if self.proven else 0

    @property
    def seen(self) -> FileVersion:
        """The file as the snapshot saw it."""
        return FileVersion(
            uri=self.uri,
            size_bytes=self.bytes,
            mtime_ns=self.mtime_ns,
            footer_digest=self.footer_digest,
            footer_bytes=self.footer_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some kept rows of one row group, in file order.

    `position`: of the row group in the fragment. `start`: rows that the row group delivered before these.
    """

    frame: pl.DataFrame
    fragment: Fragment
    position: int
    start: int

    @property
    def row_group(self) -> int:
        """Its index in the file."""
        return self.fragment.row_groups[self.position]

    @property
    def uri(self) -> str:
        """The file, as messages name it."""
        return self.fragment.uri

    def part(self, start: int, stop: int) -> Chunk:
        """Its rows [start, stop)."""
        return replace(self, frame=self.frame.slice(start, stop - start), start=self.start + start)


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Decoded rows in the table's types, before the filter; `position` of their row group in the fragment.

    `first_row`: index of the first of them in the file, where that was asked for (else 0). `row_filter`: the conditions
    that are left to decide.
    """

    position: int
    data: pa.RecordBatch
    first_row: int
    row_filter: RowFilter


def fragment_of(
    snapshot: Snapshot,
    splits: Splits,
    selection_rows: npt.NDArray[np.int64],
    split_index: int,
    proven: npt.NDArray[np.uint8] | None = None,
) -> Fragment:
    """The order to read one split: its row groups that keep rows (`selection_rows`: rows kept per row group)."""
    first, stop = int(splits.first_row_group[split_index]), int(splits.stop_row_group[split_index])
    file, row_groups = int(splits.file[split_index]), np.arange(first, stop)
    return fragment_at(snapshot, file, row_groups, selection_rows[first:stop], proven)


def fragment_at(
    snapshot: Snapshot,
    file: int,
    row_groups: npt.NDArray[np.int64],
    expected: npt.NDArray[np.int64],
    proven: npt.NDArray[np.uint8] | None = None,
) -> Fragment:
    """The order to read some row groups (indices in the table) of one file; those that keep no row are left out.

    `proven`: what statistics say of every row group of the table, see `Fragment`.
    """
    kept = np.flatnonzero(expected)
    facts = snapshot.files
    places = snapshot.row_group_in_file[row_groups[kept]]
    return Fragment(
        table=snapshot.uri,
        path=facts["path"][file].as_py(),
        bytes=facts["bytes"][file].as_py(),
        mtime_ns=facts["mtime_ns"][file].as_py(),
        footer_digest=facts["footer_digest"][file].as_py(),
        footer_bytes=facts["footer_bytes"][file].as_py(),
        row_groups=tuple(places.tolist()),
        expected=tuple(expected[kept].tolist()),
        partition=snapshot.partition_of(file),
        proven=() if proven is None else tuple(proven[row_groups[kept]].tolist()),
    )


def field_of(schema: pa.Schema, name: str) -> pa.Field:
    """A table's column or part of one; raises TableError, naming the nearest one, where there is none of that name."""
    index = schema.get_field_index(name)
    if index >= 0:
        return schema.field(index)
    part = part_of(name)
    if part is not None:
        try:
            return part_field(schema, part).with_name(name)
        except PartError as error:
            raise TableArgumentError(f"{error}. Name a column, or one with a key that it has") from None
    near = difflib.get_close_matches(name, schema.names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(schema.names[:20])}"
    raise TableArgumentError(f"column {name!r} is not in the table. {hint}")


def pack_mask(mask: Bools) -> bytes:
    """bool [rows] as bits."""
    return np.packbits(mask, bitorder="little").tobytes()


def unpack_mask(bits: bytes | None, rows: int) -> Bools:
    """Bits as bool [rows]; None stands for a row group of which nothing is left out."""
    if bits is None:
        return np.zeros(rows, np.bool_)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows, bitorder="little").view(np.bool_)


def count_excluded(bits: bytes | None) -> int:
    """How many rows the bits leave out."""
    return 0 if bits is None else int(np.bitwise_count(np.frombuffer(bits, np.uint8)).sum())
