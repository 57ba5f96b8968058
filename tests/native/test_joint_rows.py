"""Column chunks are opened, and their rows handed out, together: in any order of lengths, and whatever is wrong."""

from __future__ import annotations

import gc
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.native import parquet as native
from feedline.native.parquet import Cursor

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="installed without a compiler")

INT32, INT64, BYTE_ARRAY = 1, 2, 6
ROWS = 10


class Exported:
    """A batch that the kernel hands out."""

    def __init__(self, schema: pa.Schema, array: Any) -> None:
        self.schema, self.array = schema, array

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self.schema.__arrow_c_schema__(), self.array


def request_of(column: pa.Array, layout: tuple[int, ...], **changes: Any) -> native.ChunkRequest:
    """A chunk of these values, behind other bytes."""
    out = BytesIO()
    pq.write_table(pa.table({"v": column}), out, compression="none")
    chunk = pq.read_metadata(out).row_group(0).column(0)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    size = chunk.total_compressed_size
    known = {"size": size, "values": chunk.num_values, "rows": len(column), "codec": 0, "codes": False, "refused": 0}
    known |= changes
    content = np.frombuffer(out.getvalue(), np.uint8)[: start + size].copy()
    sizes = known["size"], known["values"], known["rows"], known["codec"]
    return (content, start, *sizes, known["codes"], 0, known["refused"], layout)


NUMBERS = pa.array([*range(ROWS - 1), None], pa.int64())
SMALL = pa.array([-1, 2] * (ROWS // 2), pa.int8())
WORDS = pa.array(["a", "", None, "long " * 20, "é"] * (ROWS // 5), pa.string())
LISTS = pa.array([[1, None], [], None, [2], [3, 4, 5]] * (ROWS // 5), pa.large_list(pa.int64()))
REQUESTS = [
    request_of(NUMBERS, (INT64, 8, 0, 1, 0, 0, 0)),
    request_of(SMALL, (INT32, 4, 0, 1, 1, 0, 0), codes=True),  # 2 entries, of 10 values
    request_of(SMALL, (INT32, 4, 0, 1, 1, 0, 0)),
    request_of(WORDS, (BYTE_ARRAY, 0, 0, 1, 0, 1, 0)),
    request_of(LISTS, (INT64, 8, 2, 3, 0, 0, 1)),
]
CODES = pa.array([0, 1] * (ROWS // 2), pa.uint16())


def cursors(requests: list[native.ChunkRequest]) -> list[Cursor]:
    opened = native.open_chunks(requests)
    return [Cursor.over(each[0]) for each in opened if each is not None]


def test_rows_come_in_two_batches_which_keep_their_memory():
    opened = native.open_chunks(REQUESTS)
    assert [each and each[1:] for each in opened] == [
        (9, 0, None),
        (2, 2, None),
        (2, 0, None),
        (4, 0, None),
        (5, 0, None),
    ]
    open_cursors = [Cursor.over(each[0]) for each in opened if each is not None]
    taken = [native.take_rows(open_cursors, 3, some) for some in (4, 0, 6)]
    flat = pa.schema([("numbers", pa.int64()), ("codes", pa.uint16()), ("small", pa.int8())])
    others = pa.schema([("words", pa.large_string()), ("lists", LISTS.type)])
    batches = [[pa.record_batch(Exported(*pair)) for pair in zip((flat, others), each, strict=True)] for each in taken]
    del opened, open_cursors, taken
    gc.collect()
    tables = [pa.Table.from_batches(each) for each in zip(*batches, strict=True)]
    for table in tables:
        table.validate(full=True)
    assert tables[0].to_pydict() == {
        "numbers": NUMBERS.to_pylist(),
        "codes": CODES.to_pylist(),
        "small": SMALL.to_pylist(),
    }
    assert tables[1].to_pydict() == {"words": WORDS.to_pylist(), "lists": LISTS.to_pylist()}


def test_chunks_that_are_not_decoded_here_are_left_out():
    layout = (INT64, 8, 0, 1, 0, 0, 0)
    others = [
        request_of(NUMBERS, layout, values=ROWS + 1),  # the footer says more
        request_of(NUMBERS, layout, size=20),  # the first page ends early
        request_of(NUMBERS, layout, refused=1),  # data pages of version 1
    ]
    assert [each is None for each in native.open_chunks([REQUESTS[0], *others, REQUESTS[0]])] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_what_is_wrong_with_a_chunk_is_said_and_the_others_are_freed():
    more = request_of(NUMBERS, (INT64, 8, 0, 1, 0, 0, 0), rows=ROWS - 1)
    found = native.take_rows(cursors([REQUESTS[0], more]), 2, ROWS - 1)
    assert found == [False, "its pages hold more rows than its footer says"]
    assert native.take_rows(cursors([*REQUESTS[3:], REQUESTS[0]]), 0, ROWS + 2) == [ROWS, ROWS, ROWS]


def test_wrong_arguments_are_refused():
    content, start, size, *rest = REQUESTS[0]
    for request in (
        (content, start, size + 1, *rest),
        (content, -1, size, *rest),
        (content, start, -1, *rest),
        (content, start, size, *rest[:2], 99, *rest[3:]),  # no codec
        (content, start, size, *rest[:-1], (INT64, 4, 0, 1, 0, 0, 0)),
        (content, start, size, *rest[:-1], (INT64, 8, 0, 1, 2, 0, 0)),  # not to be shortened
    ):
        with pytest.raises(ValueError, match="a cursor does not read such c"):
            native.open_chunks([request])
    [cursor] = cursors(REQUESTS[:1])
    for flat, rows in ((2, 1), (-1, 1), (1, -1)):
        with pytest.raises(ValueError, match="fewer cursors than flat ones"):
            native.take_rows([cursor], flat, rows)
    with pytest.raises(ValueError, match="in use"):
        native.take_rows([cursor, cursor], 2, 1)
    cursor.set_flags(np.ones(ROWS, np.bool_))
    with pytest.raises(ValueError, match="does not deliver all rows"):
        native.take_rows([cursor], 1, 1)
    assert isinstance(native.take_rows(cursors(REQUESTS[:1]), 1, 1), tuple)  # capsules that nothing imports are freed
