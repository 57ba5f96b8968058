"""What `tools/fuzz.py` calls with any bytes: an entry of the kernels, beside pyarrow, numpy or Python.

A target raises where a kernel delivers what its oracle does not. It may refuse more: pyarrow then reads.
"""

from __future__ import annotations

import itertools
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from kernel_calls import PLACES, copied_slot, gathered_slot
from page_bytes import exact, repeated, sized
from page_decoding import arrow_table, difference, table_of
from parquet_chunks import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FIXED,
    FLOAT,
    INT32,
    INT64,
    SIZES,
    Column,
    data_page,
    data_page_v2,
    dictionary_page,
    file_of,
)

from feedline.errors import CorruptFileError
from feedline.native import parquet as native
from feedline.native import ring, rows
from feedline.warehouse.parquet import thrift

PHYSICALS = (BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY, FIXED)
# The encodings of values of each type: PLAIN, RLE, DELTA_*, RLE_DICTIONARY, BYTE_STREAM_SPLIT.
ENCODINGS = {
    BOOLEAN: (0, 3),
    INT32: (0, 5, 8, 9),
    INT64: (0, 5, 8, 9),
    FLOAT: (0, 8, 9),
    DOUBLE: (0, 8, 9),
    BYTE_ARRAY: (0, 6, 7, 8),
    FIXED: (0, 7, 8, 9),
}
# The kernel's numbers of codecs and parquet.thrift's.
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "UNKNOWN": 5, "ZSTD": 6, "LZ4": 7}
ENTRIES = 300  # of dictionaries
FILE_COLUMNS = [
    Column(physical, lists, nullable) for physical in PHYSICALS for lists in (0, 1, 2) for nullable in (False, True)
]


