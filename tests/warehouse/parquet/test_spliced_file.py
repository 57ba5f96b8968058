"""Row groups that are copied into another file are read there as they were, page by page."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.parquet.footer import chunk_facts
from feedline.warehouse.parquet.offset_index import NO_PAGES, index_place, page_index
from feedline.warehouse.parquet.spliced_file import Part, Source, bloom_filter_bytes, have_same_layout, notes_of, splice
from feedline.warehouse.parquet.thrift import structure_of
from feedline.warehouse.parquet.thrift_fields import (
    binary,
    bytes_of,
    fields_of,
    i16,
    i32,
    i64,
    items_of,
    list_of,
    number_of,
    structure_of_fields,
)


def written(rows: int, groups: int, **options: object) -> bytes:
    rng = np.random.default_rng(rows)
    table = pa.table(
        {
            "a": rng.integers(0, 50, rows * groups),
            "b": [None if each < 0.3 else [each] * 3 for each in rng.random(rows * groups)],
            "c": [f"word {each}" for each in rng.integers(0, 9, rows * groups)],
        }
    ).replace_schema_metadata({"own": "note"})
    sink = pa.BufferOutputStream()
    filters = {"a": {"ndv": 100, "fpp": 0.05}}
    pq.write_table(table, sink, row_group_size=rows, write_page_index=True, bloom_filter_options=filters, **options)
    return bytes(sink.getvalue())


def source_of(content: bytes) -> Source:
    size = int.from_bytes(content[-8:-4], "little")
    return Source(content[-8 - size : -8], lambda nbytes, offset: content[offset : offset + nbytes])


@examples(25, by_day=8)
@given(
    parts=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=0, max_size=20),
    page_bytes=st.sampled_from([100, 1 << 20]),
)
def test_copied_row_groups_are_read_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]], page_bytes: int
) -> None:
    contents = [written(40, 3, data_page_size=page_bytes), written(70, 3, compression="zstd")]
    sources = [source_of(content) for content in contents]
    path = tmp_path_factory.getbasetemp() / "spliced.parquet"
    with path.open("wb") as sink:
        splice(sources, [Part(source, group, group) for source, group in parts], {b"k": b"v"}, sink.write)
    files = [pq.ParquetFile(pa.BufferReader(content)) for content in contents]
    expected = [files[source].read_row_group(group) for source, group in parts]
    spliced = pq.ParquetFile(path, page_checksum_verification=True)
    found = [spliced.read_row_group(group) for group in range(spliced.num_row_groups)]
    assert [each.equals(other) for each, other in zip(found, expected, strict=True)] == [True] * len(parts)
    assert spliced.metadata.metadata == {b"k": b"v"}
    if not parts:
        return
    whole = pa.concat_tables(expected)
    assert pl.read_parquet(path).equals(pl.from_arrow(whole))
    with duckdb.connect() as connection:
        assert connection.sql(f"select count(*) from '{path}' where a = 7").fetchall() == [
            (whole["a"].to_pylist().count(7),)
        ]
    new = path.read_bytes()
    assert bloom_filter_bytes(source_of(new).footer, source_of(new).read_at).keys() == {0}
    for group, (source, origin) in enumerate(parts):
        assert pages_of(new, group) == pages_of(contents[source], origin)
        assert filter_of(new, group) == filter_of(contents[source], origin)


def pages_of(content: bytes, group: int) -> list[list[bytes]]:
    """The pages of each column chunk, by the offset index."""
    metadata = pq.read_metadata(pa.BufferReader(content))
    rows = metadata.row_group(group).num_rows
    pages = []
    for leaf, facts in enumerate(chunk_facts(metadata, group, range(metadata.num_columns), len(content))):
        place = index_place(metadata, content[-2_000:], group, leaf, len(content))
        assert place is not None
        index = page_index(content[slice(*place)], facts, rows)
        assert index is not NO_PAGES
        pages.append([content[a:b] for a, b in zip(index.offsets[:-1], index.offsets[1:], strict=True)])
    return pages


def filter_of(content: bytes, group: int) -> bytes:
    chunk = pq.read_metadata(pa.BufferReader(content)).row_group(group).column(0)
    return content[chunk.bloom_filter_offset : chunk.bloom_filter_offset + chunk.bloom_filter_length]


def test_footers_of_other_columns_have_another_layout() -> None:
    def footer(**columns: pa.Array) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        return source_of(bytes(sink.getvalue())).footer

    number, text = pa.array([1]), pa.array(["a"])
    assert have_same_layout(footer(a=number, b=text), footer(c=number, d=text))
    for other in (footer(a=number), footer(a=text, b=text), footer(a=number, b=pa.array([["a"]]))):
        assert not have_same_layout(footer(a=number, b=text), other)


def test_a_source_that_ends_early_is_an_error() -> None:
    whole = source_of(written(40, 1))
    short = Source(whole.footer, lambda nbytes, offset: b"")
    with pytest.raises(OSError, match="ends too early"):
        splice([short], [Part(0, 0, 0)], {}, lambda content: None)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300), st.integers(1, 30_000))
def test_fields_are_put_together_as_they_are_taken_apart(number: int, content: bytes, id: int) -> None:
    inner = structure_of_fields({1: i64(number), 2: binary(content), id + 2: i16(7)})
    fields = fields_of(inner)
    assert (number_of(fields[1]), bytes_of(fields[2]), number_of(fields[id + 2])) == (number, content, 7)
    assert structure_of_fields(fields) == inner
    for count in (0, 3, 14, 15, 400):
        outer = fields_of(structure_of_fields({4: list_of([inner] * count), 5: i32(number % 1000)}))
        assert items_of(outer[4]) == [inner] * count
    assert (items_of(None), number_of(None), bytes_of(None)) == ([], 0, b"")


def test_a_real_footer_is_taken_apart_and_put_together(tmp_path: Path) -> None:
    footer = source_of(written(40, 17)).footer
    assert structure_of_fields(fields_of(footer)) == footer
    assert notes_of(footer)[b"own"] == b"note"
    assert structure_of(structure_of_fields(fields_of(footer))).rows == [40] * 17
