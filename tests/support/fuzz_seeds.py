"""Inputs from which the fuzzers start: every type, encoding, pattern of nulls, version of pages and codec."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np
import page_mutations
import pyarrow as pa
from fuzz_targets import ENCODINGS, FILE_COLUMNS, PHYSICALS, ROW_FUNCTIONS
from kernel_calls import list_chunk
from page_bytes import packed, repeated
from page_decoding import File, stored
from parquet_chunks import BYTE_ARRAY, FIXED, Column

from feedline.native import parquet as native
from feedline.warehouse.parquet.thrift import PHYSICAL

_NUMBERS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "LZ4": 4, "LZ4_RAW": 4, "UNKNOWN": 2, "ZSTD": 3}  # in `CODECS`


def seeds(target: str) -> list[bytes]:
    """Those of a target, without doubles."""
    return list(dict.fromkeys(_SEEDS[target]()))


def _chunks() -> Iterator[tuple[int, pa.Buffer, int, int, str]]:
    """Column chunks that pyarrow wrote: the number of the column, the chunk, its values and rows, and its codec."""
    for content in page_mutations.samples():
        file = File(content)
        metadata = file.metadata.row_group(0)
        chunk, leaf = metadata.column(0), file.parquet.schema.column(0)
        lists = 0 if leaf.max_repetition_level == 0 else 1 + file.schema.field(0).nullable
        physical = PHYSICAL[chunk.physical_type]
        column = Column(physical, lists, leaf.max_definition_level > lists)
        if chunk.compression == "GZIP" or (physical == FIXED and leaf.length != 3):
            continue
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        bytes_ = file.read(start, start + chunk.total_compressed_size)
        yield FILE_COLUMNS.index(column), bytes_, chunk.num_values, metadata.num_rows, chunk.compression


def _chunk_seeds() -> Iterator[bytes]:
    for column, content, values, rows, codec in _chunks():
        for flags in (14, 15):
            yield struct.pack("<BBBHH", column, flags, _NUMBERS[codec], rows, values) + content.to_pybytes()


def _header_seeds() -> Iterator[bytes]:
    for _, content, values, *_ in _chunks():
        yield struct.pack("<H", values) + content.to_pybytes()
    yield struct.pack("<H", 6) + list_chunk()


_RUNS = {
    "repeated": lambda value, width: repeated(value, 40, width),
    "packed": lambda value, width: packed([value, 0] * 20, width),
    "both": lambda value, width: packed([value] * 8, width) + repeated(0, 12, width) + packed([0, value] * 10, width),
}


def _level_seeds() -> Iterator[bytes]:
    """Of each kind of column: all there, none, or some; lists of one element, of many, or some."""
    for kind in (0, 1, 2, 4, 5, 6):
        column = Column(1, kind % 3, bool(kind & 4))
        if column.max_def == 0:
            continue
        width = 2 if column.max_def > 1 else 1
        for level in range(column.max_def + 1):
            for defs in _RUNS.values():
                for reps in _RUNS.values() if column.lists else [_RUNS["both"]]:
                    own = repeated(0, 1, 1) + reps(1, 1)  # a list begins
                    before = struct.pack("<H", len(own)) + own if column.lists else b""
                    for flags in (0, 1, 255):
                        yield struct.pack("<BBH", kind, flags, 40) + before + defs(level, width)


def _code_seeds() -> Iterator[bytes]:
    for physical in range(6):
        for width in (*range(1, 10), 16, 32):
            value = min(2**width - 1, 299)
            for runs in _RUNS.values():
                yield struct.pack("<BBH", physical, 14 + physical % 2, 40) + bytes([width]) + runs(value, width)


_NAMES = {
    0: "PLAIN",
    3: "RLE",
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
    9: "BYTE_STREAM_SPLIT",
}


def _encoded_seeds() -> Iterator[bytes]:
    """The values of pages that pyarrow writes in each encoding."""
    words = [f"{'w' * (row % 5)}{row // 3}".encode() for row in range(40)]
    numbers = np.arange(40) ** 3 - 900
    arrays = [numbers % 3 == 0, numbers.astype(np.int32), numbers, numbers.astype(np.float32), numbers / 3.0, words,
              [word.ljust(3, b"x")[:3] for word in words]]  # fmt: skip
    kinds = [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.binary(), pa.binary(3)]
    for number, (physical, values, kind) in enumerate(zip(PHYSICALS, arrays, kinds, strict=True)):
        table = pa.table([pa.array(list(values), kind)], schema=pa.schema([pa.field("v", kind, nullable=False)]))
        for place, encoding in enumerate(ENCODINGS[physical]):
            if encoding == 8:
                yield struct.pack("<BBBH", number, place, 14, 5) + bytes(range(48))
                if physical == BYTE_ARRAY:
                    yield struct.pack("<BBBH", number, place, 14, 2) + b"\x02\0\0\0ab\x01\0\0\0c"
                continue
            file = File(
                stored(table, use_dictionary=False, column_encoding={"v": _NAMES[encoding]}, compression="none")
            )
            chunk = file.metadata.row_group(0).column(0)
            content = file.read(
                chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
            ).to_pybytes()
            [page] = native.pages_of(native.page_table(content, 40).pages)
            yield struct.pack("<BBBH", number, place, 14, 40) + content[page.start :]


def _codec_seeds() -> Iterator[bytes]:
    generator = random.Random(0)
    texts = [
        b"",
        b"a",
        b"abc" * 40,
        bytes(100),
        generator.randbytes(70),
        b"0123456789" * 30 + generator.randbytes(20) * 3,
    ]
    for text in texts:
        for number, name in enumerate(("snappy", "lz4_raw", "lz4_raw", "zstd")):
            content = pa.Codec(name).compress(text).to_pybytes()
            yield struct.pack("<BH", number, len(text)) + content
            if number == 2:
                frame = struct.pack(">II", len(text), len(content)) + content
                yield struct.pack("<BH", number, 2 * len(text)) + frame * 2


def _row_seeds() -> Iterator[bytes]:
    """Drawn: for each function, small numbers, and any bytes."""
    generator = random.Random(1)
    for function in range(len(ROW_FUNCTIONS)):
        for _ in range(20):
            yield bytes([function, *(generator.randrange(5, 30) for _ in range(80))])
            yield bytes([function]) + generator.randbytes(60)


def _packet_seeds() -> Iterator[bytes]:
    ready, free = b"R" + bytes(range(40)), b"F" + bytes(8)
    for content in (ready, ready * 3, free, free * 4, b"S and more", b""):
        yield bytes([2, len(content), 41]) + content + ready + bytes([200, 3]) + free * 3


_SEEDS = {
    "chunk": _chunk_seeds,
    "levels": _level_seeds,
    "codes": _code_seeds,
    "encoded": _encoded_seeds,
    "codecs": _codec_seeds,
    "headers": _header_seeds,
    "rows": _row_seeds,
    "packets": _packet_seeds,
}