class Input:
    """Bytes that are read as numbers; 0 behind their end."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1] if self._at <= len(self._content) else 0

    def number(self) -> int:
        """Of 16 bits."""
        return self.byte() | self.byte() << 8

    def rest(self, most: int | None = None) -> bytes:
        start, self._at = self._at, len(self._content) if most is None else self._at + most
        return self._content[start : self._at]

    def integers(self, most: int) -> np.ndarray[Any, Any]:
        """At most so many int64: small ones, mostly."""
        return np.array([self.integer() for _ in range(self.byte() % (most + 1))], np.int64)

    def integer(self) -> int:
        value = self.byte()
        if value < 240:
            return value - 8
        return (-(2**63), 2**63 - 1, -(2**31), 2**31, 2**32, 2**62, -(2**62), 2**16)[value % 8]


def rows_of(column: Column, chunk: bytes, values: int, rows: int, codec: str, *, coded: bool) -> bool:
    """Whether the kernel reads a chunk; it has then read so many rows."""
    content = exact(chunk)
    request = (content, 0, len(content), values, rows, native.CODECS[codec], coded, 2 if coded else 0, 0, column.layout)
    [opened] = native.open_chunks([request])
    if opened is None:
        return False
    taken = native.take_rows([native.Cursor.over(opened[0])], 0, rows)
    return not isinstance(taken, list)


def check_chunk(
    column: Column,
    chunk: bytes,
    values: int,
    rows: int,
    codec: str = "UNCOMPRESSED",
    *,
    coded: bool = False,
    chunk_rows: int = 1000,
) -> bool:
    """Fail where the kernel reads other rows than pyarrow. Returns whether it reads any."""
    if not rows_of(column, chunk, values, rows, codec, coded=coded):
        return False
    pages = native.pages_of(native.page_table(chunk, values).pages)
    if codec == "ZSTD" and not all(is_read_alike(chunk, page) for page in pages):
        return False
    first = 0
    if pages and pages[0].kind == native.DICTIONARY_PAGE:
        first = pages[0].start + pages[0].compressed
    content = file_of(column, chunk, first, values, rows, CODECS[codec])
    try:
        found = table_of(content, chunk_rows, coded=coded, prefix=2)
    except CorruptFileError:
        return False  # of pages of rows, not of all rows at once: it is refused later
    expected = arrow_table(content)
    if coded and column.lists:
        return found.num_rows == expected.num_rows  # lists are cut
    why = difference(found, expected)
    assert not why, f"{column}: {why}"
    return True


def is_read_alike(chunk: bytes, page: native.Page) -> bool:
    """Whether the system's zstd and pyarrow's make the same of a page. What a damaged frame holds is not defined:
    versions of the library refuse it or not, and find different bytes in it.
    """
    levels = max(0, page.def_bytes) + max(0, page.rep_bytes)
    packed, size = chunk[page.start + levels : page.start + page.compressed], page.uncompressed - levels
    if not page.is_compressed or not size:
        return True
    try:
        return decompressed("ZSTD", packed, size) == pa.Codec("zstd").decompress(packed, size).to_pybytes()
    except OSError:
        return False


def decompressed(codec: str, packed: bytes, size: int) -> bytes | None:
    """What the kernel decompresses to so many bytes; None where it refuses."""
    made = data_page(size, packed, 0, size=size)
    cursor = native.Cursor(FIXED, 1, 0, 0, codes=0)
    cursor.set_source(exact(made), native.page_table(made, size).pages, native.CODECS[codec])
    [done] = native.read_chunks([cursor], size)
    return bytes(cursor.take().values) if done is True else None


def dictionary_of(physical: int) -> bytes:
    """A dictionary page of distinct values."""
    if physical == BYTE_ARRAY:
        words = [f"{'w' * (entry % 9)}{entry}".encode() for entry in range(ENTRIES)]
        return dictionary_page(ENTRIES, b"".join(sized(word) for word in words))
    size = SIZES[physical]
    return dictionary_page(
        ENTRIES, b"".join((entry * 0x9E3779B1 % 2 ** (8 * size)).to_bytes(size, "little") for entry in range(ENTRIES))
    )


def chunk(data: bytes) -> bool:
    """A column chunk: page headers, levels and values are any bytes."""
    source = Input(data)
    column = FILE_COLUMNS[source.byte() % len(FILE_COLUMNS)]
    flags, codec = source.byte(), [*CODECS][source.byte() % len(CODECS)]
    counted, values = source.number(), source.number()
    if column.physical == BOOLEAN and flags & 1:
        flags -= 1
    return check_chunk(
        column, source.rest(), values, counted, codec, coded=bool(flags & 1), chunk_rows=1 + (flags >> 1)
    )


def levels(data: bytes) -> bool:
    """A page's repetition and definition levels are any bytes; there are values for all of them."""
    source = Input(data)
    kind, flags, slots = source.byte(), source.byte(), source.number() % 6000
    column = Column(INT32, kind % 3, bool(kind & 4))
    if column.max_def == 0:
        return False
    reps = source.rest(source.number()) if column.lists else b""
    defs = source.rest()
    body = np.arange(slots, dtype=np.int32).tobytes()
    counted = slots
    if column.lists:  # how many lists begin
        cursor = native.Cursor(INT32, 4, column.lists, column.max_def, codes=0)
        page = native.Page(3, 0, 0, 0, slots, 0, 3, 3, 0, 0, len(defs), len(reps), 0, -1)
        cursor.begin(page, exact(reps + defs), body)
        try:
            cursor.advance(10_000)
        except ValueError:
            return False
        counted = cursor.take().rows
    if flags & 1:
        made = data_page_v2(slots, counted, reps, defs, body, 0)
    else:
        made = data_page(slots, (sized(reps) if column.lists else b"") + sized(defs) + body, 0)
    return check_chunk(column, made, slots, counted, chunk_rows=1 + (flags >> 1) * 16)


def codes(data: bytes) -> bool:
    """The codes of a page are any bytes."""
    source = Input(data)
    physical = PHYSICALS[1 + source.byte() % 6]
    flags, slots = source.byte(), source.number() % 6000
    made = dictionary_of(physical) + data_page(slots, source.rest(), 8)
    return check_chunk(
        Column(physical, 0, False), made, slots, slots, coded=bool(flags & 1), chunk_rows=1 + (flags >> 1) * 16
    )


