"""Does a cursor read a chunk whose pages it finds itself, and refuse all else, whatever it is called with?"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.native import parquet as native

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

INT32, INT64, BYTES, PLAIN, CODED = 1, 2, 6, 0, 8
DATA, INDEX, DICTIONARY, DATA_V2 = range(4)  # pages of an index are not read
FIELDS = native.Page._fields


def table(*pages: dict[str, int]) -> np.ndarray:
    usual = {"start": 0, "compressed": 0, "uncompressed": 0, "values": 0, "encoding": 0, "is_compressed": 1}
    return np.array([[{**usual, **page}.get(name, -1) for name in FIELDS] for page in pages], np.int64)


def cursor_over(chunk: bytes, pages: np.ndarray, *, codec: int = 0, physical: int = INT64, size: int = 8) -> Any:
    cursor = native.Cursor(physical, size, 0, 0, codes=0)
    cursor.set_source(np.frombuffer(chunk, np.uint8).copy(), pages, codec)
    return cursor


def test_several_chunks_advance_together():
    """Pages of any size; one chunk ends early, and one is damaged."""
    numbers = np.arange(20, dtype=np.int64)
    pages = table(
        {"kind": DATA, "compressed": 56, "uncompressed": 56, "values": 7},
        {"kind": DATA, "start": 56, "compressed": 104, "uncompressed": 104, "values": 13},
    )
    whole = cursor_over(numbers.tobytes(), pages)
    short = cursor_over(numbers.tobytes(), pages[:1])
    wrong = cursor_over(numbers.tobytes(), pages + np.array([0] * 3 + [1] + [0] * 10))  # other sizes
    assert native.read_chunks([whole, short, wrong], -1) == (False, False, False)
    assert native.read_chunks([whole, short], 5) == (True, True)
    assert [np.frombuffer(each.take().values, np.int64).tolist() for each in (whole, short)] == [[0, 1, 2, 3, 4]] * 2
    found = native.read_chunks([whole, short, wrong], 15)
    assert found == (True, False, "a page has another size than its header says")
    assert np.frombuffer(whole.take().values, np.int64).tolist() == list(range(5, 20))
    assert short.take().rows == 2
    with pytest.raises(ValueError, match="has failed before"):
        native.read_chunks([whole, wrong], 1)
    assert native.read_chunks([whole], 0) == (True,)  # it is not busy


def test_results_are_made_while_another_thread_holds_all_objects():
    """As a memory profiler does: a tuple in the making is among `gc.get_objects()`, and could not be filled then."""
    numbers = np.arange(2_000_000, dtype=np.int64)
    size = numbers.nbytes
    pages = table({"kind": DATA, "compressed": size, "uncompressed": size, "values": len(numbers)})
    held: list[list[object]] = []
    ended = threading.Event()

    def hold() -> None:
        while not ended.is_set():
            held[:] = [gc.get_objects()]

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        for _ in range(5):
            assert native.read_chunks([cursor_over(numbers.tobytes(), pages)], len(numbers)) == (True,)
    finally:
        ended.set()
        holder.join()


def test_a_dictionary_is_read_before_the_rows():
    entries = np.array([7, 9], np.int32).tobytes()
    codes = b"\x01" + b"\x02\x01" + b"\x04\x00"  # 1 bit: once the code 1, twice the code 0
    pages = table(
        {"kind": DICTIONARY, "compressed": 8, "uncompressed": 8, "values": 2},
        {"kind": DATA, "start": 8, "compressed": 5, "uncompressed": 5, "values": 3, "encoding": CODED},
    )
    cursor = cursor_over(entries + codes, pages, physical=INT32, size=4)
    assert native.read_chunks([cursor], -1) == (True,)
    assert bytes(cursor.dictionary_bytes()) == entries
    assert native.read_chunks([cursor], 3) == (True,)
    assert np.frombuffer(cursor.take().values, np.int32).tolist() == [9, 7, 7]


@pytest.mark.parametrize(
    "page",
    [
        {"kind": 4},
        {"kind": INDEX},
        {"kind": -1},
        {"kind": DATA, "start": -1},
        {"kind": DATA, "start": 9},
        {"kind": DATA, "start": 1, "compressed": 8},
        {"kind": DATA, "compressed": -1},
        {"kind": DATA, "uncompressed": 2**31},
        {"kind": DATA, "values": -1},
        {"kind": DATA, "values": 2**31},
        {"kind": DATA_V2, "compressed": 4, "uncompressed": 9, "def_bytes": 3, "rep_bytes": 2},
        {"kind": DATA_V2, "compressed": 4, "uncompressed": 4},
    ],
)
def test_pages_outside_the_chunk_are_refused(page: dict[str, int]):
    with pytest.raises(ValueError, match="a chunk's pages are not where its table says"):
        cursor_over(bytes(8), table(page))


def test_what_is_no_chunk_is_refused():
    with pytest.raises(ValueError, match="does not read such chunks"):
        cursor_over(bytes(8), table(), codec=5)
    with pytest.raises(ValueError, match="does not read such chunks"):
        cursor_over(bytes(8), table()).set_source(bytes(8), table(), 0)
    cursor = cursor_over(bytes(8), table())
    with pytest.raises(ValueError, match="has no chunk"):
        native.read_chunks([native.Cursor(INT64, 8, 0, 0, codes=0)], 1)
    with pytest.raises(ValueError, match="a cursor is in use"):
        native.read_chunks([cursor, cursor], 1)
    with pytest.raises(ValueError, match="no cursor"):
        native._compiled.read_chunks((cursor.compiled, 7), 1)
    assert native.read_chunks([cursor], 1) == (False,)


@given(data=st.data())
@examples(300)
def test_any_pages_of_any_bytes_are_rows_or_refused(data: st.DataObject):
    chunk = data.draw(st.binary(max_size=80))
    small = st.integers(-1, 20)
    kinds = st.sampled_from([DATA, DATA, DICTIONARY, DATA_V2])
    rows = [
        [
            data.draw(kinds),
            *(data.draw(small) for _ in range(4)),
            data.draw(st.integers(0, 9)),
            *[data.draw(small)] * 7,
            -1,
        ]
        for _ in range(data.draw(st.integers(0, 4)))
    ]
    physical, size = data.draw(st.sampled_from([(INT64, 8), (INT32, 4), (BYTES, 0)]))
    lists, max_def = data.draw(st.sampled_from([(0, 0), (0, 1), (1, 1), (2, 3)]))
    codes = data.draw(st.sampled_from([0, 2, 4]))
    cursor = native.Cursor(physical, size, lists, max_def, codes=codes)
    codec = data.draw(st.sampled_from(sorted(native.CODECS.values())))
    try:
        cursor.set_source(np.frombuffer(chunk, np.uint8).copy(), np.array(rows, np.int64).reshape(-1, 14), codec)
    except ValueError:
        return
    for wanted in (-1, 3, 30):
        [found] = native.read_chunks([cursor], wanted)
        if isinstance(found, str):
            with pytest.raises(ValueError, match="has failed before"):
                cursor.take()
            return
    taken = cursor.take()
    assert 0 <= taken.rows <= 30


def test_freed_columns_are_overwritten_in_tests():
    """So that a view that does not keep its memory alive cannot go unnoticed."""
    program = (
        "import ctypes, numpy as np\n"
        "from feedline.native import parquet as native\n"
        "cursor = native.Cursor(2, 8, 0, 0, codes=0)\n"
        "cursor.begin(native.Page(*[0] * 4, 99, *[0] * 9), None, np.full(99, 7, np.int64))\n"
        "assert cursor.advance(99)\n"
        "values = cursor.take().values\n"
        "view = np.frombuffer(values, np.int64)\n"
        "address = view.ctypes.data + 8 * 50\n"
        "del values\n"
        "print(ctypes.c_int64.from_address(address).value)\n"
        "del view\n"
        "print(hex(ctypes.c_uint64.from_address(address).value))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["7", "0xa5a5a5a5a5a5a5a5"]
