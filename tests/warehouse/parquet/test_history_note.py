"""The note of a file of histories says what its rows say, and a damaged one is refused by name."""

from __future__ import annotations

import base64
import datetime
import json
from contextlib import suppress
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import CorruptFileError
from feedline.warehouse.parquet.history_note import (
    NULL_TIME,
    STRIPE_ROWS,
    HistoryNote,
    HistoryOrder,
    NoteBuilder,
    is_key_type,
    is_time_type,
)

ORDER = HistoryOrder(key="user", sort_by=("ts", "no"))


def built(table: pa.Table, borders: list[int]) -> HistoryNote:
    """The note of a file whose rows come as tables that end at these rows."""
    builder = NoteBuilder(ORDER, table.schema.field("user").type)
    for low, high in zip([0, *borders], [*borders, table.num_rows], strict=True):
        builder.add(table.slice(low, high - low))
    return builder.note()


@examples(40)
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 50), st.integers(1, 1500)), max_size=8, unique_by=lambda one: one[0]),
    st.lists(st.integers(0, 6000), max_size=5),
    st.sampled_from([pa.int64(), pa.string(), pa.date32()]),
)
def test_a_note_is_what_a_pass_over_the_rows_finds(
    groups: list[tuple[int | None, int]], ends: list[int], kind: pa.DataType
) -> None:
    groups.sort(key=lambda one: one[0] is not None)
    spell: Any = {pa.string(): str, pa.date32(): datetime.date.fromordinal, pa.int64(): int}[kind]
    keys = [None if key is None else spell(key + 1) for key, count in groups for _ in range(count)]
    times = [None if row % 3 == 0 else row * 7 for row in range(len(keys))]
    table = pa.table({"user": pa.array(keys, kind), "ts": pa.array(times, pa.timestamp("us"))})
    note = built(table, sorted(min(end, len(keys)) for end in ends))
    expected = [(key, len(list(run))) for key, run in groupby(keys)]
    assert note.null_rows == sum(count for key, count in expected if key is None)
    assert list(zip(note.keys.to_pylist(), note.counts.tolist(), strict=True)) == [
        (key, count) for key, count in expected if key is not None
    ]
    assert note.times.tolist() == [NULL_TIME if time is None else time for time in times[::STRIPE_ROWS]]
    read = HistoryNote.from_json(note.to_json(), "f.parquet")
    assert (read.order, read.stripe_rows, read.rows, read.null_rows) == (ORDER, 512, len(keys), note.null_rows)
    assert read.keys.equals(note.keys)
    assert read.keys.type == kind
    assert np.array_equal(read.counts, note.counts)
    assert np.array_equal(read.times, note.times)


def test_times_are_in_the_unit_of_their_type() -> None:
    day = datetime.date(1970, 1, 12)
    for kind, value in ((pa.date32(), 11), (pa.date64(), 11 * 86_400_000), (pa.timestamp("s", "UTC"), 11 * 86_400)):
        times = pa.array([day], pa.date32()).cast(kind)
        assert built(pa.table({"user": [1], "ts": times}), []).times.tolist() == [value]
    assert built(pa.table({"user": [1], "ts": pa.array([-3], pa.int16())}), []).times.tolist() == [-3]


def test_rows_that_continue_the_last_key_are_counted() -> None:
    builder = NoteBuilder(ORDER, pa.string())
    builder.add(pa.table({"user": ["b", "b", "a"], "ts": [1, 2, 3]}))
    for keys, rows in ((["a", "a", "b"], 2), (["b", "a"], 0), (["a"], 1), ([None, "a"], 0)):
        assert builder.continued_rows(pa.table({"user": pa.array(keys, pa.string())})) == rows
    builder.add(pa.table({"user": pa.array([None], pa.string()), "ts": [1]}))
    assert builder.continued_rows(pa.table({"user": pa.array([None, None, "a"], pa.string())})) == 2


