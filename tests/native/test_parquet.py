"""Does the page decoder return what Parquet's definition says, and refuse all else, whatever it is called with?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from page_bytes import bits, exact, packed, repeated, sized, varint, zigzag

from feedline.native import parquet as native

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTES, FIXED = 0, 1, 2, 4, 5, 6, 7
PLAIN, PLAIN_DICTIONARY, RLE, DELTA, DELTA_LENGTH, DELTA_BYTES, CODED, SPLIT = 0, 2, 3, 5, 6, 7, 8, 9


def cursor(physical: int, size: int, lists: int = 0, max_def: int = 0, codes: int = 0, prefix: int = 0) -> Any:
    return native._compiled.Cursor(physical, size, lists, max_def, codes, prefix)


@st.composite
def hybrid(draw: Any, width: int, most: int | None = None) -> tuple[list[int], bytes]:
    """Values of a width, and runs of them."""
    values: list[int] = []
    runs = b""
    number = st.integers(0, 2**width - 1 if most is None else most)
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            value, count = draw(number), draw(st.integers(1, 70))
            values += [value] * count
            runs += repeated(value, count, width)
        else:
            some = draw(st.lists(number, min_size=8, max_size=48))
            some = some[: len(some) // 8 * 8]
            values += some
            runs += packed(some, width)
    return values, runs


@pytest.mark.parametrize("width", range(33))
@given(data=st.data())
@examples(15)
def test_codes_of_every_width_are_those_that_were_packed(width: int, data: st.DataObject):
    entries = min(2**width, 1000)
    codes, runs = data.draw(hybrid(width, entries - 1))
    size = data.draw(st.sampled_from([2, 4]))
    one = cursor(INT64, 8, codes=size)
    values = np.arange(entries, dtype=np.int64) * 3 - 7
    one.dictionary(values.tobytes(), entries)
    other = cursor(INT64, 8)
    other.dictionary(values.tobytes(), entries)
    step = data.draw(st.integers(1, 50))
    for each in (one, other):
        each.begin(None, bytes([width]) + runs, len(codes), CODED, -1, -1)
    for start in range(0, len(codes), step):
        expected = codes[start : start + step]
        assert one.advance(len(expected))
        assert other.advance(len(expected))
        assert np.frombuffer(one.take()[2], f"u{size}").tolist() == expected
        assert np.frombuffer(other.take()[2], np.int64).tolist() == [3 * code - 7 for code in expected]


@pytest.mark.parametrize("runs", [packed([0, 1, 2, 3, 4, 0, 0, 0], 3), repeated(4, 8, 3), repeated(7, 8, 3)])
@pytest.mark.parametrize("codes", [0, 2, 4])
def test_a_code_that_is_not_in_the_dictionary_is_refused(runs: bytes, codes: int):
    decoder = cursor(INT64, 8, codes=codes)
    decoder.dictionary(exact(bytes(32)), 4)
    decoder.begin(None, b"\x03" + runs, 8, CODED, -1, -1)
    with pytest.raises(ValueError, match="a code is not in its dictionary"):
        decoder.advance(8)


@given(
    lengths=st.lists(st.sampled_from([1, 1, 2, 3, 9, 70, 200]), min_size=1, max_size=60),
    step=st.integers(1, 20),
    repeat=st.booleans(),
)
def test_lists_without_nulls_begin_where_their_levels_say(lengths: list[int], step: int, repeat: bool):
    """Their definition levels are one run, their repetition levels packed or in runs."""
    count = sum(lengths)
    levels = [int(item > 0) for length in lengths for item in range(length)]
    reps = packed(levels, 1)
    if repeat:
        reps = b"".join(repeated(0, 1, 1) + (repeated(1, each - 1, 1) if each > 1 else b"") for each in lengths)
    decoder = cursor(INT64, 8, 1, 1)
    values = np.arange(count, dtype=np.int64)
    decoder.begin(
        exact(reps + repeated(1, count, 1)),
        exact(values.tobytes()),
        count,
        PLAIN,
        len(reps),
        len(repeated(1, count, 1)),
    )
    found: list[int] = []
    for start in range(0, len(lengths), step):
        part = lengths[start : start + step]
        decoder.advance(len(part))
        rows, _, content, _, valid, _, starts, *_ = decoder.take()
        assert (rows, valid) == (len(part), None)
        assert np.diff(np.frombuffer(starts, np.int32)).tolist() == part
        found += np.frombuffer(content, np.int64).tolist()
    assert found == values.tolist()


@examples(60)
@given(levels=hybrid(1), step=st.integers(1, 300))
def test_null_slots_are_zero_and_marked(levels: tuple[list[int], bytes], step: int):
    defs, runs = levels
    values = np.arange(1, sum(defs) + 1, dtype=np.int32)
    decoder = cursor(INT32, 4, max_def=1)
    decoder.begin(None, sized(runs) + values.tobytes(), len(defs), PLAIN, -1, -1)
    dense = iter(values.tolist())
    expected = [next(dense) if level else 0 for level in defs]
    for start in range(0, len(defs), step):
        part = defs[start : start + step]
        assert decoder.advance(len(part))
        rows, elements, found, _, valid, nulls, *_ = decoder.take()
        assert (rows, elements, nulls) == (len(part), len(part), part.count(0))
        assert np.frombuffer(found, np.int32).tolist() == expected[start : start + step]
        if nulls:
            assert np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[: len(part)].tolist() == part
        else:
            assert valid is None


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_packed_run_may_lack_bytes_of_its_last_group_only(cut: int):
    """As old writers left them out; pyarrow reads such runs, too."""
    runs = packed([1, 2, 3, 4, 5, 6, 7, 0] * 2, 3)[:-cut]
    decoder = cursor(INT32, 4, codes=4)
    decoder.dictionary(bytes(32), 8)
    decoder.begin(None, b"\x03" + runs, 9, CODED, -1, -1)
    if cut == 3:
        with pytest.raises(ValueError, match="its codes end early"):
            decoder.advance(9)
    else:
        assert decoder.advance(9)
        assert np.frombuffer(decoder.take()[2], np.int32).tolist() == [1, 2, 3, 4, 5, 6, 7, 0, 1]


@pytest.mark.parametrize(
    "runs",
    [
        b"",
        b"\x00\x01",  # a run of no values
        b"\x01",  # no groups
        b"\xff\xff\xff\xff\xff\x01\x01",  # a header of more than 32 bits
        b"\x80",  # half a header
        b"\x10\x02",  # a value wider than its bits
        b"\x08",  # no value
        b"\x05\xff",  # one group of two
    ],
)
def test_broken_runs_are_refused_again_and_again(runs: bytes):
    decoder = cursor(INT32, 4, max_def=1)
    decoder.begin(None, sized(runs) + bytes(100), 16, PLAIN, -1, -1)
    with pytest.raises(ValueError, match="its levels end early"):
        decoder.advance(16)
    with pytest.raises(ValueError, match="has failed before"):
        decoder.advance(16)
    with pytest.raises(ValueError, match="has failed before"):
        decoder.take()


def delta(values: list[int], bits: int, *, block: int = 128, minis: int = 4) -> bytes:
    out = varint(block) + varint(minis) + varint(len(values)) + zigzag(values[0])
    per_mini, mask = block // minis, 2**bits - 1
    steps = [(after - before) & mask for before, after in pairwise(values)]
    for start in range(0, len(steps), block):
        part = steps[start : start + block]
        chunks = [part[at : at + per_mini] for at in range(0, len(part), per_mini)]
        widths = [max(step.bit_length() for step in chunk) for chunk in chunks]
        out += zigzag(0) + bytes(widths) + b"\xee" * (minis - len(widths))  # of miniblocks that are not there: any
        for chunk, width in zip(chunks, widths, strict=True):
            number = sum(step << (index * width) for index, step in enumerate(chunk))
            out += number.to_bytes(width * per_mini // 8, "little")
    return out


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.data(), shape=st.sampled_from([(128, 4), (128, 1), (256, 8), (384, 4)]))
@examples(40)
def test_deltas_wrap_around(bits: int, data: st.DataObject, shape: tuple[int, int]):
    span = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = data.draw(st.lists(span | st.integers(0, 9), min_size=1, max_size=300))
    decoder = cursor(INT32 if bits == 32 else INT64, bits // 8)
    content = delta(values, bits, block=shape[0], minis=shape[1])
    decoder.begin(None, content, len(values), DELTA, -1, -1)
    assert decoder.advance(len(values))
    assert np.frombuffer(decoder.take()[2], f"i{bits // 8}").tolist() == values


GOOD_DELTA = delta([5, 6, 8], 32)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        varint(100) + GOOD_DELTA[2:],  # a block that is no multiple of 128
        varint(2**24) + GOOD_DELTA[2:],  # a block of 16 million
        GOOD_DELTA[:2] + b"\x00" + GOOD_DELTA[3:],  # no miniblocks
        GOOD_DELTA[:2] + b"\x08" + GOOD_DELTA[3:],  # miniblocks of 16 values
        GOOD_DELTA[:3] + b"\x04" + GOOD_DELTA[4:],  # more values than the page has
        GOOD_DELTA[:4] + zigzag(2**31) + GOOD_DELTA[5:],  # a first value of more than 32 bits
        GOOD_DELTA[:5] + zigzag(-(2**31) - 1) + GOOD_DELTA[6:],  # a step of more than 32
        GOOD_DELTA[:6] + b"\x21" + GOOD_DELTA[7:],  # a width of more than the type's
        GOOD_DELTA[:-1],
        GOOD_DELTA[:8],
    ],
)
def test_broken_deltas_are_refused(content: bytes):
    with pytest.raises(ValueError, match="not valid in their encoding"):
        cursor(INT32, 4).begin(None, content, 3, DELTA, -1, -1)


WORDS = [b"", b"a", b"abc", b"abcdefgh", b"abcd"] * 3
WHOLE_PAGES: list[tuple[str, int, int, int, bytes]] = [
    ("numbers", INT64, 8, PLAIN, bytes(15 * 8)),
    ("strings", BYTES, 0, PLAIN, b"".join(sized(word) for word in WORDS)),
    ("Booleans", BOOLEAN, 1, PLAIN, bytes(2)),
    ("Booleans in runs", BOOLEAN, 1, RLE, sized(packed([1, 0] * 4, 1) + repeated(1, 7, 1))),
    ("deltas", INT64, 8, DELTA, delta(list(range(15)), 64)),
    ("streams", INT32, 4, SPLIT, bytes(15 * 4)),
    ("binaries", FIXED, 3, PLAIN, bytes(15 * 3)),
    ("codes", INT32, 4, CODED, b"\x04" + packed([3] * 8, 4) + repeated(2, 7, 4)),
    ("lengths", BYTES, 0, DELTA_LENGTH, delta([len(word) for word in WORDS], 32) + b"".join(WORDS)),
    (
        "prefixes",
        BYTES,
        0,
        DELTA_BYTES,
        delta([0] * 15, 32) + delta([len(word) for word in WORDS], 32) + b"".join(WORDS),
    ),
]


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("page", WHOLE_PAGES, ids=lambda page: page[0])
def test_a_page_that_is_cut_anywhere_is_refused(page: Any, nulls: bool):
    _, physical, size, encoding, content = page

    def read(values: bytes) -> Any:
        decoder = cursor(physical, size, 0, int(nulls))
        if encoding == CODED:
            decoder.dictionary(exact(bytes(16)), 4)
        levels = packed([1, 0] * 15 + [1, 0], 1) if nulls else b""
        decoder.begin(exact(levels), exact(values), 30 if nulls else 15, encoding, 0, len(levels))
        decoder.advance(3)
        assert decoder.advance(30 if nulls else 15)
        return decoder.take()

    taken = read(content)
    check(taken, physical, size, codes=0)
    assert taken[5] == (15 if nulls else 0)
    for end in range(len(content)):
        with pytest.raises(ValueError, match=r"end early|not valid"):
            read(content[:end])


def test_a_shared_prefix_is_not_longer_than_the_string_before():
    shared, own, text = delta([0, 2, 3], 32), delta([2, 1, 0], 32), b"abc"
    decoder = cursor(BYTES, 0)
    decoder.begin(None, shared + own + text, 3, DELTA_BYTES, -1, -1)
    assert decoder.advance(3)
    _, _, offsets, strings, *_ = decoder.take()
    assert (np.frombuffer(offsets, np.int32).tolist(), bytes(strings)) == ([0, 2, 5, 8], b"ababcabc")
    for wrong in ([1, 2, 3], [0, 3, 3], [0, 2, -1], [0, 2]):
        with pytest.raises(ValueError, match=r"prefixes|lengths"):
            cursor(BYTES, 0).begin(None, delta(wrong, 32) + own + text, 3, DELTA_BYTES, -1, -1)


def test_strings_of_a_page_that_grow_beyond_32_bits_are_refused_before_memory_is_taken():
    """Prefixes: a kilobyte of them would be 4 GiB."""
    count, size = 5000, 2**20
    shared, own = delta([0] + [size] * (count - 1), 32), delta([size] + [0] * (count - 1), 32)
    with pytest.raises(ValueError, match="more bytes than 32 bits count"):
        cursor(BYTES, 0).begin(None, shared + own + bytes(size), count, DELTA_BYTES, -1, -1)


@pytest.mark.parametrize(
    ("lists", "max_def", "levels", "expected"),
    [
        (2, 3, [(0, 0), (0, 1), (0, 3), (1, 2), (0, 3)], [None, [], [0, None], [1]]),
        (2, 2, [(0, 0), (0, 1), (0, 2), (1, 2)], [None, [], [0, 1]]),
        (1, 2, [(0, 0), (0, 1), (1, 2), (0, 2)], [[], [None, 0], [1]]),
        (1, 1, [(0, 0), (0, 1), (1, 1)], [[], [0, 1]]),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 10])
def test_null_and_empty_lists_are_told_apart_at_every_level(
    lists: int, max_def: int, levels: list[tuple[int, int]], expected: list[Any], step: int
):
    levels, expected = levels * 20, expected * 20
    values = np.arange(len(levels), dtype=np.int64)
    reps, defs = packed([rep for rep, _ in levels], 1), packed([level for _, level in levels], 2 if max_def > 1 else 1)
    decoder = cursor(INT64, 8, lists, max_def)
    decoder.begin(reps + defs, values.tobytes(), len(levels), PLAIN, len(reps), len(defs))
    found: list[Any] = []
    for start in range(0, len(expected), step):
        decoder.advance(min(step, len(expected) - start))
        rows, elements, content, _, valid, _, starts, list_valid, *_ = decoder.take()
        ends = np.frombuffer(starts, np.int32).tolist()
        numbers = np.frombuffer(content, np.int64).tolist()
        there, listed = bits(valid, elements), bits(list_valid, rows)
        items = [number if here else None for number, here in zip(numbers, there, strict=True)]
        found += [items[ends[row] : ends[row + 1]] if listed[row] else None for row in range(rows)]
    dense = iter(range(len(levels)))
    numbered = [each and [None if item is None else next(dense) for item in each] for each in expected]
    assert found == numbered


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([(1, 3)], "its first level is inside a list"),
        ([(0, 3), (1, 1)], "a list goes on with a level that is no element's"),
        ([(0, 3), (1, 0)], "a list goes on with a level that is no element's"),
    ],
)
def test_levels_that_make_no_lists_are_refused(levels: list[tuple[int, int]], message: str):
    reps, defs = packed([rep for rep, _ in levels], 1), packed([level for _, level in levels], 2)
    decoder = cursor(INT64, 8, 2, 3)
    decoder.begin(reps + defs, bytes(80), len(levels), PLAIN, len(reps), len(defs))
    with pytest.raises(ValueError, match=message):
        decoder.advance(9)


@pytest.mark.parametrize("lists", [0, 1])
def test_fewer_rows_than_there_are_cannot_be_asked_for(lists: int):
    decoder = cursor(INT32, 4, lists, lists)
    levels = packed([0] * 8, 1), packed([1] * 8, 1)
    decoder.begin(b"".join(levels), bytes(32), 8, PLAIN, len(levels[0]), len(levels[1]))
    decoder.advance(5)
    with pytest.raises(ValueError, match="there are more rows already"):
        decoder.advance(4)
    with pytest.raises(ValueError, match="there are more rows already"):
        cursor(INT32, 4, lists, lists).advance(-1)


@pytest.mark.parametrize("encoding", [PLAIN, DELTA, SPLIT])
def test_codes_are_read_of_coded_pages_only(encoding: int):
    decoder = cursor(INT64, 8, codes=2)
    decoder.dictionary(bytes(80), 10)
    with pytest.raises(ValueError, match="its values have no codes"):
        decoder.begin(None, bytes(800), 100, encoding, -1, -1)


@pytest.mark.parametrize(
    ("rep_bytes", "def_bytes"), [(2**63 - 1, 2**63 - 1), (2**63 - 1, 1), (1, 2**63 - 1), (-1, 4), (5, 0), (2, 3)]
)
def test_levels_end_where_their_bytes_do(rep_bytes: int, def_bytes: int):
    with pytest.raises(ValueError, match="its levels end early"):
        cursor(INT64, 8, 2, 3).begin(b"\x02\x00\x02\x03", bytes(8), 1, PLAIN, rep_bytes, def_bytes)


@pytest.mark.parametrize(
    ("physical", "size", "encoding"),
    [(INT32, 4, PLAIN), (BYTES, 0, PLAIN), (BOOLEAN, 1, PLAIN), (FIXED, 65536, PLAIN), (FIXED, 65536, SPLIT)],
)
def test_two_billion_values_of_a_few_bytes_are_refused_before_memory_is_taken(physical: int, size: int, encoding: int):
    count = 2**31 - 1
    decoder = cursor(physical, size)
    decoder.begin(None, bytes(65536), count, encoding, -1, -1)
    with pytest.raises(ValueError, match="its values end early"):
        decoder.advance(count)


def test_a_cursor_has_one_dictionary_whose_entries_are_there():
    decoder = cursor(INT32, 4)
    decoder.dictionary(bytes(8), 2)
    with pytest.raises(ValueError, match="it has two dictionaries"):
        decoder.dictionary(bytes(8), 2)
    for content, count in ((bytes(7), 2), (b"", 1)):
        with pytest.raises(ValueError, match="ends early"):
            cursor(INT32, 4).dictionary(content, count)
    for content, count in ((b"\x01\0\0\0", 1), (b"\0\0\0\0", 2), (b"\xff\xff\xff\xffabc", 1), (b"\0\0\0", 1)):
        with pytest.raises(ValueError, match="ends early"):
            cursor(BYTES, 0).dictionary(content, count)
    for count in (-1, 2**31):
        with pytest.raises(ValueError, match="not valid"):
            cursor(INT32, 4).dictionary(bytes(8), count)
    with pytest.raises(ValueError, match="no dictionary"):
        cursor(INT32, 4).begin(None, b"\x01\x02\x00", 1, CODED, -1, -1)
    with pytest.raises(ValueError, match="no dictionary of strings"):
        cursor(INT32, 4).dictionary_strings()


def test_a_method_cannot_be_called_inside_another():
    class Count:
        def __index__(self) -> int:
            with pytest.raises(ValueError, match="in use"):
                decoder.take()
            return 0

    decoder = cursor(INT32, 4)
    assert decoder.advance(Count())


COLUMN = st.tuples(
    st.sampled_from([(0, 1), (1, 4), (2, 8), (4, 4), (5, 8), (6, 0), (7, 1), (7, 3), (7, 16)]),
    st.sampled_from([(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]),
    st.sampled_from([0, 2, 4]),
)


@given(column=COLUMN, data=st.data())
@examples(400)
def test_any_bytes_and_numbers_are_rows_or_refused(column: Any, data: st.DataObject):
    """What is delivered is as long as it says, and its offsets are in order."""
    (physical, size), (lists, max_def), codes = column
    prefix = data.draw(st.integers(0, 3)) if lists and (codes or physical != BYTES) else 0
    decoder = cursor(physical, size, lists, max_def, codes, prefix)
    short = st.binary(max_size=60) | st.sampled_from([b"\xff" * 40, bytes(60), b"\x03\xff\xff\xff\x7f" * 9])
    number = st.integers(0, 40) | st.sampled_from([-1, 2**31 - 1, 2**31, 2**63 - 1, -(2**63)])
    try:
        if lists == 2 or (lists == 0 and max_def):
            flags = data.draw(st.none() | st.lists(st.sampled_from([0, 0, 1, 255]), max_size=90))
            if flags is not None:
                decoder.flags(exact(bytes(flags)))
        if data.draw(st.booleans()):
            decoder.dictionary(data.draw(short), data.draw(number))
        for _ in range(data.draw(st.integers(1, 4))):
            levels = data.draw(st.none() | short)
            encoding = data.draw(st.sampled_from([PLAIN, 2, RLE, DELTA, DELTA_LENGTH, DELTA_BYTES, CODED, SPLIT, 77]))
            count = data.draw(st.integers(-1, 60) | st.just(2**31))
            decoder.begin(levels, data.draw(short), count, encoding, data.draw(number), data.draw(number))
            decoder.advance(data.draw(st.integers(0, 70)))
            check(decoder.take(), physical, size, codes=codes)
    except ValueError:
        with pytest.raises(ValueError, match="has failed before"):
            decoder.take()


def check(taken: Any, physical: int, size: int, *, codes: int) -> None:
    rows, elements, values, strings, valid, nulls, starts, list_valid, null_lists, _ = taken
    assert bits(valid, elements).count(0) == nulls
    assert bits(list_valid, rows).count(0) == null_lists
    if physical == BOOLEAN:
        assert len(memoryview(values)) == (elements + 7) // 8
    elif physical == BYTES and not codes:
        ends = np.frombuffer(values, np.int32)
        assert (len(ends), ends[0], ends[-1]) == (elements + 1, 0, len(memoryview(strings)))
        assert (np.diff(ends) >= 0).all()
    else:
        assert len(memoryview(values)) == elements * (codes or size)
    if starts is not None:
        begins = np.frombuffer(starts, np.int32)
        assert (len(begins), begins[-1]) == (rows + 1, elements)
        assert (np.diff(begins) >= 0).all()


@pytest.mark.parametrize(
    "arguments",
    [
        (3, 12, 0, 0, 0, 0),  # INT96
        (1, 8, 0, 0, 0, 0),
        (7, 0, 0, 0, 0, 0),
        (7, 65537, 0, 0, 0, 0),
        (1, 4, 3, 3, 0, 0),
        (1, 4, -1, 0, 0, 0),
        (1, 4, -1, -1, 0, 0),
        (1, 4, 0, 2, 0, 0),
        (1, 4, 0, -1, 0, 0),
        (1, 4, 1, 3, 0, 0),
        (1, 4, 2, 1, 0, 0),
        (1, 4, 0, 0, 1, 0),
        (1, 4, 0, 0, 8, 0),
        (1, 4, 0, 0, 0, 5),
        (1, 4, 1, 1, 0, -1),
        (6, 0, 1, 1, 0, 5),  # strings
    ],
)
def test_columns_that_are_not_read_have_no_cursor(arguments: tuple[int, ...]):
    with pytest.raises(ValueError, match="does not read such columns"):
        native._compiled.Cursor(*arguments)
