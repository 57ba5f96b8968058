"""Are page headers, checksums and codecs what their definitions say, and refused otherwise?"""

from __future__ import annotations

import contextlib
import random
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from page_bytes import zigzag
from page_decoding import pages_in

from feedline.native import parquet as native
from feedline.native.parquet import Page

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

INT32, FIXED, PLAIN, RLE = 1, 7, 0, 3


def decompressed(codec: str, packed: bytes, size: int) -> bytes:
    """What a page of so many bytes holds. Raises ValueError."""
    chunk = data_page(size, len(packed), uncompressed=size) + packed
    cursor = native.Cursor(FIXED, 1, 0, 0, codes=0)
    cursor.set_source(np.frombuffer(chunk, np.uint8).copy(), native.page_table(chunk, size).pages, native.CODECS[codec])
    [done] = native.read_chunks([cursor], size)
    if done is not True:
        raise ValueError(done)
    return bytes(cursor.take().values)


def field(step: int, kind: int) -> bytes:
    return bytes([step << 4 | kind])


def number(step: int, value: int) -> bytes:
    return field(step, 5) + zigzag(value)


def data_page(values: int, size: int, *, uncompressed: int | None = None) -> bytes:
    own = number(1, values) + number(1, PLAIN) + number(1, RLE) + number(1, RLE) + b"\0"
    sizes = number(1, size if uncompressed is None else uncompressed) + number(1, size)
    return number(1, 0) + sizes + field(2, 12) + own + b"\0"


def data_page_v2(values: int, size: int, def_bytes: int, rep_bytes: int, *, rows: int = 1) -> bytes:
    counts = number(1, values) + number(1, 0) + number(1, rows)
    own = counts + number(1, PLAIN) + number(1, def_bytes) + number(1, rep_bytes) + field(1, 2) + b"\0"
    return number(1, 3) + number(1, size) + number(1, size) + field(5, 12) + own + b"\0"


def test_pages_are_all_of_a_chunk():
    chunk = data_page(3, 5) + b"12345" + data_page_v2(2, 4, 2, 1) + b"6789" + data_page(0, 0)
    first, second, empty = pages_in(chunk, 5)
    assert chunk[first.start : first.start + first.compressed] == b"12345"
    assert chunk[second.start : second.start + second.compressed] == b"6789"
    assert (first.values, second.values, second.def_bytes, second.is_compressed) == (3, 2, 2, 0)
    assert (empty.start, empty.values) == (len(chunk), 0)
    assert pages_in(b"", 0) == pages_in(b"PAR1", 0) == []
    for values, message in ((4, "more values"), (6, "fewer values"), (2**63 - 1, "fewer values")):
        with pytest.raises(ValueError, match=message):
            pages_in(chunk, values)
    for rest in (b"\0", data_page(0, 1), chunk[:9]):
        with pytest.raises(ValueError, match="header is not valid"):
            pages_in(chunk + rest, 5)


def test_a_table_sums_up_its_pages():
    """Kinds and encodings are bits; levels count in pages of version 1."""

    def page(kind: int, own_field: int, own: bytes) -> bytes:
        return number(1, kind) + number(1, 0) + number(1, 0) + field(own_field - 3, 12) + own + b"\0\0"

    def data(values: int, encoding: int, def_encoding: int, rep_encoding: int) -> bytes:
        return page(0, 5, number(1, values) + number(1, encoding) + number(1, def_encoding) + number(1, rep_encoding))

    def dictionary(entries: int) -> bytes:
        return page(2, 7, number(1, entries) + number(1, PLAIN))

    def found(chunk: bytes, values: int) -> tuple[int, int, int, int, int]:
        table = native.page_table(chunk, values)
        return table.kinds, table.encodings, table.def_encodings, table.rep_encodings, table.entries

    assert found(b"", 0) == (0, 0, 0, 0, 0)
    assert found(dictionary(7) + data(2, 8, RLE, 4), 2) == (5, 1 << 8, 1 << RLE, 1 << 4, 7)
    assert found(data(2, 8, RLE, RLE) + data(1, 0, 4, RLE), 3) == (1, 1 << 8 | 1, 1 << RLE | 1 << 4, 1 << RLE, 0)
    assert found(data(2, 61, 62, 2**31 - 1), 2) == (1, 1 << 61, 1 << 62, 1 << 62, 0)
    assert found(data_page_v2(2, 0, 0, 0), 2) == (8, 1 << PLAIN, 0, 0, 0)
    for chunk in (dictionary(1) * 2, data(1, 0, RLE, RLE) + dictionary(1)):
        with pytest.raises(ValueError, match="its dictionary is not its first page"):
            found(chunk, 1)
    for kind in (-1, 1, 4, 2**31 - 1):  # an index, and pages of the future
        with pytest.raises(ValueError, match="header is not valid"):
            found(page(kind, 6, b""), 1)


