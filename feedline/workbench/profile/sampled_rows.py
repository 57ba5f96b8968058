"""Read a bounded sample of a table's rows: pieces of row groups that are spread over its partitions and its time.

Runs in: the process that profiles. The same table gives the same sample. Row groups are spaced evenly by rows; of each,
chunks are kept that are spaced evenly over its first rows, so rows of a piece are neighbours as in the table. Rows are
fewer where they are wide: the first chunk tells how wide. A row group that does not decode is left out, with its file's
name; where none does, columns are tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import DataError, StoreError, TableError
from feedline.expressions import BoundExpression
from feedline.warehouse.bad_files import reason_of
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at
from feedline.warehouse.reading.read import ReadRequest, batches, bytes_of
from feedline.warehouse.selection.select import Selection, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot

Integers = npt.NDArray[np.int64]

MOST_ROW_GROUPS = 64  # opened for a sample: a millisecond or two each, of a local file
_PIECES = 4  # of a row group, at least, if it has the rows
_PROBED_ROWS = 32  # decoded first, to learn how wide rows are
_MOST_CELLS = 1 << 25  # rows times columns of a sample: of 10,000 columns, 3,355 rows
_DECODED = 8  # rows that are decoded for one that is kept, at most, to reach the end of large row groups
_LARGE_ROWS = 4  # rows of a column that would take all bytes of a sample: the column is left out
_NUL = "its name holds a NUL character, which frames cannot have"
_LEAST_ROWS = 64  # of a row group, if rows are not very wide
_MOST_CHUNKS = 1 << 16  # columns in row groups, tens of microseconds each whatever their rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSample:
    """Sampled rows in the table's order. piece: int64 [rows], the piece that each is of; row_group: int64 [rows], the
    row group, by its place among the sampled ones. bytes: compressed, of the columns of the row groups that were read.
    whole: all rows of the table, or all that the filter keeps, are in it. skipped: files and why. unreadable: columns
    that no file yields, and why."""

    rows: pa.Table
    piece: Integers
    row_group: Integers
    row_groups: tuple[int, ...]
    bytes: int
    whole: bool
    skipped: tuple[tuple[str, str], ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def places(self) -> Integers:
        """int64 [rows]: the row group of each row; its piece where only one row group was read."""
        return self.row_group if len(self.row_groups) > 1 else self.piece

    @property
    def borders(self) -> Integers:
        """int64: the first row of each piece."""
        return np.flatnonzero(np.diff(self.piece, prepend=-1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleRequest:
    """What to read: columns of a snapshot's rows that `where` may keep, at most so many rows and decoded bytes."""

    snapshot: Snapshot
    columns: tuple[str, ...]
    where: BoundExpression | None = None
    rows: int = 65_536
    bytes: int = 256 << 20


def spread_evenly(weights: Integers, most: int) -> Integers:
    """int64: at most so many indices of positive weights, ascending, evenly spaced by weight; all, if they are few."""
    positive = np.flatnonzero(weights > 0)
    if len(positive) <= most:
        return positive
    # two of weights [5, 0, 5, 10]: ends [5, 10, 20], targets [5, 15] -> indices [2, 3]
    ends = np.cumsum(weights[positive])
    targets = (np.arange(most) + 0.5) * (int(ends[-1]) / most)
    return positive[np.unique(np.searchsorted(ends, targets, side="right"))]


def read_sample(request: SampleRequest, report: Callable[[int, int], None] = lambda done, total: None) -> RowSample:
    """Read a sample. report: called with the row groups that were read, of how many.

    Raises StoreError where a store keeps failing; whatever else is wrong with a file, it is left out.
    """
    selection = screen_rows(request.snapshot, request.where)
    refused = _too_large(request, selection) | {name: _NUL for name in request.columns if "\0" in name}
    request = replace(request, columns=tuple(name for name in request.columns if name not in refused))
    sample = _read(request, selection, report)
    if sample.rows.num_rows or not sample.skipped or not request.columns:
        return replace(sample, unreadable=refused)
    good, unreadable = _try_columns(request, selection)
    again = _read(replace(request, columns=good), selection, report) if good else sample
    return replace(again, unreadable=refused | unreadable)