def test_types_of_keys_and_times() -> None:
    both = (pa.int8(), pa.uint32(), pa.int64(), pa.date32(), pa.timestamp("ns"))
    keys = (*both, pa.uint64(), pa.string(), pa.large_string(), pa.binary())
    neither = (pa.null(), pa.float64(), pa.bool_(), pa.decimal128(9), pa.time64("us"), pa.list_(pa.int64()))
    assert [kind for kind in (*keys, *neither) if is_key_type(kind)] == list(keys)
    assert [kind for kind in (*keys, *neither) if is_time_type(kind)] == list(both)


def document(**changes: Any) -> bytes:
    note = built(pa.table({"user": [None, 4, 4, 9], "ts": [3, 1, 2, 1]}), [])
    return json.dumps({**json.loads(note.to_json()), **changes}).encode()


def index(keys: pa.Array, counts: pa.Array, times: pa.Array, rows: int = 1) -> str:
    lists = {
        name: pa.array([values.to_pylist()] * rows, pa.large_list(values.type))
        for name, values in (("keys", keys), ("counts", counts), ("times", times))
    }
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.table(lists).schema) as stream:
        stream.write_table(pa.table(lists))
    return base64.b64encode(sink.getvalue()).decode()


KEYS, COUNTS, TIMES = pa.array([4, 9]), pa.array([2, 1]), pa.array([3])
INDEX = index(KEYS, COUNTS, TIMES)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"\xff{", "must be JSON"),
        (b"[1]", "must be of version 1: got version None"),
        (document(version=2), "must be of version 1: got version 2"),
        (document(key=None), "must name a key"),
        (document(sort_by=[]), "must name a key"),
        (document(sort_by=["ts", 3]), "must name a key"),
        (document(rows="4"), "0 <= null_rows <= rows"),
        (document(null_rows=5), "0 <= null_rows <= rows"),
        (document(stripe_rows=0), "must have stripe_rows >= 1"),
        (document(rows=5), "must count the file's 5 rows: got 4"),
        (document(null_rows=2), "must count the file's 4 rows: got 5"),
        (document(stripe_rows=2), "must have the times of 2 stripes: got 1"),
        (document(index=None), "must have an index"),
        (document(index=INDEX[:-3]), "must have an index"),
        (document(index=INDEX[: len(INDEX) // 8 * 4]), "must have an index"),
        (document(index="AAAA"), "must have an index"),
        (document(index=index(KEYS, COUNTS, TIMES, rows=2)), "must have an index of one row of lists"),
        (document(index=index(pa.array([4, None]), COUNTS, TIMES)), "must have keys without nulls"),
        (document(index=index(pa.array([4.0, 9.0]), COUNTS, TIMES)), "must have keys without nulls: got 0 nulls of"),
        (document(index=index(KEYS, COUNTS.cast(pa.int32()), TIMES)), "must have counts and times of int64"),
        (document(index=index(KEYS, COUNTS, pa.array([None], pa.int64()))), "must have counts and times of int64"),
        (document(index=index(KEYS[:1], COUNTS, TIMES)), "must have a count per key: got 2 counts, 1 keys"),
        (document(index=index(KEYS, pa.array([3, 0]), TIMES)), "must count 1 to 4 rows per key: got 0"),
        (document(index=index(KEYS, pa.array([2**62, 1]), TIMES)), "must count 1 to 4 rows per key"),
    ],
)
def test_damaged_notes_are_refused_with_the_file_and_the_rule(content: bytes, rule: str) -> None:
    assert HistoryNote.from_json(document(index=INDEX), "f.parquet").rows == 4
    with pytest.raises(CorruptFileError, match=f"^the note of histories in f.parquet .*{rule}"):
        HistoryNote.from_json(content, "f.parquet")


@given(st.data())
def test_flipped_bytes_are_refused_or_read(data: st.DataObject) -> None:
    stream = bytearray(base64.b64decode(INDEX))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    content = document(index=base64.b64encode(bytes(stream)).decode())
    with suppress(CorruptFileError):
        note = HistoryNote.from_json(content, "f.parquet")
        assert note.counts.sum() + note.null_rows == note.rows == 4