def encoded(data: bytes) -> bool:
    """The values of a page are any bytes: of the delta encodings, in streams, plain strings and Booleans in runs."""
    source = Input(data)
    physical = PHYSICALS[source.byte() % 7]
    possible = ENCODINGS[physical]
    encoding = possible[source.byte() % len(possible)]
    flags, slots = source.byte(), source.number() % 3000
    body, before = source.rest(), b""
    if encoding == 8:
        before, encoding, count = dictionary_page(min(slots, 400), body), 8, slots
        body = b"\x09" + (repeated(0, count, 9) if count else b"")
    made = before + data_page(slots, body, encoding)
    return check_chunk(Column(physical, 0, False), made, slots, slots, chunk_rows=1 + (flags >> 1) * 16)


def codecs(data: bytes) -> bool:
    """The bytes that a page is decompressed from are any; pyarrow's codecs decompress the same, but for zstd."""
    source = Input(data)
    codec = ("SNAPPY", "LZ4", "UNKNOWN", "ZSTD")[source.byte() % 4]
    if codec not in native.CODECS:
        return False
    size, packed = source.number(), source.rest()
    found = decompressed(codec, packed, size)
    if found is None:
        return False
    assert len(found) == size
    if codec == "UNKNOWN":
        assert found == _hadoop(packed, size)
    elif codec == "LZ4":
        assert found == _lz4(packed, size)
    elif codec == "SNAPPY" and size:
        assert found == pa.Codec("snappy").decompress(packed, size).to_pybytes()
    return True


def _lz4(packed: bytes, size: int) -> bytes:
    """A block of LZ4, whose library refuses matches that end, or literals that are followed by others, within the last
    bytes: an encoder does not write such blocks. They are decompressed here.
    """
    if size == 0:
        return b""
    try:
        return pa.Codec("lz4_raw").decompress(packed, size).to_pybytes()
    except (OSError, pa.ArrowException):
        pass
    source, out = Input(packed), bytearray()

    def length(short: int) -> int:
        more = short == 15
        while more:
            byte = source.byte()
            short, more = short + byte, byte == 255
        return short

    while len(out) < size:
        token = source.byte()
        out += source.rest(length(token >> 4))
        if len(out) >= size:
            break
        distance, match = source.number(), length(token & 15) + 4
        assert 0 < distance <= len(out)
        for _ in range(match):
            out.append(out[-distance])
    return bytes(out)


def _hadoop(packed: bytes, size: int) -> bytes:
    """Frames, or a block."""
    out, at = b"", 0
    while len(packed) - at >= 8:
        full, short = (int.from_bytes(packed[at + each : at + each + 4], "big") for each in (0, 4))
        if short > len(packed) - at - 8 or full > size - len(out):
            break
        try:
            out += _lz4(packed[at + 8 : at + 8 + short], full)
        except AssertionError:
            break
        at += 8 + short
    return out if at == len(packed) and len(out) == size else _lz4(packed, size)


def headers(data: bytes) -> bool:
    """Page headers are any bytes; a reader of Thrift in Python finds the same numbers."""
    source = Input(data)
    values, content = source.number(), source.rest()
    try:
        pages = native.pages_of(native.page_table(exact(content), values).pages)
    except ValueError:
        return False
    at, total = 0, 0
    for page in pages:
        found, at = _header(content, at)
        kind = found[1, _INTEGER]
        own = found[{0: 5, 2: 7, 3: 8}[kind], _STRUCTURE]
        numbers = [own.get((each, _INTEGER)) for each in range(7)]
        assert (page.kind, page.uncompressed, page.compressed) == tuple(found[each, _INTEGER] for each in (1, 2, 3))
        assert page.start == at
        assert page.crc == (found[4, _INTEGER] & 0xFFFFFFFF if (4, _INTEGER) in found else -1)
        assert (page.values, page.encoding) == (numbers[1], numbers[4 if kind == 3 else 2])
        if kind == 0:
            assert (page.def_encoding, page.rep_encoding) == (numbers[3], numbers[4])
        if kind == 3:
            assert (page.nulls, page.rows, page.def_bytes, page.rep_bytes) == (numbers[2], numbers[3], *numbers[5:])
            assert page.is_compressed == own.get((7, _BOOLEAN), 1)
        at += page.compressed
        total += page.values * (kind != 2)
    assert total == values
    assert values == 0 or at == len(content)
    return bool(pages)