@pytest.mark.parametrize(
    "header",
    [
        data_page(2**31, 0),
        data_page(2**63 - 1, 0),
        data_page(-1, 0),
        data_page(1, 1),  # more bytes than there are
        data_page(1, -1),
        data_page(1, 0, uncompressed=2**31),
        data_page_v2(1, 0, 2**63 - 1, 2**63 - 1),
        data_page_v2(1, 0, 2**31 - 1, 2**31 - 1),
        data_page_v2(1, 0, 1, 0),
        data_page_v2(1, 0, -1, 1),
        data_page_v2(1, 0, 0, 0, rows=-5),
        data_page(1, 0)[:-1],
        b"\x05\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00" + b"\xf5\x00" * 9,  # ids that overflow
        b"\x1c" * 100,  # structures in structures
        b"\x19\xf9\xff\xff\xff\xff\x0f" + b"\x19" * 90,  # lists of lists
        b"\x98\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a string longer than the chunk
    ],
)
def test_broken_page_headers_are_refused(header: bytes):
    with pytest.raises(ValueError, match="header is not valid"):
        pages_in(header, 1)


@given(content=st.binary(max_size=120), values=st.integers(-1, 50))
@examples(200)
def test_any_bytes_are_pages_inside_them_or_refused(content: bytes, values: int):
    try:
        found = pages_in(content, values)
    except ValueError:
        return
    assert all(0 <= page.start <= page.start + page.compressed <= len(content) for page in found)


def test_begin_takes_sizes_from_the_header():
    page = Page(3, 0, 4, 4, 1, PLAIN, -1, -1, 1, 0, 2, 0, 0, -1)
    decoder = native.Cursor(INT32, 4, 0, 1, codes=0)
    decoder.begin(page, b"\x02\x01", struct.pack("<i", 7))
    assert decoder.advance(1)
    assert np.frombuffer(decoder.take().values, np.int32).tolist() == [7]


@given(st.binary(max_size=200), st.integers(1, 9), st.integers(0, 20))
def test_checksums_are_zlibs(content: bytes, copies: int, first: int):
    part = memoryview(content * copies)[first:]
    assert native.crc32(part) == zlib.crc32(part)


BLOCKS = st.lists(st.sampled_from([b"abc", b"x" * 300, b"12345678" * 5]) | st.binary(max_size=20), max_size=9)


@given(parts=BLOCKS, frames=st.integers(1, 3))
def test_pages_of_every_codec_decompress(parts: list[bytes], frames: int):
    content = b"".join(parts)
    assume(content)
    lz4 = pa.Codec("lz4_raw")
    assert decompressed("LZ4", bytes(lz4.compress(content)), len(content)) == content
    assert decompressed("UNKNOWN", bytes(lz4.compress(content)), len(content)) == content
    framed = b""
    for start in range(frames):
        part = content[start::frames]
        packed_part = bytes(lz4.compress(part))
        framed += struct.pack(">II", len(part), len(packed_part)) + packed_part
    expected = b"".join(content[start::frames] for start in range(frames))
    assert decompressed("UNKNOWN", framed, len(expected)) == expected
    for codec in {"zstd", "snappy"}.intersection(name.lower() for name in native.CODECS):
        assert decompressed(codec.upper(), bytes(pa.Codec(codec).compress(content)), len(content)) == content
    assert decompressed("UNCOMPRESSED", content, len(content)) == content