def _too_large(request: SampleRequest, selection: Selection) -> dict[str, str]:
    """The columns of which a few rows would take all bytes of a sample, by the footer of the largest row group."""
    snapshot = request.snapshot
    rows, sizes = snapshot.rows_per_row_group, np.asarray(snapshot.row_groups["bytes"])
    sizes = np.where((selection.rows != 0) & (rows > 0), sizes, 0)
    if not len(sizes) or not sizes.any():
        return {}
    row_group = int(np.argmax(sizes / np.maximum(rows, 1)))
    fragment = _fragment(snapshot, row_group)
    most = request.bytes // _LARGE_ROWS
    large = {}
    try:
        with fragment.open() as file:
            group = file.metadata.row_group(fragment.row_groups[0])
            if group.total_byte_size <= most * group.num_rows:
                return {}
            for name in request.columns:
                size = sum(group.column(leaf).total_uncompressed_size for leaf in file.stored.get(name, ()))
                if size > most * group.num_rows:
                    large[name] = f"a row of it takes {size // group.num_rows:,} bytes, more than a sample reads"
    except StoreError:
        raise
    except TableError:
        return {}
    return large


def _fragment(snapshot: Snapshot, row_group: int) -> Fragment:
    file = int(snapshot.file_of_row_group[row_group])
    return fragment_at(snapshot, file, np.array([row_group]), np.array([UNCOUNTED]))


def _read(request: SampleRequest, selection: Selection, report: Callable[[int, int], None]) -> RowSample:
    snapshot = request.snapshot
    may_keep = np.where(selection.rows != 0, snapshot.rows_per_row_group, 0)
    budget = _Budget(request)
    chosen = spread_evenly(may_keep, budget.row_groups) if request.columns else np.zeros(0, np.int64)
    schema = pa.schema([snapshot.schema.field(name) for name in request.columns])
    pieces: list[pa.RecordBatch] = []
    groups: list[int] = []
    read: list[int] = []
    skipped: dict[str, str] = {}
    whole = len(chosen) == np.count_nonzero(may_keep)
    for index, row_group in enumerate(chosen.tolist()):
        if budget.spent:
            whole = False
            break
        limit = budget.rows_of(len(chosen) - index)
        try:
            more, all_rows = _pieces(request, selection, row_group, limit, budget)
        except StoreError:
            raise
        except (TableError, DataError) as error:
            path = snapshot.files["path"][int(snapshot.file_of_row_group[row_group])].as_py()
            skipped.setdefault(path, reason_of(error, _fragment(snapshot, row_group).uri))
            whole = False
        else:
            whole = whole and all_rows
            groups += [len(read)] * len(more)
            pieces += more
            read.append(row_group)
        report(index + 1, len(chosen))
    rows = [piece.num_rows for piece in pieces]
    return RowSample(
        rows=pa.Table.from_batches(pieces, schema) if pieces else schema.empty_table(),
        piece=np.repeat(np.arange(len(pieces)), rows),
        row_group=np.repeat(np.array(groups, np.int64), rows),
        row_groups=tuple(read),
        bytes=bytes_of(snapshot, np.array(read, np.int64), request.columns),
        whole=whole,
        skipped=tuple(skipped.items()),
    )