_BOOLEAN, _INTEGER, _STRUCTURE = 1, 5, 12  # types of Thrift's compact protocol


def _header(content: bytes, at: int) -> tuple[dict[tuple[int, int], Any], int]:
    """A structure's 32-bit integers, Booleans and structures by their ids and types, and where it ends. Of those that
    come twice the last, of structures their fields.
    """
    found: dict[tuple[int, int], Any] = {}
    last = 0
    while content[at] & 15:  # else a structure ends, also where the byte names a field, as for Apache Thrift
        at, last, kind = thrift.field_at(content, at, last)
        if kind in (1, 2):
            found[last, _BOOLEAN] = int(kind == 1)
        elif kind == _INTEGER:
            found[last, _INTEGER], at = thrift.integer(content, at)
        elif kind == _STRUCTURE:
            fields, at = _header(content, at)
            found.setdefault((last, _STRUCTURE), {}).update(fields)
        else:
            at = thrift.skip(content, at, kind)
    return found, at + 1


def row_functions(data: bytes) -> bool:
    """Functions of `rows`, with any offsets, codes, sizes and bounds: as without the compiled functions, or refused."""
    source = Input(data)
    function = ROW_FUNCTIONS[source.byte() % len(ROW_FUNCTIONS)]
    try:
        return function(source)
    except (ValueError, OverflowError):
        return False


def _lists(source: Input) -> bool:
    offsets, values = source.integers(12), np.arange(source.byte() % 40, dtype=np.int64)
    start, stop = (source.integer() % 2**20 - 2**19 if source.byte() & 1 else source.byte() - 9 for _ in range(2))
    if not len(offsets):
        return False
    sliced = rows.slice_lists(offsets, start, stop)
    lengths = [slice(start, stop).indices(length) for length in np.diff(offsets).tolist()]
    assert np.diff(sliced).tolist() == [max(0, last - first) for first, last, _ in lengths]
    if sliced[-1] > 1000:
        return False
    out = np.zeros(int(sliced[-1]), np.int64)
    rows.slice_values(offsets, values, 8, start, sliced, out)
    borders = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    expected = [values[first:last][start:stop] for first, last in borders]
    assert out.tolist() == (np.concatenate(expected).tolist() if expected else [])
    if len(offsets) > 2:
        equal = rows.equal_neighbours(offsets, values, 8)
        lists = [values[first:last].tolist() for first, last in itertools.pairwise(offsets)]
        assert equal.tolist() == [one == other for one, other in itertools.pairwise(lists)]
    return True


def _codes(source: Input) -> bool:
    kind = np.uint16 if source.byte() & 1 else np.int32
    table, own = source.integers(20), source.integers(40)
    found = own.astype(kind)
    if not len(table):
        return False
    inside = bool(((found >= 0) & (found < len(table))).all())
    order = None if source.byte() & 1 else source.integers(40).astype(np.int32)
    target = np.zeros(len(found), np.int64)
    try:
        counts, marks = rows.count_codes(found, len(table)), rows.mark_codes(found, len(table))
    except ValueError:
        assert not inside
        return False
    assert inside
    assert counts.tolist() == np.bincount(found, minlength=len(table)).tolist()
    assert marks.tolist() == (counts > 0).tolist()
    if len(found):
        [ends] = rows.used_extremes([(table, found)])
        used = table[found]
        assert ends == (table.min(), table.max(), used.min(), used.max())
    ends_of = rows.gather_codes([(target, 0, 1, table, found, len(found) > 0)], order)
    expected = table[found if order is None else found[order]]
    assert target.tolist() == expected.tolist()
    assert ends_of == ([(expected.min(), expected.max())] if len(found) else [])
    return True


