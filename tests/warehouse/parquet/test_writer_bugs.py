"""Files of programs with known bugs are read as pyarrow reads them, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from page_bytes import varint, zigzag
from page_decoding import File, arrow_table, difference, pages_in, stored, table_of

from feedline.errors import CorruptFileError
from feedline.native import parquet as native
from feedline.warehouse.parquet.column_kinds import writer_bugs
from feedline.warehouse.parquet.footer import chunk_ranges, file_facts

kernel = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

ARROW_2 = "parquet-cpp version 1.5.1-SNAPSHOT"


@pytest.mark.parametrize(
    ("created_by", "programs"),
    [
        (None, []),
        ("", []),
        (ARROW_2, ["parquet-cpp"]),
        ("parquet-cpp", ["parquet-cpp"]),
        ("parquet-cpp version(..151-SNAPSHOT", ["parquet-cpp"]),
        ("Parquet-CPP version 1.3.2 (build abc)", ["parquet-cpp"]),
        ("parquet-cpp version 2.0.0", []),
        ("parquet-cpp-arrow version 3.0.0", ["parquet-cpp-arrow"]),
        ("parquet-cpp-arrow version 4.0.0", []),
        ("parquet-mr version 1.10.1", []),
        ("parquet-mr version 1.2.9", []),
        ("parquet-mr version 1.2.8", ["parquet-mr"]),
        ("parquet-mr version 1.2", ["parquet-mr"]),
        ("parquet-mr", ["parquet-mr"]),
        ("impala version 1.3.0-INTERNAL (build 8a48ddb1eff84592b3fc06bc6f51ec120e1fffc9)", []),
        ("Polars", []),
        (" version 1", []),
    ],
)
def test_a_footer_names_what_wrote_the_file(created_by: str | None, programs: list[str]):
    assert [bug.program for bug in writer_bugs(created_by)] == programs


def written_by(content: bytes, created_by: str) -> bytes:
    """A file as if another program had written it."""
    was = pq.read_metadata(pa.BufferReader(content)).created_by.encode()
    stop = len(content) - 8
    start = stop - int.from_bytes(content[stop : stop + 4], "little")
    body, footer = content[:start], content[start:stop]
    assert footer.count(varint(len(was)) + was) == 1
    footer = footer.replace(varint(len(was)) + was, varint(len(created_by)) + created_by.encode())
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def pages_of_old_arrow(codec: str, **options: Any) -> bytes:
    """Pages of version 2 that are compressed, and say that they are not."""
    table = pa.table({"v": [1, 2, 3, 4, 5], "s": ["a" * 20] * 5})
    written = {"use_dictionary": False, "data_page_version": "2.0", "write_statistics": False}
    content = bytearray(stored(table, compression=codec, **written | options))
    metadata = File(bytes(content)).metadata.row_group(0)
    for chunk in (metadata.column(0), metadata.column(1)):
        at = chunk.data_page_offset
        flag = content.index(b"\x15\0\x11", at) + 2  # behind the size of repetition levels, of which there are none
        content[flag] = 0x12
    return bytes(content)


@kernel
@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "lz4"])
def test_pages_of_old_arrow_are_decompressed_whatever_their_headers_say(codec: str):
    content = written_by(pages_of_old_arrow(codec), ARROW_2)
    assert table_of(content, alone=False).to_pydict() == {"v": [1, 2, 3, 4, 5], "s": ["a" * 20] * 5}


@kernel
@pytest.mark.parametrize("codec", ["snappy", "gzip"])
def test_pages_of_unknown_programs_that_contradict_themselves_are_refused(codec: str):
    with pytest.raises(CorruptFileError, match=r"column 'v' .* a page has another size than its header says"):
        table_of(pages_of_old_arrow(codec), alone=False)


@kernel
@pytest.mark.parametrize("options", [{"data_page_version": "1.0"}, {"compression": "none"}])
def test_other_files_of_old_arrow_are_decoded_by_the_kernel(options: dict[str, Any]):
    table = pa.table({"v": [1, 2, 3], "l": [["a"], [], ["b", "a"]]})
    content = written_by(stored(table, **options), ARROW_2)
    assert difference(table_of(content, alone=True), table) == ""


@kernel
def test_a_prefix_of_the_page_before_is_refused_by_both():
    """As parquet-mr wrote it before 1.8.0."""
    table = pa.table({"s": ["apple", "apply", "", "z"]}, schema=pa.schema([pa.field("s", pa.string(), nullable=False)]))
    encoded = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY", "compression": "none"}
    content = stored(table, write_batch_size=2, data_page_size=1, write_statistics=False, **encoded)
    # the lengths of what the second page's strings share with those before, 0 and 0, become 5 and 4
    start = b"\x80\x01\x04\x02"  # blocks of 128, in four parts; two values
    at = content.rindex(start + zigzag(0) + zigzag(0)) + len(start)
    content = content[:at] + zigzag(5) + zigzag(4 - 5) + content[at + 2 :]
    with pytest.raises(CorruptFileError, match="its shared prefixes are not valid"):
        table_of(content)
    with pytest.raises(OSError, match="prefix length too large"):
        arrow_table(content)


@kernel
def test_chunks_of_old_parquet_mr_may_be_longer_than_their_size():
    """By the header of the dictionary's page: as many bytes are read behind them, by pyarrow alone."""
    table = pa.table({"v": [7, 8, 8], "w": [1, 2, 3]})
    content = stored(table, compression="none", write_statistics=False)
    chunk = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(0)
    at, size = chunk.dictionary_page_offset, chunk.total_compressed_size
    [dictionary, _] = pages_in(content[at : at + size], 3)
    header = dictionary.start
    sizes = b"\x16" + zigzag(chunk.total_uncompressed_size) + b"\x16"
    where = content.rindex(sizes + zigzag(size)) + len(sizes)
    assert len(zigzag(size - header)) == len(zigzag(size))
    content = content[:where] + zigzag(size - header) + content[where + len(zigzag(size)) :]
    with pytest.raises((OSError, pa.ArrowException)):
        table_of(content, alone=False)
    metadata = pq.read_metadata(pa.BufferReader(content))
    assert chunk_ranges(metadata, 0, [0], len(content)) == [(at, at + size - header)]
    for version in ("parquet-mr version 1.2.8", "parquet-mr"):
        old = written_by(content, version)
        [found] = chunk_ranges(pq.read_metadata(pa.BufferReader(old)), 0, [0], len(old))
        assert found == (at, at + size - header + 100)
        assert difference(table_of(old, alone=False), table) == difference(arrow_table(old), table) == ""


@pytest.mark.parametrize(
    ("created_by", "is_known"), [(ARROW_2, False), ("parquet-cpp-arrow version 3.0.1", False), ("Polars 2.6", True)]
)
def test_bounds_of_decimals_of_old_arrow_are_unknown(created_by: str, is_known: bool, tmp_path: Path):
    """Those of other types are not."""
    table = pa.table({"d": pa.array([255, 384, 383], pa.decimal128(20, 0)), "n": [1, 2, 3], "s": ["a", "b", "c"]})
    path = tmp_path / "a.parquet"
    path.write_bytes(written_by(stored(table), created_by))
    facts = file_facts(pafs.LocalFileSystem(), str(path), path.stat().st_size, "file")
    assert [column.low != [None] for column in facts.columns] == [is_known, True, True]
    assert [column.high != [None] for column in facts.columns] == [is_known, True, True]
