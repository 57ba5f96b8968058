"""Offset indexes: as written, found where the footer says, and unused where they do not fit."""

from __future__ import annotations

from io import BytesIO
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_bytes import varint, zigzag
from page_decoding import File, pages_in, stored

from feedline.warehouse.parquet.footer import ChunkFacts
from feedline.warehouse.parquet.offset_index import PageIndex, index_place, page_index
from feedline.warehouse.parquet.thrift import MalformedError, offset_index_places

PAGES = st.lists(st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 2**40)), min_size=1, max_size=40)


def encoded(locations: list[tuple[int, int, int]], behind: bytes = b"\x00") -> bytes:
    """An offset index: structures of offset, bytes and first row; what follows the list is `behind`."""
    count = len(locations)
    head = bytes([count << 4 | 12]) if count < 15 else b"\xfc" + varint(count)
    places = [
        b"\x16" + zigzag(offset) + b"\x15" + zigzag(size) + b"\x16" + zigzag(row) + b"\x00"
        for offset, size, row in locations
    ]
    return b"\x19" + head + b"".join(places) + behind


def chunk(start: int, stop: int) -> ChunkFacts:
    return ChunkFacts((start, stop), stop - start, 0, 0, "ZSTD", "INT64")


def laid_out(pages: list[tuple[int, int]], start: int = 4) -> tuple[list[tuple[int, int, int]], int, int]:
    """Locations of pages of such bytes and rows, end to end; and the end of the bytes, and of the rows."""
    offsets = list(accumulate((size for size, _ in pages), initial=start))
    rows = list(accumulate((count for _, count in pages), initial=0))
    return [(*each,) for each in zip(offsets, (size for size, _ in pages), rows, strict=False)], offsets[-1], rows[-1]


@given(pages=PAGES, dictionary_bytes=st.sampled_from([0, 100]), behind=st.sampled_from([b"\x00", b"\x19\x16\x02\x00"]))
def test_an_index_is_read_as_it_was_written(pages: list[tuple[int, int]], dictionary_bytes: int, behind: bytes):
    locations, stop, rows = laid_out(pages, 4 + dictionary_bytes)
    index = page_index(encoded(locations, behind), chunk(4, stop), rows)
    assert index.offsets.tolist() == [*(offset for offset, _, _ in locations), stop]
    assert index.rows.tolist() == [*(row for _, _, row in locations), rows]


LOCATIONS = [(4, 10, 0), (14, 20, 5), (34, 6, 9)]


@pytest.mark.parametrize(
    "locations",
    [
        [],
        [(3, 11, 0), *LOCATIONS[1:]],  # before the chunk
        [*LOCATIONS[:2], (34, 7, 9)],  # beyond its end
        LOCATIONS[:2],  # bytes of no page
        [LOCATIONS[0], (15, 19, 5), LOCATIONS[2]],
        [LOCATIONS[1], LOCATIONS[0], LOCATIONS[2]],
        [(4, 10, 1), *LOCATIONS[1:]],  # rows of no page
        [*LOCATIONS[:2], (34, 6, 5)],  # none in a page
        [*LOCATIONS[:2], (34, 6, 4)],
        [*LOCATIONS[:2], (34, 6, 12)],  # more than there are
    ],
)
def test_an_index_that_does_not_fit_is_empty(locations: list[tuple[int, int, int]]):
    assert page_index(encoded(LOCATIONS), chunk(4, 40), 12).rows.tolist() == [0, 5, 9, 12]
    assert not len(page_index(encoded(locations), chunk(4, 40), 12).rows)


@given(data=st.data())
def test_damaged_bytes_are_no_error(data: st.DataObject):
    content = bytearray(encoded(LOCATIONS * 6))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    page_index(bytes(content[: data.draw(st.integers(0, len(content)))]), chunk(4, 40), 12)
    page_index(data.draw(st.binary(max_size=60)), chunk(4, 40), 12)


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    borders=st.lists(st.integers(0, 108), min_size=2, max_size=12, unique=True).map(sorted),
)
def test_pages_of_ranges(counts: list[int], borders: list[int]):
    rows = np.array([0, *accumulate(counts)])
    index = PageIndex(rows * 10, rows)
    pairs = [pair for pair in zip(borders[::2], borders[1::2], strict=False) if pair[1] <= rows[-1]]
    ranges = np.array(pairs, np.int64).reshape(-1, 2)
    page_of_row = np.repeat(np.arange(len(counts)), counts)
    held = {int(page_of_row[row]) for start, stop in pairs for row in range(start, stop)}
    if not pairs:
        return
    runs = index.runs_of(ranges)
    assert [page for first, after in runs.tolist() for page in range(first, after)] == sorted(held)
    assert index.page_rows(runs).tolist() == [counts[page] for page in sorted(held)]
    read = [row for row in range(rows[-1]) if page_of_row[row] in held]
    assert index.rows_before(ranges, runs).tolist() == [read.index(start) for start, _ in pairs]
    spans = index.spans(runs)
    assert [row for start, stop in spans for row in range(start // 10, stop // 10)] == read
    assert all(before[1] < after[0] for before, after in pairwise(spans))


@pytest.mark.parametrize("rows", [5, 3_000])
def test_indexes_lie_where_the_footer_says(rows: int):
    table = pa.table({"a": range(rows), "b": [str(n % 7) for n in range(rows)]})
    content = stored(table, write_page_index=True, write_batch_size=100, data_page_size=1, row_group_size=2_000)
    file = File(content)
    for group in file.groups:
        count = file.metadata.row_group(group).num_rows
        for leaf, facts in enumerate(file.decoder.facts(group, [0, 1])):
            place = index_place(file.metadata, b"of %d" % rows, group, leaf, len(content))
            assert place is not None
            index = page_index(content[slice(*place)], facts, count)
            pages = [page for page in pages_in(content[slice(*facts.place)], count) if page.kind != 2]
            assert np.diff(index.rows).tolist() == [page.values for page in pages]
            ends = [facts.place[0] + page.start + page.compressed for page in pages]
            assert index.offsets[1:].tolist() == ends


def test_a_file_without_indexes_has_none():
    content = stored(pa.table({"a": range(10)}))
    metadata = pq.read_metadata(BytesIO(content))
    assert index_place(metadata, b"without", 0, 0, len(content)) is None
    assert index_place(metadata, b"without", 1, 0, len(content)) is None


def test_places_of_damaged_footers_are_an_error_or_some():
    content = stored(pa.table({"a": range(10), "b": range(10)}), write_page_index=True)
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    [places] = offset_index_places(footer)
    assert all(4 < offset < offset + length < len(content) for offset, length in places)
    for stop in range(len(footer)):
        with pytest.raises(MalformedError):
            offset_index_places(footer[:stop])