def _events(source: Input) -> bool:
    count, pools = source.byte() % 12, 1 + source.byte() % 3
    known = source.integers(count) if source.byte() & 1 else None
    bits = source.integers(count).astype(np.uint32) if source.byte() & 1 else None
    wide = source.byte() % 4
    own = np.array([source.integer() for _ in range(3 * wide)], np.int64).reshape(3, wide)
    lasts = np.array([source.byte() % 6 for _ in range(pools * wide)], np.int64).reshape(pools, wide)
    reach = min([len(each) for each in (known, bits) if each is not None], default=1000)
    inside = bool(((own[0] >= 0) & (own[1] <= reach)).all())
    with np.errstate(over="ignore"):
        most = np.minimum(np.maximum(own[1] - own[0], 0), lasts.sum(axis=0)).sum()
    if not 0 <= most < 1000 or not wide:
        return False
    try:
        found = rows.last_events(own, known, bits, lasts, tagged=True)
    except ValueError:
        assert not inside or known is None or bits is None
        return False
    if not inside or (own[1] > 10**6).any():
        return False
    tags = np.empty(int(most), np.uint32)
    offsets, positions = np.empty(wide + 1, np.int64), np.empty(int(most), np.int32)
    total = rows._last_events(own, known, bits, lasts, offsets, positions, tags)
    assert [each.tolist() for each in found if each is not None] == [
        offsets.tolist(),
        positions[:total].tolist(),
        tags[:total].tolist(),
    ]
    return True


def _bisected(source: Input) -> bool:
    values = np.sort(source.integers(20))
    wide = source.byte() % 5
    low, high, bounds = (np.array([source.integer() for _ in range(wide)], np.int64) for _ in range(3))
    found = rows.bisect(values, low, high, bounds)
    assert found.tolist() == rows._bisect(values, low, high, bounds).tolist()
    return True


def _strings(source: Input) -> bool:
    offsets, text = source.integers(8), source.rest(source.byte())
    kind = np.int32 if source.byte() & 1 else np.int64
    own, buckets = offsets.astype(kind), source.number()
    if not len(own):
        return False
    found = np.zeros(len(own) - 1, np.uint64)
    rows.digest_strings(own, text, own.itemsize, found, 3, buckets)
    words = [text[first:last] for first, last in zip(own[:-1].tolist(), own[1:].tolist(), strict=True)]
    views = pa.array(words, pa.binary_view()) if words else pa.array([], pa.binary_view())
    again = np.zeros(len(words), np.uint64)
    buffers = views.buffers()
    rows.digest_views(buffers[1], tuple(buffers[2:]), again, 3, buckets)
    assert found.tolist() == again.tolist()
    assert not buckets or bool((found < buckets).all())
    return True


def _numbers(source: Input) -> bool:
    one, other = source.integers(30), source.integers(30)
    if not len(one) or not len(other):
        return False
    assert rows.extremes([one, other]).tolist() == [[one.min(), one.max()], [other.min(), other.max()]]
    words = np.concatenate([one, other]).astype(np.uint64)
    expected = np.sort(words)
    rows.sort_words(words)
    assert words.tolist() == expected.tolist()
    floats = one.astype(np.float32)
    assert rows.extremes([floats]).tolist() == [[floats.min(), floats.max()]]
    counts = np.zeros((1, 10), np.int64)
    longest = rows.count_lengths([one], [0], counts)
    lengths = np.diff(one)
    assert longest == [lengths.max(initial=-1)]
    assert counts[0].tolist() == (np.bincount(lengths, minlength=10).tolist() if longest[0] < 10 else [0] * 10)
    return True


def _columns(source: Input) -> bool:
    width, height = 1 + source.byte() % 40, source.byte() % 12
    matrix = np.arange(width * height, dtype=np.float32).reshape(height, width)
    numbers = [source.byte() % (width + 1) for _ in range(source.byte() % 24)]
    if not height:
        return False
    columns = rows.take_columns(matrix, numbers)
    assert [column.tolist() for column in columns] == [matrix[:, number].tolist() for number in numbers]
    laid = np.zeros_like(matrix)
    rows.lay_columns(laid, dict(zip(numbers, columns, strict=True)))
    assert laid[:, numbers].tolist() == matrix[:, numbers].tolist()
    return True


