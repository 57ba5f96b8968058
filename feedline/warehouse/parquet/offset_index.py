"""Find the data pages of a column chunk, and the rows in each, by the file's offset index.

Runs in every process that reads rows by their position. Pure. The format is parquet-format's PageIndex.md: of each
column chunk a structure, near the footer, that lists each data page's offset, its bytes with its header, and its first
row. pyarrow's accessors do not tell where those lie, but the footer does (`thrift`). An index is used only if it fits:
its pages lie end to end from the chunk's first data page to its end, and their first rows ascend.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feedline.warehouse.parquet.footer import KEPT_FOOTERS, ChunkFacts, RecentValues
from feedline.warehouse.parquet.thrift import MalformedError, offset_index_places
from feedline.warehouse.storage.file_identity import Stamp
from feedline.warehouse.storage.ranges import Range

_TRAILER_BYTES = 8
_MAGIC_BYTES = 4
_KEPT_INDEXES = 1024  # of column chunks: 16 bytes a page, 16 KiB for 10^6 rows in pages of 1,024
_MOST_VARINT_BYTES = 9

# A page's location as all writers put it: three fields by ascending id, each a byte for the step and type (i64, i32,
# i64) and a varint; and a zero.
_LOCATION_FIELDS = 7
_FIELD_HEADS = {0: 0x16, 2: 0x15, 4: 0x16, 6: 0x00}


class PageIndex(NamedTuple):
    """The data pages of a column chunk, of n: where each begins in the file, and its first row in the row group.

    offsets, rows: int64 [n + 1]; last, the chunk's end, and the row group's rows. Empty: the chunk has no index, or one
    that does not fit.
    """

    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]

    def runs_of(self, ranges: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [k, 2]: runs of pages, [first, stop), that hold rows of `ranges`, int64 [m, 2], which ascend; m > 0."""
        # rows [0, 512, 1024, 1500], ranges [[500, 520], [1030, 1031]] -> pages [[0, 3]]
        first = np.searchsorted(self.rows, ranges[:, 0], "right") - 1
        after = np.searchsorted(self.rows, ranges[:, 1], "left")
        gaps = first[1:] > after[:-1]
        return np.column_stack([first[np.append(True, gaps)], after[np.append(gaps, True)]])

    def rows_before(self, ranges: NDArray[np.int64], runs: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [m]: where each range begins among the rows of runs of pages, laid end to end."""
        # rows [0, 512, 1024, 1500], run [[2, 3]], range [[1030, 1040]] -> 6
        first, after = self.rows[runs].T
        run = np.searchsorted(first, ranges[:, 0], "right") - 1
        starts: NDArray[np.int64] = ranges[:, 0] + (np.cumsum(after - first) - after)[run]
        return starts

    def page_rows(self, runs: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [pages of the runs]: the rows of each."""
        counts = np.diff(self.rows)
        return np.concatenate([counts[first:after] for first, after in runs.tolist()])

    def spans(self, runs: NDArray[np.int64]) -> list[Range]:
        """The bytes of each run of pages."""
        return [(start, stop) for start, stop in self.offsets[runs].tolist()]


NO_PAGES = PageIndex(np.empty(0, np.int64), np.empty(0, np.int64))

page_indexes: RecentValues[tuple[str, Stamp, bytes, int, int], PageIndex] = RecentValues(_KEPT_INDEXES)
_places: RecentValues[bytes, Sequence[Sequence[Range]]] = RecentValues(KEPT_FOOTERS)


def index_place(metadata: pq.FileMetaData, digest: bytes, row_group: int, leaf: int, file_bytes: int) -> Range | None:
    """Where the offset index of a column chunk lies in a file; None without one. digest: of the file's footer."""
    places = _places.get(digest)
    if places is None:
        footer = BytesIO()
        metadata.write_metadata_file(footer)  # the footer as it was read, without another request
        try:
            places = offset_index_places(footer.getvalue()[_MAGIC_BYTES:-_TRAILER_BYTES])
        except MalformedError:
            places = []
        _places.put(digest, places)
    try:
        offset, length = places[row_group][leaf]
    except IndexError:
        return None
    inside = offset >= _MAGIC_BYTES and length > 0 and offset + length <= file_bytes
    return (offset, offset + length) if inside else None


def page_index(content: Any, facts: ChunkFacts, rows: int) -> PageIndex:
    """The pages that an offset index lists of a column chunk of so many rows. content: its bytes."""
    locations = _locations(content)
    if locations is None or not len(locations):
        return NO_PAGES
    offsets, sizes, first_rows = locations.T
    start, stop = facts.place[0], facts.place[0] + facts.nbytes
    borders = np.append(offsets, stop)
    all_rows = np.append(first_rows, rows)
    fits = (
        start <= offsets[0] < stop <= facts.place[1]
        and np.array_equal(np.diff(borders), sizes)
        and first_rows[0] == 0
        and bool((np.diff(borders) > 0).all() and (np.diff(all_rows) > 0).all())
    )
    return PageIndex(borders, all_rows) if fits else NO_PAGES


def _locations(content: Any) -> NDArray[np.int64] | None:
    """int64 [pages, 3]: offset, bytes and first row of each page; None for what is laid out otherwise."""
    # 19 2c | 16 08 15 c8 01 16 00 00 | 16 d0 01 15 ... -> a list of two: offset 4, 100 bytes, row 0; offset 104, ...
    data: NDArray[np.uint8] = np.frombuffer(content, np.uint8)
    if len(data) < 3 or data[0] != 0x19 or data[1] & 15 != 12:  # field 1, a list of structures
        return None
    ends = np.flatnonzero(data < 128)  # the last bytes of varints: all bytes of a list of locations are in some
    begin, count = 2, int(data[1] >> 4)
    if count == 15:
        stop = ends[ends >= begin][:1]
        number = _varints(data, np.full(len(stop), begin), stop)
        if number is None:
            return None
        begin, count = int(stop[0]) + 1, int(number[0])
    ends = ends[np.searchsorted(ends, begin) :][: _LOCATION_FIELDS * count]
    if not count or len(ends) < _LOCATION_FIELDS * count:
        return None
    numbers = _varints(data, np.append(begin, ends[:-1] + 1), ends)
    if numbers is None:
        return None
    fields = numbers.reshape(count, _LOCATION_FIELDS)
    if any((fields[:, place] != head).any() for place, head in _FIELD_HEADS.items()):
        return None
    zigzag = fields[:, 1:6:2]
    return (zigzag >> 1) ^ -(zigzag & 1)


def _varints(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The varints with these first and last bytes; None if there are none, or one is too long."""
    lengths = ends - starts + 1
    longest = int(lengths.max(initial=0))
    if not 0 < longest <= _MOST_VARINT_BYTES:
        return None
    numbers = np.zeros(len(starts), np.int64)
    for place in range(longest):
        longer = np.flatnonzero(lengths > place)
        numbers[longer] |= (data[starts[longer] + place] & 127).astype(np.int64) << (7 * place)
    return numbers
