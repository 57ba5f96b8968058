"""An index of events finds the rows of each key, as pandas does from the rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import CorruptFileError, TableArgumentError, TableError
from feedline.warehouse.histories import event_index
from feedline.warehouse.histories.event_index import EventIndex, HashRanges, hashes_of, read_event_index
from feedline.warehouse.optimize.clustering import row_order
from feedline.warehouse.parquet.history_note import NOTE_KEY, HistoryNote, HistoryOrder, NoteBuilder


def clustered(keys: pa.Array) -> pa.Array:
    """Keys of events in the order of a table of histories."""
    table = pa.table({"user": keys, "ts": np.zeros(len(keys), np.int64)})
    return table.take(pa.array(row_order(table, ["user"], ["ts"])))["user"].combine_chunks()


def noted(keys: pa.Array) -> dict[bytes, bytes]:
    """The metadata of a file whose events have these keys, in this order."""
    builder = NoteBuilder(HistoryOrder(key="user", sort_by=("ts",)), keys.type)
    builder.add(pa.table({"user": keys, "ts": np.arange(len(keys))}))
    return {NOTE_KEY: builder.note().to_json()}


def index_of(keys: pa.Array) -> EventIndex:
    index = read_event_index(noted(keys), "f.parquet")
    assert index is not None
    return index


def runs_by_pandas(stored: list[Any], asked: list[Any]) -> list[tuple[int, int]]:
    groups = pd.Series(range(len(stored))).groupby(pd.Series(stored, dtype=object)).agg(["min", "max"])
    runs = {key: (int(low), int(high) + 1) for key, low, high in groups.itertuples()}
    return [runs.get(key, (0, 0)) for key in asked]


VALUES = {
    pa.int64(): st.integers(-5, 40) | st.sampled_from([2**63 - 1, -(2**63)]),
    pa.uint64(): st.integers(0, 40) | st.just(2**64 - 1),
    pa.int16(): st.integers(-5, 40),
    pa.string(): st.text("ab", max_size=4),
    pa.large_string(): st.text("ab", max_size=4),
    pa.binary(): st.binary(max_size=1),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_runs_are_those_of_the_rows(kind: pa.DataType) -> None:
    values = st.lists(st.none() | VALUES[kind], max_size=60)

    @examples(30)
    @given(values, values)
    def check(stored: list[Any], asked: list[Any]) -> None:
        keys = clustered(pa.array(stored, kind))
        index = index_of(keys)
        asked += stored
        for form in (
            pa.array(asked, kind),
            pa.chunked_array([pa.array(asked, kind)]),
            pl.Series(pa.array(asked, kind)),
        ):
            starts, stops = index.runs(form)
            assert list(zip(starts.tolist(), stops.tolist(), strict=True)) == runs_by_pandas(keys.to_pylist(), asked)
        assert (index.rows, index.key, index.sort_by, index.stripe_rows) == (len(stored), "user", ("ts",), 512)
        assert index.times.tolist() == [0] * bool(stored)

    check()


def test_keys_are_equal_whatever_their_widths() -> None:
    index = index_of(clustered(pa.array([1, 1, -1, 200], pa.int16())))
    for kind in (pa.int64(), pa.int32(), pa.int16()):
        assert (np.subtract(*index.runs(pa.array([1, -1, 7, None], kind))[::-1])).tolist() == [2, 1, 0, 0]
    starts, stops = index.runs(pa.array([2**64 - 1, 1, 65_736], pa.uint64()))
    assert (stops - starts).tolist() == [0, 2, 0], "of numbers that do not fit, none is another one"
    text = index_of(clustered(pa.array(["a", "b", "b"])))
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert (np.subtract(*text.runs(pa.array(["b", "", None], kind))[::-1])).tolist() == [2, 0, 0]
    assert text.runs(pa.nulls(2))[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    "asked", [pa.array(["1"]), pa.array([1.0]), pa.array([1], pa.timestamp("us")), pl.Series([b"1"])]
)
def test_keys_of_another_type_are_refused(asked: Any) -> None:
    with pytest.raises(TableArgumentError, match=r"keys have another type than 'user' of the events: got .*int64"):
        index_of(pa.array([1])).runs(asked)


@examples(30)
@given(st.lists(st.integers(0, 12), max_size=60), st.integers(1, 4))
def test_keys_of_equal_hashes_are_told_apart(stored: list[int], hashes: int) -> None:
    def few(table: pa.Table, keys: Any) -> Any:
        return table[keys[0]].fill_null(0).to_numpy().astype(np.uint64) % hashes

    keys = pa.array(sorted(stored, key=lambda key: (key % hashes, key)), pa.int64())
    asked = list(range(15))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_index, "key_hashes", few)
        starts, stops = index_of(keys).runs(pa.array(asked))
    assert list(zip(starts.tolist(), stops.tolist(), strict=True)) == runs_by_pandas(keys.to_pylist(), asked)


def test_a_file_without_a_note_has_no_index() -> None:
    assert read_event_index(None, "f.parquet") is None
    assert read_event_index({b"other": b""}, "f.parquet") is None


@pytest.mark.parametrize("keys", [clustered(pa.array(range(9)))[::-1], pa.array([5, 6, 5])])
def test_keys_in_another_order_than_their_hashes_are_refused(keys: pa.Array) -> None:
    with pytest.raises(CorruptFileError, match=r"f\.parquet must have distinct keys in the order of their hashes"):
        read_event_index(noted(keys), "f.parquet")


def test_a_key_stored_twice_is_refused() -> None:
    note = HistoryNote(
        order=HistoryOrder(key="user", sort_by=("ts",)),
        stripe_rows=512,
        rows=2,
        null_rows=0,
        keys=pa.array(["a", "a"]),
        counts=np.array([1, 1]),
        times=np.array([7]),
    )
    with pytest.raises(CorruptFileError, match="must have distinct keys"):
        read_event_index({NOTE_KEY: note.to_json()}, "f.parquet")


@examples(30)
@given(st.lists(st.none() | st.integers(0, 60), max_size=80), st.lists(st.integers(0, 80), max_size=5), st.randoms())
def test_a_key_is_in_the_file_that_its_hash_names(stored: list[int | None], cuts: list[int], random: Any) -> None:
    keys = clustered(pa.array(stored, pa.int64()))
    listed = keys.to_pylist()
    borders = [0, *sorted(cut for cut in cuts if cut < len(listed) and listed[cut - 1] != listed[cut]), len(listed)]
    parts = [keys[low:high] for low, high in pairwise(borders)]
    random.shuffle(parts)
    indexes = [index_of(part) for part in parts]
    ranges = HashRanges.of(indexes, "table")
    asked = pa.array(range(70), pa.int32())
    starts, stops = ranges.candidates(hashes_of(asked))
    assert (stops - starts <= 1).all()
    for key, start, stop in zip(range(70), starts, stops, strict=True):
        candidates = ranges.files[start:stop].tolist()
        assert {file for file, part in enumerate(parts) if key in part.to_pylist()} <= set(candidates)
    if len(ranges.files) > 1:
        with pytest.raises(TableError, match="files of table hold overlapping ranges of keys"):
            HashRanges.of([*indexes, index_of(clustered(pa.array([k for k in listed if k is not None])))], "table")


def test_a_hash_on_a_border_has_both_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        event_index, "key_hashes", lambda table, keys: table[keys[0]].to_numpy().astype(np.uint64) // 10
    )
    files: tuple[list[int], ...] = ([205, 300], [30, 59], [], [101, 202])
    ranges = HashRanges.of([index_of(pa.array(keys, pa.int64())) for keys in files], "table")
    assert ranges.files.tolist() == [1, 3, 0]
    starts, stops = ranges.candidates(np.array([3, 5, 7, 10, 20, 30, 99], np.uint64))
    assert list(zip(starts.tolist(), stops.tolist(), strict=True)) == [
        (0, 1),
        (0, 1),
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 3),
        (3, 3),
    ]