def _looked_up(source: Input) -> bool:
    kind = np.uint16 if source.byte() & 1 else np.int32
    truths = np.array([source.byte() & 1 for _ in range(1 + source.byte() % 20)], np.bool_)
    found = source.integers(60).astype(kind)
    offset, count = source.byte() % 8, source.byte() % 64
    valid = source.rest(source.byte() % 9) if source.byte() & 1 else None
    result = native.look_up(found, found.itemsize, valid, offset, count, truths)
    codes_of = found[offset : offset + count].astype(np.int64)
    expected = truths[codes_of]
    if valid is not None:
        bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[offset : offset + count]
        expected = np.where(bits == 1, expected, truths[-1])
    assert result.tolist() == expected.tolist()
    return True


def _slots(source: Input) -> bool:
    """Numbers of a slot's places and pieces: what is written lies in the slot."""
    arguments = copied_slot(coded=bool(source.byte() & 1))
    is_gathered = bool(source.byte() & 1)
    changeable = list(range(12))
    if is_gathered:  # the rows of parts, and the sizes of their values, are not checked: see `rows`
        changeable = [0, 2, 4, 5, 6, 7, 8, 9, 11]
        target, header, gaps, own = gathered_slot()
        arguments = [target, header, gaps, [(PLACES, [(*own[:-1], tuple(own[-1]))])]]
    places, pieces = arguments[3][0]
    numbers = [*places[:7], *places[7][0]]
    for _ in range(source.byte() % 4):
        numbers[changeable[source.byte() % len(changeable)]] = (
            source.integer() if source.byte() & 1 else source.number() % 700
        )
    changed = []
    for piece in pieces:
        start, stop, *others = piece
        if source.byte() & 1:
            start, stop = source.integer(), source.integer()
        if not is_gathered and source.byte() & 1:
            others[-1][0][source.byte() % len(others[-1][0])] = source.integer()
        changed.append((start, stop, *others))
    gaps = tuple((source.number() % 700, source.integer()) for _ in range(source.byte() % 3))
    rows.write_slot(arguments[0], arguments[1], gaps, [((*numbers[:7], (tuple(numbers[7:]),)), changed)])
    return True


ROW_FUNCTIONS: list[Callable[[Input], bool]] = [
    _lists,
    _codes,
    _events,
    _bisected,
    _strings,
    _numbers,
    _columns,
    _looked_up,
    _slots,
]


def packets(data: bytes) -> bool:
    """Packets of a ring are any bytes: the compiled functions file what those of Python do."""
    source = Input(data)
    outcomes = []
    sizes = [source.byte() for _ in range(source.byte() % 5)]
    contents = [source.rest(size) for size in sizes]
    room, reports = 1 + source.byte(), [source.rest(9).ljust(9, b"\0") for _ in range(source.byte() % 5)]
    for form in (ring._compiled, ring.Uncompiled):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            for content in contents:
                theirs.send(content)
            queue: deque[Any] = deque()
            results: list[Any] = []
            buffer = bytearray(room)
            for _ in range(len(contents) + 1):
                try:
                    results.append(form.receive(ours, buffer, queue))
                except Exception as error:  # Python's refuse parts of packets, which are never sent
                    results.append(type(error).__name__)
                    break
            unsent = list(reports)
            form.flush(ours, unsent)
            sent = theirs.recv(10_000, socket.MSG_DONTWAIT) if reports else b""
            # All of a packet's messages are of the kind of the first: what others say of theirs is not looked at.
            outcomes.append((results, [each[1:] for each in queue], bytes(buffer), unsent, sent))
    if "error" not in outcomes[1][0]:
        assert outcomes[0] == outcomes[1]
    return True


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "chunk": chunk,
    "levels": levels,
    "codes": codes,
    "encoded": encoded,
    "codecs": codecs,
    "headers": headers,
    "rows": row_functions,
    "packets": packets,
}