class _Budget:
    """The rows and bytes that a sample may still read. row_groups: how many it may open; chunks: to decode of each;
    read_rows: so far."""

    def __init__(self, request: SampleRequest) -> None:
        columns = max(len(request.columns), 1)
        self._rows = max(min(request.rows, _MOST_CELLS // columns), _LEAST_ROWS)
        chunks = max(_MOST_CHUNKS // columns, 1)
        self.row_groups = max(min(MOST_ROW_GROUPS, chunks, self._rows // _LEAST_ROWS), 1)
        self.chunks = max(chunks // self.row_groups, 1)
        self._bytes = request.bytes
        self.read_rows = self._read_bytes = 0

    @property
    def spent(self) -> bool:
        return self.read_rows >= self._rows or self._read_bytes >= self._bytes

    def rows_of(self, row_groups: int) -> int:
        """The rows to read of the next of so many row groups."""
        left = self._rows - self.read_rows
        if self.read_rows:
            left = min(left, int((self._bytes - self._read_bytes) / max(self._read_bytes / self.read_rows, 1)))
        return max(-(-left // row_groups), 1)

    def add(self, pieces: Sequence[pa.RecordBatch]) -> None:
        self.read_rows += sum(piece.num_rows for piece in pieces)
        self._read_bytes += sum(piece.nbytes for piece in pieces)


def _pieces(
    request: SampleRequest, selection: Selection, row_group: int, limit: int, budget: _Budget
) -> tuple[list[pa.RecordBatch], bool]:
    """Pieces of a row group, `limit` rows together, and whether they are all of its selected rows."""
    stored = int(request.snapshot.rows_per_row_group[row_group])
    if not budget.read_rows:
        probe, _ = _first_pieces(request, selection, row_group, min(_PROBED_ROWS, stored), 1)
        rows = sum(piece.num_rows for piece in probe)
        if rows < stored and rows:
            row_bytes = sum(piece.nbytes for piece in probe) / rows
            limit = max(min(limit, int(request.bytes / row_bytes / 2)), rows)
        if limit <= rows:
            budget.add(probe)
            return probe, rows == stored
    pieces, whole = _first_pieces(request, selection, row_group, limit, budget.chunks)
    budget.add(pieces)
    return pieces, whole


def _first_pieces(
    request: SampleRequest, selection: Selection, row_group: int, limit: int, most_chunks: int
) -> tuple[list[pa.RecordBatch], bool]:
    """`limit` rows of a row group in pieces that are spread over the first `most_chunks` chunks."""
    stored = int(request.snapshot.rows_per_row_group[row_group])
    # 100 of 50,000 rows: chunks of 25, of the first 800 rows the chunks 0, 10, 20 and 31
    chunk_rows = max(min(-(-limit // min(_PIECES, most_chunks)), stored), 1)
    reach = min(stored, _DECODED * limit, most_chunks * chunk_rows)
    chunks = -(-reach // chunk_rows)
    numbers = set(np.linspace(0, chunks - 1, min(chunks, -(-limit // chunk_rows))).astype(int).tolist())
    if request.where is not None and int(selection.rows[row_group]) != stored:
        numbers = set(range(chunks))  # how many rows a chunk will yield is not known
    pieces: list[pa.RecordBatch] = []
    decoded_rows = selected_rows = piece_rows = 0
    with closing(_decoded(request, selection, row_group, chunk_rows)) as decoding:
        for index, (rows, data) in enumerate(decoding):
            decoded_rows, selected_rows = decoded_rows + rows, selected_rows + data.num_rows
            if index in numbers and data.num_rows:
                pieces.append(data.slice(0, limit - piece_rows))
                piece_rows += pieces[-1].num_rows
            if piece_rows >= limit or decoded_rows >= reach:
                break
    return pieces, decoded_rows >= stored and piece_rows == selected_rows


def _decoded(
    request: SampleRequest, selection: Selection, row_group: int, chunk_rows: int
) -> Generator[tuple[int, pa.RecordBatch]]:
    """A row group's chunks: the rows that were decoded, and those that the filter keeps."""
    snapshot = request.snapshot
    file = int(snapshot.file_of_row_group[row_group])
    expected = selection.rows[[row_group]]
    fragment = fragment_at(snapshot, file, np.array([row_group]), expected, selection.proofs)
    counts = [0]
    read = ReadRequest(request.columns, snapshot.schema, request.where, chunk_rows=chunk_rows)
    for batch in batches(fragment, read, counts):
        data, rows = batch.data, batch.data.num_rows
        if not batch.row_filter.idle:
            result = batch.row_filter.apply(data, fragment.path, batch.first_row)
            data = data.select(list(request.columns))
            if result.stays is not None:
                data = data.filter(pa.array(result.stays))
        counts[0] += data.num_rows
        yield rows, data


def _try_columns(request: SampleRequest, selection: Selection) -> tuple[tuple[str, ...], dict[str, str]]:
    snapshot = request.snapshot
    row_group = int(np.flatnonzero((selection.rows != 0) & (snapshot.rows_per_row_group > 0))[0])
    good: list[str] = []
    unreadable: dict[str, str] = {}
    for name in request.columns:
        try:
            _first_pieces(replace(request, columns=(name,)), selection, row_group, 1, 1)
        except StoreError:
            raise
        except (TableError, DataError) as error:
            unreadable[name] = reason_of(error, _fragment(snapshot, row_group).uri)
        else:
            good.append(name)
    return tuple(good), unreadable
