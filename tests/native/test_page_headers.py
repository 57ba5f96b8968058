"""Are page headers, checksums, LZ4 and the sizes of zstd frames what their definitions say, and refused otherwise?"""

from __future__ import annotations

import random
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from page_bytes import zigzag

from feedline.native import parquet as native
from feedline.native.parquet import Page

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

INT32, PLAIN, RLE = 1, 0, 3


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


def test_pages_are_found_up_to_the_footers_count():
    chunk = data_page(3, 5) + b"12345" + data_page_v2(2, 4, 2, 1) + b"6789" + data_page(9, 0)
    first, second = native.pages(chunk, 5)
    assert chunk[first.start : first.start + first.compressed] == b"12345"
    assert chunk[second.start : second.start + second.compressed] == b"6789"
    assert (first.values, second.values, second.def_bytes, second.is_compressed) == (3, 2, 2, 0)
    assert native.pages(chunk, 0) == []
    for values, message in ((4, "more values"), (15, "fewer values"), (2**63 - 1, "fewer values")):
        with pytest.raises(ValueError, match=message):
            native.pages(chunk, values)


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
        native.pages(header, 1)


@given(content=st.binary(max_size=120), values=st.integers(-1, 50))
@settings(max_examples=200)
def test_any_bytes_are_pages_inside_them_or_refused(content: bytes, values: int):
    try:
        found = native.pages(content, values)
    except ValueError:
        return
    assert all(0 <= page.start <= page.start + page.compressed <= len(content) for page in found)


def test_begin_takes_sizes_from_the_header():
    page = Page(3, 0, 4, 4, 1, PLAIN, -1, -1, 1, 0, 2, 0, 0, -1)
    decoder = native.Cursor(INT32, 4, 0, 1, codes=0)
    decoder.begin(page, b"\x02\x01", struct.pack("<i", 7))
    assert decoder.advance(1)
    assert np.frombuffer(decoder.take().values, np.int32).tolist() == [7]


@given(st.binary(max_size=200))
def test_checksums_are_zlibs(content: bytes):
    assert native.crc32(content) == zlib.crc32(content)


BLOCKS = st.lists(st.sampled_from([b"abc", b"x" * 300, b"12345678" * 5]) | st.binary(max_size=20), max_size=9)


@given(parts=BLOCKS, frames=st.integers(1, 3))
def test_lz4_blocks_and_frames_decompress(parts: list[bytes], frames: int):
    content = b"".join(parts)
    codec = pa.Codec("lz4_raw")
    assert bytes(native.lz4(codec.compress(content), len(content), hadoop=False)) == content
    assert bytes(native.lz4(codec.compress(content), len(content), hadoop=True)) == content
    framed = b""
    for start in range(frames):
        part = content[start::frames]
        packed_part = bytes(codec.compress(part))
        framed += struct.pack(">II", len(part), len(packed_part)) + packed_part
    expected = b"".join(content[start::frames] for start in range(frames))
    assert bytes(native.lz4(framed, len(expected), hadoop=True)) == expected


@given(parts=BLOCKS, seed=st.integers(0, 2**32))
def test_damaged_lz4_is_refused_or_what_its_definition_says(parts: list[bytes], seed: int):
    content = b"".join(parts)
    rng = random.Random(seed)
    block = bytearray(pa.Codec("lz4_raw").compress(content))
    assume(len(block))
    for _ in range(rng.randrange(1, 4)):
        block[rng.randrange(len(block))] = rng.choice((0, 1, 0x0F, 0xF0, 0xFF, rng.randrange(256)))
    expected = lz4_by_definition(bytes(block))
    for size in {len(content), len(content) + 1, len(expected or b"")}:
        if expected is not None and len(expected) == size:
            assert bytes(native.lz4(bytes(block), size, hadoop=False)) == expected
        else:
            with pytest.raises(ValueError, match="does not decompress to its size"):
                native.lz4(bytes(block), size, hadoop=False)


CONTENTS = BLOCKS.map(b"".join) | st.sampled_from([255, 256, 65_791, 65_792, 300_000]).map(
    lambda size: random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
)


def decompressed(frames: bytes, size: int) -> bytes | None:
    try:
        return bytes(pa.Codec("zstd").decompress(frames, size))
    except (OSError, pa.ArrowInvalid):
        return None


@given(content=CONTENTS, cut=st.integers(0, 400))
@settings(deadline=None)
def test_a_zstd_frame_says_its_size_if_it_is_whole_and_alone(content: bytes, cut: int):
    frame = bytes(pa.Codec("zstd").compress(content))
    assert native.zstd_size(frame) == len(content)
    for other in (frame[: max(0, len(frame) - 1 - cut)], frame + b"\0", frame + frame, content[:cut], b""):
        assert native.zstd_size(other) == -1
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as compressed:
        compressed.write(content)
    unsaid = stream.getvalue().to_pybytes()
    assert native.zstd_size(unsaid) in (-1, len(content))


@given(content=CONTENTS, seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_damaged_zstd_frames_decompress_together_as_they_do_alone(content: bytes, seed: int):
    rng = random.Random(seed)
    frame = bytearray(pa.Codec("zstd").compress(content))
    for _ in range(rng.randrange(1, 4)):
        frame[rng.randrange(4, len(frame))] = rng.choice((0, 1, 0x0F, 0xF0, 0xFF, rng.randrange(256)))
    size = native.zstd_size(frame)
    assume(0 <= size < 2**24)
    other = bytes(pa.Codec("zstd").compress(b"the next page"))
    alone = decompressed(bytes(frame), size)
    assert decompressed(frame + other, size + 13) == (None if alone is None else alone + b"the next page")
    assert decompressed(other + frame, size + 13) == (None if alone is None else b"the next page" + alone)


def lz4_by_definition(block: bytes) -> bytes | None:
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