@pytest.mark.parametrize("codec", ["LZ4", "SNAPPY", "ZSTD"])
@given(parts=BLOCKS, seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_damaged_pages_are_refused_or_what_their_definition_says(codec: str, parts: list[bytes], seed: int):
    if codec not in native.CODECS:
        pytest.skip("there is no shared library of zstd")
    content = b"".join(parts)
    rng = random.Random(seed)
    library = pa.Codec("lz4_raw" if codec == "LZ4" else codec.lower())
    block = bytearray(library.compress(content))
    assume(len(block))
    for _ in range(rng.randrange(1, 4)):
        block[rng.randrange(len(block))] = rng.choice((0, 1, 0x0F, 0xF0, 0xFF, rng.randrange(256)))
    by_definition = {"LZ4": lz4_by_definition, "SNAPPY": snappy_by_definition, "ZSTD": zstd_by_library}[codec]
    for size in {len(content), len(content) + 1, len(by_definition(bytes(block), len(content)) or b"")} - {0}:
        expected = by_definition(bytes(block), size)
        if expected is not None and len(expected) == size:
            assert decompressed(codec, bytes(block), size) == expected
        else:
            # The system's library of zstd and pyarrow's may be of versions that differ in what damage they notice.
            may_pass = contextlib.suppress(pytest.fail.Exception) if codec == "ZSTD" else contextlib.nullcontext()
            with may_pass, pytest.raises(ValueError, match="does not decompress to its size"):
                decompressed(codec, bytes(block), size)


def zstd_by_library(block: bytes, size: int) -> bytes | None:
    try:
        return bytes(pa.Codec("zstd").decompress(block, size))
    except (OSError, pa.ArrowInvalid):
        return None


def snappy_by_definition(block: bytes, _: int = 0) -> bytes | None:
    """The format's description, byte by byte; None where it says nothing."""
    declared = shift = at = 0
    while True:
        if at == len(block) or shift > 28:
            return None
        declared |= (block[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if block[at - 1] < 128:
            break
    out = bytearray()
    while at < len(block):
        tag, at = block[at], at + 1
        width = (1, 2, 4)[(tag & 3) - 1] if tag & 3 else max(0, (tag >> 2) - 59)
        if at + width > len(block):
            return None
        number = int.from_bytes(block[at : at + width], "little")
        at += width
        if not tag & 3:
            length = (number if width else tag >> 2) + 1
            if at + length > len(block):
                return None
            out += block[at : at + length]
            at += length
            continue
        length, distance = ((tag >> 2 & 7) + 4, number | tag >> 5 << 8) if width == 1 else ((tag >> 2) + 1, number)
        if not 0 < distance <= len(out) or len(out) + length > declared:
            return None
        for _ in range(length):
            out.append(out[-distance])
    return bytes(out) if len(out) == declared else None


def lz4_by_definition(block: bytes, _: int = 0) -> bytes | None:
    """LZ4's block format, one sequence after the other; None where the block is not valid."""
    out, at = bytearray(), 0

    def length(short: int) -> int:
        nonlocal at
        more = short == 15
        while more:
            more = block[at] == 255
            short += block[at]
            at += 1
        return short

    try:
        while True:
            token = block[at]
            at += 1
            literals = length(token >> 4)
            if at + literals > len(block):
                return None
            out += block[at : at + literals]
            at += literals
            if at == len(block):
                return bytes(out)
            distance = block[at] | block[at + 1] << 8
            at += 2
            size = length(token & 15) + 4
            if not 0 < distance <= len(out) or size > 100_000:
                return None
            for _ in range(size):
                out.append(out[-distance])
    except IndexError:
        return None


def test_a_dictionary_has_no_more_entries_than_its_codes_count():
    native.Cursor(INT32, 4, 0, 0, codes=2).set_dictionary(bytes(4 * 65_536), 65_536)
    native.Cursor(INT32, 4, 0, 0, codes=4).set_dictionary(bytes(4 * 65_537), 65_537)
    with pytest.raises(ValueError, match="its dictionary is not valid"):
        native.Cursor(INT32, 4, 0, 0, codes=2).set_dictionary(bytes(4 * 65_537), 65_537)
