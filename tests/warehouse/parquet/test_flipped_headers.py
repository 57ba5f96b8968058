"""A damaged byte in a page's header: the file is read as pyarrow reads it, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from page_decoding import File, arrow_table, difference, pages_in, stored, table_of

from feedline.errors import CorruptFileError
from feedline.native import parquet as native

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

# Of two columns, so that another one's bytes follow, and of few rows, so that these are near.
_PAIRS: dict[str, tuple[Any, Any, pa.DataType]] = {
    "numbers": ([1, 2, 3, 4], [40, 50, 60, 70], pa.int64()),
    "one": ([3], [4], pa.int32()),
    "nulls": ([1.5, None, 3.5], [None, 8.5, 9.5], pa.float64()),
    "truths": ([True, False, True], [False, False, True], pa.bool_()),
    "strings": (["ab", "", "ab", "cde"], ["zz", "q", "q", "rr"], pa.string()),
    "decimals": ([1, 2], [3, 4], pa.decimal128(25, 0)),
    "lists": ([[1, 2], None, [3], []], [[40], [50, 60], [], None], pa.list_(pa.int64())),
    "words": ([["a"], ["b", "a"]], [["z"], ["y", "x"]], pa.list_(pa.string())),
}
_ENCODINGS = {
    "numbers": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", ""],
    "truths": ["PLAIN", "RLE"],
    "strings": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", ""],
    "decimals": ["PLAIN"],
}


def small_files() -> list[bytes]:
    """84 files: of every type and encoding, both versions of pages, each with and without a codec."""
    files = []
    for name, (one, other, kind) in _PAIRS.items():
        table = pa.table({"a": pa.array(one, kind), "b": pa.array(other, kind)})
        leaf = ".list.element" if pa.types.is_list(kind) else ""
        for encoding, version in product(_ENCODINGS.get(name, ["PLAIN", ""]), ("1.0", "2.0")):
            options: dict[str, Any] = {"use_dictionary": not encoding}
            if encoding:
                options["column_encoding"] = {f"a{leaf}": encoding, f"b{leaf}": encoding}
            for codec in ("none", ("snappy", "zstd", "lz4", "gzip")[len(files) // 2 % 4]):
                options["write_statistics"] = len(files) % 3 == 0
                options["write_page_checksum"] = len(files) % 5 == 0
                files.append(stored(table, compression=codec, data_page_version=version, **options))
    return files


def page_bytes(content: bytes, *, bodies: bool) -> Iterator[int]:
    """Where a file has the bytes of its pages' headers; or of their bodies."""
    file = File(content)
    for group, column in product(file.groups, range(file.metadata.num_columns)):
        chunk = file.metadata.row_group(group).column(column)
        at = start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        for page in pages_in(content[start : start + chunk.total_compressed_size], chunk.num_values):
            body, end = start + page.start, start + page.start + page.compressed
            yield from range(body, end) if bodies else range(at, body)
            at = end


def outcome(content: bytes, *, coded: bool) -> str:
    """`same`, `refused`, `refused here` alone, or what is wrong with the rows that were delivered."""
    try:
        expected = arrow_table(content)
    except (OSError, pa.ArrowException) as error:
        expected, refusal = None, error
    try:
        found = table_of(content, coded=coded, alone=False)
    except (CorruptFileError, OSError, pa.ArrowException):
        return "refused" if expected is None else "refused here"
    if found.num_rows != sum(File(content).metadata.row_group(group).num_rows for group in File(content).groups):
        return "refused"  # by who reads a row group, and counts its rows
    return f"pyarrow refuses: {refusal}" if expected is None else difference(found, expected) or "same"


def outcomes(files: Iterable[bytes], masks: list[int], *, bodies: bool = False) -> Counter[str]:
    found: Counter[str] = Counter()
    for content in files:
        for at in page_bytes(content, bodies=bodies):
            for mask in masks:
                damaged = bytearray(content)
                damaged[at] ^= mask or 1 << at % 8
                found[outcome(bytes(damaged), coded=at % 2 == 0)] += 1
    assert set(found) <= {"same", "refused", "refused here"}, found
    return found


def test_a_flipped_byte_of_a_header_is_read_as_by_pyarrow_or_refused():
    files = small_files()
    found = outcomes(files[:: len(files) // 10], [0, 0xFF])
    assert found["same"] > 100
    assert found["refused"] > 500
    assert found["refused here"] < 100


@pytest.mark.nightly
def test_any_flipped_bits_of_a_header_are_read_as_by_pyarrow_or_refused():
    outcomes(small_files(), [1, 2, 4, 8, 16, 32, 64, 128, 0x7F, 0xFF])


@pytest.mark.nightly
def test_flipped_bits_of_levels_and_values_are_read_as_by_pyarrow_or_refused():
    """Without zstd, of which the system's library may notice other damage than pyarrow's."""
    codecs = {content: File(content).metadata.row_group(0).column(0).compression for content in small_files()}
    outcomes([content for content, codec in codecs.items() if codec != "ZSTD"], [0, 0xFF], bodies=True)


def test_a_data_page_that_calls_itself_an_index_is_not_left_out():
    """Behind it lie the next column's bytes, which are pages, too."""
    table = pa.table({"a": [1, 2, 3], "b": [40, 50, 60]})
    content = bytearray(stored(table, use_dictionary=False, compression="none", write_statistics=False))
    at = File(bytes(content)).metadata.row_group(0).column(0).data_page_offset
    assert content[at : at + 2] == b"\x15\x00"  # the kind: a data page
    content[at + 1] = 2
    assert outcome(bytes(content), coded=False) == "refused"


def test_a_page_does_not_go_on_behind_its_chunk():
    """Its size grows by the header of the next column's page; values of a page that is not compressed need no more."""
    table = pa.table({"a": [1.5], "b": [2.5]}, schema=pa.schema([("a", pa.float64()), ("b", pa.float64())]))
    content = bytearray(
        stored(table, use_dictionary=False, compression="none", data_page_version="2.0", write_statistics=False)
    )
    chunk = File(bytes(content)).metadata.row_group(0).column(0)
    [page] = pages_in(content[chunk.data_page_offset :][: chunk.total_compressed_size], 1)
    at = content.index(bytes((0x15, 2 * page.uncompressed, 0x15, 2 * page.compressed)))
    content[at + 1] += 2 * 4
    content[at + 3] += 2 * 4
    assert outcome(bytes(content), coded=False) == "refused"
