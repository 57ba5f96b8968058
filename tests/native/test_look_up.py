"""Is the truth of codes that of their entries, and are other codes refused?"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.native import parquet as native

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")


@given(
    size=st.sampled_from([2, 4]),
    entries=st.sampled_from([1, 2, 5, 8, 9, 10, 300, 3000]),
    others=st.integers(0, 6),
    usual=st.booleans(),
    count=st.sampled_from([0, 1, 7, 8, 9, 1023, 1024, 1025, 2500]),
    offset=st.integers(0, 17),
    nulls=st.sampled_from([None, 0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
@examples(300)
def test_truths_are_those_of_the_entries(
    size: int, entries: int, others: int, usual: bool, count: int, offset: int, nulls: float | None, seed: int
):
    random = np.random.default_rng(seed)
    truths = np.full(entries + 1, usual)
    truths[random.integers(0, entries + 1, others)] = not usual  # as few as are compared, and more
    codes = random.integers(0, entries + 1, offset + count).astype(f"u{size}")
    mask = None if nulls is None else random.random(offset + count) < nulls
    array = pa.array(codes, mask=mask).slice(offset)
    valid, places = array.buffers()
    alone = np.frombuffer(places, f"u{size}")[: offset + count].copy()
    bits = None if valid is None else np.frombuffer(valid, np.uint8)[: (offset + count + 7) // 8].copy()
    found = native.look_up(alone, size, bits, array.offset, count, truths)
    expected = truths[codes] if mask is None else np.where(mask, truths[-1], truths[codes])
    assert found.tolist() == expected[offset:].tolist()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("few", [True, False])
def test_codes_that_are_not_in_the_dictionary_are_refused(size: int, few: bool):
    truths = np.arange(20) % (30 if few else 2) == 1
    codes = np.full(2000, 19, f"u{size}")
    assert native.look_up(codes, size, None, 0, 2000, truths).tolist() == [not few] * 2000
    codes[-1] = 20
    assert len(native.look_up(codes, size, None, 0, 1999, truths)) == 1999
    with pytest.raises(ValueError, match="not in its dictionary"):
        native.look_up(codes, size, None, 0, 2000, truths)


@pytest.mark.parametrize(
    ("size", "bits", "offset", "count", "entries"),
    [
        (1, None, 0, 8, 4),
        (8, None, 0, 1, 4),
        (2, None, 0, 9, 4),
        (2, None, 1, 8, 4),
        (2, None, 9, 0, 4),
        (2, None, -1, 1, 4),
        (2, None, 0, -1, 4),
        (2, None, 2**62, 2**62, 4),
        (4, None, 0, 5, 4),
        (2, 0, 0, 1, 4),
        (2, 1, 1, 8, 4),
        (2, None, 0, 8, 0),
    ],
)
def test_what_lies_outside_the_codes_is_refused(size: int, bits: int | None, offset: int, count: int, entries: int):
    valid = None if bits is None else bytes(bits)
    with pytest.raises(ValueError, match="fewer codes than are to be looked up"):
        native.look_up(np.zeros(8, np.uint16), size, valid, offset, count, np.zeros(entries, np.bool_))


@pytest.mark.parametrize("codes", [2, 4])
@pytest.mark.parametrize("levels", [b"\x03\x2d", b"\x08\x00\x02\x01\x02\x00\x02\x01"])
def test_the_code_of_a_null_is_one_more_than_the_last_entrys(codes: int, levels: bytes):
    cursor = native.Cursor(1, 4, 0, 1, codes=codes)
    cursor.set_dictionary(np.array([7, 8, 9], np.int32), 3)
    valid = [True, False, True, True, False, True] if len(levels) == 2 else [False] * 4 + [True, False, True]
    page = native.Page(3, 0, 0, 0, len(valid), 8, -1, -1, len(valid), 0, len(levels), 0, 0, -1)
    cursor.begin(page, levels, b"\x02" + b"\x08\x02")  # 2 bits: the code 2, four times
    assert cursor.advance(len(valid))
    found = np.frombuffer(cursor.take().values, f"u{codes}")
    assert found.tolist() == [2 if there else 3 for there in valid]
